"""choir's Transformer in PyTorch: autograd over functions written by hand, and the head's backward within its forward.

bf16 has fp32 weights, norms, residual stream, router and second moments; products, attention and the head's logits are bf16 from end to
end, gradients of matrices too. (choir sums in fp32 and keeps logits so.)
"""
import math

import torch
import torch.nn.functional as F

import expert_choice

HEAD_ROWS = 1024  # rows of logits at a time


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        scale = torch.linalg.vector_norm(x, dim=1, keepdim=True).square_().div_(x.shape[1]).add_(eps).rsqrt_()
        unit = x * scale
        ctx.save_for_backward(unit, scale, w)
        return unit * w

    @staticmethod
    def backward(ctx, dy):
        unit, scale, w = ctx.saved_tensors
        product = dy * unit
        dw = product.sum(0)
        along = (product @ w).div_(unit.shape[1])
        return (dy * w).addcmul_(unit, along[:, None], value=-1).mul_(scale), dw, None


class Experts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, router, w1, w2, c, products):
        out, ctx.kept = expert_choice.forward(x, router, w1, w2, c, products)
        ctx.products = products
        return out

    @staticmethod
    def backward(ctx, dout):
        return (*expert_choice.backward(dout, ctx.kept, ctx.products), None, None)


class Positions:
    """Which bucket position i has for j <= i, as T5's, unidirectional; behind the last bucket: the mask."""

    def __init__(self, T, buckets, furthest):
        exact = buckets // 2
        bucket = [d if d < exact else
                  min(buckets - 1, exact + int(math.log(d / exact) / math.log(furthest / exact) * (buckets - exact)))
                  for d in range(T)]
        distance = torch.arange(T)[:, None] - torch.arange(T)[None, :]
        self.bucket = torch.where(distance < 0, torch.tensor(buckets), torch.tensor(bucket)[distance.clamp(min=0)])
        self.onehot = F.one_hot(self.bucket, buckets + 1)[:, :, :buckets].float()  # [T,T,buckets]
        step = max(64, T // 4)  # rows at a time: what lies right of the diagonal's block is left out
        self.blocks = [(r, min(T, r + step)) for r in range(0, T, step)]

    def bias(self, rel_bias, first, end):
        """[H, end-first, end]"""
        table = F.pad(rel_bias.t(), (0, 1), value=-math.inf)
        return table[:, self.bucket[first:end, :end]]


class Attention(torch.autograd.Function):
    """From q, k, v side by side, [B*T, 3*H*dh]."""

    @staticmethod
    def forward(ctx, qkv, rel_bias, B, H, positions, products):
        T, width = qkv.shape[0] // B, qkv.shape[1] // 3
        q, k, v = qkv.view(B, T, 3, H, -1).permute(2, 0, 3, 1, 4).reshape(3, B * H, T, width // H).unbind(0)
        q.mul_(1 / math.sqrt(width // H))
        out, kept = torch.empty_like(q), []
        for first, end in positions.blocks:
            p = products.bmm(q[:, first:end], k[:, :end].transpose(1, 2))
            p.view(B, H, end - first, end).add_(positions.bias(rel_bias, first, end))
            torch.softmax(p, 2, out=p)
            out[:, first:end] = products.bmm(p, v[:, :end])
            kept.append(p)
        ctx.about = (q, k, v, kept, B, H, positions, products)
        return out.view(B, H, T, -1).transpose(1, 2).reshape(B * T, width)

    @staticmethod
    def backward(ctx, dout):
        q, k, v, kept, B, H, positions, products = ctx.about
        T, dh = q.shape[1:]
        dout = dout.view(B, T, H, dh).transpose(1, 2).reshape(B * H, T, dh)
        dqkv = torch.zeros(3, B * H, T, dh, dtype=q.dtype)
        drel_bias = 0
        for p, (first, end) in zip(kept, positions.blocks):
            rows = dout[:, first:end]
            dqkv[2, :, :end] += products.bmm(p.transpose(1, 2), rows)
            ds = products.bmm(rows, v[:, :end].transpose(1, 2))
            ds = torch._softmax_backward_data(ds, p, 2, ds.dtype)
            dqkv[0, :, first:end] = products.bmm(ds, k[:, :end])
            dqkv[1, :, :end] += products.bmm(ds.transpose(1, 2), q[:, first:end])
            sums = ds.view(B, H, -1).sum(0, dtype=torch.float32)
            onehot = positions.onehot[first:end, :end]
            drel_bias += (sums @ onehot.reshape(sums.shape[1], -1)).t()
        dqkv[0].mul_(1 / math.sqrt(dh))
        dqkv = dqkv.view(3, B, H, T, dh).permute(1, 3, 0, 2, 4).reshape(B * T, -1)
        return dqkv, drel_bias, None, None, None, None


def head(x, embedding, target):
    """Mean loss; gradients of x and of the embedding, in fp32. Logits stand in memory for HEAD_ROWS rows only."""
    n, d = x.shape
    scale, total = 1 / math.sqrt(d), 0.0
    x = x.to(embedding.dtype)
    dx, dw = torch.empty(n, d), torch.zeros(embedding.shape, dtype=embedding.dtype)
    for first in range(0, n, HEAD_ROWS):
        rows, wanted = x[first : first + HEAD_ROWS] * scale, target[first : first + HEAD_ROWS, None]
        p = rows @ embedding.t()
        torch.softmax(p, 1, out=p)
        total -= p.gather(1, wanted).float().log_().sum().item()
        p.scatter_add_(1, wanted, p.new_full(wanted.shape, -1.0))
        torch.mul(p @ embedding, scale / n, out=dx[first : first + HEAD_ROWS])
        dw.addmm_(p.t(), rows, alpha=1 / n)
    return total / n, dx, dw.float()


def linear(x, w):
    return F.linear(x.to(w.dtype), w)


def step(weights, config, tokens, target, positions, products):
    """Forward and backward. `weights`: name to tensor, leaves in the compute type. Returns the loss; gradients are in .grad."""
    m, B = config["model"], config["train"]["batch_sequences"]
    eps, c = m["norm_eps"], m["router"]["capacity_factor"]
    x = stream = weights["embed.weight.fp32"].index_select(0, tokens).requires_grad_()
    for i in range(m["layers"]):
        at = f"layers.{i}."
        qkv = linear(Norm.apply(x, weights[at + "attn_norm.weight"], eps), weights[at + "attn.qkv"].flatten(0, 1))
        mixed = Attention.apply(qkv, weights[at + "attn.rel_bias"], B, m["heads"], positions, products)
        x = x + linear(mixed, weights[at + "attn.o.weight"])
        y = Norm.apply(x, weights[at + "ffn_norm.weight"], eps)
        if at + "moe.experts.w1" in weights:
            w = (weights[at + "moe." + name] for name in ("router.weight", "experts.w1", "experts.w2"))
            x = x + Experts.apply(y, *w, c, products)
        else:
            y = y.to(qkv.dtype)
            inner = F.gelu(linear(y, weights[at + "ffn.gate.weight"])) * linear(y, weights[at + "ffn.up.weight"])
            x = x + linear(inner, weights[at + "ffn.down.weight"])
    last = Norm.apply(x, weights["final_norm.weight"], eps)
    with torch.no_grad():
        loss, dlast, dembed = head(last, weights["embed.weight"], target)
    last.backward(dlast)
    weights["embed.weight.fp32"].grad = dembed.index_add_(0, tokens, stream.grad)
    return loss
