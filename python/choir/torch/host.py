"""Assignments of one pool that are computed on the CPU: by libchoir's solvers or, without libchoir, their NumPy
versions (assign.py); by plug-ins; and from random numbers."""

from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple, Optional

import numpy as np

from .. import _library, _options, plugin
from .._router import Router
from .._routers import find
from . import assign, draws


class Call(NamedTuple):
    """The arguments of a forward pass without scores. router: name and options as JSON (Options.given)."""

    router: str
    training: bool
    seed: int
    layer: int
    tokens: Optional[np.ndarray]
    state: Optional[np.ndarray] = None  # [e] state of `observe`; of a plug-in with a ranking: its thresholds


class Choice(NamedTuple):
    """The assignment of n tokens to e experts."""

    taken: np.ndarray
    """[n,e] bool"""
    cutoffs: np.ndarray
    """[e] the lowest score or ranking that each expert took, or its price; inf: none"""
    demand: np.ndarray
    """[e] tokens that asked for the expert"""
    dropped: int = 0
    loss: float = 0.0
    gradient: Optional[np.ndarray] = None
    """[n,e] of the router's own loss by the scores; None: it has none"""


@functools.lru_cache(1024)
def _read(router: str) -> tuple[Router, dict[str, Any], dict[str, Any]]:
    """The router, all of its options, and the given ones."""
    name, number, version, given = json.loads(router)
    found = find(name) if number < 0 else plugin.definition_of(name, number, version).router
    return found, _options.values_of(found, given), given


def adds_loss(router: str) -> bool:
    return _read(router)[0].loss == "own"


def choose(call: Call, scores: np.ndarray, valid: np.ndarray) -> Choice:
    """scores [n,e] float32, finite; valid [n] bool: False for padding."""
    router, values, given = _read(call.router)
    if router.name == "random":
        return _drawn(call, values, scores.shape[1], valid)
    if router.number >= 0:
        return _own(router, call, values, scores, valid)
    if router.plugin:
        _library.require(f"router '{router.name}', a plug-in in C,")
        return _in_c(router, call, given, scores, valid)
    if router.name != "global_topk":
        scores = _floored(scores, valid)
    if _library.available():
        return _in_c(router, call, given, scores, valid)
    return _assigned(router, call, values, scores, valid)


def moved(router: str, demand: np.ndarray, state: np.ndarray) -> np.ndarray:
    """The state [e] float64 of a plug-in after a step with demand [e] int64, by its `observe`."""
    found, values, _ = _read(router)
    return plugin.definition_of(found.name, found.number, found.version).moved(values, demand, state)


def _drawn(call: Call, values: dict[str, Any], e: int, valid: np.ndarray) -> Choice:
    token, seed = (np.arange(len(valid)), call.seed) if call.training else (call.tokens, 0)
    taken = draws.experts(seed, call.layer, token, values["experts_per_token"], e) & valid[:, None]
    return Choice(taken, np.full(e, np.inf), taken.sum(0))


def _serves(router: Router, call: Call) -> bool:
    """Whether the call uses thresholds, which are compared with the plug-in's ranking."""
    return router.has_ranking and call.state is not None


def _own(router: Router, call: Call, values: dict[str, Any], scores: np.ndarray, valid: np.ndarray) -> Choice:
    """Calls a plug-in in Python."""
    own, e = plugin.definition_of(router.name, router.number, router.version), scores.shape[1]
    asked = own.call(values, valid, e, call.training, layer=call.layer, seed=call.seed)
    if _serves(router, call):
        taken = own.served(asked, scores, valid, call.state, values["cap"])
        return Choice(taken, np.full(e, np.inf), taken.sum(0), gradient=np.zeros_like(scores) if router.loss == "own" else None)
    made = own.route(asked, scores, valid, np.zeros(e) if call.state is None else call.state)
    cutoffs = own.cutoffs(asked, scores, valid, made.taken)
    return Choice(made.taken, cutoffs, made.taken.sum(0), 0, made.loss, made.gradient)


def _in_c(router: Router, call: Call, given: dict[str, Any], scores: np.ndarray, valid: np.ndarray) -> Choice:
    """Calls libchoir: a solver, or a plug-in in C."""
    from ..routing import Request

    n, e = scores.shape
    # libchoir requires at least as many tokens as experts, and a multiple of their number: padding is added.
    more = max(0, 8 * e - n, -n % e)
    tokens = None if call.tokens is None else np.pad(call.tokens, (0, more))
    options = {**given, "tokens": tokens, "training": call.training, "seed": call.seed, "layer": call.layer}
    # Scores below 0 are NaN, in a step that will be skipped; libchoir refuses them if gates are scores.
    shift = np.float32(0)
    if router.plugin:
        scores = np.maximum(scores, 0)
    elif router.gates != "sigmoid":
        shift = -scores.min(initial=0)
    served = _serves(router, call)
    options.update({"thresholds": call.state} if served else {})
    request = Request(np.pad(scores + shift, ((0, more), (0, 0))), router.name, valid=np.pad(valid, (0, more)), **options)
    made, taken = request.route(), np.zeros((n, e), bool)
    taken[made.token, made.expert] = True
    cutoffs = np.full(e, np.inf) if made.cutoffs is None else made.cutoffs - shift
    gradient = None
    if router.loss == "own":
        gradient = np.zeros_like(scores) if served else request.backward(None, 1.0)[:n]
    return Choice(taken, cutoffs, made.demand, made.dropped, made.aux_loss, gradient)


def _floored(scores: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Replaces -inf and padding by a score so low that no sequence of exchanges can compensate for it: such pairs
    are assigned only if there is no other solution (src/moe/assign/assign.c)."""
    possible = (scores > np.finfo(np.float32).min) & valid[:, None]
    if possible[valid].all() or not possible.any():
        return np.where(possible, scores, np.float32(0))
    low, high = (float(edge(scores[possible])) for edge in (np.min, np.max))
    floor = low - 2 * (scores.shape[1] + 1) * max(high - low, 1e-3 * abs(high) + 1e-6)
    return np.where(possible, scores, np.float32(floor if np.isfinite(np.float32(floor)) else low))


def _assigned(router: Router, call: Call, values: dict[str, Any], scores: np.ndarray, valid: np.ndarray) -> Choice:
    """Calls the solvers in NumPy."""
    (n, e), o = scores.shape, values
    rows, count = scores[valid], int(valid.sum())
    factor = o["capacity_factor"] if call.training or not o["eval_capacity_factor"] else o["eval_capacity_factor"]
    k = min(_options.per_expert(factor, count, e), o["cap"] * count // e)
    taken, cutoffs, demand, dropped = np.zeros((n, e), bool), np.full(e, np.inf), None, 0
    if router.name == "global_topk" and count:
        total = min(_options.per_expert(factor / e, count * e, 1), count * o["cap"])
        room = _options.capacity(2 * factor, 1, count, e)
        taken[valid], cutoffs, demand, dropped = assign.best_pairs(rows, total, room, o["cap"])
    elif router.name == "base" and count:
        taken[valid] = assign.balanced(rows.astype(np.float64))
    elif k and o["solver"] == "exact":
        taken[valid], cutoffs = assign.capped(rows.astype(np.float64), k, o["cap"])
    elif k:
        stages = o["solver_iterations"], o["solver_stages"]
        taken[valid], cutoffs = assign.dykstra(rows.astype(np.float64), k, o["cap"], o["solver_lambda"], *stages)
    return Choice(taken, cutoffs, taken.sum(0) if demand is None else demand, dropped)
