#!/usr/bin/env python3
"""Writes the vectors that tests/moe/test_vectors.c compares choir with, computed by reference.py.

    apt-get install python3-torch python3-numpy python3-scipy
    /usr/bin/python3 tests/vectors/make.py [OUTPUT_DIRECTORY]      (default: the directory of this file)

Inputs are exactly representable in float32, so that choir in float starts from the same numbers. The same versions write
the same bytes (made with Debian 12's PyTorch 1.13 and NumPy 1.24). Files: routers, layer, optimizers and buckets
.safetensors, tokens.npy and, per router, model/NAME/: a checkpoint (config.json, model.safetensors) with
expected.safetensors beside it. What a case sets stands in the "__metadata__" of its file under the case's name.
"""
import json
import pathlib
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

from reference import adafactor, bucket, experts, route, transformer


def f32(tensor):
    return tensor.detach().numpy().astype(np.float32)


def exact(tensor):
    """Rounded to float32, in double."""
    return torch.tensor(f32(tensor).astype(np.float64))


def normal(rng, *shape, scale=1.0):
    return exact(torch.tensor(rng.standard_normal(shape) * scale))


def save(path, tensors, metadata=None):
    """A safetensors file: length of the header, JSON header padded with spaces to 8 bytes, data."""
    kinds = {"float64": "F64", "float32": "F32", "int32": "I32", "int64": "I64", "uint8": "U8"}
    arrays = {name: np.asarray(t) for name, t in tensors.items()}
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # widest first: all stay aligned
    header, offset = {"__metadata__": metadata} if metadata else {}, 0
    for name in order:
        a = arrays[name]
        header[name] = {"dtype": kinds[a.dtype.name], "shape": list(a.shape), "data_offsets": [offset, offset + a.nbytes]}
        offset += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(arrays[name].tobytes() for name in order))


UNLEARNED = ("hash", "dense", "random")
KEEPS_THRESHOLDS = ("expert_choice", "capped_expert_choice", "quantile_balanced", "bias_balanced", "global_topk")


def case(router, c=1, pool="batch", T=0, logits=0, aux=0.0):
    return {"router": router, "c": float(c), "pool": pool, "T": T, "logits": logits, "aux": aux}


def token_case(router, c=1, K=2, cap=0, training=1, logits=0):
    """What the routers of make_token_routers read besides."""
    return {**case(router, c, logits=logits), "K": K, "cap": cap, "training": training, "layer": 0}


def pool_case(c, pool, T=0, group=0, logits=1):
    return {**case("expert_choice", c, pool, T, logits), "group": group}


def describe(o):
    return "router={router} c={c!r} pool={pool} T={T} logits={logits} aux={aux!r}".format(**o)


def describe_token(o):
    return " K={K} cap={cap}".format(**o) if "K" in o else " group={group}".format(**o) if o.get("group") else ""


def make_routers(out):
    """Matrices of scores under NAME.scores; case NAME.ROUTER.C has its gates and statistics."""
    rng = np.random.default_rng(1)
    tensors, metadata = {}, {}
    n, e = 50, 8
    ids, mask, few = rng.integers(0, 1000, n), rng.random(n) > 0.3, np.isin(np.arange(n), [3, 17, 41])
    matrices = {  # name: scores, whether they are logits
        "random": (normal(rng, n, e), 1),
        "skewed": (normal(rng, n, e) + torch.tensor([2.0, 0.5, 0, 0, 0, -0.5, -1, -3]), 1),  # crowded and lonely experts
        "affinity": (exact(torch.softmax(normal(rng, n, e), 1)), 0),
        "ties": (torch.tensor(rng.integers(1, 6, (n, e)) / 8.0), 0),
        "onehot": (F.one_hot(torch.tensor(rng.integers(0, e, n)), e).double(), 0),
        "equal": (torch.full((n, e), 0.125), 0),
        "equal_rows": (normal(rng, 1, e).repeat(n, 1), 1),
        "masked": (normal(rng, n, e), 1),
        "few": (normal(rng, n, e), 1),
        "four": (normal(rng, n, 4), 1),
        "one": (normal(rng, n, 1), 0),
    }
    valid = {"masked": mask, "few": few}
    for name, (scores, _) in matrices.items():
        tensors[f"{name}.scores"] = f32(scores)
    tensors.update({f"{name}.valid": v.astype(np.uint8) for name, v in valid.items()}, ids=ids.astype(np.int32))

    cases = [(name, r, c, "batch", 0) for name in ("random", "skewed", "affinity", "ties", "onehot", "equal", "equal_rows")
             for r, factors in (("expert_choice", (0.5, 1, 2, e)), ("gshard_top2", (0.5, 1, 4)), ("switch_top1", (0.5, 1.25, 8)))
             for c in factors]
    cases += [(name, r, c, "batch", 0) for name in valid
              for r, c in (("expert_choice", 2), ("gshard_top2", 1), ("switch_top1", 1.25), ("hash", 1))]
    cases += [("random", "expert_choice", 2, "sequence", 10), ("masked", "expert_choice", 1, "sequence", 25)]
    cases += [("affinity", "hash", 1, "batch", 0), ("one", "dense", 1, "batch", 0), ("one", "expert_choice", 0.5, "batch", 0)]
    cases += [("four", "expert_choice", 1, "batch", 0)]  # k = 12.5, rounded up
    cases += [("few", "expert_choice", 0.5, "batch", 0)]  # k = 0.19 of three valid tokens, but at least 1
    names = []
    for name, router, c, pool, T in cases:
        scores, logits = matrices[name]
        o = case(router, c, pool, T, logits)
        gates, _, statistics = route(o, torch.softmax(scores, 1) if logits else scores, valid.get(name), ids)
        names.append(f"{name}.{router}.{pool[0]}{c}")
        metadata[names[-1]] = describe(o)
        tensors[f"{names[-1]}.gates"] = f32(gates)
        tensors.update({f"{names[-1]}.{key}": value for key, value in statistics.items()})
    metadata["cases"] = " ".join(names)
    save(out / "routers.safetensors", tensors, metadata)


