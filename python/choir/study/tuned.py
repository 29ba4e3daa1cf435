"""Fine-tuning: every arm on every task with every seed, from its longest cooled run. The accuracy of a run is the
mean of its last three evaluations on the dev set, because that of the best one would be biased upwards. A probe of
the parent is measured, too."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import pathlib
from typing import Any, Callable, Optional

import numpy as np

from .. import _files, runs
from . import StudyError, probe
from .lane import has_begun
from .program import Runner
from .recipe import read
from .store import checksum, differences, name
from .study import Sequel, Study

LAST = 3
KINDS = {"accuracy": "Fine-tuned: accuracy in %", "probe": "A linear probe, before fine-tuning: accuracy in %"}


def _settings(study: Study, task: str) -> dict[str, Any]:
    """The settings that determine an accuracy, together with the parent."""
    tune, scale = study.recipe["tune"], study.scale.get("tune")
    if not scale:
        raise StudyError(f"scale '{study.scale['name']}' has no \"tune\": steps, evaluations, rows")
    return {"task": task, "recipe": tune.get("recipe", "constant"), "set": tune.get("set", {}), **scale}


def _files_hash(directory: pathlib.Path) -> str:
    made = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        made.update(os.fsencode(path.name) + b"\0" + _files.read(path, _files.TEXT_LIMIT, given=True))
    return made.hexdigest()[:16]


def folder(task: str) -> str:
    """The folder of a task's files, which is also the task's name in results: the `name` in its description file. Names of
    built-in tasks, and "average", are returned unchanged."""
    name = probe.describe(task).get("name") if "/" in task or task.endswith(".json") else task
    return _files.component(str(name), f"task {task}: its name")


def _name(study: Study, arm: str, seed: int, task: str) -> Optional[str]:
    end = study.longest(arm, seed)
    if not end:
        return None
    key = checksum(end, study.facts["hash"], _settings(study, task))
    return f"tuned-{folder(task)}-{name(end, study.facts['hash'])}-{key}"


def result(study: Study, arm: str, seed: int, task: str) -> Optional[dict[str, Any]]:
    known = _name(study, arm, seed, task)
    found = study.store.get(known) if known else None
    if found is None:
        return None
    differing = differences(_settings(study, task), found.get("settings"))
    if differing:
        raise StudyError(f"{study.store.directory}: {known} is not the expected result: {'; '.join(differing)}")
    return found


@dataclasses.dataclass
class Tuning(Sequel):
    """Fine-tuning on a task with the name `what`."""

    runner: Runner
    tasks: pathlib.Path

    @property
    def steps(self) -> int:
        return self.study.scale["tune"]["steps"]

    def run(self, threads: int, report: Callable[[str], None]) -> None:
        study, settings = self.study, _settings(self.study, self.what)
        parent = study.trained(self.arm, self.seed, "fine-tuning needs")
        known = _name(study, self.arm, self.seed, self.what)
        out = study.out / "tuned" / known
        words = ["finetune", "--out", out, "--threads", threads]
        if has_begun(out):
            words += ["--resume"]
        else:
            given = {"steps": settings["steps"], "eval_every": math.ceil(settings["steps"] / settings["evaluations"]),
                     "eval_sequences": settings.get("rows", 0), "seed": self.seed, **settings["set"]}  # fmt: skip
            words += ["--init-from", parent, "--task", self.what, "--data", self.tasks, "--recipe", settings["recipe"]]
            words += [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        self.runner.run(words, study.out / "logs" / f"{out.name[:100]}.txt", lambda: None)
        self.at = self.steps
        evaluations = [line for line in runs.lines(out) if line.get("event") == "dev"]
        files = self.tasks / folder(self.what)
        made = {
            "format": "choir-tuned", "settings": settings, "seed": self.seed,
            "files_hash": _files_hash(files), "majority": read(out / "result.json")["majority"],
            "accuracy": [line["own"]["accuracy"] for line in evaluations],
            "probe": probe.accuracy(parent, self.what, files, threads),
        }  # fmt: skip
        study.store.add(known, made)


def missing(study: Study, runner: Runner, tasks: pathlib.Path) -> list[Tuning]:
    found = []
    for seed in range(1, study.seeds + 1):
        for task in study.recipe["tune"]["tasks"]:
            files = tasks / folder(task)
            for arm in study.arms:
                if not files.is_dir() or not study.rate(arm.name):
                    continue
                there = result(study, arm.name, seed, task)
                if there and there["files_hash"] != _files_hash(files):
                    known = _name(study, arm.name, seed, task)
                    raise StudyError(f"{study.store.directory}: {known} was measured on other files than those of {files}; remove it, and run the study again")
                if not there:
                    found.append(Tuning(study, arm.name, seed, task, runner, tasks))
    return found


def _accuracies(study: Study, task: str, what: str) -> np.ndarray:
    """[arms,seeds] in % of one of the KINDS; NaN where a run is missing."""

    def accuracy(arm: str, seed: int) -> Optional[float]:
        found = result(study, arm, seed, task)
        return 100 * np.mean(np.atleast_1d(found[what])[-LAST:]) if found else None

    return study.grid(accuracy)


def table(study: Study, what: str) -> np.ndarray:
    """[arms,seeds] averages over the tasks that any run has; NaN for a run that lacks a task."""
    every = np.stack([_accuracies(study, task, what) for task in study.recipe["tune"]["tasks"]])
    kept = every[np.isfinite(every).any(axis=(1, 2))]
    return kept.mean(axis=0) if len(kept) else np.full((len(study.arms), study.seeds), np.nan)


def rows(study: Study, what: str) -> tuple[list[str], list[list[str]]]:
    """Table head and rows: one row per task, one column per arm, with the paper's accuracies if it has any."""
    paper = study.recipe["tune"].get("paper", {}) if what == "accuracy" else {}
    head = ["task", *(arm.name for arm in study.arms), *(f"paper, {name}" for name in paper)]
    made = []
    for task in [*study.recipe["tune"]["tasks"], "average"]:
        values = table(study, what) if task == "average" else _accuracies(study, task, what)
        cells = [f"{np.nanmean(row):.1f}" if np.isfinite(row).any() else "-" for row in values]
        made.append([folder(task), *cells, *(f"{column.get(task, '-')}" for column in paper.values())])
    return head, made
