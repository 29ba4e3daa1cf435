"""Config without libchoir: uses the generated table, with libchoir's checks of a model (src/model/config.c)."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from types import SimpleNamespace
from typing import Any, Mapping, Optional

from . import _options, _router, _routers
from ._errors import ArgumentError, Error, FormatError, file_error
from ._fields import FIELDS, Field, Keyed, Path, check, fits, find, nearest, nested, parse, shown, wanted, written
from ._headers import beside

NAME = "model.router.name"
SECTIONS = ("model", "model.router", "train", "parallel")


class Config(Keyed):
    """choir.Config if libchoir is not installed. It has the same methods as choir.config.Config, whose docstrings
    apply (docs/python.md)."""

    def __init__(self, path: Optional[Path] = None, **fields: Any):
        self._values = {key: field.default for key, field in FIELDS.items()}
        if path is not None:
            self._load(path)
        self.update(fields)

    @property
    def _router(self) -> _router.Router:
        return _routers.find(self._values[NAME])

    def _own(self, values: Mapping[str, Any]) -> dict[str, Field]:
        """The plug-in's own options, by their full keys."""
        options = _routers.find(values[NAME]).options
        return {field.key: field for name, field in options.items() if name not in _router.OPTIONS}

    def _find(self, values: Mapping[str, Any], key: str) -> Field:
        own = self._own(values)
        return {**FIELDS, **own}[find(key, [*FIELDS, *own])]

    def _set(self, values: dict[str, Any], field: Field, value: Any) -> None:
        if field.key == NAME and value != values[NAME]:
            for key in [key for key in values if key not in FIELDS]:
                del values[key]
            router = _routers.find(value)
            own = {field.key: field.default for field in self._own({NAME: value}).values()}
            values.update({_router.PREFIX + name: default for name, default in router.defaults.items()}, **own)
        values[field.key] = value

    def set(self, key: str, value: Any) -> None:
        self.update({key: value})

    def update(self, fields: Mapping[str, Any]) -> None:
        values = dict(self._values)
        named = {key: value for key, value in fields.items() if "." in key and (NAME == key or NAME.endswith("." + key))}
        for key, value in {**named, **fields}.items():
            field = self._find(values, key)
            self._set(values, field, value if field.key == NAME else parse(field, written(value)))
        self._values = values

    # ---- files

    def _load(self, path: Path) -> None:
        """Loads a file, or a built-in config by its name."""
        own = beside(f"share/choir/configs/{os.fspath(path)}.json")
        file = own if own and not os.path.exists(path) and "/" not in os.fspath(path) else path
        try:
            with open(file, encoding="utf-8") as source:
                read = json.load(source)
        except OSError as error:
            raise file_error(path, error) from None
        except ValueError as error:
            raise FormatError(f"{os.fspath(path)}: is no JSON: {error}") from None
        try:
            self._read("", read)
            self.check()
        except Error as error:
            raise FormatError(f"{os.fspath(path)}: {error}") from None

    def _read(self, section: str, read: Any) -> None:
        if not isinstance(read, dict):
            raise FormatError(f"{section or 'the file'} must be an object {{...}}")
        front = section and section + "."
        first = [key for key in read if front + key == NAME]  # the router's name first: it sets defaults
        for key in (*first, *(key for key in read if key not in first)):
            whole = front + key
            field = {**FIELDS, **self._own(self._values)}.get(whole)
            if field is not None:
                self._set(self._values, field, read[key] if whole == NAME else check(field, read[key]))
            elif whole in SECTIONS:
                self._read(whole, read[key])
            else:
                raise FormatError(f"unknown key '{whole}'{nearest(whole, list(FIELDS))}")

    def save(self, path: Path) -> None:
        self.check()
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(json.dumps(self.as_dict(), indent=2) + "\n")
        except OSError as error:
            raise file_error(path, error) from None

    def as_dict(self) -> dict[str, Any]:
        return nested(self._values.items())

    # ---- fields

    @staticmethod
    def describe(key: str) -> Field:
        return FIELDS[find(key)]

    @staticmethod
    def fields() -> list[Field]:
        return list(FIELDS.values())

    @staticmethod
    def router_options(router: str) -> list[Field]:
        return list(_routers.find(router).options.values())

    def __getitem__(self, key: str) -> Any:
        try:
            return self._values[self._find(self._values, key).key]
        except ArgumentError:
            raise KeyError(key) from None

    def __reduce__(self) -> Any:
        return sys.modules[__package__]._restored_config, (self._values,)

    # ---- checks

    def check(self) -> None:
        for key, field in FIELDS.items():
            value = self._values[key]
            if field.type in (int, float) and not fits(field, value):
                raise ArgumentError(_impossible(field, value))
        m, t = (SimpleNamespace(**self.as_dict()[section]) for section in ("model", "train"))
        router, values = self._router, m.router
        _options.check(router, values)
        _check_attention(m)
        _check_objective(m, t)
        if m.moe_every:
            _check_routing(router, m, t)
        elif m.layer_capacity:
            raise ArgumentError(
                f'model.layer_capacity is "{m.layer_capacity}" with model.moe_every 0, which has no MoE layer: leave it out'
            )


def _impossible(field: Field, value: Any) -> str:
    if value == 0 and field.default == 0:
        return f"{field.key} is missing: {wanted(field)} ({field.help})"
    return f"{field.key} is {shown(value)}: must be {wanted(field)}"