def make_layer(out):
    """One set of inputs (and one of a single expert), under it the results of every router."""
    rng = np.random.default_rng(2)
    n, d, h, e = 40, 16, 24, 6
    ids, mask = rng.integers(0, 500, n), rng.random(n) > 0.25
    tensors = {"ids": ids.astype(np.int32), "mask": mask.astype(np.uint8)}
    inputs = {m: {"x": normal(rng, n, d), "router": normal(rng, d, m, scale=1.5 * d**-0.5),
                  "w1": normal(rng, m, d, h, scale=d**-0.5), "w2": normal(rng, m, d, h, scale=h**-0.5),
                  "cotangent": normal(rng, n, d)} for m in (1, e)}
    tensors.update({f"{m}.{key}": f32(t) for m, group in inputs.items() for key, t in group.items()})
    cases = {
        "expert_choice": (case("expert_choice", 2), None),
        "expert_choice_all": (case("expert_choice", e), None),
        "expert_choice_masked": (case("expert_choice", 1), mask),
        "expert_choice_sequence": (case("expert_choice", 2, "sequence", 10), None),
        "gshard_top2": (case("gshard_top2", 4, aux=0.01), None),
        "gshard_top2_drops": (case("gshard_top2", 0.75, aux=0.5), mask),
        "switch_top1": (case("switch_top1", 6, aux=0.01), None),
        "switch_top1_drops": (case("switch_top1", 0.75, aux=0.5), mask),
        "hash": (case("hash"), mask),
        "dense": (case("dense"), None),
    }
    write_layer_cases(out / "layer.safetensors", tensors, inputs, cases)


def write_layer_cases(path, tensors, inputs, cases):
    """cases {name: (options, mask or None)}; inputs by number of experts; tensors has ids too."""
    metadata, ids = {"cases": " ".join(cases)}, tensors["ids"]
    for name, (o, valid) in cases.items():
        m = 1 if name == "dense" else max(inputs)
        leaf = {key: t.clone().requires_grad_() for key, t in inputs[m].items()}
        logits = leaf["x"] @ leaf["router"]
        if o["router"] == "kmeans":
            scores = logits - (leaf["router"] ** 2).sum(0) / 2
        else:
            scores = torch.softmax(logits, 1)
        gates, aux, statistics = route(o, scores, valid, ids)
        y = experts(leaf["x"], leaf["w1"], leaf["w2"], gates)
        ((y * leaf["cotangent"]).sum() + o["aux"] * aux).backward()
        tensors.update({f"{name}.out": f32(y), f"{name}.summary": statistics["summary"]})
        for key in ("x", "router", "w1", "w2"):
            gradient = leaf[key].grad
            tensors[f"{name}.d{key}"] = f32(torch.zeros_like(leaf[key]) if gradient is None else gradient)
        metadata[name] = describe(o) + f" e={m} mask={int(valid is not None)}" + describe_token(o)
    save(path, tensors, metadata)


