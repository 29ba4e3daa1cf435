"""A study: a recipe at a scale, on some data, in a directory; its stored results, and its missing runs."""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
from typing import Any, Callable, Iterable, Optional, Sequence

import numpy as np

from .. import _files
from . import StudyError, recipe as recipes
from . import configs, program, settings, statistics
from .jobs import Work
from .lane import Lane, end_config, newest
from .program import Runner
from .recipe import Arm
from .store import Store, name


@dataclasses.dataclass
class Study:
    recipe: dict[str, Any]
    scale: dict[str, Any]
    data: pathlib.Path
    out: pathlib.Path
    store: Store
    seeds: int
    budgets: list[int]  # tokens
    facts: dict[str, Any]  # the output of `choir data info`
    own: pathlib.Path  # the study's directory

    @classmethod
    def make(
        cls, name: str, data: str, out: str, scale: str, store: Optional[str], seeds: int, budgets: list[int],
        own: Sequence[str] = (),
    ):  # fmt: skip
        made_scale, made_recipe = recipes.load_scale(scale), recipes.load(name, own)
        data_path, out_path = pathlib.Path(data).resolve(), pathlib.Path(out).resolve()
        store_path = pathlib.Path(store).resolve() if store else out_path / "results"
        for option, given in (("--data", data_path), ("--out", out_path), ("--store", store_path)):
            if not str(given).isprintable():  # otherwise study.json could not be read
                raise StudyError(f"{option} {ascii(str(given))}: has characters that cannot be printed; choose another")
        if (out_path / "data.json").exists() or (out_path / "metrics.jsonl").exists():
            raise StudyError(f"{out}: holds built data or a run; a study needs a directory of its own")
        facts = program.ask("data", "info", data_path)
        if not facts["heldout_tokens"]:
            raise StudyError(f"{data}: has no held-out share, on which a study measures losses; build the data with --holdout")
        study = cls(
            made_recipe, made_scale, data_path, out_path, Store(store_path, made_recipe["name"]),
            seeds or made_scale["seeds"], sorted(budgets or made_scale["budgets"]), facts,
            out_path / f"{made_recipe['name']}-{made_scale['name']}",
        )  # fmt: skip
        counts = {name: study.step_tokens(name) for name in study._configs}
        if len(set(counts.values())) > 1:
            raise StudyError(f"recipe {made_recipe['name']}: arms have different numbers of tokens per step: {counts}")
        return study

    # ---- arms and their configs ----

    @functools.cached_property
    def arms(self) -> list[Arm]:
        return recipes.arms(self.recipe)

    @functools.cached_property
    def _configs(self) -> dict[str, dict[str, Any]]:
        vocab = self.facts["vocab_size"]
        return {arm.name: configs.config(self.recipe, self.scale, arm, vocab).as_dict() for arm in self.arms}

    def step_tokens(self, arm: str) -> int:
        train = self._configs[arm]["train"]
        return train["batch_sequences"] * train["sequence_length"] * train["accumulate"]

    @property
    def measure(self) -> str:
        """The name of held-out losses; a bound must not be compared with a loss."""
        objective = self._configs[self.arms[0].name]["train"]["objective"]
        known = {"next_token": "causal loss", "masked_diffusion": "upper bound"}
        return known.get(objective, "loss of masked tokens")

    @functools.cached_property
    def steps(self) -> list[int]:
        """Steps of every budget."""
        each = self.step_tokens(self.arms[0].name)
        return sorted({max(1, tokens // each) for tokens in self.budgets})

    @functools.lru_cache(None)
    def end(self, arm: str, rate: float, seed: int, steps: int) -> dict[str, Any]:
        return end_config(self._configs[arm], rate, seed, steps, self.scale.get("cooldown", 0.2))

    # ---- results ----

    def result(self, arm: str, rate: float, seed: int, steps: int) -> Optional[dict[str, Any]]:
        return self.store.take(self.end(arm, rate, seed, steps), self.facts["hash"])

    def rates(self, arm: str) -> list[tuple[float, float]]:
        """Learning rates tried for the arm that determines this arm's learning rate, with their losses; NaN if
        missing."""
        owner = next(a.rate_of for a in self.arms if a.name == arm)
        found = []
        for rate in self.scale["rates"]:
            result = self.result(owner, rate, 1, self.steps[-1]) if len(self.scale["rates"]) > 1 else None
            found.append((rate, result["final"]["causal"]["loss"] if result else math.nan))
        return found

    def lacking(self, arm: str) -> list[float]:
        """Learning rates of the search that have no result yet, or whose run failed. One of them may be the best rate."""
        if len(self.scale["rates"]) == 1:
            return []
        return [rate for rate, loss in self.rates(arm) if not math.isfinite(loss)]

    def rate(self, arm: str) -> Optional[float]:
        """The learning rate of an arm; None if not known yet."""
        if len(self.scale["rates"]) == 1:
            return self.scale["rates"][0]
        rates, losses = zip(*self.rates(arm))
        return statistics.best_rate(rates, losses)[0] if np.isfinite(losses).any() else None

    @functools.lru_cache(None)
    def table(self, steps: int, what: str = "causal") -> np.ndarray:
        """Final losses [arms,seeds] at a budget; NaN where a run is missing."""

        def loss(arm: str, seed: int) -> Optional[float]:
            result = self.final(arm, seed, steps)
            return result["final"][what]["loss"] if result else None

        return self.grid(loss)

    def grid(self, value: Callable[[str, int], Optional[float]]) -> np.ndarray:
        """[arms,seeds] of value(arm, seed); NaN for None."""
        seeds = range(1, self.seeds + 1)
        return np.array([[value(arm.name, seed) for seed in seeds] for arm in self.arms], float)

    def apart(self, arm: int, steps: int) -> Optional[statistics.Estimate]:
        """How much higher the final loss of arm number `arm` is than the first arm's."""
        weights = np.zeros(len(self.arms))
        weights[0], weights[arm] = -1, 1
        return statistics.contrast(self.table(steps), weights, self.scale.get("chaos", 0.0))

    def final(self, arm: str, seed: int, steps: Optional[int] = None) -> Optional[dict[str, Any]]:
        rate = self.rate(arm)
        return self.result(arm, rate, seed, steps or self.steps[-1]) if rate else None

    def finals(self, arm: str) -> list[dict[str, Any]]:
        """Final results of all finished seeds at the largest budget."""
        return [found for seed in range(1, self.seeds + 1) if (found := self.final(arm, seed))]

    def longest(self, arm: str, seed: int) -> Optional[dict[str, Any]]:
        """The config of the arm's longest cooled run; None if its learning rate is not known yet."""
        rate = self.rate(arm)
        return self.end(arm, rate, seed, self.steps[-1]) if rate else None

    def trained(self, arm: str, seed: int, need: str) -> pathlib.Path:
        """The directory of that run. StudyError: only its result is in the store. need: for example "texts need"."""
        run = self.out / "runs" / name(self.longest(arm, seed), self.facts["hash"])
        if not newest(run):
            raise StudyError(f"{run} is not on this machine: {need} the run itself, not its result alone")
        return run

    # ---- missing runs ----

    def lanes(self, runner: Runner, searching: bool) -> list[Lane]:
        """All missing work: of the search for learning rates, or of the runs themselves."""
        wanted: dict[str, Lane] = {}
        for seed in range(1, 2 if searching else self.seeds + 1):
            for arm in self.arms:
                if searching and (arm.rate_of != arm.name or len(self.scale["rates"]) == 1):
                    continue
                own = self.rate(arm.name)
                for rate in self.scale["rates"] if searching else [own] if own else []:
                    lane = self._lane(runner, arm.name, rate, seed)
                    if lane and lane.key in wanted:
                        wanted[lane.key].arms.append(arm.name)
                    elif lane:
                        wanted[lane.key] = lane
        return list(wanted.values())

    def _lane(self, runner: Runner, arm: str, rate: float, seed: int) -> Optional[Lane]:
        ends = [self.end(arm, rate, seed, s) for s in self.steps if not self.result(arm, rate, seed, s)]
        if not ends:
            return None
        return self._trained(runner, arm, ends)

    def _trained(self, runner: Runner, arm: str, ends: list[dict[str, Any]]) -> Lane:
        flops = self.costs(arm)["train_flops_per_token"] * self.step_tokens(arm)
        return Lane(ends, [arm], flops, runner, self.store, self.out, self.data, self.facts["hash"])

    def absent(self, runner: Runner, works: Iterable[Any]) -> list[Lane]:
        """The runs that `works` (each of an arm and a seed) continue, and whose directories are missing on this machine,
        because only their results are in the store."""
        found: dict[str, Lane] = {}
        for work in works:
            end = self.longest(work.arm, work.seed)
            if newest(self.out / "runs" / name(end, self.facts["hash"])) < self.steps[-1]:
                lane = self._trained(runner, work.arm, [end])
                found.setdefault(lane.key, lane)
        return list(found.values())

    @functools.lru_cache(None)
    def costs(self, arm: str) -> dict[str, Any]:
        file = self.out / "configs" / f"costs-{self.recipe['name']}.json"
        recipes.write(file, self._configs[arm])
        return program.ask("info", file)

    # ---- study.json ----

    def save(self) -> None:
        facts = {
            "format": "choir-study", "recipe": self.recipe, "scale": self.scale, "data": str(self.data),
            "data_facts": self.facts, "store": str(self.store.directory), "seeds": self.seeds, "budgets": self.budgets,
        }  # fmt: skip
        recipes.write(self.own / "study.json", facts)

    @classmethod
    def open(cls, own: pathlib.Path) -> Study:
        path = own / "study.json"
        _files.directory(own)  # refuses a link
        kept = recipes.read(path)
        recipes.check(path, kept, "study.schema.json")
        recipes.check_recipe(path, kept["recipe"])
        recipes.check(path, {"scale": {k: v for k, v in kept["scale"].items() if k != "name"}}, "scale.schema.json")
        settings.check_scale(f"{path}: scale", kept["scale"])
        return cls(
            kept["recipe"], kept["scale"], pathlib.Path(kept["data"]), own.parent,
            Store(pathlib.Path(kept["store"]), kept["recipe"]["name"]), kept["seeds"], kept["budgets"], kept["data_facts"],
            own,
        )  # fmt: skip

    __hash__ = object.__hash__  # by identity, so that lru_cache can store answers per study


@dataclasses.dataclass
class Sequel(Work):
    """Work on the longest cooled run of an arm and seed; `what` describes it."""

    study: Study
    arm: str
    seed: int
    what: str

    @property
    def arms(self) -> list[str]:
        return [f"{self.arm}, seed {self.seed}, {self.what}"]

    @property
    def flops(self) -> float:
        return self.study.costs(self.arm)["train_flops_per_token"]


def all_in(directory: pathlib.Path) -> list[Study]:
    found = [Study.open(path.parent) for path in sorted(pathlib.Path(directory).glob("*/study.json"))]
    if not found:
        raise StudyError(f"{directory}: contains no study; choir study run makes one")
    return found
