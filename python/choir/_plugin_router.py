"""Calls plug-ins written in Python, without libchoir: prepares their arguments, and checks their results, like
src/moe/plugin_route.c and plugin_measure.c."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable, Mapping, NamedTuple, Optional

import numpy as np

from . import _options
from ._errors import ArgumentError, NumericError
from ._router import OPTIONS, Router


class Choice(NamedTuple):
    """The assignment that a router returned for the tokens of a call."""

    taken: np.ndarray
    """[n,e] bool"""
    loss: float = 0.0
    """its own, unweighted"""
    gradient: Optional[np.ndarray] = None
    """[n,e] float32, of that loss by the scores"""


class PluginRouter:
    """A plug-in as choir.torch and the measurement call it."""

    def __init__(self, router: Router, callback: Any, depends_on: str):
        self.router, self.callback, self.depends_on = router, callback, depends_on
        self._sound: set = set()  # cases whose measured dependencies agree with the declaration

    def capacity(self, values: Mapping[str, Any], valid: int, e: int, training: bool) -> int:
        """The maximum number of tokens per expert. A router that depends on no other token cannot know an expert's
        load, so it has no limit."""
        evaluation = values["eval_capacity_factor"]
        factor = values["capacity_factor"] if training or not evaluation else evaluation
        alone = self.depends_on == "none" or (self.depends_on == "in_training" and not training)
        if alone or factor == 0:
            return valid
        choices = _options.choices_of(self.router, values)
        return _options.capacity(factor, choices, valid, e) if choices else _options.per_expert(factor, valid, e)

    def call(self, values: Mapping[str, Any], valid: np.ndarray, e: int, training: bool, **more: Any) -> SimpleNamespace:
        """The fields of choir_plugin_call. more: layer, sequence_length, seed, first."""
        fields = dict(n=len(valid), e=e, layer=0, sequence_length=0, seed=0, first=0)
        fields.update({name: value for name, value in more.items() if value is not None})
        fields["sequence_length"] = fields["sequence_length"] or len(valid)
        own = [values[name] for name in self.router.options if name not in OPTIONS]
        capacity = self.capacity(values, int(valid.sum()), e, training)
        choices = _options.choices_of(self.router, values)
        return SimpleNamespace(**fields, capacity=capacity, training=training, options=own, choices=choices)

    def choose(self, call: Any, scores: np.ndarray, valid: np.ndarray, state: np.ndarray) -> np.ndarray:
        """[n,e] bool, checked."""
        taken = self._guarded(lambda: self.callback.choice(call, scores.copy(), valid.copy(), state.copy()))
        self._check(call, valid, taken)
        return taken

    def route(self, call: Any, scores: np.ndarray, valid: np.ndarray, state: np.ndarray) -> Choice:
        taken = self.choose(call, scores, valid, state)
        if not self.callback.loss:
            return Choice(taken)
        arrays = scores.copy(), valid.copy(), taken.copy()
        value, gradient = self._guarded(lambda: self.callback.loss_and_gradient(call, *arrays))
        for what, wrong in (("loss", ~np.isfinite(value)), ("loss's gradient", ~np.isfinite(gradient[valid]))):
            if wrong.any():
                raise NumericError(f"router '{self.router.name}': its {what} is not finite")
        return Choice(taken, float(value), np.where(valid[:, None], gradient, np.float32(0)))

    def ranking(self, call: Any, scores: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """The ranking that thresholds are compared with, [n,e] float32, checked. In a PyTorch step that will be
        skipped, NaN becomes the lowest score."""
        sound = np.where(scores > np.finfo(np.float32).min, scores, np.float32(0))
        ranking = self._guarded(lambda: self.callback.ranked(call, sound, valid.copy()))
        wrong = ~np.isfinite(ranking) & valid[:, None]
        if wrong.any():
            t, i = np.argwhere(wrong)[0]
            raise NumericError(
                f"router '{self.router.name}': the ranking of token {t} at expert {i} is {ranking[t, i]:g}"
            )
        return ranking

    def cutoffs(self, call: Any, scores: np.ndarray, valid: np.ndarray, taken: np.ndarray) -> np.ndarray:
        """[e] the lowest score among each expert's tokens, or the ranking value that as many tokens reach; inf: no
        token."""
        if not self.router.has_ranking:
            return np.where(taken, scores, np.inf).min(0, initial=np.inf)
        ranked = -np.sort(-self.ranking(call, scores, valid)[valid], axis=0)
        return np.array([ranked[load - 1, i] if load else np.inf for i, load in enumerate(taken.sum(0))])

    def served(
        self, call: Any, scores: np.ndarray, valid: np.ndarray, thresholds: np.ndarray, cap: int
    ) -> np.ndarray:
        """[n,e] bool: whether the ranking reaches the expert's threshold; under a cap, the largest margins, of equal
        ones the lower expert."""
        ranking, thresholds = self.ranking(call, scores, valid), thresholds.astype(np.float32)
        taken = (ranking >= thresholds) & valid[:, None]
        if cap and cap < call.e:
            margin = np.where(taken, ranking - thresholds, -np.inf)
            best = np.argsort(-margin, axis=1, kind="stable")[:, :cap]
            among = np.zeros_like(taken)
            np.put_along_axis(among, best, True, axis=1)
            taken &= among
        return taken

    def moved(self, values: Mapping[str, Any], demand: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The state [e] after a step, given its demand [e] int64. ArgumentError: `observe` failed; NumericError: the
        state is not finite in float32."""
        call = SimpleNamespace(options=[values[name] for name in self.router.options if name not in OPTIONS])
        state = self._guarded(lambda: self.callback.update_state(call, demand.copy(), state.copy()))
        with np.errstate(over="ignore"):
            wrong = np.flatnonzero(~np.isfinite(state.astype(np.float32)))
        if len(wrong):
            raise NumericError(
                f"router '{self.router.name}': its state of expert {wrong[0]} is {state[wrong[0]]:g}: must be a finite float"
            )
        return state

    def _guarded(self, function: Callable[[], Any]) -> Any:
        """Converts exceptions of the plug-in to ArgumentError with router, file and line; the exception is its
        cause."""
        try:
            return function()
        except Exception as error:
            message = self.callback.message(error).decode()
            raise ArgumentError(f"router '{self.router.name}': {message}") from error

    def _check(self, call: Any, valid: np.ndarray, taken: np.ndarray) -> None:
        name, held, load = self.router.name, taken.sum(1), taken.sum(0)
        most = call.choices or call.e
        if (held[~valid] > 0).any():
            at = int(np.flatnonzero(~valid & (held > 0))[0])
            raise ArgumentError(f"router '{name}': token {at} is padding (valid is 0), and an expert took it")
        if (held > most).any():
            at = int(np.argmax(held > most))
            raise ArgumentError(f"router '{name}': token {at} has {held[at]} experts, and choices allows {most}")
        if (load > call.capacity).any():
            at = int(np.argmax(load > call.capacity))
            raise ArgumentError(
                f"router '{name}': expert {at} took {load[at]} tokens, and its capacity is {call.capacity}"
            )

    def check(self, values: Mapping[str, Any], n: int, e: int) -> None:
        """Raises ArgumentError if n tokens and e experts cannot be routed, or the router depends on more tokens than
        it declares: checked once for each set of options and sizes."""
        choices = _options.choices_of(self.router, values)
        if e < choices:
            are = "is" if e == 1 else "are"
            raise ArgumentError(f"router '{self.router.name}': every token takes {choices} experts but there {are} only {e}")
        case = (e, min(n, SMALL + 1), *sorted((k, v) for k, v in values.items() if not isinstance(v, str)))
        if n < 2 or case in self._sound:
            return
        for size in (min(n, SMALL), LARGE) if n > SMALL else (n,):
            for trial in range(4):
                _Measurement(self, values, size, e, bool(trial % 2), trial // 2).run()
        self._sound.add(case)


# ---- measurement: does a router depend on more tokens than it declares?

SMALL = 64  # small case: number of tokens; each of them is changed once
LARGE = 1024  # large case, if a layer routes more than SMALL tokens: number of tokens
CHANGES = 16  # max number of tokens that are changed in the large case


class _Measurement:
    """One trial on random scores; in the second trial the last quarter is padding."""

    def __init__(self, own: PluginRouter, values: Mapping[str, Any], n: int, e: int, training: bool, trial: int):
        self.own, self.values, self.n, self.e, self.training = own, values, n, e, training
        self.random = np.random.default_rng(2 * trial + training)
        self.scores = self._drawn(n)
        self.valid = np.arange(n) < (n if trial == 0 else n - n // 4)
        self.taken = self._ask(0, n, self.scores)

    def _drawn(self, n: int) -> np.ndarray:
        """Softmax of normally distributed logits."""
        weight = np.exp(2 * self.random.standard_normal((n, self.e)))
        return (weight / weight.sum(1, keepdims=True)).astype(np.float32)

    def _ask(self, first: int, n: int, scores: np.ndarray) -> np.ndarray:
        valid = self.valid[first : first + n]
        call = self.own.call(self.values, valid, self.e, self.training, first=first)
        return self.own.choose(call, scores[first : first + n], valid, np.zeros(self.e))

    def _rank(self, first: int, n: int) -> np.ndarray:
        valid = self.valid[first : first + n]
        call = self.own.call(self.values, valid, self.e, self.training, first=first)
        return self.own.ranking(call, self.scores[first : first + n], valid)

    def _rank_alone(self, step: int) -> None:
        """Threshold serving routes single tokens: their ranking must be the same then, except for the last digits,
        since a matrix product sums in another order for one row."""
        together = self._rank(0, self.n)
        for t in range(0, self.n, step):
            pair = np.stack([self._rank(t, 1)[0], together[t]])
            if self.valid[t] and abs(pair[0] - pair[1]).max() > np.float32(1e-5) * abs(pair).max():
                raise ArgumentError(
                    f"router '{self.own.router.name}': the ranking of token {t} changes when it is alone ({self.n} made-up "
                    f"tokens, {self.e} experts): rank a token by its own scores, because generation has no others to "
                    "compare it with"
                )

    def _may_depend(self, t: np.ndarray, u: int) -> np.ndarray:
        """Whether tokens t may depend on token u, according to the declaration."""
        if self.own.depends_on == "past":
            return u < t
        return np.full(t.shape, self.own.depends_on == "all" or (self.own.depends_on == "in_training" and self.training))

    def _refuse(self, t: int, what: str) -> None:
        when = "in training" if self.training else "in evaluation"
        raise ArgumentError(
            f"router '{self.own.router.name}' declares depends_on {self.own.depends_on}, but the experts of token {t} {what} ({when}, "
            f"{self.n} made-up tokens, {self.e} experts): declare what it depends on, or fix it"
        )

    def run(self) -> None:
        if (self._ask(0, self.n, self.scores) != self.taken).any():
            raise ArgumentError(
                f"router '{self.own.router.name}' chooses otherwise when it is asked again with the same scores: what it does must "
                "be a function of its arguments, random numbers too"
            )
        step = 1 if self.n <= SMALL else self.n // CHANGES
        if self.own.router.has_ranking:
            self._rank_alone(step)
        if self.own.depends_on == "all":
            return
        token = np.arange(self.n)
        for u in range(0, self.n, step):
            changed = self.scores.copy()
            changed[u] = self._drawn(1)[0]
            differs = (self._ask(0, self.n, changed) != self.taken).any(1) & (token != u) & ~self._may_depend(token, u)
            if differs.any():
                self._refuse(int(np.argmax(differs)), f"change with the scores of token {u}")
        for t in range(0, self.n, 1 + self.n // 4):
            alone = not self._may_depend(np.array([t]), t - 1).any() and not self._may_depend(np.array([t]), t + 1).any()
            if alone and (self._ask(t, 1, self.scores)[0] != self.taken[t]).any():
                self._refuse(t, "are others when it is alone")
