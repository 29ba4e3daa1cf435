"""The two sides as processes that take turns, and how far apart their results are."""
import contextlib
import json
import os
import subprocess
import time

import numpy as np

import tensors

PAUSE = 0.05  # seconds between turns: threads that spin while they wait have gone to sleep


class Side:
    """One side: answers every line with a line of JSON."""

    def __init__(self, name, command, environment):
        # Large blocks come from one heap that is never given back, in huge pages: no page faults in a step, for either side.
        tunables = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776"
        self.name = name
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "GLIBC_TUNABLES": tunables, **environment})
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise ChildProcessError(f"{self.name} ended with status {self.process.wait()}")
        return json.loads(line)

    def ask(self, line):
        with contextlib.suppress(BrokenPipeError):  # the process ended since its last answer: answer() raises
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        return self.answer()

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def one_line(command, environment=None):
    """The JSON that a command prints; None when it fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env={**os.environ, **(environment or {})})
    return None if done.returncode else json.loads(done.stdout.splitlines()[-1])


def relative(got, want):
    """The L2 norm of got - want, divided by the norm of `want`; NaN if got has a NaN."""
    size = np.linalg.norm(want.astype(np.float64))
    difference = np.linalg.norm(got.astype(np.float64) - want)
    return difference / size if size > 0 else difference


def largest(differences):
    """The largest difference, or NaN if any is NaN. Python's max() keeps a NaN only in the first place."""
    return float(np.max(list(differences)))


def compare(kind, directory, workers, first, inputs):
    """Largest differences after the first run of each. Vectors of weights are left out: Adafactor's first step takes the sign of
    each of their gradients, and those near zero may have either."""
    saved = []
    for w in workers:
        path = directory / f"{w.name}.safetensors"
        w.ask(f"save {path}")
        saved.append(tensors.read(path))
    mine, theirs = saved
    if kind == "layer":
        return {"layer": largest(relative(mine[name].ravel(), theirs[name].ravel()) for name in theirs)}
    before = {name: tensors.sample(t.ravel()) for name, t in tensors.read(inputs[0] / "model.safetensors").items()
              if t.ndim > 1}
    updates = [relative(mine[name] - before[name], theirs[name] - before[name]) for name in before]
    return {"loss": abs(first[0]["loss"] / first[1]["loss"] - 1), "update": largest(updates)}


def take_turns(workers, repetitions):
    """The seconds of each worker's runs, by its name. The workers take turns, and the first of a turn alternates."""
    seconds = {w.name: [] for w in workers}
    for r in range(repetitions):
        for w in workers if r % 2 == 0 else workers[::-1]:
            time.sleep(PAUSE)
            seconds[w.name].append(w.ask("run")["seconds"])
    return [seconds[w.name] for w in workers]
