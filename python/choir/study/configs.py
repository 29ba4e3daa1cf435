"""The config that an arm trains: the base changed by scale, recipe and arm in one operation, and compared with the
planned values."""

from __future__ import annotations

import copy
import functools
import json
import pathlib
import tempfile
from typing import Any, Iterator

from .. import _files
from ..config import Config
from . import StudyError
from .recipe import ROOT, Arm
from .settings import ROUTER, path_of

@functools.lru_cache(None)
def _base(config: str) -> Config:
    path = ROOT / "configs" / f"{config}.json"
    if not config.startswith("{"):
        path = path if path.exists() else pathlib.Path(config)
        _files.read(path, given=True)  # refuses a pipe, which a scale from another user may name
        return Config(path)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(config)
        file.flush()
        return Config(file.name)


def _changes(recipe: dict[str, Any], scale: dict[str, Any], arm: Arm) -> Iterator[dict[str, Any]]:
    """Objects with `set` and `times`, in the order of their application."""
    yield scale
    yield recipe
    if "batch_tokens" in recipe:
        yield {"batch_tokens": recipe["batch_tokens"]}
    yield from arm.changes


def _without_changes(base: Config, changes: list[dict[str, Any]]) -> Config:
    """The config before the changes: a router other than the base's starts with its own defaults."""
    made = copy.copy(base)
    names = [value for one in changes for key, value in one.get("set", {}).items() if path_of(key) == ROUTER + "name"]
    if names and names[-1] != made["model.router.name"]:
        blank = {f.key: f.default for f in Config.router_options(names[-1])}
        made.update({**blank, "model.router.name": names[-1]})
    return made


def planned(start: Config, changes: list[dict[str, Any]]) -> dict[str, Any]:
    """Every field that the changes name, with its final value."""
    wanted: dict[str, Any] = {}

    def now(path: str) -> Any:
        return wanted[path] if path in wanted else start[path]

    for change in changes:
        wanted.update({path_of(key): value for key, value in change.get("set", {}).items()})
        factors = {path_of(key): factor for key, factor in change.get("times", {}).items()}
        # d_expert comes last, because its default is d_hidden.
        for path in sorted(factors, key=lambda path: path == "model.d_expert"):
            old, factor = now(path), factors[path]
            if path == "model.d_expert" and not old:
                old = now("model.d_hidden")
            wanted[path] = round(old * factor) if isinstance(old, int) else old * factor
        if "batch_tokens" in change:
            wanted["train.batch_sequences"] = change["batch_tokens"] // now("train.sequence_length")
    return wanted


def _same(made: Any, wanted: Any) -> bool:
    if isinstance(made, bool):
        return str(made).lower() == str(wanted).lower()
    return made == str(wanted) if isinstance(made, str) else made == float(wanted)


def compare(made: Config, wanted: dict[str, Any]) -> None:
    """StudyError names every field of the config that differs from the plan."""
    differing = [f"{key} is {made[key]} instead of {value}" for key, value in wanted.items() if not _same(made[key], value)]
    if differing:
        raise StudyError(f"the config differs from the plan: {'; '.join(differing)}")


def _check_length(made: Config) -> None:
    """Refuses settings that depend on the length of the whole run: a trunk is longer than the end points that branch
    off."""
    wrong = [
        f"{key} is {made[key]}"
        for key, bad in (
            ("train.schedule", made["train.schedule"] == "cosine"),
            ("train.warmup_steps", 0 < made["train.warmup_steps"] < 1),
            ("model.router.capacity_start", made["model.router.capacity_start"] > 0),
        )
        if bad
    ]
    if wrong:
        reason = "depends on the length of the whole run, but the runs of several budgets share their first steps"
        raise StudyError(f"{' and '.join(wrong)}: {reason}; leave it out")


def config(recipe: dict[str, Any], scale: dict[str, Any], arm: Arm, vocab_size: int) -> Config:
    """The arm's config except learning rate, seed and budget. StudyError if it would differ from the plan."""
    base = scale["config"] if isinstance(scale["config"], str) else json.dumps(scale["config"])
    changes = list(_changes(recipe, scale, arm))
    try:
        made = _without_changes(_base(base), changes)
        # One evaluation, at the end, on the whole held-out share.
        made.update({f"train.{key}": 0 for key in ("eval_every", "eval_sequences", "cooldown_steps", "schedule_start")})
        made.set("train.checkpoint_every", 1000)
        wanted = planned(made, changes)
        masked = wanted.get("train.objective", made["train.objective"]) != "next_token"
        wanted["model.vocab_size"] = vocab_size + masked  # the last token is the mask
        made.update(wanted)
        compare(made, wanted)
        if made["model.d_expert"] == made["model.d_hidden"]:
            made.set("model.d_expert", 0)  # the same model must be the same run
        _check_length(made)
        made.check()
    except Exception as error:
        raise StudyError(f"recipe {recipe['name']}, arm '{arm.name}': {error}") from None
    return made
