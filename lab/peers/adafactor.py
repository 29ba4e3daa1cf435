"""Adafactor as docs/training.md has it, in few passes over memory: no tensor of squares is ever written."""
import math

import torch

norm = torch.linalg.vector_norm


class Adafactor:
    """masters: name to fp32 tensor; compute: name to the tensor that products read, the same one or its bf16 copy."""

    def __init__(self, masters, compute, config):
        self.masters, self.compute, self.config, self.step = masters, compute, config, 0
        self.state = {name: self._zeros(self._matrices(name, w)) for name, w in masters.items()}

    @staticmethod
    def _matrices(name, w):
        """[m,rows,cols]; a vector is one row, which has no row moments."""
        return w.view(-1, w.shape[-2], w.shape[-1]) if w.dim() > 1 else w.view(1, 1, -1)

    @staticmethod
    def _zeros(w):
        return torch.zeros(w.shape[:2]), torch.zeros(w.shape[0], w.shape[2])

    def _rate(self):
        c, t = self.config, self.step
        rate = c["learning_rate"] * (min(1, t / c["warmup_steps"]) if c["warmup_steps"] else 1)
        return rate * (math.sqrt(c["constant_steps"] / t) if 0 < c["constant_steps"] < t else 1)

    @torch.no_grad()
    def update(self):
        self.step += 1
        beta, t, rate = self.config["beta2"], self.step, self._rate()
        beta *= (1 - beta ** (t - 1)) / (1 - beta**t)
        for name, master in self.masters.items():
            used = self.compute[name]
            holder = used if master.grad is None else master
            self._one(name, master, holder.grad.float(), beta, rate)
            holder.grad = None
            if used is not master:
                used.copy_(master)

    def _one(self, name, master, gradient, beta, rate):
        w, g = self._matrices(name, master), self._matrices(name, gradient)
        row, col = self.state[name]
        rows, cols = w.shape[1:]
        col.mul_(beta).add_(norm(g, dim=1).square_(), alpha=(1 - beta) / rows).add_((1 - beta) * 1e-30)
        if rows > 1:
            row.mul_(beta).add_(norm(g, dim=2).square_(), alpha=(1 - beta) / cols).add_((1 - beta) * 1e-30)
            g = g.mul_((row.mean(1, keepdim=True) / row).sqrt_()[:, :, None])
        factor = col.rsqrt()
        size = math.sqrt(rows * cols)
        u = norm(norm(g, dim=1).mul_(factor), dim=1).div_(size)
        length = norm(w, dim=(1, 2)).div_(size).clamp_(min=1e-3).mul_(rate).div_(u.clamp_(min=1))
        w.addcmul_(g, factor.mul_(length[:, None])[:, None, :], value=-1)
