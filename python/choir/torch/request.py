"""What a router is asked, and what it answers."""

from __future__ import annotations

import functools
import json
import sys
import types
import warnings
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from .. import routing as host
from .._native import ArgumentError, UnsupportedError
from ..config import Config
from ..fields import RouterOptions
from . import compat, select

# Options of routers that choir.torch knows; others are refused.
KNOWN = frozenset(
    "capacity_factor eval_capacity_factor capacity_start pool aux_loss_weight aux_scope priority gate_on z_loss_weight "
    "jitter random_second group_size cap experts_per_token null_experts solver solver_lambda solver_iterations "
    "solver_stages consistency_weight decay threshold_after normalize_gates score bias_rate capacity_schedule".split()
)
READS_LOGITS = ("base", "kmeans")


def scores_of(router: str, options: types.SimpleNamespace, logits: Tensor) -> Tensor:
    """What the router reads of logits [n,e]."""
    if router in READS_LOGITS:
        return logits
    if router == "topk" and options.null_experts:
        (n, e), nulls = logits.shape, options.null_experts
        return torch.softmax(torch.cat([logits, logits.new_zeros(n, nulls)], 1), 1)[:, :e]
    return torch.sigmoid(logits) if options.score == "sigmoid" else torch.softmax(logits, 1)


class Routing(NamedTuple):
    """What a router chose for n tokens and e experts; tensors on the scores' device."""

    gates: Optional[Tensor]
    """[n,e] the combine weight, 0 where a token is not routed; differentiable"""
    aux_loss: Optional[Tensor]
    """[] of routers that balance, unweighted; differentiable"""
    z_loss: Optional[Tensor]
    """[] of the logits, unweighted, 0 without z_loss_weight; differentiable"""
    taken: Tensor
    """[n,e] bool"""
    cutoffs: Optional[Tensor]
    """[e] the lowest score that each expert took, or its price; None: the router does not cut by rank"""
    demand: Tensor
    """[e] tokens that asked for the expert"""
    dropped: Tensor
    """[] choices that found their expert full"""
    slots: Optional[Tensor]
    """[e,slots] the tokens of each expert, n where there is none, where the router fills them evenly"""
    per_token: int
    """experts that a token has at most"""
    slot_gates: Optional[Tensor] = None
    """[e,slots] the gates of the slots, where no slot is without a token; differentiable"""
    choice: Optional[Tensor] = None
    """[n,per_token] each token's experts, where it is known to have so many, no fewer"""
    choice_gates: Optional[Tensor] = None
    """[n,per_token] their gates, where a layer has left out `gates`; differentiable"""

    def __repr__(self) -> str:
        (n, e), gates = self.gates.shape, self.gates
        return f"Routing({n} tokens, {e} experts, gates of {gates.dtype} on {gates.device})"

    def whole(self) -> Routing:
        """With what a layer leaves out until somebody asks. Where every slot has a token, `gates` are scores before."""
        kept: dict = {}
        if self.taken is None:
            taken = torch.zeros_like(self.gates, dtype=torch.bool).scatter(0, self.slots.t(), True)
            kept.update(taken=taken, gates=torch.where(taken, self.gates, 0.0))
            kept["demand"] = self.slots.new_full((taken.shape[1],), self.slots.shape[1])
        elif self.gates is None:
            kept["gates"] = self.every_gate()
        zero = self.gates if self.gates is not None else self.choice_gates
        for name in ("aux_loss", "z_loss"):
            if getattr(self, name) is None:
                kept[name] = zero.new_zeros(())
        if self.dropped is None:
            kept["dropped"] = zero.new_zeros((), dtype=torch.long)
        return Routing(**{**dict(zip(self._fields, self)), **kept}) if kept else self

    def every_gate(self) -> Tensor:
        """`gates`, of the choices' where a layer has left them out."""
        if self.gates is not None:
            return self.gates
        none = torch.zeros_like(self.taken, dtype=self.choice_gates.dtype)
        return none.scatter(1, self.choice, self.choice_gates)

    @property
    def load(self) -> Tensor:
        """[e] tokens that each expert holds"""
        return self.taken.sum(0)


class Sent:
    """A routing on its way to the experts: no tuple of tensors, which the mixed precision of FSDP2 would make bf16.
    together: ranks of the processes whose rows are parts of one tensor, and so of one loss."""

    def __init__(self, routing: Routing, together: tuple = ()):
        self.routing, self.together = routing, together


class Request(NamedTuple):
    """What a router reads. scores and logits [n,e] are without gradient."""

    name: str
    options: types.SimpleNamespace
    scores: Tensor
    logits: Tensor
    tokens: Optional[Tensor]
    valid: Optional[Tensor]
    sequence_length: int
    training: bool
    causal: bool  # look at no other token
    thresholds: Optional[Tensor]  # [e] or the prices of quantile_balanced, bias_balanced
    layer: int = 0
    group: Any = None
    lengths: tuple = ()  # of sequences that are packed
    shares: bool = False  # the scores are of softmax or sigmoids
    lean: bool = False  # masks, counts and gates by token may be left out (Routing.whole)

    def by_row(self) -> Request:
        """With flat ids and padding. ArgumentError: they do not fit, or ids are missing."""
        check_rows(self.scores, self.tokens, self.valid)
        if self.options.reads_ids and self.tokens is None:
            raise ArgumentError(f"router '{self.name}' goes by token ids, and none were given (tokens)")
        return self._replace(
            valid=None if self.valid is None else self.valid.reshape(-1) != 0,
            tokens=None if self.tokens is None else self.tokens.reshape(-1),
        )

    @property
    def softmax(self) -> bool:
        return self.shares and self.options.score == "softmax"

    @property
    def factor(self) -> float:
        o = self.options
        return o.eval_capacity_factor if not self.training and o.eval_capacity_factor > 0 else o.capacity_factor

    @property
    def everybody(self) -> select.Count:
        return select.count(self.valid, self.scores.shape[0])

    def valid_or_all(self) -> Tensor:
        n = self.scores.shape[0]
        return torch.ones(n, dtype=torch.bool, device=self.scores.device) if self.valid is None else self.valid


