#!/usr/bin/env python3
"""Writes assignments.safetensors: small linear programmes of capped expert choice and BASE layers, and their optima.

    apt-get install python3-scipy
    /usr/bin/python3 tests/vectors/make_assignments.py [OUTPUT_DIRECTORY]      (default: the directory of this file)

Case I has its scores [n,e] (exact in float32) under I.scores, and under I.problem: k, cap, balanced (k and cap not read) and
the optimum that HiGHS finds for the LP over 0 <= A <= 1. Made with Debian 12's SciPy 1.10.
"""
import json
import pathlib
import struct
import sys

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix, vstack

KINDS = ("normal", "softmax", "peaky", "clustered", "equal rows", "one-hot", "coarse", "ratios")


def scores(rng, kind, n, e):
    s = rng.standard_normal((n, e))
    if kind == "clustered":
        s = 3 * rng.standard_normal((4, e))[rng.integers(0, 4, n)] + 0.5 * s
    if kind in ("softmax", "peaky", "clustered"):
        s = np.exp(s * (4 if kind == "peaky" else 1))
        s /= s.sum(1, keepdims=True)
    if kind == "equal rows":
        s[:] = s[0]
    if kind == "one-hot":
        s = np.eye(e)[rng.integers(0, e, n)]
    if kind == "coarse":
        s = np.round(s)
    if kind == "ratios":
        s = 10.0 ** rng.uniform(-6, 3, (n, e))
    return s.astype(np.float32)


def optimum(s, k, cap, balanced):
    """max <S, A> with sum_t A[t,i] = k and sum_i A[t,i] <= cap; balanced: = 1, and loads n/e rounded down or up."""
    n, e = s.shape
    cell, one = np.arange(n * e), np.ones(n * e)
    tokens = coo_matrix((one, (cell // e, cell)), shape=(n, n * e))
    experts = coo_matrix((one, (cell % e, cell)), shape=(e, n * e))
    if balanced:
        equal, right = tokens, np.ones(n)
        below, most = vstack([experts, -experts]), np.r_[np.full(e, -(-n // e)), np.full(e, -(n // e))]
    else:
        equal, right, below, most = experts, np.full(e, k), tokens, np.full(n, cap)
    r = linprog(-s.astype(np.float64).ravel(), A_ub=below, b_ub=most, A_eq=equal, b_eq=right, bounds=(0, 1), method="highs")
    assert r.status == 0, r.message
    return -r.fun


def save(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, a in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):  # widest first
        header[name] = {"dtype": {8: "F64", 4: "F32"}[a.dtype.itemsize], "shape": list(a.shape),
                        "data_offsets": [len(data), len(data) + a.nbytes]}
        data += a.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    rng, tensors = np.random.default_rng(8), {}
    cases = 96
    for i in range(cases):
        e = int(rng.integers(1, 9))
        n, cap, balanced = int(rng.integers(e, 30)), int(rng.integers(1, e + 1)), int(i % 4 == 3)
        most = min(n, cap * n // e)
        k = most if i % 3 == 0 else int(rng.integers(1, most + 1))
        s = scores(rng, KINDS[i % len(KINDS)], n, e)
        tensors[f"{i}.scores"] = s
        tensors[f"{i}.problem"] = np.array([k, cap, balanced, optimum(s, k, cap, balanced)])
    save(directory / "assignments.safetensors", tensors, {"cases": str(cases)})
