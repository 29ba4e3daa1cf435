"""Solvers for the assignment of a pool's tokens to experts without libchoir, in NumPy (docs/assignment.md). Scores
are [n,e] float64, finite, and without padding.

The exact solver is that of src/moe/assign: a minimum-cost flow between experts. Its initial prices are the solution
of the same problem on every fourth token, which is solved in the same way. It makes the same moves in the same
order as libchoir, so assignments and prices are the same."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

import numpy as np

COARSER, ROWS_LEAST, SHARE_LEAST = 4, 256, 4


class _Level(NamedTuple):
    """A problem on every `stride`-th token: scores [rows,nodes], the capacity of each row, and the load of each
    expert. If rows may keep unused capacity, this is an additional node of score 0; if loads are balanced, a last row
    without scores rounds them up."""

    score: np.ndarray
    room: np.ndarray
    share: int
    keeps_room: bool


def _level(scores: np.ndarray, k: int, cap: int, stride: int) -> _Level:
    """cap 0: balanced, every token has one expert."""
    some, e = scores[::stride], scores.shape[1]
    rows, n = len(some), len(scores)
    if cap:
        share = min((k * rows + n // 2) // n, cap * rows // e, rows)
        return _Level(np.concatenate([some, np.zeros((rows, 1))], 1), np.full(rows, cap), share, True)
    share = -(-rows // e)
    room = np.ones(rows, np.int64)
    if extra := share * e - rows:
        some, room = np.concatenate([some, np.zeros((1, e))]), np.append(room, extra)
    return _Level(some, room, share, False)


def _best_of_rows(level: _Level, beta: np.ndarray) -> np.ndarray:
    """[rows,nodes] bool: each row's best experts by score minus price, of equal ones the lower; if a row may keep
    unused capacity, only experts with a positive difference."""
    e = level.score.shape[1] - level.keeps_room
    worth = level.score[:, :e] - beta[:e]
    order = np.argsort(-worth, 1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(e)[None], 1)
    taken = (rank < level.room[:, None]) & ((worth > 0) | (not level.keeps_room))
    return np.concatenate([taken, np.zeros((len(taken), 1), bool)], 1) if level.keeps_room else taken


class _Flow:
    """Moves rows along shortest paths from overloaded nodes to underloaded ones. Prices are kept such that no single
    move gains."""

    def __init__(self, level: _Level, beta: np.ndarray):
        self.score, self.beta, self.taken = level.score, beta, _best_of_rows(level, beta)
        self.nodes = self.score.shape[1]
        self.slot = self.nodes - 1 if level.keeps_room else -1  # the node of free capacity
        self.room = level.room - self.taken.sum(1)
        self.open = np.where(self.taken, -np.inf, self.score)
        self.excess = self.taken.sum(0) - level.share
        if level.keeps_room:
            kept = int(level.room.sum()) - level.share * (self.nodes - 1)
            self.excess[self.slot] = int(self.room.sum()) - kept
        self.cost, self.carrier = np.empty((self.nodes, self.nodes)), np.empty((self.nodes, self.nodes), np.int64)
        self.stale = np.ones(self.nodes, bool)

    def _rows_of(self, node: int) -> np.ndarray:
        return np.flatnonzero(self.room > 0 if node == self.slot else self.taken[:, node])

    def _refresh(self, node: int) -> None:
        """Finds the cheapest move from a node to each other one, and a row for it."""
        self.stale[node] = False
        rows = self._rows_of(node)
        self.cost[node], self.carrier[node] = np.inf, -1
        if len(rows):
            loss = self.score[rows, node][:, None] - self.open[rows]
            least = loss.argmin(0)
            self.cost[node], self.carrier[node] = loss[least, np.arange(self.nodes)], rows[least]

    def _search(self, source: int) -> Optional[int]:
        """Finds the nearest underloaded node, and updates prices by the distances."""
        distance = np.full(self.nodes, np.inf)
        distance[source], settled = 0.0, np.zeros(self.nodes, bool)
        self.previous = np.full(self.nodes, -1)
        while True:
            u = int(np.where(settled, np.inf, distance).argmin())
            if settled[u] or distance[u] == np.inf:
                return None
            settled[u] = True
            if self.excess[u] < 0:
                self.beta[settled] += distance[u] - distance[settled]
                return u
            if self.stale[u]:
                self._refresh(u)
            # Rounding must not make it shorter.
            there = np.maximum(distance[u] - self.beta[u] + self.cost[u] + self.beta, distance[u])
            nearer = there < distance
            distance[nearer], self.previous[nearer] = there[nearer], u

    def _carriers(self, u: int, v: int, cost: float, most: int) -> np.ndarray:
        """At most `most` rows that can move from u to v at that cost."""
        if most == 1 and not self.stale[u]:
            return self.carrier[u, v : v + 1].copy()
        rows = self._rows_of(u)
        return rows[self.score[rows, u] - self.open[rows, v] == cost][:most]

    def _move(self, r: int, u: int, v: int) -> None:
        had = self.room[r] > 0
        for node, here in ((u, False), (v, True)):
            if node == self.slot:
                self.room[r] += 1 if here else -1
            else:
                self.taken[r, node] = here
                self.open[r, node] = -np.inf if here else self.score[r, node]
        self.stale[self.taken[r]] = True  # costs of the row at its other experts have changed
        self.stale[[u, v]] = True
        if self.slot >= 0 and (had or self.room[r] > 0):
            self.stale[self.slot] = True

    def _augment(self, source: int, target: int) -> None:
        """Moves as many rows along the path as its ends need and as there are moves of the same cost."""
        steps, v = [], target
        while v != source:
            steps.append((int(self.previous[v]), v, self.cost[self.previous[v], v]))
            v = int(self.previous[v])
        amount = int(min(self.excess[source], -self.excess[target]))
        for u, v, cost in steps if amount > 1 else ():
            amount = len(self._carriers(u, v, cost, amount))
        # The rows of a step have u and not v. No other step of the path removes rows from u or adds rows to v.
        moves = [(r, u, v) for u, v, cost in steps for r in self._carriers(u, v, cost, amount).tolist()]
        for r, u, v in moves:
            self._move(r, u, v)
        self.excess[source] -= amount
        self.excess[target] += amount

    def balance(self) -> None:
        for u in range(self.nodes):
            while self.excess[u] > 0:
                target = self._search(u)
                if target is None:
                    return
                self._augment(u, target)


def _exact(scores: np.ndarray, k: int, cap: int) -> tuple[np.ndarray, np.ndarray]:
    """The assignment [n,e] bool of the largest sum of scores, and the experts' prices [e]."""
    (n, e), stride = scores.shape, 1
    while n // (stride * COARSER) >= ROWS_LEAST and _level(scores, k, cap, stride * COARSER).share >= SHARE_LEAST:
        stride *= COARSER
    beta = None
    while stride:
        level = _level(scores, k, cap, stride)
        if beta is None:  # prices that give every expert its share if rows have no cap
            beta = -np.sort(-scores[::stride], 0)[max(level.share, 1) - 1]
        flow = _Flow(level, np.append(beta, 0.0) if level.keeps_room else beta)
        flow.balance()
        beta = flow.beta[:e] - (flow.beta[e] if level.keeps_room else 0.0)
        stride //= COARSER
    return flow.taken[:n, :e], beta


