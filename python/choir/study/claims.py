"""Claims: statements that can be refuted. Each kind computes an estimate, and one rule decides the result."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any, Optional

import numpy as np

from . import foreign, statistics
from .statistics import Estimate
from .study import Study

UNITS = {
    "loss": "nats", "gap": "nats", "gap_growth": "nats", "steps": "times", "seconds": "times", "waiting": "times",
    "step_time": "times",
    "share": "of tokens", "over_capacity": "of capacity", "accuracy": "points",
    "probe": "points", "text": "nats", "optimum": "nats", "growth": "nats a doubling",
}  # fmt: skip


@dataclasses.dataclass
class Finding:
    claim: dict[str, Any]
    estimate: Optional[Estimate]  # for `times` kinds, of the logarithm
    p: float = 1.0
    corrected: float = 1.0
    verdict: str = "not measured"
    plain_p: float = 1.0  # from the paired differences of this claim only: no pooled variance, no minimum

    @property
    def logarithmic(self) -> bool:
        return UNITS[self.claim["kind"]] == "times"

    @property
    def range(self) -> tuple[float, float]:
        """The claimed range of the number: above the paper's figure or the null value, around it, or within a
        margin."""
        if "about" in self.claim:
            low, high = self.claim["about"]
            return self._scaled(low), self._scaled(high)
        if "margin" in self.claim:
            margin = self._scaled(1 + self.claim["margin"]) if self.logarithmic else self.claim["margin"]
            return -margin, margin
        return self._scaled(self.claim.get("figure", self.claim.get("null", 1 if self.logarithmic else 0))), math.inf

    def _scaled(self, value: float) -> float:
        """A number of the claim on the scale of the estimate."""
        return math.log(value) if self.logarithmic else value

    def shown(self, value: float) -> float:
        return math.exp(value) if self.logarithmic else value


class Claims:
    """All claims of a study, with p values corrected for their number."""

    def __init__(
        self, study: Study, times: Optional[dict[str, list[float]]] = None, tuned: Optional[dict[str, np.ndarray]] = None
    ) -> None:
        self.study, self.times, self.tuned = study, times or {}, tuned
        self._index = {arm.name: i for i, arm in enumerate(study.arms)}
        self.findings = [Finding(claim, getattr(self, "_" + claim["kind"])(claim)) for claim in study.recipe["claims"]]
        for f in self.findings:
            self._say_missing(f)
        measured = [f for f in self.findings if f.estimate]
        for f in measured:
            f.p = f.estimate.p_side(*f.range)
            plain = self._plain(f.claim)
            f.plain_p = plain.p_side(*f.range) if plain else 1.0
        correct(measured)

    @property
    def _chaos(self) -> float:
        """The minimum standard deviation assumed for a difference of two runs (run-to-run noise)."""
        return self.study.scale.get("chaos", 0.0)

    def _plain(self, claim: dict[str, Any]) -> Optional[Estimate]:
        """The estimate from this claim's own pairs: the variance of its differences by seed, without a minimum."""
        if claim["kind"] in ("loss", "accuracy", "probe"):
            loss = claim["kind"] == "loss"
            weights = self._weights(claim) * (1 if loss else -1)
            table = self.study.table(self.study.steps[-1]) if loss else self.tuned[claim["kind"]]
            return statistics.of_values(weights[weights != 0] @ table[weights != 0])
        if claim["kind"] == "optimum":
            return None  # its learning rates have different seeds
        bare = copy.copy(self)
        bare.study = copy.copy(self.study)
        bare.study.scale = {**self.study.scale, "chaos": 0.0}
        return getattr(bare, "_" + claim["kind"])(claim)

    def _say_missing(self, f: Finding) -> None:
        """Draws no conclusion if the search for a learning rate lacks a run, because it may have chosen the wrong
        one."""
        arms = dict.fromkeys(f.claim[key] for key in ("arm", "rival", "than_arm", "than_rival") if key in f.claim)
        arms.update(dict.fromkeys(sum(f.claim.get("wider", []), [])))
        lacking = {arm: rates for arm in arms if arm in self._index and (rates := self.study.lacking(arm))}
        if f.estimate and lacking:
            missing = "; ".join(f"{arm} at {', '.join(f'{rate:g}' for rate in rates)}" for arm, rates in lacking.items())
            f.estimate, f.verdict = None, f"not measured: the search for learning rates lacks {missing}"

    def _weights(self, claim: dict[str, Any]) -> np.ndarray:
        made = np.zeros(len(self.study.arms))
        for key, weight in (("rival", 1), ("arm", -1), ("than_rival", -1), ("than_arm", 1)):
            if key in claim:
                made[self._index[claim[key]]] += weight
        return made

    def _loss(self, claim: dict[str, Any]) -> Optional[Estimate]:
        """How much lower the arm's final loss is than its rival's."""
        return statistics.contrast(self.study.table(self.study.steps[-1]), self._weights(claim), self._chaos)

    def _optimum(self, claim: dict[str, Any]) -> Optional[Estimate]:
        """How much lower the arm's final loss is than its rival's, each at the minimum of its parabola over learning rates.
        Seed 1 determines the parabolas, and all seeds the losses."""
        study, rows, weights = self.study, [], []
        for key, sign in (("rival", 1), ("arm", -1)):
            rates, losses = zip(*study.rates(claim[key]))
            parts = statistics.parabola_weights(rates, losses)
            if parts is None:
                return None
            for rate, part in zip(rates, parts):
                ends = [study.result(claim[key], rate, seed, study.steps[-1]) for seed in range(1, study.seeds + 1)]
                rows.append([end["final"]["causal"]["loss"] if end and part else math.nan for end in ends])
                weights.append(sign * part)
        made = statistics.contrast(np.array(rows), weights, self._chaos)
        most = int(np.isfinite(rows).sum(axis=1).max())  # max number of seeds of a learning rate
        return made and dataclasses.replace(made, count=most)

    def _steps(self, claim: dict[str, Any], more: Any = 0.0) -> Optional[Estimate]:
        """The logarithm of how many times fewer steps the arm needs to reach its rival's final loss; `more` [seeds]
        is added."""
        study, found = self.study, np.full(self.study.seeds, math.nan)
        arm, rival = (self._index[claim[key]] for key in ("arm", "rival"))
        curves = np.stack([study.table(steps) for steps in study.steps], axis=-1)
        for seed in range(study.seeds):
            if np.isfinite(curves[[arm, rival], seed]).all():
                found[seed] = statistics.log_speedup(study.steps, curves[arm, seed], curves[rival, seed])
                if math.isnan(found[seed]):
                    # The losses are too far apart to compare, and a mean over the other seeds would be biased.
                    return None
        if np.isnan(found).all():
            return None
        last = np.nanmean(curves[[arm, rival]], axis=(0, 1))[-2:] if len(study.steps) > 1 else [1, 0]
        slope = (last[0] - last[-1]) / math.log(study.steps[-1] / study.steps[-2]) if len(study.steps) > 1 else 1
        return statistics.of_values(found + more, self._chaos / slope if slope > 0 else 0.0)

    def _waiting(self, claim: dict[str, Any]) -> Optional[Estimate]:
        """The logarithm of how many times less time the arm needs to reach its rival's final loss, if the time of a step is
        that of its fullest device."""
        at = (8, 16, 32).index(claim["devices"])

        def fullest(key: str, seed: int) -> float:
            found = self.study.final(claim[key], seed) or {}
            return math.log(found["fullest"][at]) if "fullest" in found else math.nan

        seeds = range(1, self.study.seeds + 1)
        return self._steps(claim, np.array([fullest("rival", seed) - fullest("arm", seed) for seed in seeds]))

    def _step_time(self, claim: dict[str, Any]) -> Optional[Estimate]:
        """How many times as long the rival's step takes, over alternating rounds."""
        arm, rival = (np.asarray(self.times.get(claim[key], [])) for key in ("arm", "rival"))
        rounds = min(len(arm), len(rival))
        return statistics.of_values(np.log(rival[:rounds] / arm[:rounds])) if rounds else None

    def _seconds(self, claim: dict[str, Any]) -> Optional[Estimate]:
        steps, time = self._steps(claim), self._step_time(claim)
        return statistics.total(steps, time) if steps and time else None

    def _over_seeds(self, claim: dict[str, Any], value) -> Optional[Estimate]:
        return statistics.of_values([value(result["final"]) for result in self.study.finals(claim["arm"])])

    def _share(self, claim: dict[str, Any]) -> Optional[Estimate]:
        low, high = claim.get("from", 0), claim.get("to", 1 << 30)
        return self._over_seeds(claim, lambda final: sum(final["causal"].get("histogram", [])[low : high + 1]))

    def _over_capacity(self, claim: dict[str, Any]) -> Optional[Estimate]:
        return self._over_seeds(claim, lambda final: final["own"].get("fullest", math.nan) - 1)

    def _gap(self, claim: dict[str, Any]) -> Optional[Estimate]:
        return self._over_seeds(claim, lambda final: final["causal"]["loss"] - final["own"]["loss"])

    def _gap_growth(self, claim: dict[str, Any]) -> Optional[Estimate]:
        """The difference at the largest budget minus that at the smallest."""
        study, arm = self.study, self._index[claim["arm"]]
        gaps = [(study.table(steps) - study.table(steps, "own"))[arm] for steps in (study.steps[0], study.steps[-1])]
        return statistics.of_values(gaps[1] - gaps[0]) if len(study.steps) > 1 else None

    def _growth(self, claim: dict[str, Any]) -> Optional[Estimate]:
        """How much the arm's lead grows when the tokens of training, or the FLOPs per token through the width, are
        doubled: one of the two slopes of a plane through all budgets and sizes, by seed."""
        study, slopes, factor = self.study, [], 0.0
        points = [(*pair, n) for pair in [(claim["arm"], claim["rival"]), *claim["wider"]] for n in study.steps]
        for seed in range(1, study.seeds + 1):
            ends = [(study.final(arm, seed, n), study.final(rival, seed, n)) for arm, rival, n in points]
            if not all(arm and rival for arm, rival in ends):
                continue
            axes = {
                "tokens": [math.log2(n) for _, _, n in points],
                "width": [math.log2(arm["train_flops_per_token"]) for arm, _ in ends],
            }
            plane = np.column_stack([axes[claim["over"]], *(axes[k] for k in axes if k != claim["over"]), np.ones(len(points))])
            leads = [rival["final"]["causal"]["loss"] - arm["final"]["causal"]["loss"] for arm, rival in ends]
            inverse = np.linalg.pinv(plane)
            slopes.append(inverse[0] @ leads)
            factor = float(np.linalg.norm(inverse[0]))  # standard deviation of the slope, divided by that of a lead
        return statistics.of_values(slopes, self._chaos * factor)

    def _accuracy(self, claim: dict[str, Any]) -> Optional[Estimate]:
        """How many percentage points the arm's average over tasks is above its rival's."""
        return statistics.contrast(self.tuned[claim["kind"]], -self._weights(claim)) if self.tuned else None

    _probe = _accuracy

    def _text(self, claim: dict[str, Any]) -> Optional[Estimate]:
        """How much lower the arm's loss on some texts is than its rival's, by seed. Run-to-run noise is between two
        runs, not between two routings of one."""
        arm = foreign.losses(self.study, claim["arm"], claim["texts"], claim.get("routing"))
        rival = foreign.losses(self.study, claim["rival"], claim["texts"], claim.get("rival_routing"))
        chaotic = claim["arm"] != claim["rival"]
        return statistics.of_values(rival - arm, self._chaos if chaotic else 0.0)


