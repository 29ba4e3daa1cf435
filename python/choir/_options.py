"""Router options: their values, and the rules by which they are compatible, with libchoir's messages
(src/model/options.c and the `check` of each router). A test compares both."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, Mapping

from ._errors import ArgumentError
from ._fields import listed, parse, shown, wanted, written
from ._router import OPTIONS, PREFIX, Router

_INT = 2**31 - 1


def values_of(router: Router, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a router by name, its own ones included. ArgumentError: an option that does not exist, or a value that it
    cannot have."""
    values = {**router.defaults, **{name: field.default for name, field in router.options.items()}}
    fields = {**OPTIONS, **router.options}
    for name in given:
        if name not in fields:
            raise ArgumentError(f"router '{router.name}' has no option '{name}'; it takes {listed(router.options) or 'none'}")
    values.update({name: parse(fields[name], written(value)) for name, value in given.items()})
    return values


def _check_taken(router: Router, values: Mapping[str, Any]) -> None:
    own = [name for name in router.options if name not in OPTIONS]
    names = [name for name in OPTIONS if name in router.options]
    takes = listed([f"it takes {listed(names)}" if names else "it takes no options", *own])
    for name in OPTIONS:
        if name not in router.options and values[name] != router.defaults[name]:
            raise ArgumentError(
                f"{PREFIX}{name} is {shown(values[name])}, but router '{router.name}' does not take it ({takes}): leave it out"
            )
    for name in OPTIONS:
        if values["solver"] != "dykstra" and name.startswith("solver_") and values[name] != router.defaults[name]:
            raise ArgumentError(
                f"{PREFIX}{name} is {shown(values[name])}, but solver '{values['solver']}' does not take it (dykstra does): "
                "leave it out"
            )


def _check_capacity(router: Router, o: Any) -> None:
    if o.capacity_start > 0 and o.capacity_factor == 0:
        raise ArgumentError(
            f"{PREFIX}capacity_start is {o.capacity_start:g} with capacity_factor 0, which is room for all: set both or neither"
        )
    if o.capacity_factor == 0 and not router.choices and "capacity_factor" in router.options:
        raise ArgumentError(
            f"{PREFIX}capacity_factor is 0: must be a number above 0 with router '{router.name}'"
        )


def check(router: Router, values: Mapping[str, Any]) -> None:
    """Raises ArgumentError if the values are incompatible, whatever is routed."""
    _check_taken(router, values)
    _check_capacity(router, SimpleNamespace(**values))


# ---- with n tokens and e experts


def rounded(share: float) -> int:
    """The nearest integer, halves up; a relative error of 10^-12 does not matter."""
    return math.floor(share * (1 + 1e-12) + 0.5)


def per_expert(factor: float, n: int, e: int) -> int:
    """k = n c / e, at least 1, at most n."""
    return 0 if n == 0 else min(max(rounded(factor * n / e), 1), n)


def capacity(factor: float, choices: int, n: int, e: int) -> int:
    """Capacity of each expert with `choices` experts per token: ceil(factor * choices * n / e), at most n."""
    return min(math.ceil(factor * choices * n / e * (1 - 1e-12)), n)


def choices_of(router: Router, values: Mapping[str, Any]) -> int:
    """Experts per token; 0: experts choose."""
    return values["experts_per_token"] if "experts_per_token" in router.options else router.choices


def _factors(o: Any) -> tuple[float, float]:
    """Capacity factors in training, and in evaluation."""
    return o.capacity_factor, o.eval_capacity_factor if o.eval_capacity_factor > 0 else o.capacity_factor


def _check_sizes(name: str, n: int, e: int) -> None:
    if n < 1:
        raise ArgumentError(f"router '{name}': {n} tokens; there must be at least 1")
    if n > _INT // 2:
        raise ArgumentError(f"router '{name}': {n} tokens are too many for one call")
    if e < 1:
        raise ArgumentError(f"router '{name}': {e} experts; there must be at least 1")


