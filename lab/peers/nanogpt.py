"""The recipe that nanoGPT gives for a CPU (train_shakespeare_char: 4 layers, width 128, context 64, batch 12, 2,000
steps), written anew in plain PyTorch: learned positions, LayerNorm without bias, GELU, a tied head; AdamW with warmup
and half a cosine, clipped gradients, no dropout.

    nanogpt.py TRAIN.npy HELDOUT.npy VOCABULARY THREADS EVALUATIONS SEED

Tokens are int32. Prints a JSON line {"seconds", "step", "loss"} for each evaluation; seconds are those of steps alone.
"""
import json
import math
import sys
import time

import numpy
import torch
from torch import nn
from torch.nn import functional as F

LAYERS, WIDTH, HEADS, CONTEXT, BATCH, STEPS = 4, 128, 4, 64, 12, 2000
RATE, LEAST_RATE, WARMUP, CLIP = 1e-3, 1e-4, 100, 1.0


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return F.layer_norm(x, (WIDTH,), self.weight, None, 1e-5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_norm, self.ffn_norm = Norm(), Norm()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (part.view(B, T, HEADS, -1).transpose(1, 2) for part in self.qkv(self.attn_norm(x)).chunk(3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, WIDTH))
        return x + self.down(F.gelu(self.up(self.ffn_norm(x))))


class Model(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), Norm()
        for name, p in self.named_parameters():
            if p.dim() == 2:
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * LAYERS) if last else 0.02)

    def forward(self, x, target):
        x = self.blocks(self.token(x) + self.position.weight[: x.shape[1]])
        logits = self.norm(x) @ self.token.weight.T
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def rate_of(step):
    if step < WARMUP:
        return RATE * (step + 1) / (WARMUP + 1)
    return LEAST_RATE + (RATE - LEAST_RATE) * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2


@torch.no_grad()
def evaluate(model, heldout):
    windows = (len(heldout) - 1) // CONTEXT
    x, target = (heldout[i:][: windows * CONTEXT].view(windows, CONTEXT) for i in (0, 1))
    return sum(model(x[i:i + 64], target[i:i + 64]).item() * len(x[i:i + 64]) for i in range(0, windows, 64)) / windows


def main(train, heldout, vocabulary, threads, evaluations, seed):
    torch.set_num_threads(int(threads))
    torch.manual_seed(int(seed))
    train, heldout = (torch.from_numpy(numpy.load(name).astype(numpy.int64).ravel()) for name in (train, heldout))
    model = Model(int(vocabulary))
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}],
                                  lr=RATE, betas=(0.9, 0.99))
    seconds = 0.0
    for step in range(STEPS):
        begin = time.monotonic()
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step)
        at = torch.randint(len(train) - CONTEXT - 1, (BATCH,))
        x, target = (torch.stack([train[i + s:i + s + CONTEXT] for i in at]) for s in (0, 1))
        loss = model(x, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        seconds += time.monotonic() - begin
        if (step + 1) % (STEPS // int(evaluations)) == 0:
            print(json.dumps({"seconds": seconds, "step": step + 1, "loss": evaluate(model, heldout)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
