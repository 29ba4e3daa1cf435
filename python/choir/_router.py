"""Properties of routers, and those of the built-in ones from the generated table (_table.py)."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping

from . import _table
from ._fields import FIELDS, Field, value_of

PREFIX = "model.router."
NAMES = tuple(name for name, *_ in _table.ROUTERS)
OPTIONS = {key[len(PREFIX) :]: field for key, field in FIELDS.items() if key.startswith(PREFIX) and key != PREFIX + "name"}
TAKERS: Mapping[str, str] = _table.TAKERS  # by option: the routers that take it
_KINDS = {key: kind for key, kind, *_ in _table.FIELDS}


@dataclasses.dataclass(frozen=True)
class Router:
    """Properties of a router that its options do not change (choir_router_info in choir/router.h)."""

    name: str
    reads: str
    """nothing, ids, logits, scores, or shares: scores that must not be negative"""
    gates: str
    """even (constant), score, share (of the scores of all choices), sigmoid, or own (of a plug-in)"""
    loss: str
    """none, balance, or own"""
    state: str
    """none, cutoffs, prices, biases, centroids, or own"""
    choices: int
    """experts per token, by default; 0: experts choose"""
    draws: bool
    plugin: bool
    summary: str
    options: Mapping[str, Field]
    """the options that the router takes, by name, with the router's defaults"""
    defaults: Mapping[str, Any]
    """defaults of all options, including those that the router does not take"""
    number: int = -1
    """index of a Python plug-in among the definitions of this process"""
    version: str = ""
    """version of a Python plug-in, or a checksum"""
    has_ranking: bool = False
    """the plug-in has its own ranking, with which thresholds are compared in place of scores"""


def with_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of all options, with those of a router replaced."""
    return {name: defaults.get(name, field.default) for name, field in OPTIONS.items()}


def taken(names: Any, defaults: Mapping[str, Any]) -> dict[str, Field]:
    """The options with these names, with a router's defaults."""
    return {name: dataclasses.replace(OPTIONS[name], default=defaults[name]) for name in OPTIONS if name in names}


def _of_row(row: tuple) -> Router:
    *properties, summary, names, changed = row
    defaults = with_defaults({name: value_of(_KINDS[PREFIX + name], text) for name, text in changed.items()})
    return Router(*properties, summary, taken(names, defaults), defaults)


OWN = {row[0]: _of_row(row) for row in _table.ROUTERS}
