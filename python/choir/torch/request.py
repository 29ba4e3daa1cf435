"""The inputs and results of a router."""

from __future__ import annotations

import functools
import json
import types
from typing import Any, NamedTuple, Optional, Sequence, Union

import torch
from torch import Tensor

from .. import _options, plugin
from .._errors import ArgumentError, UnsupportedError
from .._router import OPTIONS, Router
from .._routers import find
from ..fields import RouterOptions
from . import compat, gates, select

# Options of routers that choir.torch knows; others are refused.
KNOWN = gates.OPTIONS.union(
    "capacity_factor eval_capacity_factor capacity_start pool aux_loss_weight aux_scope priority jitter random_second "
    "group_size cap experts_per_token null_experts solver solver_lambda solver_iterations solver_stages "
    "consistency_weight decay threshold_after bias_rate capacity_schedule".split()
)


class Options(types.SimpleNamespace):
    """The options of a router, by name, and its properties. (These are attributes: PyTorch 2.15 does not compile properties
    here.)"""

    def describe(self, router: Router) -> None:
        self.own = router.plugin
        self.draws = router.draws
        self.reads_logits = router.reads not in ("scores", "shares")
        self.reads_ids = router.reads == "ids"
        self.gates = router.gates
        self.even = router.gates == "even"  # a token's experts have equal gates, which no score enters
        self.balanced = router.loss != "none"  # a loss balances it, or is its own
        self.adds_loss = router.loss == "own"
        self.averages = router.state in ("cutoffs", "prices")  # its thresholds are running means
        self.by_thresholds = router.state == "cutoffs"  # it is causal by them
        self.has_ranking = router.has_ranking  # and these are not scores, but a plug-in's ranking
        self.keeps_own = router.state == "own"  # `observe` of a plug-in makes its thresholds
        self.keeps_thresholds = router.state not in ("none", "centroids")
        self.limited = "priority" in router.options  # with a capacity factor experts have room for some tokens only
        self.choices = _options.choices_of(router, vars(self))


class Routing(NamedTuple):
    """The assignment of n tokens to e experts; tensors on the scores' device."""

    gates: Optional[Tensor]
    """[n,e] the combine weight, 0 where a token is not routed; differentiable"""
    aux_loss: Optional[Tensor]
    """[] of routers that balance, unweighted; differentiable"""
    z_loss: Optional[Tensor]
    """[] of the logits, unweighted, 0 without z_loss_weight; differentiable"""
    assignment: Tensor
    """[n,e] bool: whether the expert processes the token"""
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
        if self.assignment is None:
            assignment = torch.zeros_like(self.gates, dtype=torch.bool).scatter(0, self.slots.t(), True)
            kept.update(assignment=assignment, gates=torch.where(assignment, self.gates, 0.0))
            kept["demand"] = self.slots.new_full((assignment.shape[1],), self.slots.shape[1])
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
        """`gates` of all pairs, or of the choices if a layer has omitted the others."""
        if self.gates is not None:
            return self.gates
        none = torch.zeros_like(self.assignment, dtype=self.choice_gates.dtype)
        return none.scatter(1, self.choice, self.choice_gates)

    @property
    def taken(self) -> Tensor:
        """`assignment`, by its name until version 0.5"""
        return self.assignment

    @property
    def load(self) -> Tensor:
        """[e] tokens that each expert holds"""
        return self.assignment.sum(0)


class Sent:
    """A routing on its way to the experts: no tuple of tensors, which the mixed precision of FSDP2 would make bf16.
    together: ranks of the processes whose rows are parts of one tensor, and so of one loss."""

    def __init__(self, routing: Routing, together: tuple = ()):
        self.routing, self.together = routing, together


class Request(NamedTuple):
    """Inputs of a router. scores and logits [n,e] have no gradient."""

    name: str
    options: Options
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
        """The request with flattened ids and padding. ArgumentError: their shapes do not fit, or ids are missing."""
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


def options_of(router: Union[str, Router], experts: int, **options: Any) -> Options:
    """A router's options with its defaults. What does not go together is refused, as choir.route does. router: its name, or
    `router` of the options of a layer, which keeps the definition that it was made with."""
    found = find(router) if isinstance(router, str) else router
    values = _options.values_of(found, options)
    _options.check(found, values)
    _check_sizes(found, values, experts, options)
    _check_known(found, values)
    made = Options(name=found.name, router=found, **{name: values[name] for name in RouterOptions.__annotations__})
    made.describe(found)
    plain = {k: v if isinstance(v, (str, int, float)) else float(v) for k, v in options.items()}
    made.text = ", ".join(f"{k}={v!r}" for k, v in {"router": found.name, **plain}.items())
    given = {k: v for k, v in plain.items() if k not in ("pool", "group_size")}
    made.given = json.dumps([found.name, found.number, found.version, given])
    return made


def _check_sizes(router: Router, values: dict[str, Any], experts: int, options: dict[str, Any]) -> None:
    """Checks the options with some number of tokens. For a large group, only as many tokens as are needed to check
    capacity factors of 1/128 and more."""
    rows = 8 * max(experts, min(int(options.get("group_size", 1)), 8 * experts))
    if not router.plugin or router.name == "random":
        _options.check_sizes(router, values, rows, experts, 8 if values["pool"] == "position" else 0)
    elif router.number >= 0:
        plugin.definition_of(router.name, router.number, router.version).check(values, rows, experts)
    else:
        from ..routing import route

        route([[0.0] * experts] * rows, router.name, tokens=range(rows), **options)


def _check_known(router: Router, values: dict[str, Any]) -> None:
    """Refuses options that choir.torch does not support."""
    for name, field in router.options.items():
        if name in OPTIONS and name not in KNOWN and values[name] != field.default:
            raise UnsupportedError(f"{name} is {values[name]!r}: choir.torch has router '{router.name}' without it")
    if router.state == "own" and router.number < 0:
        raise UnsupportedError(
            f"router '{router.name}', a plug-in in C, keeps a state (observe), which choir.torch cannot update: write it in Python, "
            "train it with choir.train, or leave `observe` NULL; choir.route routes with state 0"
        )
    if router.gates == "own":
        raise UnsupportedError(
            f"router '{router.name}' has gates of its own, and choir.torch takes scores: train it with choir.train, or leave "
            "`gates` NULL"
        )


@functools.lru_cache(1024)
def _options_of(router: str, number: int, experts: int, **options: Any) -> Options:
    return options_of(router, experts, **options)


@compat.constant
def checked_options(router: Union[str, Router], experts: int, **options: Any) -> Options:
    """Like options_of, which takes milliseconds, but cached; the result is read-only."""
    if not isinstance(router, str):
        return options_of(router, experts, **options)
    return _options_of(router, find(router).number, experts, **options)


def shaped(rows: Tensor, shape: torch.Size) -> Tensor:
    """Reshapes rows [n,d] that are not used elsewhere to [...,d], without a view, which FSDP2's hooks would lose when
    it is changed in place."""
    return torch.ops.aten._unsafe_view(rows, shape)


def check_floating(scores: Tensor, what: str) -> None:
    if not isinstance(scores, Tensor):
        raise ArgumentError(f"{what} is {type(scores).__name__}; it must be a torch.Tensor, as torch.as_tensor makes")
    if scores.layout != torch.strided or scores.is_nested:
        kind = "nested" if scores.is_nested else str(scores.layout).rpartition(".")[2]
        raise ArgumentError(f"{what} is a {kind} tensor; it must be dense. Pad sequences of different lengths, and give `valid`")
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
