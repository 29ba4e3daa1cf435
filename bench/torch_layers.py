"""choir.torch's expert choice beside what one would write without it, forward and backward, in turns: a loop over experts in
plain PyTorch, and a dense layer of equal cost; each as it is and compiled. Outputs are compared first. Medians in ms.

    python3 bench/torch_layers.py [--device cuda] [--dtype bfloat16] [--rounds 9]
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

import choir.torch

CASES = ((4096, 128, 512, 16), (4096, 128, 512, 64), (2048, 512, 1024, 16))  # tokens, d, h of an expert, experts


class Loop(nn.Module):
    """The obvious one: an expert after the other, on its topk."""

    def __init__(self, layer):
        super().__init__()
        self.gate, self.w1, self.w2 = layer.gate, layer.w1, layer.w2

    def forward(self, x):
        scores = torch.softmax(self.gate(x.float()), 1)
        out = torch.zeros_like(x)
        for i in range(self.w1.shape[0]):
            gate, token = scores[:, i].topk(2 * x.shape[0] // self.w1.shape[0])
            y = F.gelu(x[token] @ self.w1[i]) @ self.w2[i].t()
            out = out.index_add(0, token, (y * gate[:, None]).to(x.dtype))
        return out


def once(run, x, cotangent):
    if x.is_cuda:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    out = run(x)
    torch.autograd.grad(out, [x, *run.parameters()], cotangent, allow_unused=True)
    if x.is_cuda:
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin)


def measure(n, d, h, e, o):
    made = {"device": o.device, "dtype": getattr(torch, o.dtype)}
    layer = choir.torch.ExpertChoice(d, h, e, capacity_factor=2, **made)
    dense = nn.Sequential(nn.Linear(d, 2 * h, False, **made), nn.GELU(), nn.Linear(2 * h, d, False, **made))
    x, cotangent = torch.randn(n, d, **made, requires_grad=True), torch.randn(n, d, **made)
    ways = {"choir.torch": layer, "loop": Loop(layer), "dense": dense}
    torch.testing.assert_close(ways["loop"](x), layer(x), rtol=0.02, atol=0.02)
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
        told = "  |  ".join(f"{name} {ms:.1f}" for name, ms in measure(n, d, h, e, o).items())
        print(f"{n} tokens, d={d}, h={h}, {e} experts, c=2:  {told}", flush=True)


if __name__ == "__main__":
    main()
