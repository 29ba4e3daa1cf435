"""The rules of published routers, and rules that differ from them in one point, in NumPy and double precision.

Scores are [n,e], a softmax over experts. A request is a choice of a token, before capacity limits."""

from __future__ import annotations

import numpy as np

from .cases import Case

VALUES = ("score", "twice", "tokens", "tokens_of_scores", "tokens_share", "sigmoid", "one", "input")
POSTS = (
    "none",
    "share_chosen",
    "share_asked",
    "softmax_chosen",
    "softmax_asked",
    "share_tokens",
    "softmax_tokens",
    "over_k",
)
ORDERS = ("index", "token", "score", "priority", "rank_score", "reverse")


def softmax(values: np.ndarray, axis: int, mask=None) -> np.ndarray:
    """Softmax over one axis; with a mask, over its entries, and 0 elsewhere."""
    mask = np.ones_like(values, bool) if mask is None else mask
    held = np.where(mask, values, -np.inf)
    top = held.max(axis, keepdims=True)
    powers = np.where(mask, np.exp(held - np.where(np.isfinite(top), top, 0)), 0)
    return powers / np.maximum(powers.sum(axis, keepdims=True), 1e-300)


def shares(values: np.ndarray, axis: int, mask: np.ndarray) -> np.ndarray:
    """Values divided by their sum over the mask."""
    total = np.where(mask, values, 0).sum(axis, keepdims=True)
    return values / np.where(total == 0, 1, total)


def best(values: np.ndarray, k: int, higher: bool = False) -> np.ndarray:
    """[rows,k]: indices of the k largest values of each row, largest first; of equal ones the lower index first, or the
    higher."""
    if higher:
        return values.shape[1] - 1 - np.argsort(-values[:, ::-1], 1, kind="stable")[:, :k]
    return np.argsort(-values, 1, kind="stable")[:, :k]


def requests(values: np.ndarray, case: Case, higher: bool = False) -> np.ndarray:
    """[n,k]: the experts of each token, best first; -1 for padding."""
    return np.where(case.valid[:, None], best(values, case.k, higher), -1)


def mask_of(asked: np.ndarray, experts: int) -> np.ndarray:
    mask = np.zeros((len(asked), experts), bool)
    token, rank = np.nonzero(asked >= 0)
    mask[token, asked[token, rank]] = True
    return mask


def expert_choice(values: np.ndarray, case: Case, higher: bool = False) -> np.ndarray:
    """[n,e] bool: each expert's k best valid tokens."""
    live = np.flatnonzero(case.valid)
    mask = np.zeros(values.shape, bool)
    for expert, rows in enumerate(best(values[live].T, case.k, higher)):
        mask[live[rows], expert] = True
    return mask


def placed(asked: np.ndarray, scores: np.ndarray, capacity: int, order: str) -> np.ndarray:
    """[n,e] bool: the accepted requests if experts have this capacity and are filled in this order."""
    sequences = {
        "index": lambda t, r: (
            r,
            t,
        ),  # GShard, Switch: all first choices in token order, then all second choices
        "token": lambda t, r: (t, r),  # all choices of a token, then those of the next token
        "score": lambda t, r: (-scores[t, asked[t, r]], t),  # each expert keeps its highest scores
        "priority": lambda t, r: (r, -scores[t].max(), t),  # V-MoE: tokens by their highest score
        "rank_score": lambda t, r: (r, -scores[t, asked[t, r]], t),
        "reverse": lambda t, r: (r, -t),
    }
    pairs = zip(*(list(map(int, axis)) for axis in np.nonzero(asked >= 0)))
    mask = np.zeros(scores.shape, bool)
    for token, rank in sorted(pairs, key=lambda pair: sequences[order](*pair)):
        expert = asked[token, rank]
        mask[token, expert] = mask[:, expert].sum() < capacity
    return mask


def values_of(case: Case) -> dict[str, np.ndarray]:
    """The values that a router may use for ranking or as gates."""
    given = case.given.astype(np.float64)
    live = np.broadcast_to(case.valid[:, None], given.shape)
    return {
        "score": case.scores,
        "twice": softmax(case.scores, 1),
        "tokens": softmax(given, 0, live),
        "tokens_of_scores": softmax(case.scores, 0, live),
        "tokens_share": shares(case.scores, 0, live),
        "sigmoid": 1 / (1 + np.exp(-given)),
        "one": np.ones_like(given),
        "input": given,
    }


def gates_of(case: Case, value: np.ndarray, post: str, chosen: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Gates from values: `post` is the normalization over chosen or requested experts."""
    if post == "share_chosen":
        return shares(value, 1, chosen)
    if post == "share_asked":
        return shares(value, 1, asked)
    if post == "softmax_chosen":
        return softmax(value, 1, chosen)
    if post == "softmax_asked":
        return softmax(value, 1, asked)
    if post == "share_tokens":
        return shares(value, 0, chosen)
    if post == "softmax_tokens":
        return softmax(value, 0, chosen)
    return value / case.k if post == "over_k" else value


def balance_loss(case: Case, asked: np.ndarray, counted: str, scores: np.ndarray | None = None) -> float:
    """experts * sum over experts of (share of assignments * mean score): Switch's, without its weight. `counted` says
    which assignments: "first" choices, "all" choices, or those "placed", of which `asked` is then the mask."""
    scores = case.scores if scores is None else scores
    live, e = case.valid, scores.shape[1]
    if counted == "first":
        asked = asked[:, :1]
    count = (mask_of(asked, e) if counted != "placed" else asked)[live].sum(0)
    return e * float((count / (1 if counted == "first" else case.k) * scores[live].mean(0)).sum()) / live.sum()
