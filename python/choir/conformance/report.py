"""The report on one function, as an object, as JSON and as text for a terminal."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any, Callable

from .call import converter
from .cases import cases
from .diagnose import FAULTS, Convention, closest, first_difference
from .observe import Observed, observe

WIDTH = 80
VALUE_TEXT = {
    "score": "the softmax over experts",
    "twice": "a softmax of scores that are a softmax already",
    "tokens": "a softmax over tokens",
    "tokens_of_scores": "a softmax over tokens, of the softmax over experts",
    "tokens_share": "scores divided by their sum over all tokens",
    "sigmoid": "the sigmoid",
    "one": "1",
    "input": "the logits as they are",
}
POST_TEXT = {
    "none": "",
    "share_chosen": ", divided by its sum over the token's chosen experts",
    "share_asked": ", divided by its sum over the token's k best experts, full ones included",
    "softmax_chosen": ", and a softmax over the token's chosen experts",
    "softmax_asked": ", and a softmax over the token's k best experts",
    "share_tokens": ", divided by its sum over the expert's chosen tokens",
    "softmax_tokens": ", and a softmax over the expert's chosen tokens",
    "over_k": ", divided by k",
    "scaled_tokens": ", times a factor that depends on the expert's tokens",
    "share_scaled": ", times a factor that depends on the token's experts",
}
ORDER_TEXT = {
    None: "no token is dropped",
    "index": "all first choices, then all second ones; tokens in their order",
    "token": "all choices of a token, then those of the next one",
    "score": "each expert keeps the tokens with the highest scores",
    "priority": "tokens by their highest score; all first choices, then all second ones",
    "rank_score": "all first choices by score, then all second ones",
    "reverse": "the last token first",
    "other": "in an order that is not known",
}
COUNTED_TEXT = {"all": "all choices", "first": "first choices", "placed": "choices that found a place"}
PADDING_TEXT = {
    None: "takes no part",
    "chosen": "is chosen, or has gates",
    "places": "takes the place of other tokens",
    "gates": "changes the gates of other tokens",
    "loss": "is counted in the balance loss",
}
TIES_TEXT = {
    None: "not seen",
    "lower": "the lower index first",
    "higher": "the higher index first",
    "open": "in no fixed order, as torch.topk's",
    "wrong": "not k are chosen, or not the best",
}


def gates_text(seen: Observed) -> str:
    if seen.gates is None or seen.gates[0] == "other":
        return "no known rule"
    factor = "" if seen.gates_factor is None else f", times {seen.gates_factor:.4g}"
    return VALUE_TEXT[seen.gates[0]] + POST_TEXT[seen.gates[1]] + factor


def selection_text(seen: Observed) -> str:
    who = (
        "each expert chooses its k best tokens" if seen.experts_choose else "each token chooses its k best experts"
    )
    if seen.ranked_by == "other":
        return "no known rule"
    return who + ("" if seen.ranked_by == "score" else f", by {VALUE_TEXT[seen.ranked_by]}")


def loss_text(seen: Observed) -> str:
    if seen.loss is None:
        return "none"
    counted, factor = seen.loss
    if counted == "other" or seen.experts_choose:
        return "of its own" if seen.experts_choose else "no known rule"
    text = f"experts * sum(share of {COUNTED_TEXT[counted]} * mean score)"
    if factor != factor:
        return text + ", times a factor that changes with k or the number of tokens"
    if counted != "first":
        text += ", not divided by k" if seen.loss_by_k else ", divided by k"
    return text + ("" if abs(factor - 1) < 1e-3 else f", times {factor:.4g}")


def rules_text(seen: Observed) -> dict[str, str]:
    """The behavior of the function, rule by rule."""
    properties = {"selection": selection_text(seen), "gates": gates_text(seen)}
    if not seen.experts_choose:
        properties["capacity"] = ORDER_TEXT[seen.order]
    return {**properties, "loss": loss_text(seen), "padding": PADDING_TEXT[seen.padding], "ties": TIES_TEXT[seen.ties]}


def notes_of(seen: Observed, experts_choose: bool) -> list[str]:
    notes = []
    if seen.fixed_k is not None:
        notes.append(f"The function knows only k = {seen.fixed_k}: the vectors with another k are left out.")
    if seen.k1_score:
        notes.append("With k = 1 the gate is the score itself, as in the Switch Transformer.")
    if seen.ties == "open":
        notes.append("No paper says where equal scores go; JAX, TensorFlow and choir take the lower index.")
    if experts_choose and seen.loss is not None:
        notes.append("Expert choice needs no balance loss: the one that the function returns is not checked.")
    if seen.ranked_by == "other" and seen.results:
        remedy = "tokens choose? Leave out" if experts_choose else "experts choose? Pass"
        notes.append(f"Is it a router whose {remedy} --experts-choose.")
    return notes


@dataclasses.dataclass
class Report:
    """The report. `convention`: the convention that the function follows, or None. `closest`: the convention to
    which `faults` and `first` refer. `first`: the first difference: vector, k, what, token, expert, expected,
    got."""

    function: str
    convention: str | None
    closest: str
    paper: str
    faults: list[str]
    first: dict[str, Any] | None
    rules: dict[str, str]
    notes: list[str]
    vectors: int
    version: str

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.function}: {self.vectors} vectors, version {self.version}", ""]
        lines += [row(name, text, 11) for name, text in self.rules.items()] + [""] * bool(self.rules)
        if self.convention:
            lines += [filled(f"Follows {self.paper}.")]
        else:
            lines += [filled(f"Follows no published convention. The closest is {self.paper}; faults:")]
            lines += [row(fault, FAULTS[fault], 22) for fault in self.faults]
        if self.first:
            lines += ["", filled("First difference: " + difference_text(self.first))]
        lines += [""] * bool(self.notes) + [filled(note) for note in self.notes]
        return "\n".join(lines)


def filled(text: str) -> str:
    return textwrap.fill(text, WIDTH - 1, break_long_words=False, break_on_hyphens=False)


def row(name: str, text: str, indent: int) -> str:
    """Two columns, the second wrapped."""
    start = f"  {name:<{indent - 1}} "
    wrapped = textwrap.wrap(text, WIDTH - 1 - len(start), break_long_words=False, break_on_hyphens=False)
    return start + ("\n" + " " * len(start)).join(wrapped)


def difference_text(first: dict[str, Any]) -> str:
    where = f"vector {first['vector']} (k = {first['k']})"
    if first["what"] == "result":
        return f"{where}: {first['got']}"
    if first["token"] is not None:
        where += f", token {first['token']}, expert {first['expert']}"
    value = {"chosen": "chosen", "gates": "gate", "loss": "loss"}[first["what"]]
    shown = [f"{v:.6g}" if isinstance(v, float) else str(v).lower() for v in (first["expected"], first["got"])]
    return f"{where}: expected {value} {shown[0]}, got {shown[1]}"


def titled(one: Convention) -> str:
    return f"{one.title} ({one.paper})"


def check(
    function: Callable, *, experts_choose: bool = False, logits: bool = False, name: str | None = None
) -> Report:
    """Runs the vectors through `function(scores [n,e], k, valid [n])`, which returns `(chosen [n,e], gates [n,e])` or
    `(chosen, gates, loss)`, as NumPy arrays or PyTorch tensors. k is the number of experts per token, or with
    `experts_choose` the number of tokens per expert. Scores are a softmax over experts; with `logits` the function
    takes logits."""
    every, version = cases(experts_choose, logits)
    convert = converter(function, [case for case in every if case.matrix == "random"])
    seen = observe(function, convert, every, experts_choose)
    one, faults = closest(seen)
    first = first_difference(seen, one) if faults else None
    rules = rules_text(seen) if seen.results else {}
    named = name or getattr(function, "__name__", type(function).__name__)
    return Report(named, None if faults else one.name, one.name, titled(one), faults, first, rules,
                  notes_of(seen, experts_choose), len(seen.cases), version)  # fmt: skip
