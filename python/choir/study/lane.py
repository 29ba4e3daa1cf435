"""A lane: one arm with one learning rate and one seed, from a trunk of constant learning rate to its cooled end
points.

The trunk is one run with a constant learning rate. For every budget, a copy of its checkpoint at the beginning of
that budget's cooldown continues in a separate directory with a falling rate. The result is bit for bit the same as
that of a run with this schedule from the beginning (docs/training.md). So five end points cost little more than the
longest one.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
from typing import Any, Callable

from .. import Error, _files
from .jobs import Work
from .program import Runner
from .recipe import write
from .store import Store, checksum, name


def cooldown_steps(steps: int, share: float) -> int:
    """Number of cooldown steps of a run with so many steps; the trunk has at least one step."""
    return min(steps - 1, round(steps * share))


def end_config(base: dict[str, Any], rate: float, seed: int, steps: int, share: float) -> dict[str, Any]:
    """The config of an arm's cooled end point."""
    changed = {"learning_rate": rate, "seed": seed, "steps": steps, "cooldown_steps": cooldown_steps(steps, share)}
    return {**base, "train": {**base["train"], **changed}}


def _is_step(name: str) -> bool:
    return re.fullmatch("[0-9]+", name) is not None


def newest(run: pathlib.Path, most: float = float("inf")) -> int:
    """The step of the newest checkpoint that has at most `most` steps; 0: none."""
    found = [int(p.name) for p in (run / "checkpoints").glob("*") if _is_step(p.name)]
    return max((step for step in found if step <= most), default=0)


def last_step(run: pathlib.Path) -> int:
    """The last step in the log; 0 without a log."""
    try:
        with open(_files.opened(run / "metrics.jsonl"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            found = re.findall(rb'(?m)^\{"event":"step","step":([0-9]{1,18}),.*\n', file.read())
    except Error:
        return 0
    return int(found[-1]) if found else 0


def has_begun(run: pathlib.Path) -> bool:
    """Whether the run can be resumed: a run killed early leaves only settings, and is started again."""
    return (run / "metrics.jsonl").exists() or newest(run) > 0


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)  # files of checkpoints are never modified
    except OSError:
        _files.copy(source, target)


def branch(trunk: pathlib.Path, step: int, out: pathlib.Path) -> None:
    """Creates a run directory that continues from a step of another run."""
    new = out.with_name(f".{out.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    number = next(p.name for p in (trunk / "checkpoints").iterdir() if _is_step(p.name) and int(p.name) == step)
    shutil.copytree(trunk / "checkpoints" / number, new / "checkpoints" / number, copy_function=_link)
    for file in ("config.json", "data.path", "metrics.jsonl", "timing.jsonl"):
        _files.copy(trunk / file, new / file)
    new.rename(out)


@dataclasses.dataclass
class Lane(Work):
    """The missing runs of one arm, learning rate and seed. `ends`: configs of end points, the shortest first."""

    ends: list[dict[str, Any]]
    arms: list[str]  # names of the arms that share these runs, for display
    flops: float  # FLOPs of a step
    runner: Runner
    store: Store
    out: pathlib.Path
    data: pathlib.Path
    data_hash: str

    @property
    def key(self) -> str:
        one = self._config(self.ends[0], 1, 0)
        one["train"]["eval_sequences"] = 0
        return f"{name(one, self.data_hash).rsplit('-', 2)[0]}-{checksum(one, self.data_hash)}"

    @property
    def trunk(self) -> pathlib.Path:
        return self.out / "trunks" / self.key

    @staticmethod
    def _config(end: dict[str, Any], steps: int, cooldown: int, **more: Any) -> dict[str, Any]:
        return {**end, "train": {**end["train"], "steps": steps, "cooldown_steps": cooldown, **more}}

    @staticmethod
    def _leave(end: dict[str, Any]) -> int:
        """The step at which an end point leaves the trunk: at the latest one step before its end, because its last step
        includes the evaluation."""
        return end["train"]["steps"] - max(1, end["train"]["cooldown_steps"])

    @property
    def steps(self) -> int:
        return self._leave(self.ends[-1]) + sum(end["train"]["steps"] - self._leave(end) for end in self.ends)

    def _train(self, config: dict[str, Any], out: pathlib.Path, threads: int, begun: int) -> None:
        file = self.out / "configs" / f"{out.parent.name}-{out.name}.json"
        write(file, config)
        if out.is_symlink():
            _files.directory(out)  # raises the error
        words = ["train", "--config", file, "--out", out, *self.runner.places(threads)]
        words += ["--resume"] if has_begun(out) else ["--data", self.data]

        def watch() -> None:
            self.now = max(0, last_step(out) - begun)

        self.runner.run(words, self.out / "logs" / f"{out.name}.txt", watch)

    def run(self, threads: int, report: Callable[[str], None]) -> None:
        before = 0
        for end in self.ends:
            steps, leave = end["train"]["steps"], self._leave(end)
            out = self.out / "runs" / name(end, self.data_hash)
            if not has_begun(out):
                if newest(self.trunk) < leave:
                    stage = self._config(end, leave, 0, eval_sequences=1)  # the trunk's losses are not used
                    self._train(stage, self.trunk, threads, before)
                # Without a checkpoint at `leave`, because the trunk is already further, train from the beginning.
                if newest(self.trunk, leave):
                    branch(self.trunk, newest(self.trunk, leave), out)
            self.at, self.now = self.at + leave - before, 0
            self._train(end, out, threads, leave)
            self.at, self.now = self.at + steps - leave, 0
            before = leave
            # Keep a result that another machine stored: the last digits of this run's may differ.
            found = self.store.take(end, self.data_hash) or self.store.put(out, end, self.data_hash)
            report(f"{self.arms[0]}, seed {end['train']['seed']}, {steps} steps: {found['final']['causal']['loss']:.4f}")
