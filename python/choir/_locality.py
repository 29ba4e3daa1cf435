"""Locality of routing (docs/locality.md), with NumPy."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from ._errors import ArgumentError

SEGMENTS = (16, 64, 256)


def _ratio(part: float, whole: float) -> Optional[float]:
    return float(part) / float(whole) if whole else None


def _hits(sequences: list[np.ndarray], sizes: list[int]) -> tuple[list[int], int]:
    """Hits of LRU caches, one count per size, and the number of uses. A cache of size m contains the m most recently
    used experts."""
    hits, uses = [0] * len(sizes), 0
    for sequence in sequences:
        recent: list[int] = []
        for row in sequence:
            for expert in np.flatnonzero(row).tolist():
                at = recent.index(expert) if expert in recent else None
                uses += 1
                for i, size in enumerate(sizes):
                    hits[i] += at is not None and at < size
                if at is not None:
                    del recent[at]
                recent.insert(0, expert)
    return hits, uses


def _segments(sequences: list[np.ndarray], length: int, experts: int) -> np.ndarray:
    """[segments,e] uses of each expert in each whole segment."""
    cut = [s[: len(s) // length * length].reshape(-1, length, experts).sum(1) for s in sequences]
    return np.concatenate(cut) if cut else np.zeros((0, experts), int)


def _sums(sequences: list[np.ndarray], experts: int) -> dict[str, Any]:
    sizes = sorted({max(1, experts // share) for share in (8, 4, 2)})
    pairs = [(s[1:], s[:-1]) for s in sequences]
    hits, uses = _hits(sequences, sizes)
    counts = {length: _segments(sequences, length, experts) for length in SEGMENTS}
    best = {length: np.sort(c, 1)[:, ::-1].cumsum(1).sum(0) for length, c in counts.items()}
    return {
        "reuse": _ratio(sum((now & before).sum() for now, before in pairs), sum(now.sum() for now, _ in pairs)),
        "lru": {str(size): _ratio(found, uses) for size, found in zip(sizes, hits)},
        "srp": {
            str(size): {str(n): _ratio(best[n][size - 1], counts[n].sum()) for n in SEGMENTS} for size in sizes
        },
        "working_set": {str(n): _ratio((c > 0).sum(), len(c)) for n, c in counts.items()},
    }


def locality(assigned: Any, valid: Any = None) -> dict[str, Any]:
    """Returns how local a causal routing is: for example, the hit rates of a cache of experts while sequences are
    processed token by token. docs/locality.md has the definitions; `choir stats --json` prints the same numbers.

    Args:
        assigned: [N,T,e] bool, the experts of each token of N sequences, such as the reshaped `routing.assignment`
            of a choir.torch layer.
        valid: [N,T] bool, False for padding, which must be at the end of a sequence; None: no padding.

    Returns a dictionary: "reuse", "lru", "srp", "working_set", and "shuffled", the same for tokens in random order.
    A value is None if it is undefined, for example for segments that are longer than all sequences.

    Raises ArgumentError for other types and shapes.

    Example: choir.locality(layer.routing.assignment.view(B, T, -1).cpu().numpy())"""
    rows = np.asarray(assigned)
    if rows.ndim != 3 or rows.dtype != bool:
        raise ArgumentError(f"assigned is {rows.dtype} of shape {rows.shape}; it must be bool [sequences,tokens,experts]")
    held = np.ones(rows.shape[:2], bool) if valid is None else np.asarray(valid) != 0
    if held.shape != rows.shape[:2]:
        raise ArgumentError(f"valid has shape {held.shape}; it must be {rows.shape[:2]}, as the sequences of assigned")
    sequences = [row[keep] for row, keep in zip(rows, held)]
    ends = np.cumsum([len(s) for s in sequences])[:-1]
    tokens = np.concatenate(sequences) if sequences else np.zeros((0, rows.shape[2]), bool)
    shuffled = np.split(tokens[np.random.default_rng(0).permutation(len(tokens))], ends)
    return {**_sums(sequences, rows.shape[2]), "shuffled": _sums(shuffled, rows.shape[2])}
