"""Losses on texts that were not used in training: for every arm and seed, the longest cooled run is evaluated on
every text of the recipe, with all routings that `choir eval` shows. Each run adds a line to the store, next to its
result.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import tempfile
from typing import Any, Callable, Optional

import numpy as np

from .. import _files
from .._router import OWN, TAKERS
from ..config import Config
from ..model import Model
from . import StudyError, configs, program
from .store import evaluation, name
from .study import Sequel, Study

HOME = "held-out"  # name of the data's held-out share among the texts
# Sequences of each text, the first ones, with the length of training. A recipe may set another number; 0: all.
SEQUENCES = 128
# Options of expert choice that determine the assignment. The others, of scores and gates, keep their values.
CHOICE = frozenset(name for name in OWN["expert_choice"].options if TAKERS[name] not in ("scores", "gates", "learned"))
KEPT = ("loss", "tokens", "experts_per_token", "fullest")


def _name(study: Study, arm: str, seed: int) -> Optional[str]:
    end = study.longest(arm, seed)
    return f"texts-{name(end, study.facts['hash'])}" if end else None


def result(study: Study, arm: str, seed: int) -> dict[str, Any]:
    """By text: `hash`, and for each routing the values in KEPT. Empty if nothing was evaluated."""
    known = _name(study, arm, seed)
    found = study.store.get(known) if known else None
    if found is None:
        return {}
    if (found.get("format"), found.get("sequences")) != ("choir-texts", sequences(study)):
        message = f"{known} was not measured on {sequences(study)} sequences per text; remove it, and run the study again"
        raise StudyError(f"{study.store.directory}: {message}")
    return found["texts"]


def sequences(study: Study) -> int:
    """The number of sequences of each text; 0: all."""
    return study.recipe.get("sequences", SEQUENCES)


def losses(study: Study, arm: str, texts: list[str], routing: Optional[str] = None) -> np.ndarray:
    """[seeds], the mean loss over texts; NaN if a text is missing. routing None: the router's own routing, or threshold
    routing if its own depends on other tokens."""

    def loss(found: dict[str, Any], text: str) -> float:
        by = found.get(text, {})
        own = next((how for how in by if how != "hash"), "")
        one = by.get(routing or ("threshold" if "threshold" in by else own), {})
        return one.get("loss", np.nan)

    every = [result(study, arm, seed) for seed in range(1, study.seeds + 1)]
    return np.array([np.mean([loss(found, text) for text in texts]) for found in every])


def _hash(path: pathlib.Path) -> str:
    return hashlib.sha256(_files.read(path, _files.TEXT_LIMIT, given=True)).hexdigest()[:16]


@dataclasses.dataclass
class Reading(Sequel):
    """The evaluation of one run on the texts that its stored result lacks."""

    texts: dict[str, pathlib.Path]  # path of each text of the recipe, by name; HOME is the study's data
    lacking: list[str]

    @property
    def steps(self) -> int:
        return len(self.lacking)

    def run(self, threads: int, report: Callable[[str], None]) -> None:
        study = self.study
        run = study.trained(self.arm, self.seed, "texts need")
        found = result(study, self.arm, self.seed)
        for text in self.lacking:
            path = self.texts[text]
            where = ["--data" if text == HOME else "--text", path]
            words = [*where, "--sequences", sequences(study), "--threads", threads]
            answer = program.ask("eval", run, *words)
            each = {answer["routing"]: answer}
            if "threshold" in answer:
                each["threshold"] = answer["threshold"]
            if study.recipe.get("topk") and _experts_choose(run):
                with tempfile.TemporaryDirectory() as made:
                    by_topk(run).save(f"{made}/topk")
                    each["topk"] = program.ask("eval", f"{made}/topk", *words)
            kept = {how: {key: v for key, v in evaluation(one).items() if key in KEPT} for how, one in each.items()}
            found[text] = {"hash": study.facts["hash"] if text == HOME else _hash(path), **kept}
            self.at += 1
        made = {"format": "choir-texts", "sequences": sequences(study), "texts": found}
        study.store.add(_name(study, self.arm, self.seed), made)


def _experts_choose(run: pathlib.Path) -> bool:
    """Whether experts choose among the tokens of a pool, so that by_topk is another routing than the run's own."""
    router = Config(run / "config.json")["model.router.name"]
    return any(option.key == "model.router.pool" for option in Config.router_options(router))


