"""Routes a matrix of scores with any router."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from . import _native as native
from ._handle import Guard
from ._native import ffi, lib
from ._routers import routers  # noqa: F401 choir.routing.routers
from .config import Config

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .fields import RouteArguments, RouterOptions


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The optimality certificate of an assignment with caps (docs/assignment.md). gap 0 and over_cap 0: no
    assignment has a larger sum of scores."""

    assignments: int
    iterations: int
    gap: float
    expert_before: float
    token_before: float
    expert_after: int
    token_after: int
    over_cap: int


@dataclasses.dataclass(frozen=True, repr=False)
class Routing:
    """The assignment of n tokens to e experts. A slot is one token at one expert."""

    gates: np.ndarray
    """[n,e] float32, the weight of an expert's output in a token's output; 0 where the token is not assigned"""
    begin: np.ndarray
    """[e+1] int64; the slots of expert i are begin[i]:begin[i+1]"""
    token: np.ndarray
    """[slots] int64, the token of each slot, ascending within an expert"""
    gate: np.ndarray
    """[slots] float32, the gate of each slot"""
    demand: np.ndarray
    """[e] int64, number of tokens that selected the expert, including dropped ones"""
    cutoffs: Optional[np.ndarray]
    """[e] float32, the lowest score among each expert's tokens, or its price; None: the router has neither"""
    capacity: int
    """maximum number of tokens of an expert"""
    dropped: int
    """number of choices that were dropped because the expert was full"""
    aux_loss: float
    """the load-balancing loss or a plug-in's loss, unweighted; 0 if the router has none"""
    z_loss: float
    """the z-loss of the logits, unweighted; 0 without z_loss_weight"""
    certificate: Optional[Certificate]
    """the certificate of the solver; None: the router does not use one"""

    def __repr__(self) -> str:
        n, e = self.gates.shape
        low, high = (int(self.load.min()), int(self.load.max())) if e else (0, 0)
        return f"Routing({n} tokens, {e} experts, load {low} to {high}, dropped {self.dropped})"

    @property
    def indices(self) -> tuple[np.ndarray, ...]:
        """The tokens of each expert, [load] int64 each, ascending; views of `token`."""
        return tuple(self.token[a:b] for a, b in zip(self.begin[:-1], self.begin[1:]))

    @property
    def expert(self) -> np.ndarray:
        """[slots] int64, the expert of each slot"""
        return np.repeat(np.arange(len(self.begin) - 1), self.load)

    @property
    def load(self) -> np.ndarray:
        """[e] int64, the number of tokens of each expert"""
        return np.diff(self.begin)

    @property
    def histogram(self) -> np.ndarray:
        """[e+1] int64, the number of tokens with 0, 1, ..., e experts (padding counts as 0)"""
        held = np.bincount(self.token, minlength=len(self.gates))
        return np.bincount(held, minlength=len(self.begin))


def router_config(router: str = "expert_choice", **options: Any) -> Config:
    """A config of a router: the defaults of its paper, and the given options. ArgumentError names an option that the
    router does not have, or the router's options if the option does not exist."""
    native.text(router)  # raises TypeError if it is not a string
    config = Config()
    config.set("model.router.name", router)
    for key in options:
        if f"model.router.{key}" not in config:
            known = ", ".join(field.key.rpartition(".")[2] for field in Config.router_options(router))
            raise native.ArgumentError(f"router '{router}' has no option '{key}'; it takes {known or 'none'}")
    config.update({f"model.router.{key}": value for key, value in options.items()})
    return config


