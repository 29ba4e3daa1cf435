"""The fields that recipes and scales set: their full paths, and the fields that only the study sets."""

from __future__ import annotations

from typing import Any

from .._errors import ArgumentError
from .._routers import find, routers
from ..config import Config
from . import StudyError

ROUTER = "model.router."
# Fields that a study sets, and the setting that determines them.
_DETERMINED = {
    "train.learning_rate": "the scale's 'rates'",
    "train.seed": "'seeds'",
    "train.steps": "the budgets",
    "train.cooldown_steps": "the scale's 'cooldown'",
    "model.vocab_size": "the data",
}
_TUNED = {
    "train.steps": "the scale's 'tune'",
    "train.eval_every": "the scale's 'tune'",
    "train.eval_sequences": "the scale's 'tune'",
    "train.seed": "'seeds'",
}


def path_of(key: str) -> str:
    """The full path of a field, of which `key` may be the end. ArgumentError: no such field."""
    try:
        return Config.describe(key).key
    except ArgumentError:
        option = key.rpartition(".")[2]  # perhaps an option of a plug-in
        if any(option in router.options for router in map(find, routers()) if router.plugin):
            return ROUTER + option
        raise


def _check_fields(where: str, fields: Any, determined: dict[str, str]) -> None:
    """Refuses keys of 'set' or 'times' that are not fields, that occur twice, or that the study determines."""
    paths: dict[str, str] = {}
    for key in fields:
        try:
            path = path_of(key)
        except ArgumentError as error:
            raise StudyError(f"{where}: {error}") from None
        if path in determined:
            raise StudyError(f"{where}: {path} is determined by the study, from {determined[path]}: leave '{key}' out")
        if path in paths:
            raise StudyError(f"{where}: '{paths[path]}' and '{key}' are one field, {path}: leave one out")
        paths[path] = key


def _check_change(where: str, change: dict[str, Any], determined: dict[str, str]) -> None:
    for how in ("set", "times"):
        _check_fields(f"{where}{how}", change.get(how, {}), determined)


def check_scale(path: Any, scale: dict[str, Any]) -> None:
    """Refuses a scale whose 'set' names an unknown field, or one that a study determines."""
    _check_change(f"{path}: ", scale, _DETERMINED)


def check_recipe(path: Any, recipe: dict[str, Any]) -> None:
    """Does the same for a recipe, its arms, its sweep and its fine-tuning."""
    own = {**_DETERMINED, **({"train.batch_sequences": "'batch_tokens'"} if "batch_tokens" in recipe else {})}
    _check_change(f"{path}: ", recipe, own)
    sweep = recipe.get("sweep", {})
    swept = {how: {sweep[how]: None} for how in ("set", "times") if how in sweep}
    _check_change(f"{path}: sweep: ", swept, _DETERMINED)
    _check_change(f"{path}: tune: ", recipe.get("tune", {}), _TUNED)
    for number, row in enumerate(recipe["arms"]):
        where = f"{path}: arms[{number}] '{row['name']}': "
        _check_change(where, row, _DETERMINED)
        fields = [path_of(key) for how in ("set", "times") for key in row.get(how, {})]
        if "set" in sweep and path_of(sweep["set"]) in fields:
            raise StudyError(f"{where}sets {path_of(sweep['set'])}, which the sweep sets: leave it out")
