"""report.py [--weights FILE --data DIR]: writes the numbers of lab/docs/images.md and its figure lab/docs/results/images.svg
from the stored runs. With the weights of a model (EMA, from run.py or examples/images.py), also lab/docs/images-*.png.
"""

import argparse
import functools
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT / "python")]
from pages import put, rewrite  # noqa: E402
from choir import _files  # noqa: E402
from choir.study.statistics import contrast, holm, of_values  # noqa: E402
from plan import BINS, PLAN, final, given, key_of, rates_of, runs_of, stored  # noqa: E402

PAGE, FIGURE = ROOT / "lab/docs/images.md", ROOT / "lab/docs/results/images.svg"
BASE = "ec-batch"


class Runs:
    """The stored runs of all stages with this name: for each arm, those at its learning rate, or at the best one so far
    while the search continues."""

    def __init__(self, name=None):
        kept, self.chosen, self.rate, self.lines = stored(), {}, {}, {}
        for stage in PLAN["stages"]:
            if stage.get("name") == name:
                for arm in stage["arms"]:
                    self._take(stage, arm, kept)
        self.arms = list(self.rate)
        rows = [[final(runs[seed]) if seed in runs else np.nan for seed in PLAN["seeds"]] for runs in self.lines.values()]
        self.table = np.array(rows)

    def _take(self, stage, arm, kept):
        seeds = given(stage, "seeds")
        self.chosen[arm] = rates_of(stage, arm, kept)[1]
        tried = {k[2]: final(line) for k, line in kept.items() if k == key_of(stage, arm, k[2], seeds[0])}
        if tried:
            rate = self.rate[arm] = self.chosen[arm] or min(tried, key=tried.get)
            keys = {seed: key_of(stage, arm, rate, seed) for seed in seeds}
            self.lines[arm] = {seed: kept[key] for seed, key in keys.items() if key in kept}

    def above(self, arm, other):
        """How much higher the loss of `arm` is than that of `other`; None while one of them has no learning rate."""
        if not (self.chosen.get(arm) and self.chosen.get(other) and {arm, other} <= self.lines.keys()):
            return None
        weights = np.zeros(len(self.arms))
        weights[self.arms.index(arm)], weights[self.arms.index(other)] = 1, -1
        return contrast(self.table, weights)

    def plain(self, claim):
        """The same from the pairs of runs of this claim alone, with their own variance."""
        if claim.get("equal"):
            return self.by_thresholds()
        one, other = (self.lines[claim[key]] for key in ("rival", "arm"))
        return of_values([final(one[seed]) - final(other[seed]) for seed in sorted(one.keys() & other.keys())])

    def by_thresholds(self):
        """The loss of expert choice with threshold routing, minus its loss with batch routing."""
        runs = self.lines.get(BASE, {}).values()
        return of_values([np.mean(run["thresholds"]["loss"]) - final(run) for run in runs])

    def claim(self, claim):
        if claim.get("equal"):
            return self.by_thresholds() if self.chosen[BASE] else None
        return self.above(claim["rival"], claim["arm"])


def interval(estimate):
    if estimate is None:
        return ""
    low, high = estimate.interval()
    return (
        f"{estimate.mean:.4f} ({low:.4f} to {high:.4f})" if np.isfinite(low) else f"{estimate.mean:.4f}, one seed"
    )


def state(runs):
    """The progress of the plan: finished runs of each stage, of the minimum number that the stage requires."""
    kept, parts = stored(), []
    for number, stage in enumerate(PLAN["stages"], 1):
        least = len(stage["arms"]) * (len(given(stage, "rates")) + len(given(stage, "seeds")) - 1)
        asked = list(runs_of(stage, kept))  # with rates beyond the first ones
        parts.append(f"{sum(key in kept for key in asked)} of {max(least, len(asked))}")
    yield f"Runs that there are, by stage of the plan: {', '.join(parts)}."
    if any(arm != BASE and runs.above(arm, BASE) for arm in runs.arms):
        yield "\n![Held-out loss of each arm above that of expert choice over the batch](results/images.svg)"


