"""Fields and routers as libchoir describes them."""

from __future__ import annotations

from typing import Any

from . import _native as native
from ._fields import KINDS as TYPES
from ._fields import Field, value_of
from ._native import ffi, lib
from ._router import OPTIONS, PREFIX, Router

KINDS = ("integer", "number", "steps", "flag", "word", "text")  # in the order of enum choir_field_kind


def field_of(call: Any, *arguments: Any) -> Field:
    """The field that a library function describes."""
    f = ffi.new("choir_field *")
    native.check(call(*arguments, f))
    words = []
    while f.words != native.NULL and f.words[len(words)] != native.NULL:
        words.append(native.string(f.words[len(words)]))
    kind = KINDS[f.kind]
    default = value_of(kind, native.string(f.value))
    return Field(native.string(f.key), TYPES[kind], default, f.low, f.high, bool(f.above), tuple(words), native.string(f.help))


def routers() -> list[str]:
    """The names of all routers that libchoir knows."""
    names = lib.choir_router_names()
    found: list[str] = []
    while names[len(found)]:
        found.append(native.string(names[len(found)]))
    return found


def options_of(name: str) -> list[Field]:
    """The options of a router, with its own defaults."""
    text = native.text(name)
    return [field_of(lib.choir_router_option_at, text, index) for index in range(lib.choir_router_option_count(text))]


def router(name: str) -> Router:
    """A router's properties. ArgumentError: there is no router of that name; the message has the most similar one."""
    info, text = ffi.new("choir_router_info *"), native.text(name)
    native.check(lib.choir_router_describe(text, info))
    options = {field.key[len(PREFIX) :]: field for field in options_of(name)}
    properties = native.record(info)
    return Router(
        name=name,
        summary=native.string(lib.choir_router_summary(text)),
        plugin=bool(properties.pop("is_plugin")),
        draws=bool(properties.pop("draws")),
        has_ranking=bool(properties.pop("has_ranking")),
        options=options,
        defaults=_defaults_of(text),
        **{key: properties[key] for key in ("reads", "gates", "loss", "state", "choices")},
    )


def _defaults_of(router: bytes) -> dict[str, Any]:
    """Defaults of all options, including those that the router does not have."""
    made, value = ffi.new("choir_config **"), ffi.new("char []", lib.CHOIR_VALUE_BYTES)
    native.check(lib.choir_config_create(made))
    config = ffi.gc(made[0], lib.choir_config_free)
    native.check(lib.choir_config_set(config, b"model.router.name", router))
    found = {}
    for name in OPTIONS:
        field, key = ffi.new("choir_field *"), native.text(PREFIX + name)
        native.check(lib.choir_config_describe(key, field))
        native.check(lib.choir_config_get(config, key, value, lib.CHOIR_VALUE_BYTES))
        found[name] = value_of(KINDS[field.kind], native.string(value))
    return found
