"""The experts' products, and the weighted sum of what they give."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .compat import autocast_dtype
from .request import Routing


def by_experts(rows: Tensor, w1: Tensor, w2: Tensor, routing: Routing) -> Tensor:
    """rows [n,d] to [n,d]: sum over a token's experts of gate * GELU(row w1[i]) w2[i]^T, in the products' type."""
    n, e = routing.taken.shape
    if routing.slots is None and _ragged(rows):
        return _grouped(rows, w1, w2, routing)
    slots = _first(routing.taken.t(), n) if routing.slots is None else routing.slots
    token = slots.clamp(max=n - 1)
    gate = torch.where(slots < n, routing.gates.t().gather(1, token), 0.0)
    inner = F.gelu(torch.bmm(rows[token.reshape(-1)].view(e, -1, rows.shape[1]), w1))
    y = torch.bmm(inner, w2.transpose(1, 2))
    return _combined(y.flatten(0, 1), gate.reshape(-1), token.reshape(-1), n)


def _first(taken: Tensor, room: int) -> Tensor:
    """[e,room]: the numbers of what is taken, ascending, then n."""
    order = taken.to(torch.uint8).sort(dim=1, descending=True, stable=True)
    return order.indices[:, :room].masked_fill(order.values[:, :room] == 0, taken.shape[1])


def _ragged(rows: Tensor) -> bool:
    """Whether there are products of groups whose sizes stand on the device."""
    kind = autocast_dtype(rows.device.type) or rows.dtype
    return hasattr(F, "grouped_mm") and kind in (torch.bfloat16, torch.float16, torch.float32)


def _grouped(rows: Tensor, w1: Tensor, w2: Tensor, routing: Routing) -> Tensor:
    """Pairs of token and expert by expert, as many as there can be; what lies behind the last one is left alone."""
    n, e = routing.taken.shape
    pairs = _first(routing.taken.t().reshape(1, -1), n * routing.per_token)[0]
    used = pairs < n * e
    expert, token = torch.where(used, pairs // n, 0), torch.where(used, pairs % n, 0)
    ends = routing.taken.sum(0).cumsum(0).to(torch.int32)
    kind = autocast_dtype(rows.device.type) or rows.dtype
    rows, w1, w2 = (t.to(kind) for t in (rows, w1, w2))  # autocast knows no such product
    inner = torch.where(used[:, None], rows[token], 0.0)
    inner = torch.where(used[:, None], F.gelu(F.grouped_mm(inner, w1, offs=ends)), 0.0)
    y = torch.where(used[:, None], F.grouped_mm(inner, w2.transpose(1, 2), offs=ends), 0.0)
    return _combined(y, torch.where(used, routing.gates[token, expert], 0.0), token, n)


def _combined(y: Tensor, gate: Tensor, token: Tensor, n: int) -> Tensor:
    """Each token's weighted sum, added in the gates' precision."""
    weighted = y.to(gate.dtype) * gate[:, None]
    return torch.zeros(n, y.shape[1], dtype=gate.dtype, device=y.device).index_add(0, token, weighted).to(y.dtype)