def parameters(rng, s, e, learned, keeps):
    """A checkpoint's tensors, with thresholds where the router keeps them; norms and biases are wider than a fresh model's, so that an error in them shows."""
    d, h = s["d"], s["h"]
    p = {"embed.weight": normal(rng, s["V"], d), "final_norm.weight": exact(1 + normal(rng, d, scale=0.25))}
    for l in range(s["L"]):
        at = f"layers.{l}"
        for norm in ("attn_norm", "ffn_norm"):
            p[f"{at}.{norm}.weight"] = exact(1 + normal(rng, d, scale=0.25))
        for c in "qkvo":
            p[f"{at}.attn.{c}.weight"] = normal(rng, d, d, scale=d**-0.5)
        p[f"{at}.attn.rel_bias"] = normal(rng, s["buckets"], s["H"], scale=0.5)
        if l % 2:
            if learned:
                p[f"{at}.moe.router.weight"] = normal(rng, d, e, scale=d**-0.5)
            p[f"{at}.moe.experts.w1"] = normal(rng, e, d, h, scale=d**-0.5)
            p[f"{at}.moe.experts.w2"] = normal(rng, e, d, h, scale=h**-0.5)
            if keeps:
                p[f"{at}.moe.thresholds"] = exact(torch.linspace(0.2, 0.35, e))
        else:
            for c, shape in (("gate", (h, d)), ("up", (h, d)), ("down", (d, h))):
                p[f"{at}.ffn.{c}.weight"] = normal(rng, *shape, scale=shape[1] ** -0.5)
    return p


# Options of the models here that each router takes; choir refuses an option that its router does not take.
CAPACITY, BALANCE = ("capacity_factor", "eval_capacity_factor"), ("aux_loss_weight",)
TAKES = {"topk": (*CAPACITY, *BALANCE, "experts_per_token", "z_loss_weight"),
         "expert_choice": (*CAPACITY, "pool"), "capped_expert_choice": (*CAPACITY, "pool", "cap"),
         "global_topk": (*CAPACITY, "cap"), "gshard_top2": (*CAPACITY, *BALANCE, "random_second"),
         "switch_top1": (*CAPACITY, *BALANCE, "jitter"), "quantile_balanced": ("experts_per_token",),
         "bias_balanced": ("experts_per_token",),
         "random": ("experts_per_token",)}


def model_sizes():
    return {"V": 37, "L": 4, "d": 12, "H": 2, "h": 20, "T": 12, "B": 3, "buckets": 8, "distance": 10}


def make_model(out):
    """A checkpoint per router with its loss, logits and gradients on the same tokens."""
    rng = np.random.default_rng(3)
    s = model_sizes()
    tokens = torch.tensor(rng.integers(0, s["V"], (s["B"], s["T"])))
    tokens[:, 1] = torch.tensor([3, 17, 7])  # a sequence that begins with one token twice has two equal rows: a tie
    np.save(out / "tokens.npy", tokens.numpy().astype(np.int32))
    for o in (case("expert_choice", 2), case("gshard_top2", 1, aux=0.1), case("switch_top1", 1, aux=0.1), case("hash"),
              case("dense")):
        write_model(out, rng, s, tokens, o)
    save(out / "buckets.safetensors", {f"{b}.{far}": np.array([bucket(i, b, far) for i in range(200)], np.int32)
                                       for b, far in ((32, 128), (8, 10), (16, 64))})


def write_model(out, rng, s, tokens, o):
    """model/NAME: a checkpoint with fresh parameters, its loss, logits and gradients."""
    name = o["router"]
    e = 1 if name == "dense" else 4
    p = parameters(rng, s, e, name not in UNLEARNED, name in KEEPS_THRESHOLDS)
    router = {"name": name, "capacity_factor": o["c"], "eval_capacity_factor": 0, "pool": "batch",
              "aux_loss_weight": o["aux"], "jitter": 0, "random_second": False}
    if "K" in o:
        router.update(experts_per_token=o["K"], cap=o["cap"])
    router.update(z_loss_weight=o.get("z", 0))
    router = {key: value for key, value in router.items() if key == "name" or key in TAKES.get(name, ())}
    config = {"model": {"name": f"vectors {name}", "vocab_size": s["V"], "layers": s["L"], "d_model": s["d"],
                        "d_hidden": s["h"], "heads": s["H"], "d_head": 0, "experts": e, "moe_every": 2,
                        "rel_buckets": s["buckets"], "rel_max_distance": s["distance"], "norm_eps": 1e-6, "router": router},
              "train": {"sequence_length": s["T"], "batch_sequences": s["B"], "accumulate": 1, "steps": 10}}
    save(out / "model" / name / "model.safetensors", {key: f32(t) for key, t in p.items()})
    (out / "model" / name / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for t in p.values():
        t.requires_grad_()
    logits, aux, z = transformer(p, tokens, o, s)
    logits = logits.reshape(s["B"], s["T"], s["V"])
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, s["V"]), tokens[:, 1:].reshape(-1))
    (loss + o["aux"] * aux + o.get("z", 0) * z).backward()
    expected = {key: f32(t.grad) for key, t in p.items() if t.grad is not None}
    causal, _, _ = transformer(p, tokens, o, s, causal=True)
    expected["threshold_logits"] = f32(causal.reshape(s["B"], s["T"], s["V"]))
    losses = np.array([loss.item(), o["aux"] * float(aux)] + ([o["z"] * float(z)] if "z" in o else []))
    save(out / "model" / name / "expected.safetensors", {**expected, "losses": losses, "logits": f32(logits)})


