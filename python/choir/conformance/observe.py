"""The behavior of a function on the vectors, rule by rule. Each rule is derived from the function's own results,
independent of the other rules, so that one fault does not hide another."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Callable

import numpy as np

from . import rules
from .call import Failure, Result, call
from .cases import Case

CLEAR = ("random", "skewed", "few")  # matrices without padding and without equal scores
GATES = [("score", post) for post in rules.POSTS] + [("input", "softmax_tokens")]
GATES += [(value, post) for post in rules.POSTS for value in rules.VALUES if (value, post) not in GATES]
POWERS = [
    (0, 0),
    (1, 0),
    (-1, 0),
    (0, 1),
    (0, -1),
    (1, 1),
    (-1, -1),
    (1, -1),
    (2, 0),
    (-2, 0),
]  # exponents of k and n in a loss


@dataclasses.dataclass
class Observed:
    """The rules that a function follows. `results`: by the name of the case; `compact`: results of padded cases
    without their padding. A rule is None if nothing can be observed, and "other" if no known rule gives these
    results."""

    experts_choose: bool
    cases: list[Case]
    results: dict[str, Result]
    compact: dict[str, Result]
    failures: dict[str, Failure]
    fixed_k: int | None = None  # the only k that the function accepts
    ranked_by: str = "score"
    order: str | None = None
    gates: tuple[str, str] | None = None
    gates_factor: float | None = None
    k1_score: bool = False  # gates have sum 1, except that the gate is the score if k is 1
    loss: tuple[str, float] | None = None  # the assignments that count, and the factor relative to Switch's loss
    loss_by_k: bool = False  # the loss is not divided by k
    ties: str | None = None
    padding: str | None = None
    repeats: bool = True

    def clear(self) -> list[tuple[Case, Result]]:
        return [(c, self.results[c.name]) for c in self.cases if c.matrix in CLEAR and c.name in self.results]

    def asked(self, case: Case, higher: bool = False) -> np.ndarray:
        """[n,e] bool: the requests of the function, before capacity limits."""
        if self.ranked_by == "other":
            return self.results[case.name].chosen
        values = rules.values_of(case)[self.ranked_by]
        if self.experts_choose:
            return rules.expert_choice(values, case, higher)
        return rules.mask_of(rules.requests(values, case, higher), values.shape[1])


def run(function: Callable, convert: Callable, cases: list[Case], experts_choose: bool) -> Observed:
    """Calls the function with all cases."""
    seen = Observed(experts_choose, cases, {}, {}, {})
    for case in cases:
        try:
            seen.results[case.name] = call(function, convert, case)
            if case.padded:
                seen.compact[case.name] = call(function, convert, case.compact())
        except Failure as failure:
            seen.failures[case.name] = failure
    for name, result in list(seen.results.items())[:1]:
        case = next(case for case in cases if case.name == name)
        try:
            again = call(function, convert, case)
            seen.repeats = np.array_equal(again.chosen, result.chosen) and close(again.gates, result.gates, result)
        except Failure:
            seen.repeats = False
    return seen


def close(got, expected, result: Result) -> bool:
    return bool(np.allclose(got, expected, rtol=result.rtol, atol=result.atol))


def only_k(seen: Observed) -> int | None:
    """The k of a function that supports only one: it raises for others, or returns the same for all."""
    random = [case for case in seen.cases if case.matrix == "random"]
    known = [case.k for case in random if case.name in seen.results]
    if len(known) == 1:
        return known[0]
    if len(known) < len(random):
        return None
    chosen = [seen.results[case.name].chosen for case in random]
    if not all(np.array_equal(chosen[0], other) for other in chosen):
        return None
    counts = [seen.results[case.name].chosen.sum(1).max() for case in random]
    return int(counts[0]) if counts[0] in known[:2] else None


def restrict(seen: Observed) -> None:
    """Removes the cases of other k if the function supports only one."""
    seen.fixed_k = None if seen.experts_choose else only_k(seen)
    if seen.fixed_k is None:
        return
    others = {case.name for case in seen.cases if case.k != seen.fixed_k}
    seen.cases = [case for case in seen.cases if case.name not in others]
    for held in (seen.results, seen.compact, seen.failures):
        for name in others & held.keys():
            del held[name]


def find_ranking(seen: Observed) -> None:
    """The values by which tokens, or experts, are ranked; tokens may lose experts that are full."""
    by_tokens, by_experts = ("score", "tokens", "tokens_of_scores", "tokens_share"), ("score", "input", "twice")
    nothing = not any(result.chosen.any() for _, result in seen.clear())
    for value in () if nothing else by_experts if seen.experts_choose else by_tokens:
        seen.ranked_by = value
        masks = [(seen.asked(case), result.chosen) for case, result in seen.clear()]
        short = [(asked, chosen) for asked, chosen in masks if not np.array_equal(asked, chosen)]
        if not short:
            return
        if not seen.experts_choose and all(capacity(*pair) is not None for pair in short):
            seen.order = find_order(seen)
            return
    seen.ranked_by = "other"


def capacity(asked: np.ndarray, chosen: np.ndarray) -> int | None:
    """The capacity of experts, if all full experts have the same number of tokens, and none has more."""
    if (chosen & ~asked).any():
        return None
    loads = chosen.sum(0)
    full = set(loads[(asked & ~chosen).any(0)].tolist())
    return loads.max() if full == {loads.max()} else None


def find_order(seen: Observed) -> str:
    """The order in which experts are filled."""
    pairs = [(case, result) for case, result in seen.clear() if (seen.asked(case) & ~result.chosen).any()]
    for order in rules.ORDERS:
        if all(np.array_equal(filled(seen, case, result, order), result.chosen) for case, result in pairs):
            return order
    return "other"


def filled(seen: Observed, case: Case, result: Result, order: str, higher: bool = False) -> np.ndarray:
    """[n,e] bool: the function's requests, placed in this order, by the capacity that `result` shows."""
    asked = rules.requests(rules.values_of(case)[seen.ranked_by], case, higher)
    return rules.placed(asked, case.scores, int(result.chosen.sum(0).max()), order)


