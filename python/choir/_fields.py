"""Types, bounds and defaults of config fields, from the table that is generated from libchoir's (_table.py).
Nothing here needs libchoir."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import sys
from typing import Any, Collection, Iterable, Union

from . import _table
from ._errors import ArgumentError, printable

Path = Union[str, os.PathLike]
# The Python types of fields; steps may be a fraction.
KINDS = {"integer": int, "number": float, "steps": float, "flag": bool, "word": str, "text": str}
MOST = 2**53 - 1  # larger integers are rounded by JSON readers that use doubles


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a config: its type, default, bounds and help."""

    key: str
    """dotted path, such as "model.router.cap" """
    type: type
    """int, float, bool or str"""
    default: Any
    low: float
    """minimum of a number"""
    high: float
    """maximum of a number, or maximum number of bytes of a text"""
    above: bool
    """True: `low` itself is excluded"""
    words: tuple[str, ...]
    """the values of a field with a fixed set of words; (): another field"""
    help: str


class Keyed:
    """Access to a config's fields by dotted paths, with libchoir or without."""

    def __getitem__(self, key: str) -> Any:
        """A field by its dotted path: config["model.router.name"]."""
        raise NotImplementedError

    def get(self, key: str, default: Any = None) -> Any:
        """A field by its dotted path, or `default` if there is no such field."""
        return self[key] if key in self else default

    def __contains__(self, key: object) -> bool:
        try:
            self[str(key)]
        except KeyError:
            return False
        return True

    def __repr__(self) -> str:
        c = self
        return f"Config({c['layers']} layers, d {c['d_model']}, {c['experts']} experts, {c['router.name']})"


def value_of(kind: str, text: str) -> Any:
    """The value that libchoir writes as `text`. Steps are an integer or a share, as in the JSON file: by it results of studies
    are known."""
    if kind == "flag":
        return text == "true"
    whole = kind == "steps" and float(text).is_integer()
    return int(float(text)) if whole else KINDS[kind](text)


FIELDS = {
    key: Field(key, KINDS[kind], value_of(kind, default), low, high, above, words, help)
    for key, kind, default, low, high, above, words, help in _table.FIELDS
}
_STEPS = frozenset(key for key, kind, *_ in _table.FIELDS if kind == "steps")


def shown(value: Any) -> str:
    """A value as libchoir writes it: a number with as few digits as represent it exactly."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (int, float)):
        return str(value)
    return next(text for digits in (10, 15, 17) if float(text := f"{value:.{digits}g}") == value or digits == 17)


def listed(words: Collection[str]) -> str:
    return ", ".join(words)


def nearest(word: str, known: Collection[str]) -> str:
    """A suggestion behind an error message; nothing if no known word is close."""
    found = difflib.get_close_matches(word, known, 1)
    return f", did you mean '{found[0]}'?" if found else ""


def wanted(field: Field) -> str:
    """Describes the values that a field accepts: "an integer from 1 to 4096"."""
    low, high = f"{field.low:.10g}", f"{field.high:.10g}"
    if field.type is bool:
        return "true or false"
    if field.words:
        return f"one of: {listed(field.words)}"
    if field.type is str:
        return f"text of at most {int(field.high)} bytes"
    if field.key in _STEPS:
        return "a share below 1, or an integer to 2^53 - 1"
    if field.high == sys.float_info.max:  # a plug-in's option without bounds
        return "a finite number"
    if field.type is float:
        return f"a number above {low}, at most {high}" if field.above else f"a number from {low} to {high}"
    return f"an integer from {int(field.low)} to {'2^53 - 1' if field.high == MOST else int(field.high)}"


def fits(field: Field, number: Union[int, float]) -> bool:
    """Whether a number is in the field's range."""
    if not field.low <= number <= field.high or (field.above and number <= field.low):
        return False
    whole = float(number).is_integer()
    return field.type is not int and (field.key not in _STEPS or number < 1) or whole


def _refuse(field: Field, value: str, suggestion: str = "") -> ArgumentError:
    return ArgumentError(f"{field.key} is {value}: must be {wanted(field)}{suggestion}")


def _in_json(value: Any) -> str:
    """A refused value, as libchoir's messages show it."""
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        text = f"{value:.15g}"
        return text if set(text) & set(".e") else text + ".0"
    text = json.dumps(value, separators=(",", ":"))
    return text if len(text) < 80 else text[:76] + "..."


def check(field: Field, value: Any) -> Any:
    """Converts a JSON value to the field's type. ArgumentError: the field does not accept it."""
    if field.type is str and isinstance(value, str):
        if field.words and value not in field.words:
            raise _refuse(field, f'"{value[:40]}"', nearest(value, field.words))
        if not field.words and (printable(value) != value or len(value.encode()) > field.high):
            raise _refuse(field, f'"{value[:40]}"')
        return value
    right = isinstance(value, bool) if field.type is bool else field.type is not str and isinstance(value, (int, float))
    if isinstance(value, bool) != (field.type is bool) or not right or not fits(field, value):
        raise _refuse(field, _in_json(value))
    if field.key in _STEPS:
        return int(value) if float(value).is_integer() else float(value)
    return field.type(value)


def _no_number(text: str) -> Any:
    raise ValueError(text)


def parse(field: Field, text: str) -> Any:
    """The value of a field after `--set KEY=TEXT`."""
    if field.type is str:
        return check(field, text)
    try:
        value = json.loads(text, parse_constant=_no_number)
    except ValueError:
        spelling = ", as JSON writes numbers: 0.05, 1e-3" if set(text) & set("0123456789") else ""
        raise ArgumentError(f"{field.key} is '{text[:40]}': must be {wanted(field)}{spelling}") from None
    return check(field, value)


def written(value: Any) -> str:
    """A value of Python, NumPy or PyTorch as `--set` takes it."""
    text = str(value)
    return text.lower() if text in ("True", "False") and not isinstance(value, str) else text


def nested(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Dictionaries by section, from pairs of a dotted path and a value."""
    made: dict[str, Any] = {}
    for key, value in fields:
        *sections, name = key.split(".")
        inner = made
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return made


def find(key: str, known: Collection[str] = FIELDS) -> str:
    """The whole key that a dotted path means, of which the front may be left out. ArgumentError: none, or several."""
    found = [whole for whole in known if whole == key or whole.endswith("." + key)]
    if len(found) > 1:
        raise ArgumentError(f"key '{key}' may be {found[0]} or {found[1]}: write one of them")
    if not key or not found:
        names = [*(whole.rpartition(".")[2] for whole in known), *known]
        raise ArgumentError(f"unknown key '{key[:80]}'{nearest(key, names)}")
    return found[0]
