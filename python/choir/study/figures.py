"""Figures: SVG by matplotlib, with text as text, and in the colours of the page that shows them."""

from __future__ import annotations

import io
import pathlib
import re
from typing import Sequence

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from . import statistics  # noqa: E402
from .study import Study  # noqa: E402

_INK = "#123456"  # stands for the page's own colour of text
_STYLE = "<style>svg{color:#222}@media(prefers-color-scheme:dark){svg{color:#ddd}}</style>"
_COLOURS = ["#2f7ebc", "#d9622b", "#3a9a58", "#9a5fc0", "#b8860b", "#c2487f", "#128a96", "#7a7a7a", "#8a5a44"]
_SETTINGS = {
    "svg.fonttype": "none", "svg.hashsalt": "choir", "font.family": "sans-serif", "font.size": 10,
    "text.color": _INK, "axes.edgecolor": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
}  # fmt: skip


def _svg(draw) -> str:
    with plt.rc_context(_SETTINGS):
        figure, axes = plt.subplots(figsize=(7.2, 4), layout="constrained")
        draw(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    text = out.getvalue().replace(_INK, "currentColor")
    text = text[text.index("<svg") :]
    return re.sub(r"(<svg[^>]*>)", r"\1" + _STYLE, text, count=1)


def _lines(axes, x: Sequence[float], curves: dict[str, list], band: bool) -> None:
    for number, (name, estimates) in enumerate(curves.items()):
        known = [(at, e) for at, e in zip(x, estimates) if e]
        if not known:
            continue
        at, mean = [k[0] for k in known], [k[1].mean for k in known]
        low, high = zip(*(k[1].interval() for k in known))
        half = [[m - lo for m, lo in zip(mean, low)], [hi - m for m, hi in zip(mean, high)]]
        bars = half if band and np.isfinite(half).all() else None
        colour = _COLOURS[number % len(_COLOURS)]
        axes.errorbar(at, mean, yerr=bars, label=name, color=colour, marker="o", markersize=3, capsize=2, linewidth=1.3)
    axes.set_xscale("log")
    axes.legend(fontsize=8)


def losses(study: Study) -> str:
    """Means over seeds of cooled end points."""
    tokens = [steps * study.step_tokens(study.arms[0].name) / 1e6 for steps in study.steps]
    curves = {
        arm.name: [statistics.of_values(study.table(steps)[i]) for steps in study.steps]
        for i, arm in enumerate(study.arms)
    }

    def draw(axes):
        _lines(axes, tokens, curves, band=False)
        axes.set_xlabel("million tokens of training, cooled")
        axes.set_ylabel("held-out loss, causal (nats)")

    return _svg(draw)


def differences(study: Study) -> str:
    """The same, less that of the first arm, with 95 % intervals of the blocked analysis."""
    tokens = [steps * study.step_tokens(study.arms[0].name) / 1e6 for steps in study.steps]
    curves = {}
    for i, arm in enumerate(study.arms[1:], 1):
        weights = np.zeros(len(study.arms))
        weights[0], weights[i] = -1, 1
        floor = study.scale.get("chaos", 0.0)
        curves[arm.name] = [statistics.contrast(study.table(s), weights, floor) for s in study.steps]

    def draw(axes):
        axes.axhline(0, color=_INK, linewidth=0.7)
        _lines(axes, tokens, curves, band=True)
        axes.set_xlabel("million tokens of training, cooled")
        axes.set_ylabel(f"nats above {study.arms[0].name}")

    return _svg(draw)


def swept(study: Study) -> str:
    """Final loss over what is swept, a line for each arm of the recipe."""
    table = study.table(study.steps[-1])
    curves: dict[str, list] = {}
    for i, arm in enumerate(study.arms):
        curves.setdefault(arm.name.rsplit(", ", 1)[0], []).append(statistics.of_values(table[i]))
    values = study.recipe["sweep"]["values"]

    def draw(axes):
        _lines(axes, values, curves, band=True)
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.set_xlabel(study.recipe["sweep"]["label"])
        axes.set_ylabel("held-out loss, causal (nats)")

    return _svg(draw)


def all_of(study: Study) -> dict[str, str]:
    """By their titles."""
    if not np.isfinite(study.table(study.steps[-1])).any():
        return {}
    made = {"Loss": losses(study)}
    if "sweep" in study.recipe:
        made["Swept"] = swept(study)
    elif len(study.arms) > 1:
        made["Difference"] = differences(study)
    return made


def save(figures: dict[str, str], directory: pathlib.Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for title, svg in figures.items():
        (directory / f"{title.lower()}.svg").write_text(svg + "\n", encoding="utf-8")