def make_token_routers(out):
    """quantile_balanced, random, kmeans and global_topk: as routers, as layers and in models."""
    rng = np.random.default_rng(5)
    n, e = 40, 6
    ids, mask = rng.integers(0, 500, n), rng.random(n) > 0.25
    matrices = {"random": normal(rng, n, e), "skewed": normal(rng, n, e) + torch.tensor([2.0, 1, 0, 0, -1, -3]),
                "masked": normal(rng, n, e)}
    tensors = {f"{name}.scores": f32(scores) for name, scores in matrices.items()}
    tensors.update(ids=ids.astype(np.int32), **{"masked.valid": mask.astype(np.uint8)})
    metadata, names = {}, []
    for matrix, scores in matrices.items():
        valid = mask if matrix == "masked" else None
        for o in (token_case("quantile_balanced", K=2, logits=1), token_case("quantile_balanced", K=1, logits=1),
                  token_case("quantile_balanced", K=e, logits=1), token_case("random", K=2, logits=1),
                  token_case("random", K=3, logits=1), token_case("kmeans", logits=1),
                  token_case("global_topk", 2, logits=1), token_case("global_topk", 1, cap=1, logits=1),
                  token_case("global_topk", 2, cap=2, logits=1), token_case("global_topk", e, logits=1)):
            gates, _, statistics = route(o, torch.softmax(scores, 1), valid, ids)
            names.append(f"{matrix}.{o['router']}.K{o['K']}c{o['c']:g}b{o['cap']}")
            metadata[names[-1]] = describe(o) + describe_token(o)
            tensors[f"{names[-1]}.gates"] = f32(gates)
            tensors.update({f"{names[-1]}.{key}": value for key, value in statistics.items()})
    save(out / "token_routers.safetensors", tensors, {"cases": " ".join(names), **metadata})

    d, h = 16, 24
    inputs = {e: {"x": normal(rng, n, d), "router": normal(rng, d, e, scale=1.5 * d**-0.5),
                  "w1": normal(rng, e, d, h, scale=d**-0.5), "w2": normal(rng, e, d, h, scale=h**-0.5),
                  "cotangent": normal(rng, n, d)}}
    tensors = {"ids": ids.astype(np.int32), "mask": mask.astype(np.uint8)}
    tensors.update({f"{e}.{key}": f32(t) for key, t in inputs[e].items()})
    write_layer_cases(out / "token_layer.safetensors", tensors, inputs, {
        "quantile_balanced": (token_case("quantile_balanced"), None),
        "quantile_balanced_masked": (token_case("quantile_balanced", K=1), mask),
        "random": (token_case("random"), mask),
        "kmeans": (token_case("kmeans"), mask),
        "global_topk": (token_case("global_topk", 2), mask),
        "global_topk_capped": (token_case("global_topk", 1.5, cap=2), None)})

    s, tokens = model_sizes(), torch.tensor(np.load(out / "tokens.npy").astype(np.int64))
    for o in (token_case("quantile_balanced"), token_case("random"), token_case("kmeans"), token_case("global_topk", 1.5, cap=2)):
        write_model(out, rng, s, tokens, {**o, "training": 0})


def make_assigned_models(out):
    """Checkpoints of the routers that solve an assignment; the assignments themselves are in make_assignments.py."""
    rng = np.random.default_rng(6)
    s, tokens = model_sizes(), torch.tensor(np.load(out / "tokens.npy").astype(np.int64))
    for o in (token_case("capped_expert_choice", 2, cap=2), token_case("base")):
        write_model(out, rng, s, tokens, {**o, "training": 0})


def make_by_token(out):
    """Models whose tokens choose, with prices that stay, and with the losses of a router."""
    s, tokens = model_sizes(), torch.tensor(np.load(out / "tokens.npy").astype(np.int64))
    write_model(out, np.random.default_rng(11), s, tokens, {**token_case("bias_balanced"), "training": 0})
    write_model(out, np.random.default_rng(12), s, tokens, {**token_case("topk", 0, K=3), "aux": 0.1, "z": 0.05, "training": 0})


