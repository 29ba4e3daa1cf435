"""Muon (Jordan et al. 2024) for expert weights. torch.optim.Muon takes matrices only, and an expert layer's weights are
[experts,d,h]: here every expert's matrix is orthogonalized by itself, all experts of a weight in one batched product.

    python3 examples/muon.py docs/*.md

trains the small GPT of nanogpt_moe.py twice, with AdamW alone and with Muon for the matrices, and prints both losses. To use
it elsewhere, copy Muon and optimizers_of."""

import argparse
import itertools
import math
import pathlib

import torch

import choir.torch

NEWTON_SCHULZ = 3.4445, -4.7750, 2.0315  # coefficients of the quintic iteration


def orthogonalized(gradient, steps=5):
    """U V^T approximately, where gradient [...,rows,columns] is U S V^T, by Newton-Schulz iterations in bf16."""
    a, b, c = NEWTON_SCHULZ
    wide = gradient.shape[-2] <= gradient.shape[-1]
    x = (gradient if wide else gradient.mT).bfloat16()
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon with adjust_lr_fn="match_rms_adamw", for weights of two and more dimensions: the last two are a matrix.
    Its step does not depend on whether a matrix is stored transposed, and it takes AdamW's learning rate."""

    def __init__(self, weights, lr=1e-3, weight_decay=0.1, momentum=0.95):
        super().__init__(weights, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is None, "Muon takes no closure"
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, **{name: group[name] for name in ("lr", "weight_decay", "momentum")})

    def _update(self, weight, lr, weight_decay, momentum):
        state = self.state[weight]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight.grad)
        mean = state["momentum_buffer"].lerp_(weight.grad, 1 - momentum)
        update = orthogonalized(weight.grad.lerp(mean, momentum))
        weight.mul_(1 - lr * weight_decay)
        weight.add_(update, alpha=-lr * 0.2 * math.sqrt(max(weight.shape[-2:])))


def optimizers_of(model, lr, weight_decay=0.1):
    """Muon for experts and other hidden matrices; AdamW for embeddings, gates, norms and biases."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    gates = {id(m.gate.weight) for m in model.modules() if isinstance(m, choir.torch.MoE)}
    matrices, others = [], []
    for weight in model.parameters():
        (matrices if weight.dim() > 1 and id(weight) not in embeddings | gates else others).append(weight)
    return Muon(matrices, lr, weight_decay), torch.optim.AdamW(others, lr, weight_decay=weight_decay)


def main():
    from nanogpt_moe import GPT, batches, held_out

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="+", type=pathlib.Path)
    sizes = {"layers": 4, "width": 128, "heads": 4, "context": 128, "batch": 16, "experts": 8, "steps": 300}
    for name, value in sizes.items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    o = parser.parse_args()
    data = torch.tensor(list(b"".join(path.read_bytes() for path in o.text)))
    data, last = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]
    for name in ("AdamW", "Muon"):
        torch.manual_seed(0)
        model = GPT(o, o.experts).to(o.device)
        adamw = (torch.optim.AdamW(model.parameters(), o.rate, weight_decay=0.1),)
        optimizers = adamw if name == "AdamW" else optimizers_of(model, o.rate)
        for batch in itertools.islice(batches(data, o, torch.Generator().manual_seed(0)), o.steps):
            loss = model(batch)
            model.zero_grad()
            loss.backward()
            choir.torch.update_routers(model)
            for optimizer in optimizers:
                optimizer.step()
        print(f"{name}: training loss {loss.item():.3f}, held out {held_out(model, last, o):.3f} nats per byte", flush=True)


if __name__ == "__main__":
    main()
