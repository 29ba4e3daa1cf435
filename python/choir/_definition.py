"""The definition of a plug-in in Python: its rules and properties, as src/moe/plugin.c has them."""

from __future__ import annotations

import re
import sys
from typing import Any, Mapping, Sequence

from ._errors import ArgumentError
from ._fields import Field, fits, wanted
from ._router import NAMES, OPTIONS, PREFIX, TAKERS, Router, taken, with_defaults

LOOKS = ("nowhere", "in_training", "back", "around")


def _is_word(name: str, more: str = "") -> bool:
    return re.fullmatch(f"[A-Za-z0-9_{more}]{{1,31}}", name) is not None


def option_of(router: str, option: Mapping[str, Any]) -> Field:
    """An option of a plug-in's own: from 0 to 0 is any number."""
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


def _check(name: str, choices: int, looks: str, d: Mapping[str, Any], observe: Any, loss: Any) -> None:
    if not _is_word(name):
        raise ArgumentError(f"the name of a router is '{name[:40]}': must be 1 to 31 letters, digits and _")
    if name in NAMES:
        raise ArgumentError(f"router '{name}' is one of choir's own: take another name")
    version = d["version"]
    if version is not None and not _is_word(version, ".-"):
        raise ArgumentError(
            f"router '{name}': version is '{version[:40]}': must be 1 to 31 letters, digits and any of ._-"
        )
    if not 0 <= choices <= 65536:
        raise ArgumentError(f"router '{name}': choices is {choices}: must be from 0 to 65536")
    factor, weight = d["capacity_factor"], d["aux_loss_weight"]
    if not 0 <= factor <= 65536 or (not choices and factor == 0):
        raise ArgumentError(
            f"router '{name}': capacity_factor is {factor:g}: must be at most 65536, and above 0 where experts choose (choices "
            "is 0)"
        )
    if not weight >= 0 or (weight > 0 and not choices and not loss):
        raise ArgumentError(
            f"router '{name}': aux_loss_weight is {weight:g} with choices {choices}: tokens that make choices have that loss, and "
            "routers with one of their own (loss)"
        )
    if observe and (not choices or looks in ("back", "around")):
        raise ArgumentError(
            f"router '{name}': keeps a state (observe) with choices {choices} and looks {looks}: tokens must make choices, and "
            "look at no other outside of training; thresholds would have the place of the state"
        )


def _check_options(name: str, own: Sequence[Field]) -> None:
    keys = [field.key[len(PREFIX) :] for field in own]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ArgumentError(f"router '{name}': has two options '{twice[0]}'")


def router_of(d: Mapping[str, Any], own: Sequence[Mapping[str, Any]], observe: Any, loss: Any) -> Router:
    """The properties of a plug-in by its definition: name, summary, looks, choices, choices_default, draws, capacity_factor,
    normalize_gates, aux_loss_weight, version. ArgumentError: it is none."""
    name, looks, choices = d["name"], d["looks"], int(d["choices"])
    _check(name, choices, looks, d, observe, loss)
    fields = [option_of(name, option) for option in own]
    _check_options(name, fields)
    ranked = looks in ("back", "around")
    takers = {"scores", "gates", "learned"}
    takers |= {"loss"} if loss or choices else set()
    takers |= {"balance"} if choices and not loss else set()
    takers |= {"capacity"} if looks != "nowhere" else set()
    names = {name for name in OPTIONS if TAKERS[name] in takers}
    names |= {"decay"} if ranked else set()
    names |= {"consistency_weight"} if d["draws"] else set()
    names |= {"experts_per_token"} if d["choices_default"] else set()
    changed = {"capacity_factor": float(d["capacity_factor"]), "normalize_gates": bool(d["normalize_gates"])}
    changed["aux_loss_weight"] = float(d["aux_loss_weight"])
    changed["experts_per_token" if d["choices_default"] else "cap"] = choices
    defaults = with_defaults(changed)
    options = {**taken(names, defaults), **{field.key[len(PREFIX) :]: field for field in fields}}
    return Router(
        name=name,
        reads="scores",
        gates="score",
        loss="own" if loss else "balance" if choices else "none",
        state="cutoffs" if ranked else "own" if observe else "none",
        choices=choices,
        draws=bool(d["draws"]),
        plugin=True,
        summary=d["summary"],
        options=options,
        defaults=defaults,
    )
