"""Compares the speed of choir.torch's layers with that of plain PyTorch, forward and backward.

The layers are expert choice, dropless top-2, and a dense layer of equal cost. Each is timed uncompiled and
compiled, in turns; outputs are compared first. Times are medians in ms: on a CPU, the process's CPU time, which
depends less on other work on the machine; elsewhere, wall time.

    python3 lab/torch_layers.py [--device cuda] [--dtype bfloat16] [--rounds 9] [--threads 1]
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

import choir.torch

CASES = ((4096, 128, 512, 16), (4096, 128, 512, 64), (2048, 512, 1024, 16))  # tokens, d, h of an expert, experts


class Plain(nn.Module):
    """Expert choice: one topk, one gather, two products in batches, one index_add."""

    def __init__(self, layer):
        super().__init__()
        self.gate, self.w1, self.w2 = layer.gate, layer.w1, layer.w2

    def scores(self, x):
        return torch.softmax(self.gate(x.float()), 1)

    def forward(self, x):
        (n, d), e = x.shape, len(self.w1)
        gate, token = self.scores(x).t().topk(2 * n // e, 1)
        rows = x.index_select(0, token.reshape(-1)).view(e, -1, d)
        y = torch.bmm(F.gelu(torch.bmm(rows, self.w1)), self.w2.transpose(1, 2)) * gate[..., None].to(x.dtype)
        return torch.zeros_like(x).index_add(0, token.reshape(-1), y.view(-1, d))


class Grouped(Plain):
    """Top-2 without a capacity limit, rows sorted by expert for grouped products."""

    def forward(self, x):
        gate, expert = self.scores(x).topk(2, 1)
        order = expert.reshape(-1).argsort(stable=True)
        token = order // 2
        ends = torch.bincount(expert.reshape(-1), minlength=len(self.w1)).cumsum(0, dtype=torch.int32)
        hidden = F.gelu(F.grouped_mm(x.index_select(0, token), self.w1, offs=ends))
        y = F.grouped_mm(hidden, self.w2.transpose(1, 2), offs=ends)
        return torch.zeros_like(x).index_add(0, token, y * gate.reshape(-1)[order, None].to(x.dtype))


def once(run, x, cotangent):
    if x.is_cuda:
        torch.cuda.synchronize()
    clock = time.perf_counter if x.is_cuda else time.process_time
    begin = clock()
    out = run(x)
    torch.autograd.grad(out, [x, *run.parameters()], cotangent, allow_unused=True)
    if x.is_cuda:
        torch.cuda.synchronize()
    return 1e3 * (clock() - begin)


def measure(n, d, h, e, o):
    made = {"device": o.device, "dtype": getattr(torch, o.dtype)}
    layer = choir.torch.ExpertChoice(d, h, e, capacity_factor=2, **made)
    tokens = choir.torch.MoE(d, h, e, "topk", top_k=2, **made)
    dense = nn.Sequential(nn.Linear(d, 2 * h, False, **made), nn.GELU(), nn.Linear(2 * h, d, False, **made))
    x, cotangent = torch.randn(n, d, **made, requires_grad=True), torch.randn(n, d, **made)
    ways = {"expert choice": layer, "plain": Plain(layer), "top-2": tokens, "plain top-2": Grouped(tokens), "dense": dense}
    for ours, theirs in (("expert choice", "plain"), ("top-2", "plain top-2")):
        torch.testing.assert_close(ways[ours](x), ways[theirs](x), rtol=0.02, atol=0.02)
    ways.update({f"{name}, compiled": torch.compile(way) for name, way in list(ways.items())})
    for way in ways.values():
        once(way, x, cotangent), once(way, x, cotangent)
    times = {name: [] for name in ways}
    for _ in range(o.rounds):
        for name, way in ways.items():
            times[name].append(once(way, x, cotangent))
    return {name: statistics.median(some) for name, some in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    print(f"PyTorch {torch.__version__}, {o.device}, {o.dtype}, {o.threads} threads")
    for n, d, h, e in CASES:
        times = "  |  ".join(f"{name} {ms:.1f}" for name, ms in measure(n, d, h, e, o).items())
        print(f"{n} tokens, d={d}, h={h}, {e} experts, c=2:  {times}", flush=True)


if __name__ == "__main__":
    main()
