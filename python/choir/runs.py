"""What runs left: metrics as NumPy tables."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from . import _files
from ._native import FormatError
from .config import Path


def lines(run: Path, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The objects of metrics.jsonl or timing.jsonl; a line that is still being written at the end is left out."""
    found, path = [], os.path.join(os.fspath(run), file)
    with open(_files.opened(path), "rb") as source:
        for number, line in enumerate(iter(lambda: source.readline(_files.LIMIT), b""), 1):
            if not line.endswith(b"\n") and len(line) < _files.LIMIT:
                break  # a line that is still being written
            try:
                found.append(dict(json.loads(line)))
            except (ValueError, TypeError, RecursionError) as error:
                raise FormatError(f"{path}: line {number}: is no object: {error}") from None
    return found


def table(objects: list[dict[str, Any]]) -> np.ndarray:
    """A structured array, a row for each object, with all their numbers: table(...)["loss"]. NaN where one has none."""
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


def metrics(run: Path) -> np.ndarray:
    """The steps of a run, a row each: step, loss, rate, gradient_norm, ... (docs/training.md)."""
    return table([one for one in lines(run) if one.get("event") == "step"])


def evaluations(run: Path) -> np.ndarray:
    """The evaluations of a run, a row each: step, loss, bits_per_byte, ..., of the routing that `routing` says in `lines`;
    threshold_loss is the causal one where the other looks across tokens."""
    found = []
    for one in lines(run):
        if one.get("event") == "eval":
            causal = one.get("threshold")
            found.append({**one, **({"threshold_loss": causal["loss"]} if isinstance(causal, dict) else {})})
    return table(found)


def timing(run: Path) -> np.ndarray:
    """When and how fast the steps of a run were made, a row each: step, time (seconds since 1970), seconds,
    tokens_per_second, gflops, peak_gflops. Steps that were made again after a kill stand there twice."""
    return table([one for one in lines(run, "timing.jsonl") if "seconds" in one])
