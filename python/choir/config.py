"""Configs: every hyperparameter of a model and its training."""

from __future__ import annotations

import json
import os
import tempfile
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from . import _files
from . import _native as native
from ._native import ffi, lib

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .fields import ConfigFields

Path = Union[str, os.PathLike]


class Config:
    """A config, read from a JSON file or made of the defaults; docs/formats.md has all fields.

    >>> config = Config(layers=4, d_model=64, d_hidden=128, heads=4, experts=8, vocab_size=320)
    >>> config.set("router.capacity_factor", 2)
    >>> config["train.rate"]
    0.01

    Keys are dotted paths, of which `model.` and `train.` may be left out where the rest is unambiguous."""

    def __init__(self, path: Optional[Path] = None, **fields: Unpack[ConfigFields]):
        self.address = ffi.new("choir_config *")
        if path is None:
            lib.choir_config_default(self.address)
        else:
            native.check(lib.choir_config_load(native.text(path), self.address))
        for key, value in fields.items():
            self.set(key, value)

    @classmethod
    def _of(cls, raw) -> Config:
        """A config of the bytes of a choir_config."""
        made = cls()
        ffi.memmove(made.address, raw, ffi.sizeof("choir_config"))
        return made

    def __reduce__(self):
        return Config._of, (bytes(ffi.buffer(self.address)),)

    def set(self, key: str, value: Any) -> None:
        """Sets one field, as `choir train --set` does. ArgumentError names an unknown key or an impossible value."""
        written = str(value).lower() if isinstance(value, (bool, np.bool_)) else str(value)
        native.check(lib.choir_config_set(self.address, native.text(key), native.text(written)))

    def check(self) -> None:
        """Raises ArgumentError where values do not go together. vocab_size 0 passes."""
        native.check(lib.choir_config_check(self.address))

    def save(self, path: Path) -> None:
        """Writes every field as JSON."""
        native.check(lib.choir_config_save(self.address, native.text(path)))

    def as_dict(self) -> dict[str, Any]:
        """{"model": {..., "router": {...}}, "train": {...}, ...}, as the JSON file has it."""
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "config.json")
            self.save(path)
            return json.loads(_files.read(path))

    def __getitem__(self, key: str) -> Any:
        """A field by its dotted path: config["model.router.name"]."""
        found: Any = native.View(self.address)
        first = key.split(".")[0]
        if not hasattr(found, first):
            key = ("model." if hasattr(found.model, first) else "train.") + key
        for name in key.split("."):
            if not isinstance(found, native.View) or name == "reserved" or not hasattr(found, name):
                raise KeyError(key)
            found = getattr(found, name)
        return found

    def __repr__(self) -> str:
        m = native.View(self.address).model
        return f"Config({m.layers} layers, d {m.d_model}, {m.experts} experts, {m.router.name})"