def capped(scores: np.ndarray, k: int, cap: int) -> tuple[np.ndarray, np.ndarray]:
    """Every expert has k tokens, and a token at most `cap` experts."""
    return _exact(scores, k, cap)


def balanced(scores: np.ndarray) -> np.ndarray:
    """Every token has one expert, and loads differ by at most one."""
    return _exact(scores, 0, 0)[0]


def _top(value: np.ndarray, k: int) -> np.ndarray:
    """Each expert's k largest scores, of equal ones the lower token."""
    order = np.argsort(-value, axis=0, kind="stable")[:k]
    taken = np.zeros(value.shape, bool)
    np.put_along_axis(taken, order, True, 0)
    return taken


def _log_sum(value: np.ndarray, axis: int, weight: float) -> np.ndarray:
    """weight * log(sum exp(value / weight))"""
    most = value.max(axis, keepdims=True)
    return most.squeeze(axis) + weight * np.log(np.exp((value - most) / weight).sum(axis))


def dykstra(scores: np.ndarray, k: int, cap: int, weight: float, iterations: int, stages: int) -> tuple[np.ndarray, np.ndarray]:
    """The paper's entropic solver (src/moe/assign/dykstra.c): alternating projections, then each expert's k best."""
    wide = max(weight, float(scores.max() - scores.min()))
    alpha, beta = np.zeros(len(scores)), np.full(scores.shape[1], np.inf)
    for stage in range(stages):
        entropy = wide * (weight / wide) ** (stage / (stages - 1)) if stage + 1 < stages else weight
        for _ in range(iterations // stages + (stage < iterations % stages)):
            bounded = np.minimum(scores, alpha[:, None] + beta)  # an entry is at most 1
            new = _log_sum(bounded - alpha[:, None], 0, entropy) - entropy * math.log(k)
            if np.isfinite(beta).all() and np.abs(new - beta).max() <= 1e-4 * entropy:
                break
            alpha = np.maximum(0, _log_sum(bounded - new, 1, entropy) - entropy * math.log(cap))
            beta = new
    margin = np.minimum(0, scores - alpha[:, None] - beta).astype(np.float32)
    return _top(margin, k), beta


def best_pairs(scores: np.ndarray, total: int, room: int, cap: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The `total` best pairs of token and expert, best first, skipping pairs whose expert already has `room` tokens
    or whose token has `cap` experts. Returns the assignment [n,e], cut-offs [e], demand [e] and the number of skipped
    pairs."""
    (n, e), taken = scores.shape, np.zeros(scores.shape, bool)
    held, had, demand, cutoffs, last, dropped = [0] * e, [0] * n, [0] * e, [math.inf] * e, math.inf, 0
    order = np.argsort(-scores, axis=None, kind="stable")
    for at in order.tolist() if total else ():
        t, i = divmod(at, e)
        demand[i] += 1
        if held[i] == room or had[t] == cap:
            dropped += 1
            continue
        taken[t, i] = True
        held[i] += 1
        had[t] += 1
        last = cutoffs[i] = float(scores[t, i])
        if not (total := total - 1):
            break
    cutoffs = [cut if full == room and room else last for cut, full in zip(cutoffs, held)]
    return taken, np.array(cutoffs), np.array(demand), dropped
