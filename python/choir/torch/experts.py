"""Modules with a layer's weights: of the router, of its experts, and of shared experts."""

from __future__ import annotations

from typing import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._errors import ArgumentError
from .compat import autocast_dtype
from .products import ACTIVATIONS, GATED, WEIGHTS, Weights, by_experts
from .request import Sent


class Means(nn.Module):
    """A module whose buffers `means` stay float32 in models of other types: a running mean in bf16 would not change."""

    means: Sequence[str] = ()

    def _apply(self, *given, **options):
        before = {name: getattr(self, name) for name in self.means}
        super()._apply(*given, **options)
        for name, mean in before.items():
            now = getattr(self, name)
            if now.dtype != torch.float32:
                setattr(self, name, now.float() if mean.is_meta else mean.to(now.device))
        return self

    def _load_from_state_dict(self, *given):
        super()._load_from_state_dict(*given)
        for name in self.means:  # load_state_dict(assign=True) may have changed the type
            setattr(self, name, getattr(self, name).float())


class _Linear(nn.Linear):
    """A Linear whose initial weight is normal, of variance 1 / fan_in."""

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


class Gate(Means, _Linear):
    """The router's weight [e,d], one row per expert: maps rows [n,d] to logits [n,e] of the rows' type, whatever the
    weight's. A Linear, so that adapters (LoRA), quantizers and FSDP policies find it. learned: False makes the weight
    a buffer. centroids: rows are means of tokens."""

    def __init__(self, d_model: int, experts: int, learned: bool, centroids: bool, **at):
        super().__init__(d_model, experts, bias=False, **at)
        self.means = ("weight",) if centroids else ()
        if not learned:
            weight = self.weight.detach()
            del self.weight
            self.register_buffer("weight", weight.float() if centroids else weight)

    def forward(self, rows: Tensor) -> Tensor:
        weight = self.weight.to(rows.dtype)  # a quantized weight may keep its type
        return F.linear(rows.to(weight.dtype), weight).to(rows.dtype)


def reads_any(gate: nn.Module) -> bool:
    """Whether rows may have another type than the weight: true for a Gate, also within an adapter."""
    return isinstance(gate, Gate) or any(isinstance(module, Gate) for module in gate.modules())


def of_other(gate: nn.Module, rows: Tensor, kind: torch.dtype) -> Tensor:
    """The logits, in the rows' type, of another module in place of a Gate, such as a quantized Linear. It gets rows
    in its weight's type or, if that is not floating point, in the type of the layer's input."""
    weight = getattr(gate, "weight", None)
    known = isinstance(weight, Tensor) and weight.is_floating_point()
    return gate(rows.to(weight.dtype if known else kind)).to(rows.dtype)


class Experts(nn.Module):
    """The experts of a layer, with weights w1, w2 and w3 [e,d,h]. They are a separate module, so that FSDP2 can
    shard it and `ExpertParallel` can distribute it. Maps rows [n,d] and their routing to rows [n,d]."""

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
        """Initializes weights from a normal distribution of variance 1 / fan_in."""
        d, h = self.w1.shape[1:]
        for weight, fan_in in ((self.w1, d), (self.w2, h), (self.w3, d)):
            if weight is not None:
                nn.init.normal_(weight, std=fan_in**-0.5)

    def forward(self, rows: Tensor, sent: Sent) -> Tensor:
        weights, kind = self.weights(), rows.dtype
        if hasattr(weights.w1, "placements"):  # a DTensor: the experts or their columns are sharded
            from .owners import by_owners

            return by_owners(rows, weights.map(lambda w: w.to(kind)), sent)
        if weights.w1.dtype != kind and autocast_dtype(rows.device.type) is None:
            raise ArgumentError(
                f"x is of {kind}, the layer of {weights.w1.dtype}; convert one with .to(dtype), or use torch.autocast"
            )
        return by_experts(rows, weights, sent.routing)

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"
