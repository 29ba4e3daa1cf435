"""choir in Python: Mixture-of-Experts routing, models and training (docs/python.md).

    import choir
    chosen = choir.route(scores, router="capped_expert_choice", cap=3)   # NumPy in, NumPy out
    model = choir.Model.load("run")

`choir.torch` has routers and layers for PyTorch models; it is the only part that requires PyTorch. It works without
libchoir, choir's C library, which is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import _library
from ._errors import (
    ArgumentError,
    BusyError,
    Error,
    FileError,
    FormatError,
    InterruptedRun,
    LibraryError,
    NumericError,
    OutOfMemoryError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from . import data, runs
    from ._fields import Field
    from ._locality import locality
    from ._routers import routers
    from .config import Config
    from .model import Evaluation, Forward, Model, Scored, Session, Text
    from .pages import Page, inspect, report
    from .plugin import experts_choose, load_plugin, router, tokens_choose
    from .routing import Certificate, Routing, route, route_backward
    from .tokenizer import Tokenizer
    from .trainer import Step, Trainer
    from .training import finetune, train

    __version__: str

__all__ = [
    "ArgumentError",
    "BusyError",
    "Certificate",
    "Config",
    "Error",
    "Evaluation",
    "Field",
    "FileError",
    "FormatError",
    "Forward",
    "InterruptedRun",
    "LibraryError",
    "Model",
    "NumericError",
    "OutOfMemoryError",
    "Page",
    "Routing",
    "Scored",
    "Session",
    "Step",
    "Text",
    "Tokenizer",
    "Trainer",
    "UnsupportedError",
    "data",
    "experts_choose",
    "finetune",
    "inspect",
    "load_plugin",
    "locality",
    "report",
    "route",
    "route_backward",
    "router",
    "routers",
    "runs",
    "tokens_choose",
    "train",
]

_PURE = {  # names that work without libchoir, by module
    "_fields": ("Field",),
    "_locality": ("locality",),
    "_routers": ("routers",),
    "pages": ("Page", "inspect", "report"),
    "plugin": ("experts_choose", "load_plugin", "router", "tokens_choose"),
}
_IN_C = {  # names that require libchoir
    "model": ("Evaluation", "Forward", "Model", "Scored", "Session", "Text"),
    "routing": ("Certificate", "Routing", "route", "route_backward"),
    "tokenizer": ("Tokenizer",),
    "trainer": ("Step", "Trainer"),
    "training": ("finetune", "train"),
}
_MODULES = (*_PURE, *_IN_C, "config", "data", "fields", "runs")
_PLACES = {name: module for part in (_PURE, _IN_C) for module, names in part.items() for name in names}


def _version() -> str:
    from ._headers import version

    if found := version():
        return found
    from . import _native

    return _native.string(_native.lib.choir_version())


def _restored_config(values: dict[str, Any]) -> Any:
    """Restores a pickled config, with libchoir or without."""
    made = __getattr__("Config")()
    made.set("model.router.name", values["model.router.name"])  # it sets the options' defaults
    # Only differing values, because the router may refuse to set options that it does not take.
    made.update({key: value for key, value in values.items() if made[key] != value})
    return made


def __getattr__(name: str) -> Any:
    """Imports names on first use."""
    if name in _MODULES:
        if name in (*_IN_C, "config", "data"):
            _library.require(f"choir.{name}")
        return importlib.import_module(f".{name}", __name__)
    if name == "__version__":
        found: Any = _version()
    elif name == "Config":
        found = importlib.import_module(".config" if _library.available() else "._plain", __name__).Config
    elif name in _PLACES:
        module = _PLACES[name]
        if module in _IN_C:
            _library.require(f"choir.{name}")
        found = getattr(importlib.import_module(f".{module}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
