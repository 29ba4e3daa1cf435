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
    """The options of a router, by name, and its properties. (These are attributes, because PyTorch 2.15 does not
    compile properties here.)"""

    def describe(self, router: Router) -> None:
        self.own = router.plugin
        self.draws = router.draws
        self.reads_logits = router.reads not in ("scores", "shares")
        self.reads_ids = router.reads == "ids"
        self.gates = router.gates
        self.even = router.gates == "even"  # a token's experts have equal gates, independent of scores
        self.balanced = router.loss != "none"  # it has a load-balancing loss, or a plug-in's loss
        self.adds_loss = router.loss == "own"
        self.averages = router.state in ("cutoffs", "prices")  # thresholds are running means
        self.by_thresholds = router.state == "cutoffs"  # causal routing uses thresholds
        self.has_ranking = router.has_ranking  # thresholds are for a plug-in's ranking, not scores
        self.keeps_own = router.state == "own"  # a plug-in's `observe` computes its state
        self.keeps_thresholds = router.state not in ("none", "centroids")
        self.limited = "priority" in router.options  # experts have a capacity limit if capacity_factor is above 0
        self.choices = _options.choices_of(router, vars(self))


class Routing(NamedTuple):
    """The assignment of n tokens to e experts; tensors on the scores' device."""

    gates: Optional[Tensor]
    """[n,e] the weight of an expert's output in a token's output; 0 where the token is not assigned;
    differentiable"""
    aux_loss: Optional[Tensor]
    """[] the load-balancing loss or a plug-in's loss, unweighted; 0 if the router has none; differentiable"""
    z_loss: Optional[Tensor]
    """[] the z-loss of the logits, unweighted; 0 without z_loss_weight; differentiable"""
    assignment: Tensor
    """[n,e] bool: whether the expert processes the token"""
    cutoffs: Optional[Tensor]
    """[e] the lowest score among each expert's tokens, or its price or bias; None: the router has neither"""
    demand: Tensor
    """[e] number of tokens that selected the expert, including dropped ones"""
    dropped: Tensor
    """[] number of choices that were dropped because the expert was full"""
    slots: Optional[Tensor]
    """[e,slots] the tokens of each expert, n in an empty slot; None: the router does not fill experts evenly"""
    per_token: int
    """maximum number of experts per token"""
    slot_gates: Optional[Tensor] = None
    """[e,slots] the gates of the slots, if no slot is empty; differentiable"""
    choice: Optional[Tensor] = None
    """[n,per_token] each token's experts, if every token has exactly per_token experts"""
    choice_gates: Optional[Tensor] = None
    """[n,per_token] gates of `choice`, if a layer has omitted `gates`; differentiable"""

    def __repr__(self) -> str:
        (n, e), gates = self.gates.shape, self.gates
        return f"Routing({n} tokens, {e} experts, gates of {gates.dtype} on {gates.device})"

    def whole(self) -> Routing:
        """The routing with the fields that a layer computes only on demand. If every slot has a token, `gates` was
        [n,e] the scores of all pairs."""
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
    """The routing as an argument of the experts' module. It is not a tuple of tensors, which FSDP2's mixed
    precision would cast to bf16. together: ranks of the processes whose rows are shards of one tensor, and so have
    one loss."""

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
    causal: bool  # do not depend on other tokens
    thresholds: Optional[Tensor]  # [e] or the prices of quantile_balanced, the biases of bias_balanced
    layer: int = 0
    group: Any = None
    lengths: tuple = ()  # lengths of packed sequences
    shares: bool = False  # scores are the result of softmax or sigmoids
    lean: bool = False  # masks, counts and gates [n,e] may be omitted (Routing.whole)

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
    """A router's options, with its defaults. Raises ArgumentError for incompatible values, as choir.route does.
    router: its name, or the `router` of a layer's options, because a layer keeps the definition that it was created
    with."""
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
