"""Before a study: the differences between runs of a config that differ only in their seed, or only in rounding, and
the difference between two arms that a number of seeds can detect."""

from __future__ import annotations

import math
import pathlib
from typing import Optional, Sequence

import numpy as np
from scipy import stats

from .. import _files
from ..config import Config
from . import StudyError, recipe as recipes
from .statistics import LEVEL, detectable

COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # numbers of seeds of an arm


def scale(config: str, out: pathlib.Path, seeds: int, tokens: Optional[Sequence[int]]) -> pathlib.Path:
    """Creates a scale that trains the config with its own learning rate and cooldown, for its own steps or for `tokens`."""
    if seeds < 2:
        raise StudyError(f"--seeds {seeds}: noise is measured between at least two seeds")
    known = Config(config)
    train = {key: known[f"train.{key}"] for key in ("steps", "sequence_length", "batch_sequences", "accumulate")}
    cooldown = known["train.cooldown_steps"]
    made = {
        "config": config if not pathlib.Path(config).exists() else str(pathlib.Path(config).resolve()),
        "budgets": list(tokens or [math.prod(train.values())]),
        "cooldown": cooldown if cooldown < 1 else cooldown / train["steps"],
        "seeds": seeds, "rates": [known["train.learning_rate"]],
    }  # fmt: skip
    path = out / f"{pathlib.Path(config).stem}.json"
    _files.directory(out)
    recipes.write(path, made)
    return path


def describe(losses: np.ndarray) -> str:
    """The figures derived from final losses [2,seeds] of unchanged runs, and of runs with other rounding."""
    own, apart = losses[0], losses[1] - losses[0]
    if not np.isfinite(losses).all():
        raise StudyError("some runs are missing; the same command makes them")
    count, spread = len(own), float(np.std(own, ddof=1))
    low, high = (spread * math.sqrt((count - 1) / stats.chi2.ppf(q, count - 1)) for q in (1 - LEVEL / 2, LEVEL / 2))
    rounding = float(np.sqrt(np.mean(apart**2)))  # root mean square; the true mean is 0
    chance = stats.norm.ppf(1 - LEVEL / 2) * math.sqrt(2) * spread
    lines = [
        f"loss {np.mean(own):.4f} nats per token, {count} seeds",
        f"standard deviation over seeds {spread:.4f} (95 % CI {low:.4f} to {high:.4f})",
        f"the same run with other rounding differs by {rounding:.4f} (root mean square)",
        f"two single runs of different seeds differ by up to {chance:.4f} ({chance / np.mean(own):.2%}) by chance (95 %)",
        "",
        "smallest difference in nats with 80 % power, by seeds per arm:",
        "seeds   different seeds   same seeds, at best",
    ]
    for n in COUNTS:
        unpaired = detectable(math.sqrt(2) * spread, n, 2 * (n - 1))
        lines.append(f"{n:5}   {unpaired:15.4f}   {detectable(rounding, n, n - 1):19.4f}")
    return "\n".join([*lines, "at best: two arms that differ in more than rounding have noisier pairs"])

