"""choir in Python: Mixture-of-Experts routing, models and training (docs/python.md).

    import choir
    chosen = choir.route(scores, router="capped_expert_choice", cap=3)   # NumPy in, NumPy out
    model = choir.Model.load("run")

`choir.torch` has routers for PyTorch models, and needs PyTorch; nothing else here does.
"""

from . import data, runs
from ._native import (
    ArgumentError,
    BusyError,
    Error,
    FileError,
    FormatError,
    InterruptedRun,
    NumericError,
    OutOfMemoryError,
    UnsupportedError,
)
from ._native import lib as _lib
from ._native import string as _string
from .config import Config, Field
from .model import Evaluation, Forward, Model, Scored, Session, Text
from .pages import Page, inspect, report
from .plugin import load_plugin, router
from .routing import Certificate, Routing, route, route_backward, routers
from .tokenizer import Tokenizer
from .trainer import Step, Trainer
from .training import finetune, train

__version__ = _string(_lib.choir_version())
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
    "finetune",
    "inspect",
    "load_plugin",
    "report",
    "route",
    "route_backward",
    "router",
    "routers",
    "runs",
    "train",
]
