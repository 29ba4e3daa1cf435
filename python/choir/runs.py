"""Logs of runs as NumPy tables."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from . import _files
from ._errors import FormatError
from ._fields import Path


def lines(run: Path, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The objects of metrics.jsonl or timing.jsonl, without an incomplete last line."""
    found, path = [], os.path.join(os.fspath(run), file)
    with open(_files.opened(path), "rb") as source:
        for number, line in enumerate(iter(lambda: source.readline(_files.LIMIT), b""), 1):
            if not line.endswith(b"\n") and len(line) < _files.LIMIT:
                break  # an incomplete line, still being written
            try:
                found.append(dict(json.loads(line)))
            except (ValueError, TypeError, RecursionError) as error:
                raise FormatError(f"{path}: line {number}: is no object: {error}") from None
    return found


def table(objects: list[dict[str, Any]]) -> np.ndarray:
    """A structured array with one row per object and all numbers: table(...)["loss"]. NaN if an object lacks the
    number."""
    names: dict[str, None] = {}
    for one in objects:
        for key, value in one.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                names.setdefault(key)
    made = np.full(len(objects), np.nan, [(name, np.float64) for name in names])
    for row, one in enumerate(objects):
        for name in names:
            value = one.get(name)
            if isinstance(value, (int, float)):
                made[name][row] = value
    return made


def _renamed(step: dict[str, Any]) -> dict[str, Any]:
    """A step as choir writes it since 0.6: before, the learning rate was `rate`."""
    return {"learning_rate" if key == "rate" else key: value for key, value in step.items()}


def metrics(run: Path) -> np.ndarray:
    """The steps of a run, one row per step: step, loss, learning_rate, gradient_norm, ...
    (docs/training.md)."""
    return table([_renamed(one) for one in lines(run) if one.get("event") == "step"])


def evaluations(run: Path) -> np.ndarray:
    """The evaluations of a run, one row per evaluation: step, loss, bits_per_byte, ..., with the routing named in
    `lines`; threshold_loss is the causal loss if that routing depends on other tokens."""
    found = []
    for one in lines(run):
        if one.get("event") == "eval":
            causal = one.get("threshold")
            found.append({**one, **({"threshold_loss": causal["loss"]} if isinstance(causal, dict) else {})})
    return table(found)


def timing(run: Path) -> np.ndarray:
    """Time and speed of the steps of a run, one row per step: step, time (seconds since 1970), seconds,
    tokens_per_second, gflops, peak_gflops. Steps that were repeated after a kill are listed twice."""
    return table([one for one in lines(run, "timing.jsonl") if "seconds" in one])