def _check_rope(m: Any, width: int) -> None:
    if m.position != "rope" and (m.rope_theta != 1e4 or m.rope_fraction != 1):
        raise ArgumentError(
            f"model.rope_theta is {m.rope_theta:g} and model.rope_fraction {m.rope_fraction:g}, which model.position "
            f"'{m.position}' does not read: leave them out, or set model.position to rope"
        )
    rotated = int(m.rope_fraction * width)
    if m.position == "rope" and (rotated < 2 or rotated % 2):
        raise ArgumentError(
            f"model.rope_fraction is {m.rope_fraction:g}, of heads of {width} columns {rotated}: must be an even number of them, "
            "at least 2"
        )


def _check_attention(m: Any) -> None:
    if not m.d_head and m.d_model % m.heads:
        raise ArgumentError(
            f"model.d_model is {m.d_model} and model.heads {m.heads}: d_model must be divisible by heads, or model.d_head given"
        )
    if m.kv_heads and m.heads % m.kv_heads:
        raise ArgumentError(f"model.kv_heads is {m.kv_heads}: must divide model.heads, which is {m.heads}")
    if m.qk_norm_whole and not m.qk_norm:
        raise ArgumentError(
            "model.qk_norm_whole is true and model.qk_norm false: set that too, or leave both out"
        )
    _check_rope(m, m.d_head or m.d_model // m.heads)
    if m.attention == "bidirectional" and m.position == "relative" and m.rel_buckets % 2:
        raise ArgumentError(
            f"model.rel_buckets is {m.rel_buckets} with model.attention bidirectional, where one half is for positions ahead: "
            "must be even"
        )
    if m.rel_max_distance <= m.rel_buckets // 2:
        raise ArgumentError(
            f"model.rel_max_distance is {m.rel_max_distance}: must be above half of model.rel_buckets ({m.rel_buckets}), whose "
            "first half holds one distance each"
        )


def _check_objective(m: Any, t: Any) -> None:
    masked = t.objective != "next_token"
    if masked and m.attention == "causal":
        raise ArgumentError(
            f"train.objective is {t.objective} with model.attention causal: masked tokens are predicted from both sides; set "
            "model.attention to bidirectional"
        )
    if not masked and m.attention != "causal":
        raise ArgumentError(
            "train.objective is next_token with model.attention bidirectional, which sees the next token: set train.objective to "
            "masked_diffusion or masked_lm, or model.attention to causal"
        )
    schedule, pool = m.router["capacity_schedule"], m.router["pool"]
    if schedule != "constant" and (not masked or pool != "sequence"):
        raise ArgumentError(
            f"model.router.capacity_schedule is {schedule} with train.objective {t.objective} and pool '{pool}': it goes by the "
            "share of a sequence that is masked; set it to constant, or train by masking with pool 'sequence'"
        )


def _weights(text: str) -> Optional[list[float]]:
    """The weights of layer_capacity; None: not a comma-separated list of positive numbers."""
    parts = text.split(",") if text else []
    if not all(re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", part) and float(part) > 0 for part in parts):
        return None
    weights = [float(part) for part in parts]
    return weights if math.isfinite(sum(weights) * len(weights)) else None


def _check_weights(router: _router.Router, m: Any, layers: int) -> list[float]:
    """Factors of the capacity by MoE layer."""
    weights = _weights(m.layer_capacity)
    if not m.layer_capacity:
        return [1.0]
    if weights is None or len(weights) != layers:
        raise ArgumentError(
            f'model.layer_capacity is "{m.layer_capacity}": must be numbers above 0 with commas between them, one for each of the '
            f"{layers} MoE layers"
        )
    if m.router["capacity_factor"] == 0 or "capacity_factor" not in router.options:
        raise ArgumentError(
            f"model.layer_capacity is \"{m.layer_capacity}\", but router '{router.name}' has no capacity here: leave it out, or "
            "take a router with router.capacity_factor above 0"
        )
    return [weight * layers / sum(weights) for weight in weights]


def _check_routing(router: _router.Router, m: Any, t: Any) -> None:
    layers = (m.layers - m.dense_layers) // m.moe_every if m.layers > m.dense_layers else 0
    n = t.batch_sequences * t.sequence_length * (2 if m.router["consistency_weight"] else 1)
    if not layers:
        raise ArgumentError(
            f"model.moe_every is {m.moe_every} with {m.layers} layers, of which the first {m.dense_layers} are dense "
            "(model.dense_layers), which gives no MoE layer; use 0 for a dense model"
        )
    if m.experts > n:
        raise ArgumentError(
            f"model.experts is {m.experts}: more than the {n} tokens of a batch ({t.batch_sequences} times {t.sequence_length})"
        )
    for number, share in enumerate(_check_weights(router, m, layers), 1):
        for start in (False, True) if m.router["capacity_start"] else (False,):
            where = f"model.layer_capacity, weight {number}: " if m.layer_capacity and layers > 1 else ""
            scaled = {**m.router, **{key: m.router[key] * share for key in ("capacity_factor", "eval_capacity_factor")}}
            if start and t.steps > 1:
                scaled["capacity_factor"] *= m.router["capacity_start"] / m.router["capacity_factor"]
            try:
                _options.check_sizes(router, scaled, n, m.experts, t.sequence_length)
            except ArgumentError as error:
                raise ArgumentError(f"{where or ('model.router.capacity_start: ' if start else '')}{error}") from None
    if m.router["threshold_after"] and "pool" in router.options and m.router["pool"] != "batch":
        raise ArgumentError(
            f"model.router.threshold_after is {m.router['threshold_after']} with pool '{m.router['pool']}': it goes with pool "
            "'batch' only, since a threshold knows no pool"
        )
