"""The store of results: one file of JSON lines per study, one line per finished run. A study uses stored results and
runs only the missing ones.

A result is identified by its computation: its name has a checksum of the config and of the data, and a result whose
content does not have that checksum is refused. Of two lines with the same name, the later one is used. The files
are committed; checkpoints are not.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
from typing import Any, Optional

import numpy as np

from .. import _files, plugin, runs
from ..config import Config
from . import StudyError
from .recipe import check, parsed, read

# Fields of a config on which no result depends.
_ASIDE = {
    "model": ("name",),
    "train": ("eval_every", "checkpoint_every", "keep_checkpoints", "file_bytes", "expert_copies"),
}
# The fields that configs had when the store was created. The default of every later field means the earlier
# behavior, and is left out of names, so that earlier results keep their names.
_FIRST = {
    "model": """
        name vocab_size layers d_model d_hidden d_expert heads d_head experts moe_every rel_buckets
        rel_max_distance norm_eps""",
    "model.router": """
        name capacity_factor eval_capacity_factor pool aux_loss_weight jitter random_second group_size cap
        experts_per_token solver solver_lambda solver_iterations consistency_weight decay threshold_after
        normalize_gates""",
    "train": """
        sequence_length batch_sequences shards accumulate steps optimizer rate warmup_steps constant_steps
        schedule_start schedule cooldown_steps cooldown_to freeze beta1 beta2 weight_decay clip_norm dropout
        seed compute eval_every eval_sequences checkpoint_every keep_checkpoints expert_copies file_bytes""",
    "parallel": """
        wire""",
}
# Fields that were renamed: their names in the store, and in configs now.
_RENAMED = {"train": {"rate": "learning_rate", "shards": "grad_chunks"}, "parallel": {"wire": "dispatch_dtype"}}
_POINTS = 40  # points of the curve of training losses


@functools.lru_cache(None)
def _later() -> dict[str, Any]:
    """The fields that are not in _FIRST, with their defaults, as nested objects."""
    made: dict[str, Any] = {}
    for field in Config.fields():
        *sections, name = field.key.split(".")
        then = {now: old for old, now in _RENAMED.get(".".join(sections), {}).items()}
        if then.get(name, name) not in _FIRST[".".join(sections)].split():
            functools.reduce(lambda inner, section: inner.setdefault(section, {}), sections, made)[name] = field.default
    return made


def _called(config: dict[str, Any], names: dict[str, dict[str, str]]) -> dict[str, Any]:
    """The config with another version's names of fields."""
    return {
        part: {names.get(part, {}).get(k, k): v for k, v in fields.items()} if isinstance(fields, dict) else fields
        for part, fields in config.items()
    }


