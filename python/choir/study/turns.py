"""Step times, measured in alternating rounds over all arms, so that other load of the machine affects all arms alike.
The speed of the runs themselves is not comparable: they shared the machine."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from typing import Callable

import numpy as np

from .. import runs
from . import StudyError
from .jobs import Work
from .lane import branch, newest
from .program import Runner
from .recipe import read as read_json
from .recipe import write
from .study import Study

ROUNDS, STEPS = 9, 12


def file_of(study: Study) -> pathlib.Path:
    return study.own / "time.json"


def read(study: Study) -> dict[str, list[float]]:
    """Seconds per step by arm and round; empty if nothing was timed."""
    path = file_of(study)
    if not path.exists():
        return {}
    kept = read_json(path)
    if not isinstance(kept, dict) or not isinstance(kept.get("arms"), dict):
        raise StudyError(f"{path}: has no times of arms; remove it, and 'choir study run' measures them again")
    return kept["arms"]


@dataclasses.dataclass
class Turns(Work):
    """Every arm continues its first run, on real text, because the loads of experts depend on their training."""

    study: Study
    runner: Runner
    flops = 1.0
    arms = ["step times"]

    @property
    def steps(self) -> int:
        return ROUNDS * len(self.study.arms)

    def run(self, threads: int, report: Callable[[str], None]) -> None:
        times: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for arm in self.study.arms:
                if self.study.rate(arm.name):
                    times.setdefault(arm.name, []).append(self._turn(arm.name, threads))
                self.at += 1
        write(file_of(self.study), {"threads": threads, "rounds": ROUNDS, "arms": times})

    def _turn(self, arm: str, threads: int) -> float:
        study = self.study
        run, made = study.trained(arm, 1, "times need"), study.own / ".turn"
        shutil.rmtree(made, ignore_errors=True)
        branch(run, newest(run), made)
        words = ["train", "--resume", "--out", made, *self.runner.places(threads), "--set", f"steps={newest(run) + STEPS}"]
        words += ["--set", "cooldown_steps=0", "--set", "eval_sequences=1"]
        self.runner.run(words, study.out / "logs" / "times.txt", lambda: None)
        seconds = [line["seconds"] for line in runs.lines(made, "timing.jsonl") if "seconds" in line][-STEPS:]
        shutil.rmtree(made)
        return float(np.median(seconds[1:]))
