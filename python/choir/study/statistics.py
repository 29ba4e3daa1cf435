"""The statistics of studies, on SciPy and statsmodels.

Runs with the same seed read the same batches in every arm, so the seed is a block: loss = arm + seed + residual. The
residual has one variance for all arms of a recipe, which is estimated with (arms - 1)(seeds - 1) degrees of freedom, more
than the pairs of a single claim give. Mean, interval and p of a claim come from one estimator.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Optional, Sequence

import numpy as np
import statsmodels.api as sm
from scipy import optimize, stats

POWER, LEVEL = 0.8, 0.05


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and degrees of freedom, over `count` seeds or rounds."""

    mean: float
    error: float
    freedom: float
    count: int

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        half = stats.t.ppf(1 - level / 2, self.freedom) * self.error if self.freedom > 0 else math.inf
        return self.mean - half, self.mean + half

    def negated(self) -> Estimate:
        return dataclasses.replace(self, mean=-self.mean)

    def p(self, null: float = 0.0) -> float:
        """Two-sided p value against a mean of `null`."""
        if not self.freedom > 0:
            return 1.0
        if self.error == 0:
            return float(self.mean == null)
        return float(2 * stats.t.sf(abs(self.mean - null) / self.error, self.freedom))

    def p_side(self, low: float, high: float) -> float:
        """The p value for the side of the range low to high on which the mean is. If the mean is within: two one-sided tests
        against being outside (TOST); if outside: twice the one-sided test against being within. With high = infinity
        this is the two-sided test of `low`."""
        if not self.freedom > 0:
            return 1.0
        if self.error == 0:
            return float(self.mean in (low, high))
        if high == math.inf:
            return self.p(low)
        below, above = (self.mean - low) / self.error, (high - self.mean) / self.error
        if min(below, above) > 0:
            return float(max(stats.t.sf(below, self.freedom), stats.t.sf(above, self.freedom)))
        return float(min(1, 2 * stats.t.cdf(min(below, above), self.freedom)))

    def detectable(self) -> float:
        """The mean that a test would detect with probability POWER."""
        return detectable(self.error * math.sqrt(self.count), self.count, self.freedom)


def of_values(values: Sequence[float], floor: float = 0.0) -> Optional[Estimate]:
    """The mean of independent numbers. `floor`: the minimum standard deviation. None: there are no numbers."""
    kept = np.asarray([v for v in values if np.isfinite(v)], float)
    if not len(kept):
        return None
    error = max(float(np.std(kept, ddof=1)), floor) / math.sqrt(len(kept)) if len(kept) > 1 else math.inf
    return Estimate(float(kept.mean()), error, len(kept) - 1, len(kept))


def contrast(table: np.ndarray, weights: Sequence[float], floor: float = 0.0) -> Optional[Estimate]:
    """A weighted sum of arms' means in the blocked model. `table` [arms,seeds] may have NaN where a run is missing;
    `weights` sum to 0. `floor`: minimum standard deviation of a difference of two runs (run-to-run noise). None: an arm
    with a weight has no run, or shares no seed with the others."""
    table, weights = np.asarray(table, float), np.asarray(weights, float)
    arm, seed = np.nonzero(np.isfinite(table))
    if any(weights[a] and not (arm == a).any() for a in range(len(table))):
        return None
    arms, seeds = np.unique(arm), np.unique(seed)
    design = np.hstack([arm[:, None] == arms, seed[:, None] == seeds[1:]]).astype(float)
    fit = sm.OLS(table[arm, seed], design).fit()
    row = np.concatenate([weights[arms], np.zeros(len(seeds) - 1)])
    if not np.allclose(row @ np.linalg.pinv(design) @ design, row):  # a seed's effect would be counted as an arm's
        return None
    count = min(int(np.isfinite(table[a]).sum()) for a in np.nonzero(weights)[0])
    mean, freedom = float(row @ fit.params), float(fit.df_resid)
    if freedom <= 0:
        return Estimate(mean, math.inf, 0, count)
    variance = max(fit.ssr / freedom, floor**2 / 2)
    return Estimate(mean, math.sqrt(variance * float(row @ fit.normalized_cov_params @ row)), freedom, count)


def total(*parts: Estimate) -> Estimate:
    """The sum of independent estimates; degrees of freedom by Welch and Satterthwaite."""
    variance = sum(p.error**2 for p in parts)
    rest = sum(p.error**4 / p.freedom for p in parts if p.freedom > 0)
    known = all(p.freedom > 0 for p in parts) and math.isfinite(variance)
    freedom = (variance**2 / rest if rest else math.inf) if known else 0.0
    return Estimate(sum(p.mean for p in parts), math.sqrt(variance), freedom, min(p.count for p in parts))