def arms_table(runs):
    yield "| arm | rate | seeds | held-out loss | minus EC over the batch | Fréchet distances |"
    yield "|---|--:|--:|--:|--:|--:|"
    for arm, row in zip(runs.arms, runs.table):
        above = None if arm == BASE else runs.above(arm, BASE)
        rate, seeds = f"{runs.rate[arm]:g}" + ("" if runs.chosen[arm] else " so far"), int(np.isfinite(row).sum())
        yield f"| {PLAN['arms'][arm]['title']} | {rate} | {seeds} | {np.nanmean(row):.4f} | {interval(above)} | {judged(runs, arm)} |"


def judged(runs, arm):
    """The mean distance over seeds: the lowest and the highest one over the classifiers."""
    found = [run["frechet"] for run in runs.lines[arm].values() if "frechet" in run]
    if not found:
        return ""
    means = np.mean(found, 0)
    return f"{means.min():.1f} to {means.max():.1f}"


def status(claim, estimate, p):
    low, high = estimate.interval()
    inside = abs(estimate.mean) < PLAN["margin"] if claim.get("equal") else estimate.mean > 0
    if p < 0.05:
        return "confirmed" if inside else "refuted"
    within = not claim.get("equal") and -PLAN["margin"] < low and high < PLAN["margin"]
    return f"level within {PLAN['margin']:g}" if within else "inconclusive"


def side(claim, estimate):
    """The p of one claim, not corrected."""
    return estimate.p_side(-PLAN["margin"], PLAN["margin"]) if claim.get("equal") else estimate.p()


def shown(p):
    return f"{p:.2g}" if p >= 0.001 else "< 0.001"


def claims_table(runs):
    """The claims that have runs. p is corrected for all claims of the plan; those without runs count as p = 1."""
    found = [runs.claim(claim) for claim in PLAN["claims"]]
    ps = holm([1.0 if e is None else side(claim, e) for claim, e in zip(PLAN["claims"], found)])
    run = [one for one in zip(PLAN["claims"], found, ps) if one[1] is not None]
    yield f"Of the {len(found)} claims of the plan {len(run)} have their runs."
    if run:
        yield ("\n| claim | difference, or loss with thresholds above own routing | p: pooled / plain pairs | p, Holm | result |"
               "\n|---|--:|--:|--:|--:|")  # fmt: skip
    for claim, estimate, p in run:
        alone = [side(claim, e) for e in (estimate, runs.plain(claim))]
        yield (f"| {claim['text']} | {interval(estimate)} | {' / '.join(map(shown, alone))} | {shown(p)} | "
               f"{status(claim, estimate, p)} |")  # fmt: skip


def quarters_table(runs):
    """After each quarter of the steps: how much higher the dense model's loss is than that of EC over the batch."""
    dense, base = runs.lines.get("dense", {}), runs.lines.get(BASE, {})
    seeds = sorted(dense.keys() & base.keys())
    yield "| steps | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean (95 % CI, plain pairs) |"
    yield "|--:|" + "--:|" * (len(seeds) + 1)
    for steps in (*sorted(map(int, base[seeds[0]]["curve"])), base[seeds[0]]["steps"]):
        losses = [[run["curve"].get(str(steps), final(run)) for run in (dense[seed], base[seed])] for seed in seeds]
        above = [one - other for one, other in losses]
        yield f"| {steps} | " + " | ".join(f"{value:+.4f}" for value in above) + f" | {interval(of_values(above))} |"


def noise_table(runs):
    """By eighth of noise: experts of a patch of background and of clothes in both layers, and leads."""
    own = [run["own"] for run in runs.lines.get(BASE, {}).values()]
    if not own:
        return
    experts, loss = np.mean([o["experts"] for o in own], 0), np.mean([o["loss"] for o in own], 0)
    rivals = [arm for arm in ("dense", "ec-image", "bias", "aux") if runs.above(arm, BASE)]
    yield "| noise | " + " | ".join(["first layer: background", "clothes", "second: background", "clothes",
          "loss", *(f"{PLAN['arms'][arm]['title']}" for arm in rivals)]) + " |\n|---|" + "--:|" * (5 + len(rivals))  # fmt: skip
    seeds = {arm: sorted(runs.lines[arm].keys() & runs.lines[BASE].keys()) for arm in rivals}
    for part in range(BINS):
        leads = [
            np.mean(
                [
                    runs.lines[arm][s]["own"]["loss"][part] - runs.lines[BASE][s]["own"]["loss"][part]
                    for s in seeds[arm]
                ]
            )
            for arm in rivals
        ]
        counts = [f"{experts[layer, part, kind]:.2f}" for layer in range(2) for kind in range(2)]
        cells = [f"{(part + 0.5) / BINS:.2f}", *counts, f"{loss[part]:.4f}", *(f"{lead:+.4f}" for lead in leads)]
        yield "| " + " | ".join(cells) + " |"