class Request:
    """The arguments of a routing, kept alive for as long as C may read them."""

    def __init__(
        self,
        scores,
        router="expert_choice",
        logits=False,
        tokens=None,
        valid=None,
        sequence_length=0,
        training=False,
        seed=0,
        thresholds=None,
        layer=0,
        **options,
    ):
        self.scores = native.array(scores, np.float32, -1, -1)
        n, e = self.scores.shape
        self.tokens = None if tokens is None else native.ids(tokens, n)
        self.valid = None if valid is None else native.array(np.asarray(valid) != 0, np.uint8, n)
        self.thresholds = None if thresholds is None else native.array(thresholds, np.float32, e)
        self.config = router_config(router, **options)
        self.struct = ffi.new("choir_route_request *")
        fields = dict(
            config=self.config.address,
            n=n,
            e=e,
            scores=native.pointer(self.scores),
            tokens=native.pointer(self.tokens),
            valid=native.pointer(self.valid),
            is_logits=bool(logits),
            sequence_length=sequence_length,
            training=bool(training),
            seed=seed,
            layer=layer,
            thresholds=native.pointer(self.thresholds),
        )
        native.fill(self.struct, self.struct, fields)

    def route(self) -> Routing:
        made = []
        with Guard() as guard:
            show = guard.callback(ffi.typeof("choir_routing_callback"), lambda _, shown: made.append(_copy(shown)))
            native.check(lib.choir_route_visit(self.struct, show, native.NULL))
        return made[0]

    def backward(self, dgates: Optional[np.ndarray], aux_weight: float = 0.0) -> np.ndarray:
        dscores = np.empty_like(self.scores)
        dgates = None if dgates is None else native.array(dgates, np.float32, *self.scores.shape)
        native.check(
            lib.choir_route_backward(self.struct, native.pointer(dgates), aux_weight, native.pointer(dscores))
        )
        return dscores


def _copy(shown) -> Routing:
    n, e = shown.tokens, shown.experts
    begin = native.copied(shown.expert_begin, e + 1, np.int64)
    slots = int(begin[e])
    token = native.copied(shown.slot_token, slots, np.int64)
    gate = native.copied(shown.slot_gate, slots, np.float32)
    gates = np.zeros((n, e), np.float32)
    gates[token, np.repeat(np.arange(e), np.diff(begin))] = gate
    certificate = Certificate(**native.record(shown.certificate))
    return Routing(
        gates=gates,
        begin=begin,
        token=token,
        gate=gate,
        demand=native.copied(shown.demand, e, np.int64),
        cutoffs=native.copied(shown.cutoffs, e, np.float32),
        capacity=shown.capacity,
        dropped=shown.dropped,
        aux_loss=shown.aux_loss,
        z_loss=shown.z_loss,
        certificate=certificate if certificate.assignments else None,
    )


def route(
    scores,
    router: str = "expert_choice",
    *,
    logits: bool = False,
    tokens=None,
    valid=None,
    sequence_length: int = 0,
    training: bool = False,
    seed: int = 0,
    thresholds=None,
    layer: int = 0,
    **options: Unpack[RouterOptions],
) -> Routing:
    """Assigns n tokens to e experts by their scores, as `choir route` does.

    Args:
        scores: [n,e] float32: scores, or logits with logits=True. One row per token. A contiguous array is not
            copied.
        router: name of a built-in router or of a plug-in.
        logits: True: compute scores from logits, by softmax over the experts or sigmoid (option score). -inf
            excludes the expert.
        tokens: [n] integer token ids, required by `hash` and `random`.
        valid: [n] bool; False: padding, which is not routed. None: no padding.
        sequence_length: tokens per sequence, for the pools "sequence" and "position".
        training: True: use the capacity of training, and sample.
        seed: seed of the random numbers.
        thresholds: [e], for threshold routing: a token is assigned to the experts whose threshold its score
            reaches. None: no thresholds.
        layer: the layer of a model whose random numbers are used.
        options: the router's options by name; Config.router_options(router) returns them with their defaults.

    Returns a `Routing`: gates [n,e], the tokens and gates of each expert, loads, cut-offs and losses.

    Raises ArgumentError for arguments that do not fit, NumericError for NaN, with row and column, and
    OutOfMemoryError.

    >>> route([[.9, .1], [.8, .2], [.3, .7], [.4, .6], [.5, .5]], capacity_factor=0.8).indices
    (array([0, 1]), array([2, 3]))
    """
    given = (scores, router, logits, tokens, valid, sequence_length, training, seed, thresholds, layer)
    return Request(*given, **options).route()


def route_backward(
    scores, dgates, router: str = "expert_choice", *, aux_weight: float = 0.0, **arguments: Unpack[RouteArguments]
) -> np.ndarray:
    """Returns the gradient [n,e] float32 of sum(dgates * gates) + aux_weight * aux_loss with respect to `scores`.
    The assignment is treated as constant.

    Args:
        scores: [n,e] float32, as for `route`.
        dgates: [n,e] float32, the gradient with respect to the gates; None: 0.
        router: name of the router.
        aux_weight: weight of the auxiliary loss.
        arguments: the other arguments of `route`.

    Example: dscores = choir.route_backward(scores, dgates, "topk", aux_weight=0.01)"""
    return Request(scores, router, **arguments).backward(dgates, aux_weight)
