"""Reads and checks recipes and scales (JSON files), and derives the config of every arm."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import pathlib
import re
from typing import Any, Iterator, Optional, Sequence

import jsonschema

from .. import _files
from .._fields import nearest
from . import StudyError, settings

HERE = pathlib.Path(__file__).resolve().parent


def _root() -> pathlib.Path:
    """The directory with configs/ and studies/: the source tree, or share/choir of an installation."""
    for place in HERE.parents:
        for root in (place, place / "share" / "choir"):
            if (root / "studies" / "scales.json").exists():
                return root
    raise StudyError(f"neither studies/scales.json nor share/choir/studies is above {HERE}")


ROOT = _root()


def _unique(pairs):
    found = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key '{key}' occurs twice")
        found[key] = value
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def parsed(where: str, text: bytes) -> Any:
    """Parses strict JSON: no duplicate keys, no NaN or infinity."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise StudyError(f"{where}: {error}") from None


def read(path: os.PathLike, given: bool = False) -> Any:
    """Reads a JSON file. given: the user named it."""
    return parsed(str(path), _files.read(path, given=given))


def write(path: pathlib.Path, value: Any, indent: Optional[int] = 1) -> None:
    _files.directory(path.parent)
    _files.save(path, json.dumps(value, indent=indent) + "\n")


def _texts(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """All strings in it, including names of fields, with their positions."""
    if isinstance(value, str):
        yield where, value
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in pairs:
        if isinstance(key, str):
            yield where, key
        yield from _texts(one, f"{where}[{key}]" if isinstance(key, int) else f"{where}.{key}".lstrip("."))


def check(path: os.PathLike, value: Any, schema: str) -> None:
    """Refuses unknown keys and control characters, naming file, field and value."""
    for where, text in _texts(value):
        if not text.isprintable():
            raise StudyError(f"{path}: {where or 'the file'}: {ascii(text)} has characters that cannot be printed; leave them out")
    validator = jsonschema.Draft7Validator(json.loads((HERE / schema).read_text()))
    wrong = jsonschema.exceptions.best_match(validator.iter_errors(value))
    if wrong:
        where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in wrong.absolute_path).lstrip(".")
        raise StudyError(f"{path}: {where or 'the file'}: {wrong.message}{_meant(wrong)}")


def _meant(wrong: jsonschema.ValidationError) -> str:
    """The most similar known key for an unknown one."""
    if wrong.validator != "additionalProperties":
        return ""
    known = wrong.schema["properties"]
    return "".join(nearest(key, known) for key in wrong.instance if key not in known)


def names() -> list[str]:
    """Names of the built-in recipes."""
    return sorted(p.stem for p in (ROOT / "studies").glob("*.json") if p.stem != "scales")


_NAME_OF_ROUTER = ("router.name", "model.router.name")
_WITH_RIVAL = ("loss", "optimum", "steps", "seconds", "waiting", "growth", "step_time", "accuracy", "probe", "text")


def check_recipe(path: os.PathLike, recipe: Any) -> None:
    """Refuses unknown keys, and references to arms that do not exist."""
    check(path, recipe, "recipe.schema.json")
    try:
        known = {arm.name for arm in arms(recipe)}
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from None
    settings.check_recipe(path, recipe)
    for number, claim in enumerate(recipe["claims"]):
        for key in ("arm", "rival", "than_arm", "than_rival"):
            if key in claim and claim[key] not in known:
                raise StudyError(f"{path}: claims[{number}].{key}: '{claim[key]}' is none of: {', '.join(sorted(known))}")
        if claim["kind"] in _WITH_RIVAL and "rival" not in claim:
            raise StudyError(f"{path}: claims[{number}]: kind '{claim['kind']}' needs a rival")
        if claim.get("rival") == claim["arm"] and claim.get("routing") == claim.get("rival_routing"):
            raise StudyError(f"{path}: claims[{number}]: arm '{claim['arm']}' is its own rival; name another, or a routing")
        if claim["kind"] == "text" and not set(claim.get("texts", [""])) <= set(recipe.get("texts", {})):
            raise StudyError(f"{path}: claims[{number}]: kind '{claim['kind']}' needs 'texts', each one of the recipe's 'texts'")
        for name in sum(claim.get("wider", []), []):
            if name not in known:
                raise StudyError(f"{path}: claims[{number}].wider: '{name}' is none of: {', '.join(sorted(known))}")
        if (claim["kind"] == "growth") != ("wider" in claim):
            raise StudyError(f"{path}: claims[{number}]: 'wider' (pairs of arm and rival) is required for kind 'growth', and only allowed there")
        if (claim["kind"] == "growth") != ("over" in claim):
            raise StudyError(f"{path}: claims[{number}]: 'over' (tokens or width) is required for kind 'growth', and only allowed there")
        if (claim["kind"] == "waiting") != ("devices" in claim):
            raise StudyError(f"{path}: claims[{number}]: 'devices' (8, 16 or 32) is required for kind 'waiting', and only allowed there")
        times = [claim[key] for key in ("figure", "null") if key in claim] + claim.get("about", [])
        if claim["kind"] in ("steps", "seconds", "waiting", "step_time") and any(value <= 0 for value in times):
            raise StudyError(f"{path}: claims[{number}]: kind '{claim['kind']}' compares ratios, which must be above 0: {min(times):g}")