def options_of(router: str, experts: int, **options: Any) -> types.SimpleNamespace:
    """A router's options with its defaults. libchoir refuses what does not go together, as choir.route does."""
    # Of a large group no more tokens are made up than tell whether a capacity factor of 1/128 and more can be.
    rows = 8 * max(experts, min(int(options.get("group_size", 1)), 8 * experts))
    host.route(
        np.zeros((rows, experts)),
        router,
        tokens=np.arange(rows),
        sequence_length=8 if options.get("pool") == "position" else 0,
        **options,
    )
    config = Config(**{"router.name": router})
    for key, value in options.items():
        config.set("router." + key, value)
    taken = {field.key.rsplit(".", 1)[1]: field for field in Config.router_options(router)}
    for option, field in taken.items():
        if option in RouterOptions.__annotations__ and option not in KNOWN and config[field.key] != field.default:
            raise UnsupportedError(f"{option} is {config[field.key]!r}: choir.torch has router '{router}' without it")
    fields = ("name", *RouterOptions.__annotations__)
    made = types.SimpleNamespace(**{field: config["model.router." + field] for field in fields})
    plain = {k: v if isinstance(v, (str, int, float)) else float(v) for k, v in options.items()}
    if host.keeps_state(router):
        raise UnsupportedError(f"router '{router}' keeps a state (observe), which only choir's own training moves")
    made.own = host.is_own(router)  # a plug-in: libchoir asks it, on the host
    made.ranked = made.own and "decay" in taken
    made.adds_loss = host.adds_loss(router)
    made.choices = made.experts_per_token if "experts_per_token" in taken else made.cap
    made.reads_ids = router == "hash" or (made.own and "score" not in taken)
    if made.own and not made.reads_ids and "normalize_gates" not in taken:
        raise UnsupportedError(
            f"router '{router}' has gates of its own, and choir.torch takes scores: train it with choir.train, or leave `gates` NULL"
        )
    made.text = ", ".join(f"{k}={v!r}" for k, v in {"router": router, **plain}.items())
    made.given = json.dumps(
        {"router": router, **{k: v for k, v in plain.items() if k not in ("pool", "group_size")}}
    )
    return made


_options_of = functools.lru_cache(1024)(options_of)


@compat.constant
def checked_options(router: str, experts: int, **options: Any) -> types.SimpleNamespace:
    """As options_of, which takes milliseconds; to be read only."""
    return _options_of(router, experts, **options)


def renamed(old: str, new: str) -> None:
    """Says at the caller's line that the argument has another name; the old one is taken for one more version."""
    if compat.compiling():
        return
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].split(".")[0] in ("choir", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"argument {old} is now {new}; the next version refuses {old}", FutureWarning, stacklevel=level)


def new_name(value: Any, options: dict, old: str, new: str, default: Any = None) -> Any:
    """The argument, which may have been given by its old name. TypeError: it was given by neither, or by both."""
    if old in options:
        renamed(old, new)
        if value is not None:
            raise TypeError(f"{new} was given twice, as {old} too")
        return options.pop(old)
    if value is None and default is None:
        raise TypeError(f"missing argument: {new}")
    return default if value is None else value


def shaped(rows: Tensor, shape: torch.Size) -> Tensor:
    """Rows [n,d] that nobody else has, as [...,d]: no view, which FSDP2's hooks would lose where it is changed in place."""
    return torch.ops.aten._unsafe_view(rows, shape)


def check_floating(scores: Tensor, what: str) -> None:
    if not scores.is_floating_point():
        raise ArgumentError(
            f"{what} is of {scores.dtype}; it must be floating point (float32, bfloat16, float64, ...)"
        )


def check_rows(rows: Tensor, tokens: Optional[Tensor], valid: Optional[Tensor]) -> None:
    n, device = rows.shape[0], rows.device
    if tokens is not None and (tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool):
        raise ArgumentError(f"token ids must be integers, not {tokens.dtype}")
    if valid is not None and valid.is_floating_point():
        raise ArgumentError(
            f"valid is of {valid.dtype}; it must be bool: True takes part, False is padding. Of an additive mask, 0 and "
            "-inf, give mask == 0"
        )
    for what, given in (("tokens", tokens), ("valid", valid)):
        if given is not None and (given.device != device or given.numel() != n):
            raise ArgumentError(
                f"{what} has {given.numel()} elements on {given.device}; it must have one per token, {n}, on {device}"
            )


def check_lengths(lengths: Sequence[int], n: int) -> None:
    if len(lengths) and (sum(lengths) != n or min(lengths) < 1):
        raise ArgumentError(f"lengths of sequences add up to {sum(lengths)}, the least is {min(lengths)}; there are {n} tokens")
