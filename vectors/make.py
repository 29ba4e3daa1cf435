#!/usr/bin/env python3
"""Writes the files of this folder by tests/vectors/reference.py, which shares no code with choir.

    apt-get install python3-torch python3-numpy python3-scipy
    /usr/bin/python3 vectors/make.py [DIRECTORY]      (default: the directory of this file)
"""
import json
import pathlib
import sys

import numpy as np
import torch

VERSION = "2"  # of the files; README.md lists the changes
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "vectors"))

from make import case as made_case, exact, f32, normal, save  # noqa: E402
from reference import route  # noqa: E402

N, E, T = 24, 6, 8

# Router: (name of the case, options as choir names them). What is left out has the defaults of choir.
CASES = {
    "expert_choice": [
        ("c1", {"capacity_factor": 1.0}), ("c2", {"capacity_factor": 2.0}),
        ("sequence", {"capacity_factor": 2.0, "pool": "sequence"}),
        ("shares", {"capacity_factor": 2.0, "normalize_gates": True}),
    ],
    "topk": [
        ("K1", {"experts_per_token": 1}), ("K2", {"experts_per_token": 2}), ("K3", {"experts_per_token": 3}),
        ("shares", {"experts_per_token": 2, "normalize_gates": True}),
        ("drops", {"experts_per_token": 2, "capacity_factor": 1.0}),
        ("nulls", {"experts_per_token": 4, "null_experts": 6, "normalize_gates": True}),
    ],
    "switch_top1": [("c1.25", {"capacity_factor": 1.25})],
    "gshard_top2": [("c1", {"capacity_factor": 1.0})],
    "quantile_balanced": [("K2", {"experts_per_token": 2})],
    "bias_balanced": [("K2", {"experts_per_token": 2})],
    "global_topk": [("c1", {"capacity_factor": 1.0}), ("cap2", {"capacity_factor": 2.0, "cap": 2})],
    "capped_expert_choice": [("cap2", {"capacity_factor": 2.0, "cap": 2})],
    "kmeans": [("best", {})],
    "hash": [("ids", {})],
}  # fmt: skip
MANY = ("quantile_balanced", "capped_expert_choice")  # several solutions where scores are equal, or tokens few
UNNORMALIZED = ("tied", "left")  # rows do not sum to 1, so no logits give these scores


def matrices(rng):
    """Scores that rows sum up to 1, but for those of `tied` and `left`: name, scores, valid or None."""
    soft = lambda logits: exact(torch.softmax(logits, 1))  # noqa: E731
    yield "random", soft(normal(rng, N, E)), None
    yield "tied", torch.tensor(rng.integers(1, 5, (N, E)) / 16.0), None
    yield "padded", soft(normal(rng, N, E)), rng.random(N) > 0.3
    yield "skewed", soft(normal(rng, N, E) + torch.tensor([2.0, 1, 0, 0, -1, -3])), None
    yield "few", soft(normal(rng, E - 2, E)), None
    yield "left", soft(torch.cat([normal(rng, N, E), torch.zeros(N, 6)], 1))[:, :E], rng.random(N) > 0.2
    yield "equal", soft(equal_logits(rng)), None


def equal_logits(rng):
    """Eight different rows, each three times; in each the best, second best or third best expert equals the next one."""
    rows = normal(rng, N // 3, E)
    best = rows.sort(1, descending=True).indices
    for row in range(len(rows)):
        first = row % 3
        rows[row, best[row, first + 1]] = rows[row, best[row, first]]
    return rows[torch.tensor(rng.permutation(np.arange(N) % len(rows)))]


def logits_of(scores):
    """Logits whose softmax gives the scores. Every row has another constant added, which softmax removes."""
    shift = (torch.arange(len(scores)) * 7 % 11 - 5) / 4
    return torch.log(scores) + shift[:, None]


def case_of(router, options):
    """The same in reference.py's words."""
    c = options.get("capacity_factor", 0.0)
    made = made_case(router, c, options.get("experts_per_token", 2), options.get("cap", 0))
    return {**made, "pool": options.get("pool", "batch"), "T": T, "nulls": options.get("null_experts", 0)}


def gradient(loss, leaf):
    """Zeros where the loss does not depend on it."""
    if not loss.requires_grad:
        return torch.zeros_like(leaf)
    return torch.autograd.grad(loss, leaf, retain_graph=True)[0]


def write(router, cases, out):
    rng = np.random.default_rng(20)
    tensors, metadata, names = {}, {}, []
    for matrix, scores, valid in matrices(rng):
        if (router in MANY and matrix in ("tied", "few", "equal")) or (matrix == "left" and router != "topk"):
            continue
        ids, cotangent = rng.integers(0, 500, len(scores)), normal(rng, *scores.shape)
        tensors.update({f"{matrix}.scores": f32(scores), f"{matrix}.cotangent": f32(cotangent)})
        if matrix not in UNNORMALIZED:
            tensors[f"{matrix}.logits"] = f32(logits_of(scores))
        tensors[f"{matrix}.tokens"] = ids.astype(np.int32)
        tensors[f"{matrix}.valid"] = np.ones(len(scores), np.uint8) if valid is None else valid.astype(np.uint8)
        for case, options in cases:
            if matrix != "left" and "null_experts" in options:
                continue
            leaf = scores.clone().requires_grad_()
            gates, aux = route(case_of(router, options), leaf, valid, ids)
            taken = gates.detach() > 0
            if options.get("normalize_gates"):
                total = gates.sum(1, keepdim=True)
                gates = gates / torch.where(total == 0, torch.ones(()), total)
            name = f"{matrix}.{case}"
            names.append(name)
            metadata[name] = json.dumps({"matrix": matrix, **options})
            tensors.update({
                f"{name}.taken": taken.numpy().astype(np.uint8), f"{name}.gates": f32(gates),
                f"{name}.aux_loss": np.array([float(aux.detach())]),
                f"{name}.dscores": f32(gradient((gates * cotangent).sum(), leaf)),
                f"{name}.daux": f32(gradient(aux, leaf)),
            })  # fmt: skip
    head = {"format": "choir-routing-vectors", "version": VERSION, "router": router, "cases": " ".join(names)}
    save(out / f"{router}.safetensors", tensors, {**head, **metadata})


if __name__ == "__main__":
    for router, cases in CASES.items():
        write(router, cases, pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
