"""The experts' products, and the weighted sum of what they give."""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from . import select
from .compat import autocast_dtype
from .request import Routing


ACTIVATIONS = {"gelu": F.gelu, "geglu": F.gelu, "swiglu": F.silu}
GATED = ("geglu", "swiglu")  # what they make is multiplied by a second product


class Experts(NamedTuple):
    """Weights [e,d,h]; without w3 an expert is act(row w1) w2^T, with it (act(row w1) * (row w3)) w2^T."""

    w1: Tensor
    w2: Tensor
    w3: Optional[Tensor]
    activation: str

    def hidden(self, product: Callable[[Tensor], Tensor]) -> Tensor:
        y = ACTIVATIONS[self.activation](product(self.w1))
        return y if self.w3 is None else y * product(self.w3)


def by_experts(rows: Tensor, experts: Experts, routing: Routing) -> Tensor:
    """rows [n,d] to [n,d]: sum over a token's experts of gate * expert(row), in the products' type."""
    n, e = routing.taken.shape
    if routing.slots is None and _ragged(rows):
        return _grouped(rows, experts, routing)
    slots = select.first(routing.taken.t(), n) if routing.slots is None else routing.slots
    token = slots.clamp(max=n - 1)
    gate = torch.where(slots < n, routing.gates.t().gather(1, token), 0.0)
    taken = rows[token.reshape(-1)].view(e, -1, rows.shape[1])
    y = torch.bmm(experts.hidden(lambda w: torch.bmm(taken, w)), experts.w2.transpose(1, 2))
    return _combined(y.flatten(0, 1), gate.reshape(-1), token.reshape(-1), n)


def _ragged(rows: Tensor) -> bool:
    """Whether there are products of groups whose sizes stand on the device."""
    kind = autocast_dtype(rows.device.type) or rows.dtype
    return hasattr(F, "grouped_mm") and kind in (torch.bfloat16, torch.float16, torch.float32)


def _whole(a: Tensor, step: int) -> Tensor:
    """With zeros behind all dimensions but the first, up to multiples of `step`."""
    more = [x for size in reversed(a.shape[1:]) for x in (0, -size % step)]
    return F.pad(a, more) if any(more) else a


def _grouped(rows: Tensor, experts: Experts, routing: Routing) -> Tensor:
    """Pairs of token and expert by expert, as many as there can be; what lies behind the last one is left alone."""
    n, e = routing.taken.shape
    d = rows.shape[1]
    pairs = select.first(routing.taken.t().reshape(1, -1), n * routing.per_token)[0]
    used = pairs < n * e
    expert, token = torch.where(used, pairs // n, 0), torch.where(used, pairs % n, 0)
    ends = routing.taken.sum(0).cumsum(0).to(torch.int32)
    kind = autocast_dtype(rows.device.type) or rows.dtype
    step = 16 // kind.itemsize  # such products want rows of whole 16 bytes
    rows, experts = _whole(rows, step), experts._replace(**{
        name: _whole(w, step) for name, w in experts._asdict().items() if isinstance(w, Tensor)
    })

    def product(a, w):  # autocast knows none of this kind
        return F.grouped_mm(a, w.to(kind), offs=ends)

    taken = torch.where(used[:, None], rows[token].to(kind), 0.0)
    inner = torch.where(used[:, None], experts.hidden(lambda w: product(taken, w)), 0.0)
    y = torch.where(used[:, None], product(inner, experts.w2.transpose(1, 2)), 0.0)
    return _combined(y, torch.where(used, routing.gates[token, expert], 0.0), token, n)[:, :d]


def _combined(y: Tensor, gate: Tensor, token: Tensor, n: int) -> Tensor:
    """Each token's weighted sum, added in the gates' precision."""
    weighted = y.to(gate.dtype) * gate[:, None]
    return torch.zeros(n, y.shape[1], dtype=gate.dtype, device=y.device).index_add(0, token, weighted).to(y.dtype)
