"""The definition of a Python plug-in: its rules and properties, the same as in src/moe/plugin_define.c."""

from __future__ import annotations

import math
import re
import sys
from typing import Any, Mapping, Sequence

from ._errors import ArgumentError
from ._fields import Field, fits, wanted
from ._router import NAMES, OPTIONS, PREFIX, TAKERS, Router, taken, with_defaults

DEPENDS_ON = ("none", "in_training", "past", "all")  # in the order of enum choir_depends_on


def _is_word(name: str, more: str = "") -> bool:
    return re.fullmatch(f"[A-Za-z0-9_{more}]{{1,31}}", name) is not None


def option_of(router: str, option: Mapping[str, Any]) -> Field:
    """An option of a plug-in. Bounds (0, 0) mean any number."""
    name, bounded = option["name"], bool(option["low"] or option["high"])
    if not _is_word(name):
        raise ArgumentError(
            f"router '{router}': the name of an option is '{name[:40]}': must be 1 to 31 letters, digits and _"
        )
    if name in OPTIONS or name == "name":
        raise ArgumentError(f"router '{router}': '{name}' is an option of choir's: take another name")
    try:
        value, low, high = (float(option[key]) for key in ("value", "low", "high"))
    except OverflowError as error:
        raise ArgumentError(f"router '{router}': a number of its definition is too large: {error}") from None
    low, high = (low, high) if bounded else (-sys.float_info.max, sys.float_info.max)
    field = Field(PREFIX + name, float, value, low, high, False, (), option.get("help", ""))
    if not fits(field, value):
        raise ArgumentError(f"router '{router}': option {name} is {value:g} by default: must be {wanted(field)}")
    return field


def _check_common(name: str, d: Mapping[str, Any]) -> None:
    if not _is_word(name):
        raise ArgumentError(f"the name of a router is '{name[:40]}': must be 1 to 31 letters, digits and _")
    if name in NAMES:
        raise ArgumentError(f"router '{name}' is one of choir's own: take another name")
    version = d["version"]
    if version is not None and not _is_word(version, ".-"):
        raise ArgumentError(
            f"router '{name}': version is '{version[:40]}': must be 1 to 31 letters, digits and any of ._-"
        )


def _check_factor(name: str, factor: float, unlimited: bool) -> None:
    if not (factor > 0 or (factor == 0 and unlimited)) or factor > 65536:
        low = "from" if unlimited else "above"
        raise ArgumentError(f"router '{name}': capacity_factor is {factor:g}: must be a number {low} 0, at most 65536")


def _check_tokens(name: str, d: Mapping[str, Any], observe: Any, ranking: Any) -> None:
    choices, depends_on = int(d["experts_per_token"]), d["depends_on"]
    if not 0 <= choices <= 65536:
        raise ArgumentError(f"router '{name}': experts_per_token is {choices}: must be from 0 to 65536")
    _check_factor(name, d["capacity_factor"], choices > 0 or depends_on == "none")
    if depends_on in ("past", "all") and observe:
        raise ArgumentError(
            f"router '{name}': depends on other tokens ({depends_on}) in evaluation, so it is served with thresholds and "
            "has no state: leave observe out"
        )
    if depends_on not in ("past", "all") and ranking:
        raise ArgumentError(
            f"router '{name}': depends on no other token in evaluation ({depends_on}), so no thresholds serve it: leave "
            "ranking out"
        )
    if not choices and (observe or d["experts_per_token_option"]):
        raise ArgumentError(
            f"router '{name}': observe and experts_per_token_option need experts_per_token, which is 0"
        )


def _check_weight(name: str, weight: float, has_loss: bool) -> None:
    if not weight >= 0 or math.isinf(weight):
        raise ArgumentError(f"router '{name}': aux_loss_weight is {weight:g}: must be a finite number from 0")
    if weight > 0 and not has_loss:
        raise ArgumentError(
            f"router '{name}': aux_loss_weight is {weight:g}, and it has no loss: set `loss`, or leave the weight 0; tokens that "
            "choose experts by scores have the load-balancing loss"
        )


def _check_options(name: str, own: Sequence[Field]) -> None:
    keys = [field.key[len(PREFIX) :] for field in own]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ArgumentError(f"router '{name}': has two options '{twice[0]}'")


def router_of(
    d: Mapping[str, Any], own: Sequence[Mapping[str, Any]], observe: Any, loss: Any, ranking: Any
) -> Router:
    """The properties of a plug-in. Raises ArgumentError for a definition that is refused. d: the definition: name,
    summary, version, depends_on, capacity_factor, draws, normalize_gates, aux_loss_weight; if tokens choose, also
    experts_per_token and experts_per_token_option. own: its options."""
    name, depends_on, tokens_choose = d["name"], d["depends_on"], "experts_per_token" in d
    choices, is_option = (int(d["experts_per_token"]), d["experts_per_token_option"]) if tokens_choose else (0, False)
    _check_common(name, d)
    fields = [option_of(name, option) for option in own]
    _check_options(name, fields)
    if tokens_choose:
        _check_tokens(name, d, observe, ranking)
    else:
        _check_factor(name, d["capacity_factor"], False)
    _check_weight(name, d["aux_loss_weight"], bool(loss or choices))
    thresholds = depends_on in ("past", "all")
    takers = {"scores", "gates", "learned"}
    takers |= {"loss"} if loss or choices else set()
    takers |= {"balance"} if choices and not loss else set()
    takers |= {"capacity"} if depends_on != "none" else set()
    names = {name for name in OPTIONS if TAKERS[name] in takers}
    names |= {"decay"} if thresholds else set()
    names |= {"consistency_weight"} if d["draws"] else set()
    names |= {"experts_per_token"} if is_option else set()
    changed = {"capacity_factor": float(d["capacity_factor"]), "normalize_gates": bool(d["normalize_gates"])}
    changed["aux_loss_weight"] = float(d["aux_loss_weight"])
    changed["experts_per_token" if is_option else "cap"] = choices
    defaults = with_defaults(changed)
    options = {**taken(names, defaults), **{field.key[len(PREFIX) :]: field for field in fields}}
    return Router(
        name=name,
        reads="scores",
        gates="score",
        loss="own" if loss else "balance" if choices else "none",
        state="cutoffs" if thresholds else "own" if observe else "none",
        choices=choices,
        draws=bool(d["draws"]),
        plugin=True,
        summary=d["summary"],
        options=options,
        defaults=defaults,
        has_ranking=ranking is not None,
    )
