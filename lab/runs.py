"""What the measurements of lab/ read: the tokens of built data (docs/formats.md), runs, and results."""

import json

import numpy as np

HEADER = 128  # bytes of a shard's header


def shard(data, part="heldout"):
    """All tokens of the source `text` in a data directory whose vocabulary has at most 65,536 tokens. part: "train" or
    "heldout"."""
    return np.memmap(data / f"text.{part}.shard", "<u2", "r", HEADER)


def windows(data, count, length):
    """Held-out windows [count,length] at equal distances, int32."""
    held = shard(data)
    first = np.linspace(0, len(held) - length, count).astype(np.int64)
    return np.stack([held[i : i + length] for i in first]).astype(np.int32)


def finished(run):
    """Whether the run has its last checkpoint."""
    steps = json.loads((run / "config.json").read_text())["train"]["steps"]
    return (run / "checkpoints" / f"{steps:08d}").is_dir()


def stored(path):
    """The lines of a file of results, oldest first."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
