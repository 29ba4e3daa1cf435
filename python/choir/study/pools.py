"""The loss of a run with batch routing, which depends on the pool: for pools of several sizes, of neighboring and of
mixed sequences, with the causal loss of the same sequences."""

from __future__ import annotations

import pathlib
from typing import Any

from ..config import Config
from . import program
from .lane import newest

SIZES = (512, 2048, 8192, 32768)  # tokens


def measure(run: pathlib.Path, data: pathlib.Path, sequences: int = 1024, threads: int = 0) -> list[dict[str, Any]]:
    """One row per pool size that the sequences can fill."""

    def evaluate(routing: str, batch: int, scattered: bool) -> dict[str, Any]:
        words = ["eval", run, "--data", data, "--routing", routing, "--batch", batch, "--sequences", sequences]
        return program.ask(*words, "--threads", threads, *([] if scattered else ["--in-order"]))

    number = f"{newest(pathlib.Path(run)):08d}"
    length = Config(pathlib.Path(run) / "checkpoints" / number / "config.json")["train.sequence_length"]
    rows = []
    for scattered in (False, True):
        causal = evaluate("threshold", max(1, 2048 // length), scattered)
        for size in SIZES:
            if size < length or size > causal["tokens"]:
                continue
            own = evaluate("batch", size // length, scattered)
            rows.append({
                "pool": size, "scattered": scattered, "loss": own["loss"], "causal": causal["loss"],
                "tokens": own["tokens"],
            })  # fmt: skip
    return rows
