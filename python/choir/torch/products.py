"""Products of tokens with their experts' weights, and the weighted sum of the experts' outputs."""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from . import select
from .compat import autocast_dtype, count_grouped_flops, grouped_types, has_values
from .request import Routing

ACTIVATIONS = {"gelu": F.gelu, "geglu": F.gelu, "swiglu": F.silu}
GATED = ("geglu", "swiglu")  # activations whose result is multiplied by a second product
WEIGHTS = ("w1", "w2", "w3")
GROUPED = grouped_types()
count_grouped_flops()


class Weights(NamedTuple):
    """The weights of all experts, [e,d,h] each. An expert is act(row w1) w2^T without w3, and (act(row w1) * (row
    w3)) w2^T with it. gate_on: whether gates multiply the "output" or the "input" of an expert."""

    w1: Tensor
    w2: Tensor
    w3: Optional[Tensor]
    activation: str
    gate_on: str

    def hidden(self, product: Callable[[Tensor], Tensor]) -> Tensor:
        y = ACTIVATIONS[self.activation](product(self.w1))
        return y if self.w3 is None else y * product(self.w3)

    def map(self, change: Callable[[Tensor], Tensor]) -> Weights:
        """Applies a function to each weight."""
        return Weights(*(w if w is None else change(w) for w in self[:3]), *self[3:])


def by_experts(rows: Tensor, weights: Weights, routing: Routing) -> Tensor:
    """rows [n,d] to [n,d]: the sum over a token's experts of gate * expert(row), in the products' type."""
    e, n, slots = weights.w1.shape[0], rows.shape[0], routing.slots
    ample = slots is not None and routing.per_token < e and slots.numel() > 1.25 * n * routing.per_token
    if (slots is None or ample) and _ragged(rows):  # with a large capacity, most slots are empty
        return _grouped(rows, weights, routing)
    token, gate = slots_of(routing)
    taken = gathered(rows, gate, token, weights).view(e, -1, rows.shape[1])
    return combined(slots_product(taken, weights).flatten(0, 1), gate, token, n, weights)


def _asked(routing: Routing, count: Callable[[], Tensor], bound: int) -> int:
    """The number of rows, if the bound would be n per expert and no gradients are needed: with thresholds most rows
    are unused, and reading the number from the device costs less. Otherwise the bound."""
    by_thresholds = routing.slots is None and 1 < routing.per_token == routing.assignment.shape[1]
    if by_thresholds and not torch.is_grad_enabled() and has_values(routing.assignment):
        return max(1, int(count()))
    return bound


def slots_of(routing: Routing) -> tuple[Tensor, Tensor]:
    """Tokens and gates of all experts' slots, [e*room] each; a slot without a token has gate 0."""
    slots = routing.slots
    if routing.slot_gates is not None:
        return slots.reshape(-1), routing.slot_gates.reshape(-1)
    n = routing.assignment.shape[0]
    if slots is None:
        slots = select.first(routing.assignment.t(), _asked(routing, lambda: routing.load.max(), n))
    token = slots.clamp(max=n - 1)
    gate = torch.where(slots < n, routing.every_gate().t().gather(1, token), 0.0)
    return token.reshape(-1), gate.reshape(-1)


def slots_product(taken: Tensor, weights: Weights) -> Tensor:
    """[e,room,d] rows, each through its slot's expert."""
    return torch.bmm(weights.hidden(lambda w: torch.bmm(taken, w)), weights.w2.transpose(1, 2))


def _ragged(rows: Tensor) -> bool:
    """Whether grouped products with group sizes on the device are available."""
    kind = autocast_dtype(rows.device.type) or rows.dtype
    if kind in GROUPED:
        return True
    return bool(GROUPED) and kind in (torch.float16, torch.float32) and has_values(rows)


def _whole(a: Tensor, step: int) -> Tensor:
    """Pads all dimensions but the first with zeros, up to multiples of `step`."""
    more = [x for size in reversed(a.shape[1:]) for x in (0, -size % step)]
    return F.pad(a, more) if any(more) else a


def _masked(a: Tensor, used: Optional[Tensor]) -> Tensor:
    """[m,...] with 0 where not used [m]; used None: unchanged."""
    return a if used is None else torch.where(used.view(-1, *[1] * (a.dim() - 1)), a, 0)


def grouped_product(rows: Tensor, weights: Weights, ends: Tensor, used: Optional[Tensor] = None) -> Tensor:
    """Applies experts to rows [m,d] sorted by expert; ends [e] are the ends of the experts' rows. used [m]: rows
    after the last end, which grouped products do not write, become 0."""
    d, step = rows.shape[1], 16 // rows.dtype.itemsize  # grouped products require rows of a multiple of 16 bytes
    rows, weights = _whole(rows, step), weights.map(lambda w: _whole(w, step).to(rows.dtype))

    def product(a, w):  # autocast does not support grouped products
        return F.grouped_mm(a, w, offs=ends)

    inner = _masked(weights.hidden(lambda w: product(rows, w)), used)
    return _masked(product(inner, weights.w2.transpose(1, 2)), used)[:, :d]


def _grouped(rows: Tensor, weights: Weights, routing: Routing) -> Tensor:
    """Pairs of token and expert, sorted by expert, in arrays of the maximum size; entries after the last pair are not
    used."""
    n, e = routing.assignment.shape
    if routing.choice is not None:
        pairs = routing.choice.reshape(-1).sort(stable=True).indices
        token, used, load = pairs // routing.per_token, None, routing.demand
        gate = routing.choice_gates.reshape(-1).index_select(0, pairs)
    else:
        room = _asked(routing, lambda: routing.load.sum(), n * routing.per_token)
        pairs = select.first(routing.assignment.t().reshape(1, -1), room)[0]
        used, load = pairs < n * e, routing.load
        expert, token = _masked(pairs // n, used), _masked(pairs % n, used)
        gate = _masked(routing.gates[token, expert], used)
    ends = load.cumsum(0, dtype=torch.int32)
    kind = autocast_dtype(rows.device.type) or rows.dtype
    taken = _masked(gathered(rows, gate, token, weights).to(kind), used)
    y = grouped_product(taken, weights, ends, used)
    return combined(y, gate, token, n, weights)


def gathered(rows: Tensor, gate: Tensor, token: Tensor, weights: Weights) -> Tensor:
    """The row of each slot, times its gate if gates scale the experts' inputs."""
    taken = rows.index_select(0, token)
    return (taken * gate[:, None]).to(rows.dtype) if weights.gate_on == "input" else taken


def combined(y: Tensor, gate: Tensor, token: Tensor, n: int, weights: Weights) -> Tensor:
    """The sum for each token, weighted by gates if these scale the experts' outputs, added in the gates' precision."""
    out = torch.zeros(n, y.shape[1], dtype=gate.dtype, device=y.device)
    y_gated = y.to(gate.dtype) if weights.gate_on == "input" else y * gate[:, None]
    return out.index_add(0, token, y_gated).to(y.dtype)