def find_gates(seen: Observed) -> None:
    pairs = [pair for pair in ((c, seen.results.get(c.name)) for c in seen.cases if not c.padded) if pair[1]]
    seen.gates = gate_rule(seen, pairs)
    if seen.gates is None:
        first = gate_rule(seen, [pair for pair in pairs if pair[0].k == 1])
        later = gate_rule(seen, [pair for pair in pairs if pair[0].k > 1])
        if not seen.experts_choose and first == ("score", "none") and later in GATES[1:3]:
            seen.gates, seen.k1_score = later, True
    if seen.gates is None:
        seen.gates_factor, seen.gates = constant_factor(seen, pairs)
    if seen.gates == ("other", "other"):
        seen.gates = scaled_gates(seen, pairs)


def expected_gates(seen: Observed, case: Case, result: Result, rule: tuple[str, str]) -> np.ndarray:
    return rules.gates_of(case, rules.values_of(case)[rule[0]], rule[1], result.chosen, seen.asked(case))


def gate_rule(seen: Observed, pairs: list) -> tuple[str, str] | None:
    """The first rule that reproduces the function's gates for its assignment."""
    for rule in GATES if pairs else ():
        if all(close(r.gates[r.chosen], expected_gates(seen, c, r, rule)[r.chosen], r) for c, r in pairs):
            return rule
    return None


def constant_factor(seen: Observed, pairs: list) -> tuple[float | None, tuple[str, str] | None]:
    """The factor between the function's gates and those of a rule, if it is the same for all."""
    for rule in GATES[:3]:
        ratios = [
            r.gates[r.chosen] / np.maximum(expected_gates(seen, c, r, rule)[r.chosen], 1e-30) for c, r in pairs
        ]
        joined = np.concatenate(ratios) if ratios else np.zeros(0)
        if len(joined) and joined[0] and np.allclose(joined, joined[0], rtol=1e-3):
            return float(joined[0]), rule
    return None, ("other", "other")


def scaled_gates(seen: Observed, pairs: list) -> tuple[str, str]:
    """The rule of gates that are a known rule's times a factor of each expert's tokens, or of each token's experts, such as a
    norm of another kind. Factors that are the same for all experts or in all vectors come from something else."""
    for rule in GATES[:3]:
        ratios = [
            np.where(r.chosen, r.gates / np.maximum(expected_gates(seen, c, r, rule), 1e-30), np.nan) for c, r in pairs
        ]
        by_expert = factors([ratio.T for ratio in ratios])
        if by_expert is not None and not all(np.allclose(one, by_expert[0], rtol=1e-3, equal_nan=True) for one in by_expert):
            return "score", "scaled_tokens"
        if rule == GATES[0] and factors(ratios) is not None:
            return "score", "share_scaled"
    return "other", "other"


