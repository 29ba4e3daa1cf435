"""A small GPT on the bytes of a text, twice: with dense feed-forward layers, and with experts that choose their tokens,
at equal cost per token. Prints times and losses of both, side by side, and plots them.

    python3 examples/nanogpt_moe.py docs/*.md
    python3 examples/nanogpt_moe.py --layers 12 --width 768 --context 1024 --device cuda --compile TEXT

Expert choice ranks all tokens of a batch, including later ones, so its training loss is not causal. The last lines have
both losses on held-out text: with batch routing, and with the thresholds from training, which is causal."""

import argparse
import itertools
import math
import os
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

import choir.torch


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width, False), nn.Linear(width, width, False)

    def forward(self, x):
        B, T, d = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, d))


class Block(nn.Module):
    """experts 0: a dense layer. Each expert takes as many tokens as it has an even share of: the cost is the same."""

    def __init__(self, width, heads, experts):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        if experts:
            self.ffn = choir.torch.ExpertChoice(width, 4 * width, experts, capacity_factor=1)
        else:
            self.ffn = nn.Sequential(
                nn.Linear(width, 4 * width, False), nn.GELU(), nn.Linear(4 * width, width, False)
            )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.ffn(self.norm2(x))


class GPT(nn.Module):
    """A decoder. With experts > 0 every second layer is an MoE layer."""

    def __init__(self, o, experts):
        super().__init__()
        self.tokens, self.places = (nn.Embedding(rows, o.width) for rows in (256, o.context))
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(o.width, o.heads, experts * (layer % 2)) for layer in range(o.layers))
        self.norm = nn.LayerNorm(o.width)

    def forward(self, bytes_):
        """The mean loss of bytes [B,T+1], each from those before it."""
        given, wanted = bytes_[:, :-1], bytes_[:, 1:]
        x = self.tokens(given) + self.places.weight[: given.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy((self.norm(x) @ self.tokens.weight.t()).flatten(0, 1), wanted.flatten())


def new_file(path):
    """For argparse: a name that no file has."""
    if os.path.lexists(path):
        raise argparse.ArgumentTypeError(f"{path}: exists already; choose another name")
    return path


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("text", nargs="+", type=pathlib.Path)
    sizes = {"layers": 4, "width": 128, "heads": 4, "context": 128, "batch": 16, "experts": 8, "steps": 300}
    for name, value in sizes.items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--plot", type=new_file, help="a PNG file that is not there yet; needs matplotlib")
    return parser.parse_args()


def batches(data, o, generator):
    while True:
        begin = torch.randint(len(data) - o.context, (o.batch,), generator=generator)
        yield torch.stack([data[i : i + o.context + 1] for i in begin.tolist()]).to(o.device)


def held_out(model, data, o):
    model.eval()
    with torch.no_grad():
        losses = [model(b).item() for b in itertools.islice(batches(data, o, torch.Generator().manual_seed(1)), 20)]
    model.train()
    return sum(losses) / len(losses)


class Run:
    """One model, and what it took."""

    def __init__(self, name, experts, o, data):
        torch.manual_seed(0)
        self.name, self.model = name, GPT(o, experts).to(o.device)
        self.step = torch.compile(self.model, fullgraph=True) if o.compile else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=o.rate)
        self.batches = batches(data, o, torch.Generator().manual_seed(0))
        self.losses, self.seconds = [], []

    def train(self, o):
        batch, begin = next(self.batches), time.perf_counter()
        loss = self.step(batch)
        self.optimizer.zero_grad()
        loss.backward()
        choir.torch.update_routers(self.model)  # thresholds, for causal evaluation
        self.optimizer.step()
        self.losses.append(loss.item())  # waits for the device
        self.seconds.append(time.perf_counter() - begin)


def main():
    o = options()
    data = torch.tensor(list(b"".join(path.read_bytes() for path in o.text)), dtype=torch.long)
    train, held = data.split([len(data) * 9 // 10, len(data) - len(data) * 9 // 10])
    runs = Run("dense", 0, o, train), Run("expert choice", o.experts, o, train)
    for run in runs:
        print(f"{run.name}: {sum(p.numel() for p in run.model.parameters()) / 1e6:.1f}M parameters", flush=True)
    for step in range(1, o.steps + 1):
        for run in runs:
            run.train(o)
        if step % 20 == 0 or step == o.steps:
            parts = (
                f"{r.name} {statistics.mean(r.losses[-20:]):.3f}  {1e3 * statistics.mean(r.seconds[-20:]):.0f} ms"
                for r in runs
            )
            print(f"step {step}  " + "  |  ".join(parts), flush=True)
    for run in runs:
        print(f"{run.name}: held out {held_out(run.model, held, o):.3f}, {sum(run.seconds):.0f} s in all")
    for block in runs[1].model.blocks[1::2]:
        block.ffn.causal = True
    loss = held_out(runs[1].model, held, o)
    print(f"expert choice, causally by thresholds: {loss:.3f} ({loss / math.log(2):.2f} bits per byte)")
    if o.plot:
        import matplotlib.pyplot as plt

        for run in runs:
            plt.plot(run.losses, label=run.name, linewidth=0.8)
        plt.xlabel("step"), plt.ylabel("training loss"), plt.legend()
        with open(o.plot, "xb") as file:  # never another one, nor through a link
            plt.savefig(file, format="png", dpi=150)


if __name__ == "__main__":
    main()