def figure(runs):
    """Each arm's loss minus that of EC over the batch, with 95 % intervals, as SVG."""
    rows = [
        (PLAN["arms"][arm]["title"], runs.above(arm, BASE))
        for arm in runs.arms
        if arm != BASE and runs.above(arm, BASE)
    ]
    ends = [end for _, e in rows for end in (*e.interval(), e.mean) if np.isfinite(end)] + [0, 0.001]
    low, high, height = min(ends), max(ends), 34 * len(rows) + 60

    def x(value):
        return f"{190 + 480 * (value - low) / (high - low):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {height}" font-family="sans-serif" font-size="14">',
        "<style>svg{color:#222}@media(prefers-color-scheme:dark){svg{color:#ddd}}</style>",
        f'<g fill="currentColor" stroke="none"><text x="{x(0)}" y="{height - 28}" text-anchor="middle">0</text>',
        f'<text x="430" y="{height - 8}" text-anchor="middle">held-out loss above EC over the batch, 95 %</text></g>',
        f'<line x1="{x(0)}" x2="{x(0)}" y1="8" y2="{height - 44}" stroke="currentColor" stroke-dasharray="3"/>',
    ]
    for row, (title, e) in enumerate(rows):
        y, (left, right) = 24 + 34 * row, e.interval()
        parts.append(f'<text x="180" y="{y + 5}" text-anchor="end" fill="currentColor">{title}</text>')
        if np.isfinite(left):
            parts.append(
                f'<line x1="{x(left)}" x2="{x(right)}" y1="{y}" y2="{y}" stroke="#d9622b" stroke-width="3"/>'
            )
        parts.append(f'<circle cx="{x(e.mean)}" cy="{y}" r="5" fill="#d9622b"/>')
        parts.append(f'<text x="{x(e.mean)}" y="{y - 9}" text-anchor="middle" font-size="11" fill="currentColor">'
                     f"{e.mean:+.4f}</text>")  # fmt: skip
    return "\n".join([*parts, "</svg>", ""])


def page(text, runs):
    """The page with its tables rewritten."""
    tables = (("state", state, runs), ("arms", arms_table, runs), ("claims", claims_table, runs), ("noise", noise_table, runs),
              ("quarters", quarters_table, runs), ("quarters of 2,000", quarters_table, Runs("longer")),
              *((name, arms_table, Runs(name)) for name in ("lower", "longer", "half", "glyphs")))  # fmt: skip
    for name, table, source in tables:
        text = put(text, "\n".join(table(source)) + "\n", of=f"lab/images {name}")
    return text


def pictures(weights, data):
    import torch

    sys.path.insert(0, str(ROOT / "examples"))
    import images

    torch.manual_seed(1)
    model = images.DiT(images.mixture)
    model.load_state_dict(torch.load(weights))
    model.eval()
    drawn = images.sample(model, torch.arange(images.CLASSES).repeat(3))
    _files.save(ROOT / "lab/docs/images-samples.png", images.png(images.sheet(images.colours(drawn), 3)))
    looked = images.where_experts_look(model, *images.load(images.fetch(data), "t10k"))
    _files.save(ROOT / "lab/docs/images-experts.png", images.png(looked))


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--weights", type=pathlib.Path)
    ask.add_argument("--data", type=pathlib.Path, default="images/data")
    o = ask.parse_args()
    runs = Runs()
    rewrite(PAGE, functools.partial(page, runs=runs))
    _files.save(FIGURE, figure(runs))
    if o.weights:
        pictures(o.weights, o.data)


if __name__ == "__main__":
    main()
