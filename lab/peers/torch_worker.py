"""PyTorch's side of lab/peers/run, with the arguments and answers of choir_worker.c:

    torch_worker.py layer INPUTS.safetensors CAPACITY COMPUTE THREADS [WAY]
    torch_worker.py step  CHECKPOINT TOKENS.npy COMPUTE THREADS [WAY]
    torch_worker.py products THREADS        seconds for some products: which BLAS to preload

WAY: inside, across or auto (products.py).
"""
import json
import pathlib
import sys
import time

import numpy as np
import torch

import expert_choice
import tensors
from adafactor import Adafactor
from products import Products
from transformer import Positions, step

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def own(array):
    """A copy in PyTorch's memory."""
    copy = torch.empty(array.shape)
    copy.numpy()[...] = array
    return copy


class Layer:
    def __init__(self, inputs, capacity, compute, threads, way):
        t = {name: own(array) for name, array in tensors.read(inputs).items()}
        self.products, self.c = Products(threads, way), float(capacity)
        self.x, self.dout, self.router = t["x"], t["dout"], t["router"]
        self.w1, self.w2 = (t[name].to(TYPES[compute]) for name in ("w1", "w2"))
        self.dw1, self.dw2 = torch.zeros_like(self.w1), torch.zeros_like(self.w2)

    @torch.no_grad()
    def run(self):
        self.out, saved = expert_choice.forward(self.x, self.router, self.w1, self.w2, self.c, self.products)
        self.dx, self.drouter, _, _ = expert_choice.backward(self.dout, saved, self.products, self.dw1, self.dw2)
        return 0.0

    def results(self):
        return {"out": self.out, "dx": self.dx, "router": self.drouter, "w1": self.dw1, "w2": self.dw2}


class Step:
    def __init__(self, checkpoint, tokens, compute, threads, way):
        directory = pathlib.Path(checkpoint)
        self.config = json.loads((directory / "config.json").read_text())
        m, t = self.config["model"], self.config["train"]
        assert m["router"]["name"] == "expert_choice" and t["optimizer"] == "adafactor" and not t["clip_norm"]
        self.masters = {n: own(a) for n, a in tensors.read(directory / "model.safetensors").items() if "thresholds" not in n}
        for i in range(m["layers"]):  # one product for q, k and v; Adafactor takes each by itself
            at = f"layers.{i}.attn."
            self.masters[at + "qkv"] = torch.stack([self.masters.pop(f"{at}{c}.weight") for c in "qkv"])
        self.compute = {name: self.leaf(name, w, TYPES[compute]) for name, w in self.masters.items()}
        self.optimizer = Adafactor(self.masters, self.compute, t)
        self.positions = Positions(t["sequence_length"], m["rel_buckets"], m["rel_max_distance"])
        self.tokens, self.target = torch.from_numpy(np.load(tokens)).long()
        self.products = Products(threads, way)

    @staticmethod
    def leaf(name, w, dtype):
        exact = w.dim() == 1 or name.endswith(("rel_bias", "router.weight"))
        used = w if exact or dtype == torch.float32 else w.to(dtype)
        return used.requires_grad_(name != "embed.weight")  # whose gradient the head makes

    def run(self):
        weights = dict(self.compute, **{"embed.weight.fp32": self.masters["embed.weight"]})
        loss = step(weights, self.config, self.tokens, self.target, self.positions, self.products)
        self.optimizer.update()
        return loss

    def results(self):
        parts = {}
        for name, w in self.masters.items():
            if name.endswith("attn.qkv"):
                parts.update({f"{name[:-3]}{c}.weight": w[i] for i, c in enumerate("qkv")})
            else:
                parts[name] = w
        return parts


def save(results, path):
    flat = {name: tensors.sample(t.detach().reshape(-1).float().numpy()) for name, t in results.items()}
    tensors.write(path, {name: (a.shape, [a]) for name, a in flat.items()})


def answer(**fields):
    print(json.dumps(fields), flush=True)


def time_products(threads):
    """Dense and expert products in their three forms, best of five each."""
    torch.set_num_threads(threads)
    total = 0.0
    for m, k, n in ((1024, 768, 768), (128, 768, 3072)):
        a, b, c = torch.randn(m, k), torch.randn(k, n), torch.randn(m, n)
        for x, y in ((a, b), (c, b.t()), (a.t(), c)):
            times = []
            for _ in range(6):
                begin = time.perf_counter()
                torch.mm(x, y)
                times.append(time.perf_counter() - begin)
            total += min(times[1:])
    answer(seconds=total, mkl=torch.backends.mkl.is_available(), version=torch.__version__)


def main(kind, *arguments):
    if kind == "products":
        return time_products(int(arguments[0]))
    threads, way = int(arguments[3]), arguments[4] if len(arguments) > 4 else "auto"
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    work = {"layer": Layer, "step": Step}[kind](*arguments[:3], threads, way)
    answer(ready=True)
    for line in sys.stdin:
        word, _, path = line.strip().partition(" ")
        if word == "save":
            save(work.results(), path)
            answer(saved=True)
        else:
            begin = time.perf_counter()
            loss = work.run()
            answer(seconds=time.perf_counter() - begin, loss=loss)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
