#!/usr/bin/env python3
"""Writes scores.safetensors: log-likelihoods of continuations by the models of model/NAME, which make.py has written.

    /usr/bin/python3 tests/vectors/make_scores.py [DIRECTORY]      (default: the directory of this file)

NAME.tokens int32 [N,L], a request a row: context and continuation, then -1; NAME.contexts and NAME.totals int32 [N], tokens
of the context and of both; NAME.log_probability float64 [N,L] of each token of the continuation, 0 elsewhere; NAME.greedy
int32 [N]. Every request is run by itself, from its first token, causally.
"""
import json
import pathlib
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

from make import model_sizes, save
from reference import MARGIN, transformer


def load(path):
    """The tensors of a safetensors file of F32, in double."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, t in header.items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in t["data_offsets"])
            tensors[name] = torch.tensor(np.frombuffer(data[begin:end], "<f4").astype(np.float64).reshape(t["shape"]))
    return tensors


def log_probabilities(p, tokens, o, s):
    """[T,V]: of every token behind the first, the first two, ..."""
    logits, _, _ = transformer(p, torch.tensor([tokens]), o, {**s, "B": 1, "T": len(tokens)}, causal=True)
    return F.log_softmax(logits, -1)


def write_greedily(p, context, count, o, s):
    """The continuation of a context that takes the likeliest token always."""
    tokens = list(context)
    for _ in range(count):
        best = log_probabilities(p, tokens, o, s)[-1].topk(2)
        assert best.values[0] - best.values[1] > MARGIN, "too close for float"
        tokens.append(int(best.indices[0]))
    return tokens[len(context):]


def requests(rng, p, o, s):
    """Contexts that begin alike and contexts that are the same; one continuation begins another one."""
    first = list(rng.integers(0, s["V"], 9))
    second = first[:4] + list(rng.integers(0, s["V"], 3))
    for context in (first, second, first[:1], first[:5]):
        greedy = write_greedily(p, context, 4, o, s)
        other = [(greedy[0] + 1) % s["V"]]
        yield context, greedy
        yield context, greedy[:1]
        yield context, greedy[:2] + other
        yield context, other
        yield context, other + write_greedily(p, context + other, 2, o, s)
        yield context, list(rng.integers(0, s["V"], 6))


def main(out):
    rng, s, tensors = np.random.default_rng(8), model_sizes(), {}
    for o in ({"router": "expert_choice", "c": 2.0}, {"router": "gshard_top2", "c": 1.0}, {"router": "dense", "c": 1.0}):
        name = o["router"]
        p = load(out / "model" / name / "model.safetensors")
        rows = list(requests(rng, p, {**o, "pool": "batch", "T": 0}, s))
        length = max(len(c) + len(r) for c, r in rows)
        tokens, logs = np.full((len(rows), length), -1, np.int32), np.zeros((len(rows), length))
        greedy = np.ones(len(rows), np.int32)
        for i, (context, rest) in enumerate(rows):
            whole, n = [int(t) for t in context + rest], len(context)
            tokens[i, :len(whole)] = whole
            found = log_probabilities(p, whole, {**o, "pool": "batch", "T": 0}, s)
            for t in range(n, len(whole)):
                logs[i, t] = found[t - 1, whole[t]].item()
                greedy[i] &= int(found[t - 1].argmax()) == whole[t]
        tensors.update({f"{name}.tokens": tokens, f"{name}.log_probability": logs, f"{name}.greedy": greedy,
                        f"{name}.contexts": np.array([len(c) for c, _ in rows], np.int32),
                        f"{name}.totals": np.array([len(c) + len(r) for c, r in rows], np.int32)})
    save(out / "scores.safetensors", tensors)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
