"""Configs: every hyperparameter of a model and its training."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

from . import _native as native
from ._described import KINDS as KINDS_OF
from ._described import field_of, options_of
from ._fields import Field, Keyed, Path, nested, value_of, written
from ._native import ffi, lib

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .fields import ConfigFields


class Config(Keyed):
    """A config, read from a JSON file or created from the defaults; docs/formats.md lists all fields.

    >>> config = Config(layers=4, d_model=64, d_hidden=128, heads=4, experts=8, vocab_size=320)
    >>> config.set("router.capacity_factor", 2)
    >>> config["train.learning_rate"]
    0.01

    Keys are dotted paths. You may omit `model.` and `train.` if the rest is unambiguous.

    Args:
        path: a JSON file, or the name of one of choir's configs, such as "pico". None: the defaults.
        fields: fields to set, by name; keys with dots as **{"router.name": "topk"}.

    Raises ArgumentError for an unknown key or a value that is refused, and FileError or FormatError for the
    file."""

    def __init__(self, path: Optional[Path] = None, **fields: Unpack[ConfigFields]):
        if path is None:
            self._make(lib.choir_config_create)
        else:
            self._make(lib.choir_config_load, native.text(path))
        self.update(fields)

    def _make(self, call, *arguments) -> None:
        made = ffi.new("choir_config **")
        native.check(call(*arguments, made))
        self.address = ffi.gc(made[0], lib.choir_config_free)

    @classmethod
    def _of(cls, call, *arguments) -> Config:
        """Returns the config that a library function makes."""
        made = cls.__new__(cls)
        made._make(call, *arguments)
        return made

    def __copy__(self) -> Config:
        return Config._of(lib.choir_config_copy, self.address)

    def __deepcopy__(self, _) -> Config:
        return self.__copy__()

    def __reduce__(self):
        return sys.modules[__package__]._restored_config, ({key: self[key] for key in self._keys()},)

    def set(self, key: str, value: Any) -> None:
        """Sets one field, as `choir train --set` does. ArgumentError names an unknown key or an impossible value."""
        self.update({key: value})

    def update(self, fields: Mapping[str, Any]) -> None:
        """Sets several fields as one operation: a router's name before its options, whatever the order of the keys. On
        an error no field is changed."""
        keys = [ffi.new("char []", native.text(key)) for key in fields]
        values = [ffi.new("char []", native.text(written(value))) for value in fields.values()]
        each = [ffi.new("char *[]", one or [native.NULL]) for one in (keys, values)]
        native.check(lib.choir_config_update(self.address, *each, len(keys)))

    def check(self) -> None:
        """Raises ArgumentError if values are incompatible. vocab_size 0 passes."""
        native.check(lib.choir_config_check(self.address))

    def save(self, path: Path) -> None:
        """Writes every field as JSON."""
        native.check(lib.choir_config_save(self.address, native.text(path)))

    @staticmethod
    def describe(key: str) -> Field:
        """Returns type, default, bounds and help of a field, by its dotted path. ArgumentError: no such field; the
        message names the most similar one.

        >>> Config.describe("router.pool").words
        ('batch', 'sequence', 'position', 'group')"""
        return field_of(lib.choir_config_describe, native.text(key))

    @staticmethod
    def fields() -> list[Field]:
        """Returns all fields, in the order of the file."""
        return [field_of(lib.choir_config_field_at, index) for index in range(lib.choir_config_field_count())]

    @staticmethod
    def router_options(router: str) -> list[Field]:
        """Returns the options that a router takes, with the router's defaults."""
        return options_of(router)

    def as_dict(self) -> dict[str, Any]:
        """Returns the config as nested dictionaries, like the JSON file: {"model": {..., "router": {...}}, "train":
        {...}, ...}."""
        return nested((key, self[key]) for key in self._keys())

    def __getitem__(self, key: str) -> Any:
        """A field by its dotted path: config["model.router.name"]."""
        field, value = ffi.new("choir_field *"), ffi.new("char []", lib.CHOIR_VALUE_BYTES)
        if lib.choir_config_get(self.address, native.text(key), value, lib.CHOIR_VALUE_BYTES):
            raise KeyError(key)
        own = lib.choir_config_describe(native.text(key), field) != 0  # an option of a plug-in, which is a number
        return float(native.string(value)) if own else value_of(KINDS_OF[field.kind], native.string(value))

    def _keys(self) -> list[str]:
        keys = _native_keys()
        own = [field.key for field in Config.router_options(self["model.router.name"])]
        return [*keys, *(key for key in own if key not in keys)]


@functools.lru_cache(None)
def _native_keys() -> tuple[str, ...]:
    return tuple(field.key for field in Config.fields())
