"""The experts' products, and the weighted sum of what they give."""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._native import ArgumentError
from . import select
from .compat import autocast_dtype, grouped_types, has_values
from .request import Routing, Sent


ACTIVATIONS = {"gelu": F.gelu, "geglu": F.gelu, "swiglu": F.silu}
GATED = ("geglu", "swiglu")  # what they make is multiplied by a second product
WEIGHTS = ("w1", "w2", "w3")
GROUPED = grouped_types()


class Weights(NamedTuple):
    """[e,d,h] each; without w3 an expert is act(row w1) w2^T, with it (act(row w1) * (row w3)) w2^T. gate_on: what gates
    scale, "output" or "input" of an expert."""

    w1: Tensor
    w2: Tensor
    w3: Optional[Tensor]
    activation: str
    gate_on: str

    def hidden(self, product: Callable[[Tensor], Tensor]) -> Tensor:
        y = ACTIVATIONS[self.activation](product(self.w1))
        return y if self.w3 is None else y * product(self.w3)

    def map(self, change: Callable[[Tensor], Tensor]) -> Weights:
        """Each weight changed."""
        return Weights(*(w if w is None else change(w) for w in self[:3]), *self[3:])


class _Linear(nn.Linear):
    """Fresh, its weight is normal, of variance 1 / fan_in."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.in_features**-0.5)


class Dense(nn.Module):
    """down(act(gate(x)) * up(x)), or down(act(up(x))) where the activation has no gate."""

    def __init__(self, d, h, activation, **at):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.gate = _Linear(d, h, bias=False, **at) if activation in GATED else None
        self.up, self.down = _Linear(d, h, bias=False, **at), _Linear(h, d, bias=False, **at)

    def reset_parameters(self) -> None:
        for layer in self.children():
            layer.reset_parameters()

    def forward(self, x):
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Gate(_Linear):
    """The weight of scores [e,d], in which each row is an expert: rows [n,d] to logits [n,e], in the rows' type whatever
    the weight's. A Linear, which adapters (LoRA), quantizers and FSDP policies find. learned: False makes the weight a
    buffer. means: it is centroids, which stay float32."""

    def __init__(self, d_model: int, experts: int, learned: bool, means: bool, **at):
        super().__init__(d_model, experts, bias=False, **at)
        self.means = means
        if not learned:
            weight = self.weight.detach()
            del self.weight
            self.register_buffer("weight", weight.float() if means else weight)

    def forward(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.weight.to(rows.dtype))

    def _load_from_state_dict(self, *given):
        super()._load_from_state_dict(*given)
        if self.means:
            self.weight = self.weight.float()  # load_state_dict(assign=True) may have given another type


def reads_any(gate: nn.Module) -> bool:
    """Whether rows may have another type than the weight: of a Gate, also one within an adapter."""
    return isinstance(gate, Gate) or any(isinstance(module, Gate) for module in gate.modules())


def of_other(gate: nn.Module, rows: Tensor, kind: torch.dtype) -> Tensor:
    """The logits, in the rows' type, of a module in a Gate's place that is none, as a quantized Linear: it reads the type
    of its weight or, where that does not tell, of the layer's input."""
    weight = getattr(gate, "weight", None)
    known = isinstance(weight, Tensor) and weight.is_floating_point()
    return gate(rows.to(weight.dtype if known else kind)).to(rows.dtype)


class Experts(nn.Module):
    """The experts of a layer, weights w1, w2 and w3 [e,d,h]: a module of its own, which FSDP2 can shard by itself and
    `ExpertParallel` shares out. Rows [n,d] and their routing to rows [n,d]."""

    def __init__(self, d_model: int, d_hidden: int, experts: int, activation: str, gate_on: str = "output", **at):
        super().__init__()
        self.activation, self.gate_on = activation, gate_on
        for name in WEIGHTS if activation in GATED else WEIGHTS[:2]:
            setattr(self, name, nn.Parameter(torch.empty(experts, d_model, d_hidden, **at)))
        if activation not in GATED:
            self.w3 = None
        self.reset_parameters()

    def weights(self) -> Weights:
        return Weights(self.w1, self.w2, self.w3, self.activation, self.gate_on)

    def reset_parameters(self) -> None:
        """Normal, of variance 1 / fan_in."""
        d, h = self.w1.shape[1:]
        for weight, fan_in in ((self.w1, d), (self.w2, h), (self.w3, d)):
            if weight is not None:
                nn.init.normal_(weight, std=fan_in**-0.5)

    def forward(self, rows: Tensor, sent: Sent) -> Tensor:
        weights, kind = self.weights(), rows.dtype
        if hasattr(weights.w1, "placements"):  # a DTensor: this process has a part of the experts or of their columns
            from .parallel import by_owners

            return by_owners(rows, weights.map(lambda w: w.to(kind)), sent)
        if weights.w1.dtype != kind and autocast_dtype(rows.device.type) is None:
            raise ArgumentError(
                f"x is of {kind}, the layer of {weights.w1.dtype}; convert one with .to(dtype), or use torch.autocast"
            )
        return by_experts(rows, weights, sent.routing)

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"


