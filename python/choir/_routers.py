"""Routers by name: built-in ones, Python plug-ins by their definition, and C plug-ins as libchoir describes them.
Without libchoir only the first two are available."""

from __future__ import annotations

from . import _library
from ._errors import ArgumentError
from ._fields import listed, nearest
from ._router import OWN, Router

plugins: dict[str, Router] = {}  # plug-ins that are defined in Python


def routers() -> list[str]:
    """Returns the names of all routers: built-in ones and registered plug-ins."""
    if _library.available():
        from . import _described

        return _described.routers()
    return [*OWN, *plugins]


def find(name: str) -> Router:
    """The router of this name. TypeError: not a string; ArgumentError: no such router, with the most similar name."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a router is wanted, not {type(name).__name__}")
    if found := OWN.get(name) or plugins.get(name):
        return found
    if _library.available():
        from . import _described

        return _described.router(name)  # a plug-in in C
    known = routers()
    raise ArgumentError(f"there is no router '{name}'{nearest(name, known)} (routers: {listed(known)})")