def _check_tokens_choose(name: str, choices: int, o: Any, e: int) -> None:
    if e < choices:
        are = "is" if e == 1 else "are"
        raise ArgumentError(f"router '{name}': every token takes {choices} experts but there {are} only {e}")
    if o.null_experts and o.score != "softmax":
        raise ArgumentError(
            f"router '{name}': null_experts is {o.null_experts} with score {o.score}: null experts take their share of a softmax; "
            "set score to softmax or null_experts to 0"
        )
    if o.null_experts and o.z_loss_weight:
        raise ArgumentError(
            f"router '{name}': null_experts is {o.null_experts} with z_loss_weight {o.z_loss_weight:g}, which draws logits to 0, "
            "where null experts are: set one of them to 0"
        )


def _pool_size(o: Any, n: int, length: int) -> int:
    """Tokens of a full pool."""
    T = length if 0 < length < n else n
    return {"batch": n, "sequence": T, "group": min(o.group_size, n), "position": n // T}[o.pool]


def _scheduled_most(o: Any, c: float) -> float:
    """The largest capacity factor of a sequence under capacity_schedule."""
    return c * {"constant": 1, "linear": 1.5, "linear-reverse": 1.5, "gaussian": 1 / 0.4950995}[o.capacity_schedule]


def _check_pools(name: str, o: Any, n: int, e: int, length: int) -> None:
    if o.pool == "position" and length < 1:
        raise ArgumentError(f"router '{name}': pool 'position' needs sequence_length, the number of tokens of one sequence")
    size = _pool_size(o, n, length)
    if e > size:
        each = ": one of each sequence" if o.pool == "position" else ""
        raise ArgumentError(
            f"router '{name}': {e} experts choose among only {size} tokens (pool '{o.pool}'{each}); give more tokens, or use a "
            "trained model with routing threshold (--routing threshold), which takes any number"
        )
    for c in (_scheduled_most(o, factor) for factor in _factors(o)):
        if c > e:
            raise ArgumentError(
                f"router '{name}': capacity_factor {c:g} with {e} experts makes k = n c / e larger than the pool of {size} "
                f"tokens; it can be {e} at most"
            )
        if size * c / e < 0.5:
            raise ArgumentError(
                f"router '{name}': k = n c / e is 0 (pool of {size} tokens, capacity_factor {c:g}, {e} experts)"
            )


def _check_capped(name: str, o: Any, n: int, e: int, length: int) -> None:
    _check_pools(name, o, n, e, length)
    if o.solver_stages > o.solver_iterations:
        raise ArgumentError(
            f"router '{name}': solver_stages is {o.solver_stages}, and solver_iterations {o.solver_iterations}: a stage needs one"
        )
    size, cap = _pool_size(o, n, length) + (o.pool == "position" and n % min(length, n) > 0), o.cap or e
    for c in _factors(o):
        k = per_expert(c, size, e)
        if e * k > min(cap, e) * size:
            raise ArgumentError(
                f"router '{name}': {e} experts that take {k} of {size} tokens each (capacity_factor {c:g}) need {e * k} places, "
                f"and a cap of {o.cap} leaves {min(cap, e) * size}; raise cap or lower capacity_factor"
            )


def _check_global(name: str, o: Any, n: int, e: int, length: int) -> None:
    if o.pool != "batch":
        _check_pools(name, o, n, e, length)
    for c in _factors(o):
        if c > e:
            raise ArgumentError(
                f"router '{name}': capacity_factor {c:g}: a token has {e} experts on average at most, as many as there are"
            )


def _check_quantile(name: str, o: Any) -> None:
    if o.threshold_after and o.estimator in ("last", "mean"):
        raise ArgumentError(
            f"router '{name}': threshold_after is {o.threshold_after} with estimator '{o.estimator}', which goes by kept prices "
            "from the first step on: set threshold_after to 0"
        )


def check_sizes(router: Router, values: Mapping[str, Any], n: int, e: int, length: int = 0) -> None:
    """Raises ArgumentError if n tokens and e experts cannot be routed with these options. length: of a sequence."""
    name, o = router.name, SimpleNamespace(**values)
    _check_sizes(name, n, e)
    if "pool" in router.options:
        {"capped_expert_choice": _check_capped, "global_topk": _check_global}.get(name, _check_pools)(name, o, n, e, length)
        return
    if name == "dense" and e != 1:
        raise ArgumentError(f"router 'dense' has one expert that holds every token; experts is {e}, make it 1")
    if name == "quantile_balanced":
        _check_quantile(name, o)
    _check_tokens_choose(name, choices_of(router, values), o, e)