def by_experts(rows: Tensor, weights: Weights, routing: Routing) -> Tensor:
    """rows [n,d] to [n,d]: sum over a token's experts of gate * expert(row), in the products' type."""
    e, n, slots = weights.w1.shape[0], rows.shape[0], routing.slots
    ample = slots is not None and routing.per_token < e and slots.numel() > 1.25 * n * routing.per_token
    if (slots is None or ample) and _ragged(rows):  # of an ample capacity most slots are empty
        return _grouped(rows, weights, routing)
    token, gate = slots_of(routing)
    taken = gathered(rows, gate, token, weights).view(e, -1, rows.shape[1])
    return combined(slots_product(taken, weights).flatten(0, 1), gate, token, n, weights)


def _asked(routing: Routing, count: Callable[[], Tensor], bound: int) -> int:
    """How many rows there are, where they might be n for every expert and nobody needs gradients: by thresholds most are
    not used, and asking the device once costs less. Elsewhere the bound."""
    by_thresholds = routing.slots is None and 1 < routing.per_token == routing.taken.shape[1]
    if by_thresholds and not torch.is_grad_enabled() and has_values(routing.taken):
        return max(1, int(count()))
    return bound


def slots_of(routing: Routing) -> tuple[Tensor, Tensor]:
    """Tokens and gates of all experts' slots, [e*room] each; a slot without a token has gate 0."""
    slots = routing.slots
    if routing.slot_gates is not None:
        return slots.reshape(-1), routing.slot_gates.reshape(-1)
    n = routing.taken.shape[0]
    if slots is None:
        slots = select.first(routing.taken.t(), _asked(routing, lambda: routing.load.max(), n))
    token = slots.clamp(max=n - 1)
    gate = torch.where(slots < n, routing.every_gate().t().gather(1, token), 0.0)
    return token.reshape(-1), gate.reshape(-1)


def slots_product(taken: Tensor, weights: Weights) -> Tensor:
    """[e,room,d] through each its own expert."""
    return torch.bmm(weights.hidden(lambda w: torch.bmm(taken, w)), weights.w2.transpose(1, 2))


def _ragged(rows: Tensor) -> bool:
    """Whether there are products of groups whose sizes stand on the device."""
    kind = autocast_dtype(rows.device.type) or rows.dtype
    if kind in GROUPED:
        return True
    return bool(GROUPED) and kind in (torch.float16, torch.float32) and has_values(rows)


def _whole(a: Tensor, step: int) -> Tensor:
    """With zeros behind all dimensions but the first, up to multiples of `step`."""
    more = [x for size in reversed(a.shape[1:]) for x in (0, -size % step)]
    return F.pad(a, more) if any(more) else a


def _masked(a: Tensor, used: Optional[Tensor]) -> Tensor:
    """[m,...] with 0 where not used [m]; None: all are."""
    return a if used is None else torch.where(used.view(-1, *[1] * (a.dim() - 1)), a, 0)


def grouped_product(rows: Tensor, weights: Weights, ends: Tensor, used: Optional[Tensor] = None) -> Tensor:
    """Rows [m,d], sorted by expert, through their experts, whose last rows end at ends [e]. used [m]: rows behind the
    last end, which the products leave alone, become 0."""
    d, step = rows.shape[1], 16 // rows.dtype.itemsize  # such products want rows of whole 16 bytes
    rows, weights = _whole(rows, step), weights.map(lambda w: _whole(w, step).to(rows.dtype))

    def product(a, w):  # autocast knows none of this kind
        return F.grouped_mm(a, w, offs=ends)

    inner = _masked(weights.hidden(lambda w: product(rows, w)), used)
    return _masked(product(inner, weights.w2.transpose(1, 2)), used)[:, :d]


def _grouped(rows: Tensor, weights: Weights, routing: Routing) -> Tensor:
    """Pairs of token and expert by expert, as many as there can be; what lies behind the last one is left alone."""
    n, e = routing.taken.shape
    if routing.choice is not None:
        pairs = routing.choice.reshape(-1).sort(stable=True).indices
        token, used, load = pairs // routing.per_token, None, routing.demand
        gate = routing.choice_gates.reshape(-1).index_select(0, pairs)
    else:
        room = _asked(routing, lambda: routing.load.sum(), n * routing.per_token)
        pairs = select.first(routing.taken.t().reshape(1, -1), room)[0]
        used, load = pairs < n * e, routing.load
        expert, token = _masked(pairs // n, used), _masked(pairs % n, used)
        gate = _masked(routing.gates[token, expert], used)
    ends = load.cumsum(0, dtype=torch.int32)
    kind = autocast_dtype(rows.device.type) or rows.dtype
    taken = _masked(gathered(rows, gate, token, weights).to(kind), used)
    y = grouped_product(taken, weights, ends, used)
    return combined(y, gate, token, n, weights)


def gathered(rows: Tensor, gate: Tensor, token: Tensor, weights: Weights) -> Tensor:
    """Each slot's row, times its gate where gates scale what experts read."""
    taken = rows.index_select(0, token)
    return (taken * gate[:, None]).to(rows.dtype) if weights.gate_on == "input" else taken


def combined(y: Tensor, gate: Tensor, token: Tensor, n: int, weights: Weights) -> Tensor:
    """Each token's sum, weighted where gates scale what experts write, added in the gates' precision."""
    out = torch.zeros(n, y.shape[1], dtype=gate.dtype, device=y.device)
    y_gated = y.to(gate.dtype) if weights.gate_on == "input" else y * gate[:, None]
    return out.index_add(0, token, y_gated).to(y.dtype)