def correct(findings: list[Finding]) -> None:
    """Sets the results: a claim is confirmed or refuted if p, corrected for the number of claims, is below 0.05
    (docs/studies.md)."""
    for f, corrected in zip(findings, statistics.holm([f.p for f in findings])):
        f.corrected = corrected
        inside = f.range[0] < f.estimate.mean < f.range[1]
        seen = ("confirmed" if inside else "refuted") if corrected < statistics.LEVEL else "inconclusive"
        f.verdict = seen if f.estimate.freedom > 0 else "one seed"


def label(claim: dict[str, Any]) -> str:
    """The quantity that a claim is about, without the claimed value."""
    arm, rival, kind = claim["arm"], claim.get("rival", ""), claim["kind"]
    if kind == "text":
        arm, rival = (f"{who}{', ' + claim[how] if how in claim else ''}"
                      for who, how in ((arm, "routing"), (rival, "rival_routing")))  # fmt: skip
    if "than_arm" in claim:
        return f"({rival} - {arm}) - ({claim['than_rival']} - {claim['than_arm']})"
    if kind == "share":
        return f"{arm}: {claim.get('from', 0)} to {claim['to']} experts" if "to" in claim else arm
    more = {
        "optimum": " at the lowest points of parabolas", "steps": ", steps to one loss", "seconds": ", seconds to one loss",
        "waiting": f", time to one loss on {claim.get('devices')} devices",
        "step_time": ", seconds of a step", "text": f" on {', '.join(claim.get('texts', []))}",
        "growth": f" per doubling of {'FLOPs through width' if claim.get('over') == 'width' else 'tokens'}", "gap": "causal - own routing", "gap_growth": "growth of causal - own routing",
        "over_capacity": "asked of the fullest expert above its capacity", "accuracy": ", accuracy", "probe": ", probe",
    }.get(kind, "")  # fmt: skip
    if not rival:
        return f"{arm}: {more}"
    if kind in ("accuracy", "probe"):
        return f"{arm} - {rival}{more}"
    return f"{rival} {'/' if UNITS[kind] == 'times' else '-'} {arm}{more}"
