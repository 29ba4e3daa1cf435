"""The published convention that a function follows, or its faults against the closest one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from . import rules
from .call import Result
from .cases import Case
from .observe import Observed, close


@dataclasses.dataclass(frozen=True)
class Convention:
    name: str
    title: str
    paper: str
    gates: tuple[str, str]  # values, and the operation applied to them
    orders: tuple[str | None, ...] = (None,)  # orders in which experts are filled; None: no capacity limit
    counted: tuple[str, ...] = ("all",)  # the assignments that the balance loss counts; (): no loss
    # Factors of the loss relative to Switch's: experts * sum(share of assignments * mean score).
    factors: tuple[float, ...] = (1.0,)
    over_k: bool = True  # whether both the loss and k times the loss are in use
    experts_choose: bool = False
    k: int | None = None  # k of the paper; None: any


SCORE, SHARE = ("score", "none"), ("score", "share_asked")
EXPERTS = 6  # experts of the vectors; GShard divides the loss by their number, where Switch multiplies
CONVENTIONS = (
    Convention("olmoe", "OLMoE", "Muennighoff et al. 2024, arXiv 2409.02060", SCORE),
    Convention("mixtral", "Mixtral", "Jiang et al. 2024, arXiv 2401.04088", SHARE),
    Convention("switch", "Switch Transformer", "Fedus et al. 2021, arXiv 2101.03961", SCORE, (None, "index"), k=1),
    Convention("gshard", "GShard", "Lepikhin et al. 2020, arXiv 2006.16668", SHARE, (None, "index"), ("first",),
               (1.0, 1 / EXPERTS**2), False, k=2),
    Convention("vmoe", "V-MoE", "Riquelme et al. 2021, arXiv 2106.05974", SCORE, ("priority",), ()),
    Convention("deepseek_v3", "DeepSeek-V3", "DeepSeek-AI 2024, arXiv 2412.19437", ("sigmoid", "share_asked"),
               counted=()),
    Convention("expert_choice", "expert choice", "Zhou et al. 2022, arXiv 2202.09368", SCORE, experts_choose=True),
)  # fmt: skip
# Every fault, in the order of reports, and its text.
FAULTS = {
    "exception": "the function raises an exception",
    "shape": "what the function returns is no routing",
    "not_finite": "the function returns values that are not finite",
    "chosen": "not the k best are chosen",
    "gates_over_tokens": "gates are divided, or a softmax is taken, over tokens in place of experts",
    "gates_renormalized": "gates are divided by the sum of a token's chosen gates, or scaled for each token",
    "gates_not_normalized": "gates are not divided by the sum of the k best scores",
    "softmax_after_topk": "a softmax is taken after the k best were chosen",
    "softmax_twice": "a softmax is taken of scores that are a softmax already",
    "gates_scaled": "gates are a constant times what they should be",
    "gates": "gates follow no known rule",
    "gates_outside_chosen": "gates are not 0 where nothing is chosen",
    "padding_counted": "padding takes part",
    "ties": "equal scores do not go to the lower index",
    "capacity_order": "when an expert is full, other tokens than the paper's keep their place",
    "loss_scale": "the balance loss has another factor",
    "loss": "the balance loss follows another rule",
    "modifies_input": "the function writes to its arguments",
    "not_deterministic": "two calls with the same arguments return different results",
}


def gate_fault(seen: Observed, wanted: tuple[str, str]) -> str | None:
    if seen.gates is None:
        return None
    value, post = seen.gates
    if post == "share_chosen" and not seen.order:  # the same if no expert is full
        post = "share_asked"
    if (value, post) == wanted:
        return "gates_scaled" if seen.gates_factor is not None else None
    if value.startswith("tokens") or post.endswith("tokens"):
        return "gates_over_tokens"
    if post.startswith("softmax"):
        return "softmax_after_topk"
    if value == "twice":
        return "softmax_twice"
    if value == wanted[0] and post.startswith("share"):
        return "gates_renormalized"
    if seen.gates == SCORE and wanted == SHARE:
        return "gates_not_normalized"
    return "gates"


def over_all_tokens(seen: Observed) -> bool:
    """Whether padding has an effect only because a softmax or a sum includes padding: this is not a separate fault."""
    ranked = seen.ranked_by.startswith("tokens")
    gated = bool(seen.gates and (seen.gates[0].startswith("tokens") or seen.gates[1] == "scaled_tokens"))
    return (seen.padding == "places" and ranked) or (seen.padding == "gates" and (ranked or gated))


def ranking_fault(seen: Observed) -> str | None:
    if seen.ranked_by == "score":
        return None
    if seen.ranked_by.startswith("tokens"):
        return "gates_over_tokens"
    if seen.ranked_by == "twice":
        return "softmax_twice"
    if seen.ranked_by == "input":  # it compares logits of different tokens, without a softmax over experts
        over_tokens = seen.gates and gate_fault(seen, SCORE) == "gates_over_tokens"
        return "gates_over_tokens" if over_tokens else "softmax_after_topk"
    return "chosen"


def loss_fault(seen: Observed, one: Convention) -> str | None:
    if seen.loss is None or one.experts_choose:
        return None
    counted, factor = seen.loss
    same_at_k1 = seen.fixed_k == 1 and counted == "all"
    if counted not in one.counted and not (one.counted and same_at_k1):
        return "loss"
    fits = any(abs(factor / known - 1) < 1e-3 for known in one.factors)
    return None if fits and (one.over_k or not seen.loss_by_k) else "loss_scale"


def common_faults(seen: Observed) -> set[str]:
    """Faults in every convention."""
    found = {failure.kind for failure in seen.failures.values()}
    found |= {ranking_fault(seen)} if seen.results else set()
    for case in seen.cases:
        result = seen.results.get(case.name)
        if result is not None:
            outside = np.abs(result.gates[~result.chosen & case.valid[:, None]])
            found |= {"gates_outside_chosen"} if (outside > result.atol).any() else set()
            found |= {"modifies_input"} if result.modified else set()
    found |= {"padding_counted"} if seen.padding and not over_all_tokens(seen) else set()
    found |= {"ties"} if seen.ties in ("higher", "wrong") else set()
    found |= {"not_deterministic"} if not seen.repeats else set()
    return found - {None}


def faults_against(seen: Observed, one: Convention) -> set[str]:
    found = {gate_fault(seen, one.gates), loss_fault(seen, one)}
    if seen.order not in one.orders:
        found.add("capacity_order")
    return found - {None}


def closest(seen: Observed) -> tuple[Convention, list[str]]:
    """The convention against which the function has the fewest faults, and the faults."""
    candidates = [one for one in CONVENTIONS if one.experts_choose == seen.experts_choose]
    shared = seen.gates in (SHARE, ("score", "share_chosen"))

    def distance(one: Convention) -> tuple:
        return (
            len(faults_against(seen, one)),
            one.k is None or one.k != seen.fixed_k,
            (one.gates == SHARE) != shared,
        )

    one = min(candidates, key=distance)
    found = faults_against(seen, one) | common_faults(seen)
    return one, [fault for fault in FAULTS if fault in found]


@dataclasses.dataclass
class Expected:
    chosen: np.ndarray
    gates: np.ndarray
    loss: float | None


def expected(seen: Observed, one: Convention, case: Case, result: Result) -> Expected:
    """The result that a convention requires for a case. Details that it leaves open are taken from the function:
    the capacity of experts, the order of equal scores, and whether the loss is divided by k."""
    if one.experts_choose:
        asked = chosen = rules.expert_choice(case.scores, case)
    else:
        wanted = rules.requests(case.scores, case)
        asked = chosen = rules.mask_of(wanted, case.scores.shape[1])
        if seen.order and one.orders != (None,):
            alone = seen.compact.get(case.name, result)
            chosen = rules.placed(wanted, case.scores, int(alone.chosen.sum(0).max()), one.orders[-1])
    open_ties = case.matrix == "equal" and seen.ties == "open"
    if open_ties:
        chosen, asked = result.chosen, result.chosen
    value, post = one.gates
    if seen.k1_score and case.k == 1:
        post = "none"
    gates = np.where(chosen, rules.gates_of(case, rules.values_of(case)[value], post, chosen, asked), 0)
    loss = None
    if result.loss is not None and one.counted and not one.experts_choose and not open_ties:
        loss = rules.balance_loss(case, rules.requests(case.scores, case), one.counted[0])
        loss *= case.k if seen.loss_by_k and one.over_k else 1
        loss *= one.factors[1] if seen.loss and seen.loss[1] in one.factors[1:] else one.factors[0]
    return Expected(chosen, gates, loss)


def first_difference(seen: Observed, one: Convention) -> dict[str, Any] | None:
    """The first vector on which the function differs from the convention: token and expert, expected and actual
    value."""
    for case in seen.cases:
        if case.name in seen.failures:
            return difference(case, "result", None, None, str(seen.failures[case.name]))
        result = seen.results[case.name]
        due = expected(seen, one, case, result)
        for what, got, wanted in (("chosen", result.chosen, due.chosen), ("gates", result.gates, due.gates)):
            wrong = got != wanted
            if what == "gates":
                wrong = ~np.isclose(got, wanted, rtol=result.rtol, atol=result.atol)
            if wrong.any():
                at = tuple(int(i) for i in np.argwhere(wrong)[0])
                return difference(case, what, at, wanted[at].item(), got[at].item())
        if due.loss is not None and not np.isclose(result.loss, due.loss, rtol=1e-3, atol=1e-7):
            return difference(case, "loss", None, due.loss, result.loss)
    return None


def difference(case: Case, what: str, at: tuple[int, int] | None, wanted: Any, got: Any) -> dict[str, Any]:
    token, expert = at or (None, None)
    place = {"vector": case.name, "k": case.k, "what": what, "token": token, "expert": expert}
    return {**place, "expected": wanted, "got": got}