def _as_then(fields: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """The fields without later ones whose value means the earlier behavior."""
    return {
        k: _as_then(v, later.get(k, {})) if isinstance(v, dict) else v
        for k, v in fields.items()
        if isinstance(v, dict) or k not in later or v != later[k]
    }


def significant(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a config on which a result depends, and the version of its plug-in, if its router is one."""
    parts = {
        part: {k: v for k, v in fields.items() if k not in _ASIDE.get(part, ())}
        for part, fields in _called(config, _RENAMED).items()
    }
    router = config.get("model", {}).get("router")  # absent from a file that was edited
    source = plugin.version_of(str(router.get("name"))) if isinstance(router, dict) else None
    return _as_then(parts, _later()) if source is None else {**_as_then(parts, _later()), "plugin": source}


def checksum(config: dict[str, Any], data_hash: str, extra: Any = None) -> str:
    then = {part: {now: old for old, now in names.items()} for part, names in _RENAMED.items()}
    text = json.dumps([_called(significant(config), then), data_hash, extra], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def name(config: dict[str, Any], data_hash: str) -> str:
    """As `expert_choice-e32-r0.04-s1-1000-0123456789ab`."""
    model, train = config["model"], _called(config, _RENAMED)["train"]
    return (
        f"{model['router']['name']}-e{model['experts']}-r{train['learning_rate']:g}-s{train['seed']}-{train['steps']}-"
        f"{checksum(config, data_hash)}"
    )


def differences(wanted: dict[str, Any], found: Any, path: str = "") -> list[str]:
    """'train.learning_rate is 0.05 instead of 0.04', for every field that differs."""
    if not isinstance(wanted, dict) or not isinstance(found, dict):
        return [] if wanted == found else [f"{path} is {json.dumps(found)} instead of {json.dumps(wanted)}"]
    found_differences = []
    for key in {**wanted, **found}:
        found_differences += differences(wanted.get(key), found.get(key), f"{path}.{key}" if path else key)
    return found_differences


class Store:
    """A directory of results: NAME.jsonl, with a line {"name", "result"} for each result, and NAME.json of earlier
    versions."""

    def __init__(self, directory: pathlib.Path, study: str = "results") -> None:
        self.directory = pathlib.Path(directory)
        self.file = self.directory / f"{study}.jsonl"  # `put` appends to it
        self._state: Any = None
        self._kept: dict[str, Any] = {}

    def _all(self) -> dict[str, Any]:
        """All present results by name."""
        paths = sorted([*self.directory.glob("*.json"), *self.directory.glob("*.jsonl")])
        state = [(path, stat.st_ino, stat.st_mtime_ns, stat.st_size) for path in paths for stat in [path.lstat()]]
        if state != self._state:
            self._kept = {}
            for path in paths:
                self._kept.update(_lines(path) if path.suffix == ".jsonl" else {path.stem: read(path)})
            self._state = state
        return self._kept

    def get(self, name: str) -> Any:
        return self._all().get(name)

    def results(self) -> list[dict[str, Any]]:
        """The results of all runs, sorted by name."""
        return [one for _, one in sorted(self._all().items()) if one.get("format") == "choir-result"]

    def add(self, name: str, result: dict[str, Any]) -> None:
        """Appends a line after the last complete one."""
        _files.directory(self.directory)
        _files.append(self.file, json.dumps({"name": name, "result": result}, separators=(",", ":")))

    def take(self, config: dict[str, Any], data_hash: str) -> Optional[dict[str, Any]]:
        """The result of a config on some data; None if there is none. A result that does not match its name is
        refused."""
        result = self.get(name(config, data_hash))
        if result is not None:
            self._check(self.directory / name(config, data_hash), result, config, data_hash)
        return result

    def put(self, run: pathlib.Path, config: dict[str, Any], data_hash: str) -> dict[str, Any]:
        """Stores the result of a complete run directory; refuses a run with another config or other data."""
        result = of_run(run)
        self._check(run, result, config, data_hash)
        _check_router(run, str(config["model"]["router"]["name"]))
        self.add(name(config, data_hash), result)
        return result

    @staticmethod
    def _check(path: pathlib.Path, result: Any, config: dict[str, Any], data_hash: str) -> None:
        check(path, result, "result.schema.json")
        differing = differences(significant(config), significant(result["config"]))
        if result["data_hash"] != data_hash:
            differing.append(f"data_hash is {json.dumps(result['data_hash'])} instead of {json.dumps(data_hash)}")
        if differing:
            raise StudyError(f"{path}: is not the expected result: {'; '.join(differing)}; remove it, and run the study again")


def _check_router(run: pathlib.Path, router: str) -> None:
    """Refuses a run whose plug-in router was trained with another version than the loaded one."""
    version = plugin.version_of(router)
    for weights in sorted(run.glob("checkpoints/*/model.safetensors")) if version else []:
        trained = plugin.trained_version(weights)
        if trained != version:
            raise StudyError(
                f"{weights}: was trained by router '{router}' of version {trained}, but this study has version {version}, "
                f"because its file has changed; remove {run}, and run the study again"
            )


def _lines(path: pathlib.Path) -> dict[str, Any]:
    """Lines of a file; a last line without an end was being written when the process was killed, and is ignored."""
    found = {}
    for number, line in enumerate(_files.read(path, _files.TEXT_LIMIT).split(b"\n")[:-1], 1):
        one = parsed(f"{path}:{number}", line)
        if not isinstance(one, dict) or one.keys() != {"name", "result"} or not isinstance(one["result"], dict):
            raise StudyError(f'{path}:{number}: is not {{"name": ..., "result": {{...}}}}; remove the line')
        found[one["name"]] = one["result"]
    return found


def _routing(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Statistics over MoE layers: shares of tokens by number of experts, and the demand for experts."""
    tokens = sum(layer["tokens"] for layer in layers)
    most = max((len(layer["histogram"]) for layer in layers), default=0)
    histogram = np.zeros(most)
    for layer in layers:
        histogram[: len(layer["histogram"])] += layer["histogram"]
    held, dropped = (sum(layer[key] for layer in layers) for key in ("assignments", "dropped"))
    asked = sum(sum(layer["demand"]) for layer in layers)
    over = sum(max(0, d - layer["capacity"]) for layer in layers for d in layer["demand"])
    fullest = [max(d["demand"]) * len(d["demand"]) / sum(d["demand"]) for d in layers if sum(d["demand"])]
    return {
        "experts_per_token": held / tokens,
        "histogram": [round(share, 6) for share in np.trim_zeros(histogram / tokens, "b")],
        "dropped": dropped / max(1, dropped + held),
        "over_capacity": over / max(1, asked),
        "fullest": float(np.mean(fullest)) if fullest else 1.0,
        "gate_sum": float(np.mean([layer["gate_mass"] for layer in layers])),
    }


def _causal(last: dict[str, Any]) -> dict[str, Any]:
    """The evaluation by which arms are compared: with threshold routing if the router's own routing depends on other tokens.
    Models trained by masking, whose evaluations name their objective, are compared by their own routing."""
    return last if "objective" in last else last.get("threshold") or last


def evaluation(found: dict[str, Any]) -> dict[str, Any]:
    kept = {key: found[key] for key in ("loss", "bits_per_byte", "tokens", "routing", "looks_across_tokens")}
    return {**kept, **(_routing(found["layers"]) if found["layers"] else {}), **_locality(found.get("locality"))}


def _locality(found: Optional[dict[str, Any]]) -> dict[str, Any]:
    """Locality of a causal routing: experts shared with the previous token, and cache hits (docs/locality.md)."""
    if not found:
        return {}
    return {"locality": {**{key: found[key] for key in ("reuse", "lru")}, "shuffled": {key: found["shuffled"][key] for key in ("reuse", "lru")}}}


def of_run(run: pathlib.Path) -> dict[str, Any]:
    """The result of a run directory that has all its steps."""
    lines, times = runs.lines(run), runs.lines(run, "timing.jsonl")
    evaluations = [line for line in lines if line.get("event") == "eval"]
    started = [line for line in lines if line.get("event") == "run"]
    if not evaluations or not started or evaluations[-1]["step"] != started[-1]["config"]["train"]["steps"]:
        raise StudyError(f"{run}: has no evaluation at its last step")
    last = evaluations[-1]
    steps = [line for line in lines if line.get("event") == "step"]
    process = [line for line in times if line.get("event") == "process"][-1]
    seconds = [line["seconds"] for line in times if "seconds" in line]
    measured = [line for line in steps if line["loss"] is not None]  # None in a step that masked no token
    curve = [
        [part[-1]["step"], round(float(np.mean([line["loss"] for line in part])), 5)]
        for part in (list(p) for p in np.array_split(np.array(measured, object), min(_POINTS, len(measured))))
    ]
    return {
        "format": "choir-result",
        "config": started[-1]["config"],
        "data_hash": process["data_hash"],
        "seed": started[-1]["config"]["train"]["seed"],
        "tokens": steps[-1]["tokens"],
        "parameters": started[-1]["parameters"],
        "active_parameters": started[-1]["active_parameters"],
        "train_flops_per_token": started[-1]["train_flops_per_token"],
        "curve": curve,
        "final": {"own": evaluation(last), "causal": evaluation(_causal(last))},
        **({"fullest": np.mean([line["fullest"] for line in steps], axis=0).round(6).tolist()} if "fullest" in steps[0] else {}),
        "step_seconds": float(np.median(seconds)) if seconds else None,
        "threads": process["threads"],
        "date": process["date"],
        "versions": {"choir": process["version"]},
    }
