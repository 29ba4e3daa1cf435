#!/usr/bin/env python3
"""Writes the vectors that tests/moe/test_vectors.c compares choir with, computed by reference.py.

    apt-get install python3-torch python3-numpy python3-scipy
    /usr/bin/python3 tests/vectors/make.py [OUTPUT_DIRECTORY]      (default: the directory of this file)

Inputs are exactly representable in float32, so that choir in float starts from the same numbers. The same versions write
the same bytes (made with Debian 12's PyTorch 1.13 and NumPy 1.24). Files: optimizers and buckets .safetensors, tokens.npy
and, per router, model/NAME/: a checkpoint (config.json, model.safetensors) with expected.safetensors beside it. Routers by
themselves are in vectors/, whose make.py uses this file.
"""
import json
import pathlib
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

from reference import adafactor, bucket, transformer


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


def case(router, c=1, K=2, cap=0, aux=0.0, z=0.0):
    """What reference.py reads, of a pool of the whole batch."""
    return {"router": router, "c": float(c), "K": K, "cap": cap, "aux": aux, "z": z, "pool": "batch", "T": 0}


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


# Models whose numbers are drawn one behind the other, by their seed.
MODELS = {
    3: [case("expert_choice", 2), case("gshard_top2", 1, aux=0.1), case("switch_top1", 1, aux=0.1), case("hash"), case("dense")],
    5: [case("quantile_balanced"), case("random"), case("kmeans"), case("global_topk", 1.5, cap=2)],
    6: [case("capped_expert_choice", 2, cap=2), case("base")],
    11: [case("bias_balanced")],
    12: [case("topk", 0, K=3, aux=0.1, z=0.05)],
}


def make_models(out):
    """A checkpoint per router with its loss, logits and gradients on the same tokens."""
    s, drawn = model_sizes(), {seed: np.random.default_rng(seed) for seed in MODELS}
    tokens = torch.tensor(drawn[3].integers(0, s["V"], (s["B"], s["T"])))
    tokens[:, 1] = torch.tensor([3, 17, 7])  # a sequence that begins with one token twice has two equal rows: a tie
    np.save(out / "tokens.npy", tokens.numpy().astype(np.int32))
    for seed, cases in MODELS.items():
        for o in cases:
            write_model(out, drawn[seed], s, tokens, o)


def make_buckets(out):
    save(out / "buckets.safetensors", {f"{b}.{far}": np.array([bucket(i, b, far) for i in range(200)], np.int32)
                                       for b, far in ((32, 128), (8, 10), (16, 64))})


def write_model(out, rng, s, tokens, o):
    """model/NAME: a checkpoint with fresh parameters, its loss, logits and gradients."""
    name = o["router"]
    e = 1 if name == "dense" else 4
    p = parameters(rng, s, e, name not in UNLEARNED, name in KEEPS_THRESHOLDS)
    router = {"name": name, "capacity_factor": o["c"], "eval_capacity_factor": 0, "pool": "batch",
              "aux_loss_weight": o["aux"], "jitter": 0, "random_second": False, "experts_per_token": o["K"],
              "cap": o["cap"], "z_loss_weight": o["z"]}
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
    (loss + o["aux"] * aux + (o["z"] * z if o["z"] else 0)).backward()
    expected = {key: f32(t.grad) for key, t in p.items() if t.grad is not None}
    causal, _, _ = transformer(p, tokens, o, s, causal=True)
    expected["threshold_logits"] = f32(causal.reshape(s["B"], s["T"], s["V"]))
    losses = np.array([loss.item(), o["aux"] * float(aux)] + ([o["z"] * float(z)] if o["z"] else []))
    save(out / "model" / name / "expected.safetensors", {**expected, "losses": losses, "logits": f32(logits)})


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
    for make in (make_models, make_buckets, make_optimizers):
        make(directory)
