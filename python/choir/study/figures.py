"""Figures: SVG by matplotlib, with text as text, and in the colors of the report page."""

from __future__ import annotations

import io
import os
import pathlib
import re
from typing import Sequence

_backend = os.environ.pop("MPLBACKEND", None)  # a notebook's backend, which may not be installed here
import matplotlib  # noqa: E402

if _backend is not None:
    os.environ["MPLBACKEND"] = _backend
matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from .. import _files  # noqa: E402
from . import statistics  # noqa: E402
from .study import Study  # noqa: E402

_INK = "#123456"  # placeholder for the page's text color
_STYLE = "<style>svg{color:#222}@media(prefers-color-scheme:dark){svg{color:#ddd}}</style>"
_COLOURS = ["#2f7ebc", "#d9622b", "#3a9a58", "#9a5fc0", "#b8860b", "#c2487f", "#128a96", "#7a7a7a", "#8a5a44"]
_SETTINGS = {
    "svg.fonttype": "none", "svg.hashsalt": "choir", "font.family": "sans-serif", "font.size": 10,
    "text.color": _INK, "axes.edgecolor": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
}  # fmt: skip


def _plot(x: Sequence[float], curves: dict[str, list], band: bool, over: str, what: str, first=lambda axes: 0) -> str:
    """Estimates over the logarithm of x, one line per name, with intervals if `band` is set."""
    with plt.style.context(["default", _SETTINGS]):  # none of a matplotlibrc
        figure, axes = plt.subplots(figsize=(7.2, 4), layout="constrained")
        axes.set_xscale("log")
        first(axes)
        width = max(x) / min(x)
        if width == 1:  # one budget: centered
            width = 100
            axes.set_xlim(min(x) / 1.3, max(x) * 1.3)
        for number, (name, estimates) in enumerate(curves.items()):
            known = [(at, e) for at, e in zip(x, estimates) if e]
            if not known:
                continue
            half = np.abs([np.subtract(e.interval(), e.mean) for _, e in known]).T
            bars = half if band and np.isfinite(half).all() else None
            aside = width ** (0.012 * (number - (len(curves) - 1) / 2))  # an offset: error bars must not overlap
            axes.errorbar(
                [at * aside for at, _ in known], [e.mean for _, e in known], yerr=bars, label=name,
                color=_COLOURS[number % len(_COLOURS)], marker="o", markersize=3, capsize=2, linewidth=1.3,
            )  # fmt: skip
        axes.legend(fontsize=8)
        axes.set_xticks(x, [f"{at:.3g}" for at in x])
        axes.minorticks_off()
        axes.set_xlabel(over)
        axes.set_ylabel(what)
        return _svg(figure)


def _svg(figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    text = out.getvalue().replace(_INK, "currentColor")
    return re.sub(r"(<svg[^>]*>)", r"\1" + _STYLE, text[text.index("<svg") :], count=1)


CAPTIONS = {
    "Pairs": "Difference from the first arm, seed by seed", "Loss": "Held-out loss", "Swept": "Held-out loss",
    "Difference": "Difference from the first arm",
}  # fmt: skip
_BARS = "\n(mean over seeds; bars: 95 % CI)"
_TOKENS = "million tokens of training, with cooldown"


def _tokens(study: Study) -> list[float]:
    return [steps * study.step_tokens(study.arms[0].name) / 1e6 for steps in study.steps]


def losses(study: Study) -> str:
    """Means over seeds of cooled end points, with 95 % intervals where there are several seeds."""
    tables = [study.table(steps) for steps in study.steps]
    curves = {arm.name: [statistics.of_values(table[i]) for table in tables] for i, arm in enumerate(study.arms)}
    return _plot(_tokens(study), curves, True, _TOKENS, f"held-out {study.measure}, nats{_BARS}")


def differences(study: Study) -> str:
    """Differences from the first arm, with 95 % intervals of the blocked analysis."""
    curves = {arm.name: [study.apart(i, steps) for steps in study.steps] for i, arm in enumerate(study.arms) if i}
    above = f"nats above {study.arms[0].name}{_BARS}"
    return _plot(_tokens(study), curves, True, _TOKENS, above, lambda axes: axes.axhline(0, color=_INK, linewidth=0.7))


def pairs(study: Study) -> str:
    """At the largest budget: each arm minus the first one, a point for each seed, next to the mean and its interval."""
    table = study.table(study.steps[-1])
    with plt.style.context(["default", _SETTINGS]):  # none of a matplotlibrc
        figure, axes = plt.subplots(figsize=(7.2, 1.3 + 0.55 * (len(study.arms) - 1)), layout="constrained")
        axes.axvline(0, color=_INK, linewidth=0.7)
        for at, arm in enumerate(study.arms[1:]):
            colour, mean = _COLOURS[at % len(_COLOURS)], study.apart(at + 1, study.steps[-1])
            axes.plot(table[at + 1] - table[0], np.full(table.shape[1], at + 0.16), "o", color=colour, markersize=4, alpha=0.55)
            if mean and np.isfinite(mean.interval()).all():
                half = mean.mean - mean.interval()[0]
                axes.errorbar(mean.mean, at - 0.1, xerr=half, color=colour, marker="D", markersize=5, capsize=3, linewidth=1.6)
        axes.set_yticks(range(len(study.arms) - 1), [arm.name for arm in study.arms[1:]])
        axes.set_ylim(len(study.arms) - 1.5, -0.5)
        axes.set_xlabel(f"{study.measure}, nats per token above {study.arms[0].name}\n(points: seeds; bar: mean and 95 % CI)")
        return _svg(figure)


def swept(study: Study) -> str:
    """Final loss over the swept value, one line per arm of the recipe."""
    curves: dict[str, list] = {}
    for arm, row in zip(study.arms, study.table(study.steps[-1])):
        curves.setdefault(arm.name.rsplit(", ", 1)[0], []).append(statistics.of_values(row))
    values, label = study.recipe["sweep"]["values"], study.recipe["sweep"]["label"]
    return _plot(values, curves, True, label, f"held-out {study.measure}, nats{_BARS}")


def all_of(study: Study) -> dict[str, str]:
    """All figures by title."""
    if not np.isfinite(study.table(study.steps[-1])).any():
        return {}
    several, made = len(study.steps) > 1, {}
    if "sweep" not in study.recipe and len(study.arms) > 1:
        made["Pairs"] = pairs(study)
    if several or not made:
        made["Loss"] = losses(study)
    if "sweep" in study.recipe:
        made["Swept"] = swept(study)
    elif several and len(study.arms) > 1:
        made["Difference"] = differences(study)
    return made


def save(figures: dict[str, str], directory: pathlib.Path) -> None:
    _files.directory(directory)
    for title, svg in figures.items():
        _files.save(directory / f"{title.lower()}.svg", svg + "\n")