def _routers(recipe: dict[str, Any]) -> set[str]:
    """The routers that a recipe names itself."""
    changes = [recipe, *(change for arm in arms(recipe) for change in arm.changes)]
    return {value for one in changes for key, value in one.get("set", {}).items() if key in _NAME_OF_ROUTER}


def _with_own(recipe: dict[str, Any], routers: list[str]) -> dict[str, Any]:
    """The recipe with an additional arm for each of these routers that no arm uses, and a claim that compares this arm
    with the first one. The recipe gets another name, so that one directory may contain both studies."""
    first, made = recipe["arms"][0], copy.deepcopy(recipe)
    routers = [name for name in routers if name not in _routers(recipe)]
    made["name"] = "-with-".join([recipe["name"], *(re.sub("[^a-z0-9]+", "-", name.lower()) for name in routers)])
    for name in routers:
        made["arms"].append({"name": name, "set": {"router.name": name}})
        each = [arms({**recipe, "arms": [row]}) for row in (made["arms"][-1], first)]
        for own, rival in zip(*each):
            made["claims"].append(
                {"text": f"{own.name} reaches a lower loss than {rival.name}.", "paper": "", "kind": "loss", "arm": own.name,
                 "rival": rival.name}
            )  # fmt: skip
    return made


def load(name: str, own: Sequence[str] = ()) -> dict[str, Any]:
    """Loads a recipe by name, or a file. own: routers of additional arms."""
    path = ROOT / "studies" / f"{name}.json" if name in names() else pathlib.Path(name)
    if not path.exists():
        raise StudyError(f"{name}: neither a file nor one of the recipes {', '.join(names())}{nearest(name, names())}")
    recipe = read(path, given=True)
    check_recipe(path, recipe)
    if own:
        recipe = _with_own(recipe, list(own))
        check_recipe(path, recipe)
    return recipe


def load_scale(name: str) -> dict[str, Any]:
    """A scale of studies/scales.json by its name, or a file with one object."""
    path = ROOT / "studies" / "scales.json"
    scales = read(path, given=True)
    if name not in scales:
        path = pathlib.Path(name)
        if not path.exists():
            raise StudyError(f"--scale {name}: neither a file nor one of {', '.join(sorted(scales))}{nearest(name, scales)}")
        scales, name = {path.stem: read(path, given=True)}, path.stem
    check(path, scales, "scale.schema.json")
    settings.check_scale(path, scales[name])
    return {"name": _files.component(name, f"--scale {path}: its name"), **scales[name]}


@dataclasses.dataclass(frozen=True)
class Arm:
    name: str
    changes: tuple[dict[str, Any], ...]  # objects with `set` and `times`, in order
    rate_of: str  # the arm whose learning rate it uses
    swept: Optional[float] = None


def arms(recipe: dict[str, Any]) -> list[Arm]:
    """Every arm of the recipe; with a sweep, every arm with every value."""
    sweep, found = recipe.get("sweep"), []
    if sweep and not {"set", "times"} & sweep.keys():
        raise StudyError("sweep: changes no field; 'set' or 'times' names one")
    for row in recipe["arms"]:
        own = {key: row[key] for key in ("set", "times") if key in row}
        if not sweep:
            found.append(Arm(row["name"], (own,), row.get("rate_of", row["name"])))
            continue
        for value in sweep["values"]:
            change = {how: {sweep[how]: value} for how in ("set", "times") if how in sweep}
            named = [f"{row.get('rate_of', row['name'])}, {sweep['rate_of']:g} {sweep['label']}"]
            found.append(Arm(f"{row['name']}, {value:g} {sweep['label']}", (own, change), named[0], value))
    names = [arm.name for arm in found]
    for arm in found:
        if names.count(arm.name) > 1:  # names identify results
            raise StudyError(f"two arms are called '{arm.name}'")
        if arm.rate_of not in names:
            raise StudyError(f"arm '{arm.name}': rate_of is '{arm.rate_of}', which is not an arm")
    return found