def detectable(deviation: float, count: int, freedom: float, power: float = POWER, level: float = LEVEL) -> float:
    """The smallest mean that a two-sided t test of `count` numbers with this standard deviation detects with this power.
    The statistic is (Z + shift) / s, where s^2 is chi-squared divided by `freedom`. The power is the mean over 4,096
    quantiles of s, because the noncentral t of SciPy 1.17 is NaN at large shifts."""
    if not (freedom > 0 and math.isfinite(deviation)):
        return math.inf
    edge = stats.t.ppf(1 - level / 2, freedom)
    middles = (np.arange(4096) + 0.5) / 4096
    spread = np.sqrt(stats.chi2.ppf(middles, freedom) / freedom) if math.isfinite(freedom) else np.ones(1)

    def missed(shift: float) -> float:
        found = stats.norm.cdf(shift - edge * spread) + stats.norm.cdf(-shift - edge * spread)
        return power - float(np.mean(found))

    return deviation / math.sqrt(count) * float(optimize.brentq(missed, 0, 3 * edge + 5))


def holm(ps: Sequence[float]) -> list[float]:
    """p values of a page's m claims, corrected by Holm's method: the i-th smallest (from 0) is multiplied by m - i, and is
    no smaller than the one before it."""
    order = np.argsort(ps)
    made = np.empty(len(order))
    made[order] = np.minimum(1, np.maximum.accumulate(np.asarray(ps, float)[order] * np.arange(len(order), 0, -1)))
    return made.tolist()


def steps_to(steps: Sequence[float], losses: Sequence[float], loss: float) -> float:
    """The number of steps at which the curve of cooled end points reaches a loss, interpolated linearly over the logarithm
    of steps. NaN: the curve does not reach it between its first and last point."""
    logs = np.log(np.asarray(steps, float))
    for i in range(len(losses) - 1):
        high, low = losses[i], losses[i + 1]
        if high >= loss >= low and high > low:
            return float(np.exp(logs[i] + (logs[i + 1] - logs[i]) * (high - loss) / (high - low)))
    return math.nan


def log_speedup(steps: Sequence[float], arm: Sequence[float], rival: Sequence[float]) -> float:
    """The logarithm of how many times fewer steps the arm needs to reach the rival's final loss. If the arm does not reach
    it: minus the logarithm of how many times fewer steps the rival needs to reach the arm's. Losses at equal steps."""
    reached = steps_to(steps, arm, rival[-1])
    if math.isfinite(reached):
        return math.log(steps[-1] / reached)
    return math.log(steps_to(steps, rival, arm[-1]) / steps[-1])


def best_rate(rates: Sequence[float], losses: Sequence[float]) -> tuple[float, Optional[float]]:
    """The learning rate with the lowest loss, and the minimum of the parabola through its loss and those of the two nearest
    rates (over the logarithm of the rate); None: the minimum is not between these three rates."""
    some = np.isfinite(np.asarray(losses, float))
    order = np.argsort(np.asarray(rates, float)[some])
    x, y = np.log(np.asarray(rates, float)[some][order]), np.asarray(losses, float)[some][order]
    best = int(np.argmin(y))
    taken = float(np.asarray(rates, float)[some][order][best])
    if len(x) < 3:
        return taken, None
    begin = min(max(best - 1, 0), len(x) - 3)
    a, b, _ = np.polyfit(x[begin : begin + 3], y[begin : begin + 3], 2)
    lowest = -b / (2 * a) if a > 0 else math.inf
    return taken, float(np.exp(lowest)) if x[begin] <= lowest <= x[begin + 2] else None


def parabola_weights(rates: Sequence[float], losses: Sequence[float]) -> Optional[np.ndarray]:
    """The weight of each rate's loss in the minimum of that parabola; weights sum to 1. A loss also moves the minimum, but
    to first order this does not change its value. None: there is no minimum."""
    lowest = best_rate(rates, losses)[1] if np.isfinite(losses).sum() > 2 else None
    if lowest is None:
        return None
    x, y, made = np.log(np.asarray(rates, float)), np.asarray(losses, float), np.zeros(len(rates))
    order = [i for i in np.argsort(x) if np.isfinite(y[i])]
    best = int(np.argmin(y[order]))
    some = order[min(max(best - 1, 0), len(order) - 3) :][:3]
    for i in some:
        made[i] = np.prod([(math.log(lowest) - x[j]) / (x[i] - x[j]) for j in some if j != i])
    return made