def by_topk(run: pathlib.Path, normalize_gates: Optional[bool] = None) -> Model:
    """Loads a model of expert choice with top-K routing, K being the capacity factor, as if it had been trained
    without thresholds. In every layer, this is the same as a forced assignment of each token to its K best experts.
    The model keeps all options of its router except those of CHOICE; ArgumentError names one that `topk` does not
    take. normalize_gates: whether the gates of a token sum to 1; None: as in training."""
    model = Model.load(run)
    config = model.config
    options = {f.key: config[f.key] for f in Config.router_options(config["router.name"])}
    kept = {key: value for key, value in options.items() if key.rpartition(".")[2] not in CHOICE}
    if normalize_gates is not None:
        kept["model.router.normalize_gates"] = normalize_gates
    capacity = {f"model.router.{key}": 0 for key in ("capacity_factor", "eval_capacity_factor", "capacity_start")}
    each = {"model.router.experts_per_token": round(config["router.capacity_factor"])}
    config.update(wanted := {"model.router.name": "topk", **kept, **capacity, **each})
    configs.compare(config, wanted)
    made = Model(config)
    for parameter in made.parameters():
        made.set(parameter, model.get(parameter))
    made.tokenizer = model.tokenizer
    return made


def missing(study: Study, directory: pathlib.Path) -> list[Reading]:
    """The evaluations that the store lacks, of the texts in DIRECTORY/NAME.txt. Refuses a missing or changed text."""
    texts = {text: study.data if text == HOME else directory / f"{text}.txt" for text in study.recipe["texts"]}
    hashes = {}
    for text, path in texts.items():
        if not path.exists():
            raise StudyError(f"{path}: no such file; the recipe needs the texts {', '.join(texts)}")
        hashes[text] = study.facts["hash"] if text == HOME else _hash(path)
    works = []
    for seed in range(1, study.seeds + 1):
        for arm in study.arms:
            if not study.rate(arm.name):
                continue
            found = result(study, arm.name, seed)
            for text, one in found.items():
                if text in hashes and one["hash"] != hashes[text]:
                    message = f"{_name(study, arm.name, seed)} was measured on another text '{text}' than {texts[text]}; remove it"
                    raise StudyError(f"{study.store.directory}: {message}")
            lacking = [text for text in texts if text not in found]
            if lacking:
                works.append(Reading(study, arm.name, seed, "texts", texts, lacking))
    return works


def rows(study: Study) -> tuple[list[str], list[list[str]]]:
    """Table head and rows: one row per arm and routing, one column per text; means over seeds, and their standard
    deviation."""
    made = []
    for arm in study.arms:
        found = [result(study, arm.name, seed) for seed in range(1, study.seeds + 1)]
        for how in dict.fromkeys(how for texts in found for by in texts.values() for how in by if how != "hash"):
            values = [losses(study, arm.name, [text], how) for text in study.recipe["texts"]]
            cells = [f"{np.nanmean(v):.3f} ± {np.nanstd(v, ddof=1):.3f}" if np.isfinite(v).sum() > 1
                     else f"{np.nanmean(v):.3f}" if np.isfinite(v).any() else "-" for v in values]  # fmt: skip
            seeds = [seed for seed, one in enumerate(found, 1) if one]
            alone = f", seed {seeds[0]} alone" if len(seeds) == 1 < study.seeds else ""
            made.append([f"{arm.name}, {how}{alone}", *cells])
    return ["arm, routing", *study.recipe["texts"]], made