def factors(ratios: list[np.ndarray]) -> list[np.ndarray] | None:
    """The values that all entries of each row have, NaN where a row has none; None if rows are not of one value, or all
    rows have the same."""
    held = [np.isfinite(ratio) for ratio in ratios]
    if not any((mask.sum(1) > 1).any() for mask in held):
        return None
    first = [ratio[np.arange(len(ratio)), mask.argmax(1)] for ratio, mask in zip(ratios, held)]
    rows = all(np.allclose(r[m], np.broadcast_to(f[:, None], r.shape)[m], rtol=1e-3) for r, m, f in zip(ratios, held, first))
    differ = any(not np.allclose(f[m.any(1)], f[m.any(1)][:1], rtol=1e-3) for m, f in zip(held, first))
    return first if rows and differ else None


def find_loss(seen: Observed) -> None:
    """The assignments that the loss counts, and its factor relative to Switch's: (counted, factor); loss_by_k: the
    factor depends on k."""
    pairs = [(case, result) for case, result in seen.clear() if result.loss is not None]
    if not pairs or all(abs(result.loss) < 1e-12 for _, result in pairs):
        return
    seen.loss = ("other", 0.0)
    if seen.experts_choose or seen.ranked_by == "other":
        return
    k, n = np.array([(case.k, case.valid.sum()) for case, _ in pairs], float).T
    # A wrong softmax is one fault: it is reported once, although the loss uses it, too.
    own = [seen.ranked_by] if seen.ranked_by != "score" else []
    for values, counted in itertools.product(["score", *own], ("all", "first", "placed")):
        ratios = np.array([result.loss / switch_loss(seen, case, result, counted, values) for case, result in pairs])
        for k_power, n_power in POWERS:
            factors = ratios / k**k_power / n**n_power
            if np.allclose(factors, factors[0], rtol=1e-3):
                seen.loss_by_k = (k_power, n_power) == (1, 0)
                usual = n_power == 0 and k_power in (0, 1)
                seen.loss = (counted, float(factors[0]) if usual else float("nan"))
                return


def switch_loss(seen: Observed, case: Case, result: Result, counted: str, values: str) -> float:
    asked = rules.requests(rules.values_of(case)[seen.ranked_by], case)
    return rules.balance_loss(case, result.chosen if counted == "placed" else asked, counted, rules.values_of(case)[values])


def find_ties(seen: Observed) -> None:
    """Which of two equal scores comes first: "lower" index, "higher", "open" (now this, now that), or "wrong".
    Scores of a wrong softmax are not looked at: few of them are equal."""
    equal = [case for case in seen.cases if case.matrix == "equal" and case.name in seen.results]
    pairs = [(case, seen.results[case.name]) for case in equal]
    if seen.ranked_by != "score" or not pairs:
        return

    def all_as(higher: bool) -> bool:
        def expected(case, result):
            if seen.order in rules.ORDERS:
                return filled(seen, case, result, seen.order, higher)
            return seen.asked(case, higher)

        return all(np.array_equal(expected(case, result), result.chosen) for case, result in pairs)

    if all_as(False) or all_as(True):
        seen.ties = "lower" if all_as(False) else "higher"
    else:
        seen.ties = "open" if seen.order or all(is_best(seen, case, result) for case, result in pairs) else "wrong"


def is_best(seen: Observed, case: Case, result: Result) -> bool:
    """Whether no omitted score is higher than a chosen one, and the number of chosen ones is correct."""
    values, chosen = rules.values_of(case)[seen.ranked_by], result.chosen
    if seen.experts_choose:
        values, chosen = values.T, chosen.T
    worst = np.where(chosen, values, np.inf).min(1)
    left = np.where(chosen, -np.inf, values).max(1)
    return bool((chosen.sum(1) == case.k).all() and (worst >= left).all())


def find_padding(seen: Observed) -> None:
    """Whether padding has no effect: without it, all other results are the same."""
    for case in seen.cases:
        result, alone = seen.results.get(case.name), seen.compact.get(case.name)
        if result is None or alone is None:
            continue
        live = case.valid
        if result.chosen[~live].any() or (np.abs(result.gates[~live]) > result.atol).any():
            seen.padding = "chosen"
        elif not np.array_equal(result.chosen[live], alone.chosen):
            seen.padding = "places"
        elif not close(result.gates[live], alone.gates, result):
            seen.padding = "gates"
        elif (result.loss is None) != (alone.loss is None):
            seen.padding = "loss"
        elif alone.loss is not None and not np.isclose(result.loss, alone.loss, rtol=1e-4, atol=1e-7):
            seen.padding = "loss"
        if seen.padding:
            return


def observe(function: Callable, convert: Callable, cases: list[Case], experts_choose: bool) -> Observed:
    seen = run(function, convert, cases, experts_choose)
    restrict(seen)
    if seen.clear():
        find_ranking(seen)
        find_gates(seen)
        find_loss(seen)
        find_ties(seen)
    find_padding(seen)
    return seen
