"""The options that all routers with scores share (src/moe/gates.c): how logits become scores, and scores gates. To
add such an option, add its name to OPTIONS, and use it here."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

OPTIONS = frozenset(("score", "normalize_gates", "gate_on", "z_loss_weight"))  # products.py uses gate_on


def scores_of(options: Any, logits: Tensor) -> Tensor:
    """The router's scores from logits [n,e]."""
    if options.reads_logits:
        return logits
    if nulls := options.null_experts:
        n, e = logits.shape
        return torch.softmax(torch.cat([logits, logits.new_zeros(n, nulls)], 1), 1)[:, :e]
    return torch.sigmoid(logits) if options.score == "sigmoid" else torch.softmax(logits, 1)


def z_loss(q: Any, scores: Tensor, logits: Tensor) -> Optional[Tensor]:
    """The mean square of log sum exp of the logits of valid tokens; None: no weight, or scores were given without
    logits."""
    if not q.options.z_loss_weight or (logits is scores and not q.options.reads_logits):
        return None
    squares = torch.logsumexp(logits, 1) ** 2
    return torch.where(q.valid_or_all(), squares, 0.0).sum() / q.valid_or_all().sum().clamp(min=1)


def _divided(gates: Tensor, by: Tensor) -> Tensor:
    total = by.sum(1, keepdim=True)
    return gates / torch.where(total == 0, 1.0, total)


def _by_token(options: Any, scores: Tensor, logits: Tensor, made: dict, choice: Optional[Tensor]) -> Tensor:
    """[n,e], with gradient; for given choices [n,K], all of which are assigned, values of these only."""

    def held(a: Tensor) -> Tensor:
        return torch.where(made["assignment"], a, 0.0) if choice is None else a.gather(1, choice)

    if options.gates == "even":
        even = made["assignment"].to(scores.dtype) if choice is None else torch.ones_like(choice, dtype=scores.dtype)
        return even / made["per_token"]
    if options.gates == "sigmoid":
        return held(torch.sigmoid(logits))
    gates = held(scores)
    if options.gates == "share":  # shares of all choices, including dropped ones
        gates = _divided(gates, scores.gather(1, made["choice"]) if choice is None else gates)
    return _divided(gates, gates) if options.normalize_gates else gates


def made(
    options: Any, scores: Tensor, logits: Tensor, made: dict, choice: Optional[Tensor], held: Optional[Tensor]
) -> tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
    """Gates [n,e]; gates of the slots [e,slots], if no slot is empty; and gates of the choices [n,K] in place of the
    first, if choices are given. made: the router's assignment; without one, gates of all pairs (Routing.whole). held:
    the scores of such slots."""
    gates = scores if made["assignment"] is None else _by_token(options, scores, logits, made, choice)
    if held is not None and options.normalize_gates:
        held = gates.t().gather(1, made["slots"])
    return (None, held, gates) if choice is not None else (gates, held, None)
