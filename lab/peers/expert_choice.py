"""The expert-choice layer in PyTorch, in the fastest form found for CPUs (docs/performance.md lists the slower ones).

Forward and backward by hand: autograd would keep more and write more. Names and formulas are docs/layer.md's.
"""
import math

import torch
import torch.nn.functional as F


def route(scores, c):
    """gate [e,k], token [e,k], and the slots by token: order [slots], begin [n]."""
    n, e = scores.shape
    k = min(n, max(1, math.floor(n * c / e + 0.5)))
    gate, token = scores.t().contiguous().topk(k, dim=1, sorted=False)
    by_token, order = token.view(-1).sort()
    begin = torch.searchsorted(by_token, torch.arange(n))
    return gate, token, order, begin


def combine(y, order, begin, gate=None):
    """Sum of each token's slots. embedding_bag adds rows in parallel; index_add_ took 2.3 times as long."""
    weights = None if gate is None else gate.view(-1)[order]
    if torch.__version__.startswith("1."):
        y = y.float()  # bf16 came later
    elif weights is not None:
        weights = weights.to(y.dtype)
    return F.embedding_bag(order, y, begin, mode="sum", per_sample_weights=weights).float()


def forward(x, router, w1, w2, c, products):
    """x [n,d] and router [d,e] fp32; w1, w2 [e,d,h] in the compute type. Returns out [n,d] and what backward needs."""
    e, d, _ = w1.shape
    scores = torch.softmax(x @ router, 1)
    gate, token, order, begin = route(scores, c)
    u = x.to(w1.dtype).index_select(0, token.view(-1)).view(e, -1, d)
    pre = products.bmm(u, w1)
    hidden = F.gelu(pre)
    y = products.bmm(hidden, w2.transpose(1, 2)).view(-1, d)
    return combine(y, order, begin, gate), (x, router, w1, w2, scores, gate, token, order, begin, u, pre, hidden, y)


def backward(dout, saved, products, dw1=None, dw2=None):
    """Gradients of x, router, w1, w2; the last two into the caller's memory if there is some."""
    x, router, w1, w2, scores, gate, token, order, begin, u, pre, hidden, y = saved
    e, d, _ = w1.shape
    dy = dout.to(w1.dtype).index_select(0, token.view(-1))
    dgate = y.mul_(dy).sum(1, dtype=torch.float32)
    dy = dy.mul_(gate.view(-1, 1)).view(e, -1, d)
    dw2 = products.bmm(dy.transpose(1, 2), hidden, dw2)
    dhidden = products.bmm(dy, w2, hidden)
    dpre = torch.ops.aten.gelu_backward.grad_input(dhidden, pre, grad_input=dhidden)
    dw1 = products.bmm(u.transpose(1, 2), dpre, dw1)
    du = products.bmm(dpre, w1.transpose(1, 2), u)
    dx = combine(du.view(-1, d), order, begin)
    dscores = torch.zeros_like(scores.t()).scatter_(1, token, dgate.view(e, -1)).t()
    dlogits = torch._softmax_backward_data(dscores, scores, 1, torch.float32)
    drouter = x.t() @ dlogits
    return dx.addmm_(dlogits, router.t()), drouter, dw1, dw2