def make_pools(out):
    """Expert choice by position and group: matrices of scores, and layers with all their gradients."""
    rng = np.random.default_rng(7)
    n, e = 50, 6
    ids, mask = rng.integers(0, 500, n), rng.random(n) > 0.25
    matrices = {"random": normal(rng, n, e), "ties": torch.tensor(rng.integers(1, 6, (n, e)) / 8.0), "masked": normal(rng, n, e)}
    tensors = {f"{name}.scores": f32(scores) for name, scores in matrices.items()}
    tensors.update(ids=ids.astype(np.int32), **{"masked.valid": mask.astype(np.uint8)})
    metadata, names = {}, []
    for matrix, scores in matrices.items():
        logits = int(matrix != "ties")
        for o in (pool_case(2, "position", 5, logits=logits), pool_case(1, "position", 7, logits=logits),  # 50 = 7 x 7 + 1
                  pool_case(0.7, "position", 1, logits=logits), pool_case(2, "group", 0, 20, logits),
                  pool_case(1, "group", 10, 7, logits), pool_case(1.5, "group", 0, 1000, logits)):
            gates, _, statistics = route(o, torch.softmax(scores, 1) if logits else scores, mask if matrix == "masked" else None, ids)
            names.append(f"{matrix}.{o['pool']}{o['T']}g{o['group']}c{o['c']:g}")
            metadata[names[-1]] = describe(o) + describe_token(o)
            tensors[f"{names[-1]}.gates"] = f32(gates)
            tensors.update({f"{names[-1]}.{key}": value for key, value in statistics.items()})
    save(out / "pools.safetensors", tensors, {"cases": " ".join(names), **metadata})

    n, d, h = 40, 16, 24
    inputs = {e: {"x": normal(rng, n, d), "router": normal(rng, d, e, scale=1.5 * d**-0.5),
                  "w1": normal(rng, e, d, h, scale=d**-0.5), "w2": normal(rng, e, d, h, scale=h**-0.5),
                  "cotangent": normal(rng, n, d)}}
    tensors = {"ids": ids[:n].astype(np.int32), "mask": mask[:n].astype(np.uint8)}
    tensors.update({f"{e}.{key}": f32(t) for key, t in inputs[e].items()})
    write_layer_cases(out / "pool_layer.safetensors", tensors, inputs, {
        "position": (pool_case(2, "position", 5), None),
        "position_masked": (pool_case(2, "position", 5), mask[:n]),
        "group": (pool_case(2, "group", 0, 15), None),
        "group_masked": (pool_case(1, "group", 0, 15), mask[:n])})


def make_optimizers(out):
    """Three steps on a matrix, on experts (each a matrix of its own), on a vector, and on a matrix of tiny weights."""
    rng = np.random.default_rng(4)
    tensors, steps, scale = {}, 3, 0.5
    for name, shape in {"matrix": (20, 33), "experts": (4, 12, 17), "vector": (29,), "tiny": (10, 7)}.items():
        w = normal(rng, *shape, scale=1e-5 if name == "tiny" else 0.5)  # tiny: eps2 decides the step
        g = normal(rng, steps, *shape) * torch.tensor([0.25, 2.0, 0.0625]).reshape(-1, *[1] * len(shape))  # the second is clipped
        if name == "experts":
            g[0, 2] = 0  # an expert that no token chose in the first step
        if name == "matrix":
            g[:, 5] = 0  # a row that never gets a gradient, as a rare word's embedding
        parts = range(shape[0]) if name == "experts" else [Ellipsis]
        runs = [torch.stack(list(adafactor(w[i], [s[i] * scale for s in g], rate=0.05, beta2=0.99))) for i in parts]
        leaf, after = w.clone().requires_grad_(), []
        optimizer = torch.optim.AdamW([leaf], lr=0.02, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
        for t in range(steps):
            leaf.grad = g[t] * scale
            optimizer.step()
            after.append(leaf.detach().clone())
        tensors.update({f"{name}.w": f32(w), f"{name}.g": f32(g), f"{name}.adamw": f32(torch.stack(after)),
                        f"{name}.adafactor": f32(torch.stack(runs, 1) if name == "experts" else runs[0])})
    save(out / "optimizers.safetensors", tensors)


if __name__ == "__main__":
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    directory.mkdir(parents=True, exist_ok=True)
    for make in (make_routers, make_layer, make_model, make_token_routers, make_by_token, make_assigned_models, make_pools,
                 make_optimizers):
        make(directory)
