"""Models: load, run, differentiate, evaluate, write, train."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterator, Optional, Sequence, Union

import numpy as np

from . import _native as native
from ._native import c, lib
from .config import Config, Path
from .tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Forward:
    """What a pass gives. loss is the mean cross-entropy in nats of a position predicting the next, and aux_loss what
    routers add to it; of which routing they are, Model.routing says."""

    loss: float
    aux_loss: float
    logits: Optional[np.ndarray]
    """[B,T,V] float32, or None where they were not asked for"""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A held-out loss, and which routing gave it."""

    loss: float
    perplexity: float
    bits_per_byte: float
    unigram_loss: float
    tokens: int
    bytes: int
    routing: str
    looks_across_tokens: bool
    """the loss is not that of causal use"""


@dataclasses.dataclass(frozen=True)
class Text:
    """A text that a model wrote."""

    text: str
    tokens: np.ndarray
    """[count] int32, the new ones"""
    prompt_tokens: int
    end: str
    """why it ended: length, eos, stop, interrupted"""


@dataclasses.dataclass(frozen=True)
class Scored:
    """How likely a continuation is."""

    log_likelihood: float
    greedy: bool
    """each of its tokens is the likeliest one"""
    tokens: np.ndarray
    """[count] int32"""
    log_probability: np.ndarray
    """[count] float32, of each"""


def _run_options(threads, compute, backend, emulate_bf16, unchecked):
    options = native.RunOptions()
    lib.choir_run_options_default(c.byref(options))
    options.threads, options.compute, options.unchecked = threads, native.optional(compute), unchecked
    options.emulate_bf16 = emulate_bf16
    if backend is not None:
        options.backend = native.text(backend)
    return options


def _prompt(value: Union[str, Sequence[int]], keep: list) -> Any:
    if isinstance(value, str):
        raw = value.encode()
        keep.append(raw)
        return native.Prompt(text=raw, size=len(raw)) if raw else native.Prompt()
    given = native.ids(value, -1)
    keep.append(given)
    return native.Prompt(tokens=native.pointer(given), count=len(given))


class Model(native.Handle):
    """A model in memory: Model.load("run"), or a fresh one, Model(config, seed=1).

    threads: 0 for all. compute: "fp32", "bf16", or None for the config's."""

    _free = lib.choir_model_free

    def __init__(
        self,
        config: Config,
        seed: int = 0,
        *,
        threads: int = 0,
        compute: Optional[str] = None,
        backend: Optional[str] = None,
        emulate_bf16: bool = False,
    ):
        super().__init__(None)
        address, options = c.c_void_p(), _run_options(threads, compute, backend, emulate_bf16, 0)
        native.check(lib.choir_model_init(c.byref(config.struct), seed, c.byref(options), c.byref(address)))
        self._address = address.value
        self.tokenizer: Optional[Tokenizer] = None
        """the checkpoint's; None where there is none"""

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        tokenizer: bool = True,
        threads: int = 0,
        compute: Optional[str] = None,
        backend: Optional[str] = None,
        emulate_bf16: bool = False,
        unchecked: bool = False,
    ) -> Model:
        """Loads a checkpoint, or the newest good one of a run, with its tokenizer unless `tokenizer` is False."""
        options = _run_options(threads, compute, backend, emulate_bf16, unchecked)
        model, words = c.c_void_p(), c.c_void_p()
        native.check(
            lib.choir_checkpoint_load(
                native.text(path), c.byref(options), c.byref(model), c.byref(words) if tokenizer else None
            )
        )
        made = cls.__new__(cls)
        native.Handle.__init__(made, model.value)
        made.tokenizer = Tokenizer._own(words.value) if tokenizer else None
        return made

    def save(self, path: Path, tokenizer: Optional[Tokenizer] = None) -> None:
        """Writes a checkpoint directory, with `tokenizer` or the model's own. Never half of one."""
        words = tokenizer or self.tokenizer
        native.check(lib.choir_model_save(self.address, words.address if words else None, native.text(path)))

    @property
    def config(self) -> Config:
        """A copy of the model's config."""
        return Config._copy(lib.choir_model_config_of(self.address).contents)

    # ---- weights ----

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes, as in the checkpoint; docs/formats.md lists them."""
        return {name: shape for _, name, shape in self._parameters()}

    def _parameters(self) -> Iterator[tuple[int, str, tuple[int, ...]]]:
        for index in range(lib.choir_model_parameter_count(self.address)):
            p = native.Parameter()
            native.check(lib.choir_model_parameter(self.address, index, c.byref(p)))
            yield index, p.name.decode(), tuple(p.shape[: p.dims])

    def _find(self, name: str) -> tuple[int, tuple[int, ...]]:
        for index, found, shape in self._parameters():
            if found == name:
                return index, shape
        raise KeyError(name)

    def get(self, name: str, *, gradient: bool = False) -> np.ndarray:
        """A copy of a weight, or of its gradient (after forward(..., gradients=True))."""
        index, shape = self._find(name)
        values = np.empty(shape, np.float32)
        native.check(lib.choir_model_get_parameter(self.address, index, gradient, native.pointer(values)))
        return values

    def set(self, name: str, values) -> None:
        """New values for a weight, of its shape."""
        index, shape = self._find(name)
        native.check(
            lib.choir_model_set_parameter(
                self.address, index, native.pointer(native.array(values, np.float32, *shape))
            )
        )

    def state(self) -> dict[str, np.ndarray]:
        """Copies of all weights by name."""
        return {name: self.get(name) for name in self.parameters()}

    # ---- routing and passes ----

    @property
    def routing(self) -> str:
        """What passes route by: "batch" or another pool, in which tokens compete, or "threshold", which looks at no other
        token (docs/causality.md). UnsupportedError: thresholds that no training has set."""
        return lib.choir_model_routing(self.address).decode()

    @routing.setter
    def routing(self, name: Optional[str]) -> None:
        native.check(lib.choir_model_set_routing(self.address, native.optional(name)))

    @property
    def looks_across_tokens(self) -> bool:
        return bool(lib.choir_model_looks_across_tokens(self.address))

    def forward(self, tokens, *, logits: bool = True, gradients: bool = False) -> Forward:
        """One pass over tokens [B,T] with the present routing. gradients: of loss + aux_loss, read by get(...)."""
        given = native.ids(tokens, -1, -1)
        B, T = given.shape
        out = np.empty((B, T, self.config.struct.model.vocab_size), np.float32) if logits else None
        result = native.ForwardResult()
        native.check(
            lib.choir_model_forward(
                self.address, B, T, native.pointer(given), native.pointer(out), gradients, c.byref(result)
            )
        )
        return Forward(result.loss, result.aux_loss, out)

    def evaluate(
        self,
        data: Optional[Path] = None,
        *,
        text: Optional[Path] = None,
        sequences: int = 0,
        progress: Optional[Callable[[int, int], Any]] = None,
    ) -> Evaluation:
        """The loss on the held-out share of built data, or on a text file, with the present routing. progress(done, total)
        may raise to stop."""
        with native.Guard() as guard:

            @native.ProgressCallback
            def told(_, done, total):
                return guard.call(lambda: (progress(done, total) if progress and total else None) and 0 or 0)

            options = native.EvalOptions(
                data=native.optional(data), text=native.optional(text), sequences=sequences, progress=told
            )
            r = native.EvalResult()
            words = self.tokenizer.address if self.tokenizer else None
            native.check(lib.choir_eval(self.address, words, c.byref(options), c.byref(r)))
        return Evaluation(
            r.loss,
            r.perplexity,
            r.bits_per_byte,
            r.unigram_loss,
            r.tokens,
            r.bytes,
            r.routing.decode(),
            bool(r.looks_across_tokens),
        )

    # ---- text ----

    def generate(
        self,
        prompts: Union[str, Sequence[Any]],
        *,
        max_tokens: int = 256,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 0.95,
        seed: int = 0,
        stops: Union[str, Sequence[str]] = (),
        batch: int = 8,
        stream: Optional[Callable[[int, str], Any]] = None,
    ) -> list[Text]:
        """Continues prompts (a text, or a sequence of prompts: texts or arrays of ids) and returns a Text for each. The routing must
        not look at other tokens: set model.routing = "threshold" first. stream(number, text) hears new text as it comes.
        Ctrl-C stops between tokens."""
        given = [prompts] if isinstance(prompts, str) else list(prompts)
        keep: list = []
        array = (native.Prompt * max(len(given), 1))(*(_prompt(p, keep) for p in given))
        options, result = native.GenerateOptions(), native.GenerateResult()
        lib.choir_generate_options_default(c.byref(options))
        options.max_tokens, options.temperature, options.top_k, options.top_p = (
            max_tokens,
            temperature,
            top_k,
            top_p,
        )
        options.seed, options.batch = seed, batch
        ends = [stops] if isinstance(stops, str) else list(stops)
        ends = (c.c_char_p * (len(ends) + 1))(*(stop.encode() for stop in ends), None)
        options.stops = c.cast(ends, c.POINTER(c.c_char_p))
        words = self.tokenizer.address if self.tokenizer else None
        with native.Guard() as guard:
            options.stop = native.StopCallback(lambda _: guard.call(lambda: 0))  # where Ctrl-C is heard
            if stream:
                options.text = native.TextCallback(
                    lambda _, number, at, size: guard.call(
                        lambda: (stream(number, c.string_at(at, size).decode()), 0)[1]
                    )
                )
            native.check(
                lib.choir_generate(self.address, words, array, len(given), c.byref(options), c.byref(result))
            )
            try:
                texts = [self._text(result.sequences[i]) for i in range(result.count)]
            finally:
                lib.choir_generate_free(c.byref(result))
        return texts

    @staticmethod
    def _text(g) -> Text:
        return Text(
            c.string_at(g.text, g.size).decode(),
            native.copied(g.tokens, g.count, np.int32),
            g.prompt_count,
            lib.choir_end_name(g.end).decode(),
        )

    def score(
        self,
        requests: Sequence[tuple[Any, Any]],
        *,
        batch: int = 16,
        progress: Optional[Callable[[int, int], Any]] = None,
    ) -> list[Scored]:
        """Log-likelihoods of continuations: requests are (context, continuation), texts or token ids each. The routing must
        not look at other tokens; then a score depends on model and request alone."""
        keep: list = []
        array = (native.ScoreRequest * max(len(requests), 1))(
            *(native.ScoreRequest(context=_prompt(a, keep), continuation=_prompt(b, keep)) for a, b in requests)
        )
        options, result = native.ScoreOptions(), native.ScoreResult()
        lib.choir_score_options_default(c.byref(options))
        options.batch = batch
        words = self.tokenizer.address if self.tokenizer else None
        with native.Guard() as guard:
            options.progress = native.ProgressCallback(
                lambda _, done, total: guard.call(lambda: (progress(done, total) if progress else None, 0)[1])
            )
            native.check(
                lib.choir_score_requests(
                    self.address, words, array, len(requests), c.byref(options), c.byref(result)
                )
            )
            try:
                found = [result.score[i] for i in range(result.count)]
                return [
                    Scored(
                        s.log_likelihood,
                        bool(s.greedy),
                        native.copied(s.tokens, s.count, np.int32),
                        native.copied(s.log_probability, s.count, np.float32),
                    )
                    for s in found
                ]
            finally:
                lib.choir_score_free(c.byref(result))

    def session(self, slots: int = 1, length: int = 1024, chunk: int = 512) -> Session:
        """Sequences with caches, for who chooses tokens by other rules."""
        return Session(self, slots, length, chunk)


class Session(native.Handle):
    """`slots` sequences, each with the keys and values of its tokens so far; a sequence's logits do not depend on how its
    tokens were cut into calls, nor on the other sequences."""

    _free = lib.choir_session_free

    def __init__(self, model: Model, slots: int = 1, length: int = 1024, chunk: int = 512):
        super().__init__(None, model)
        options, address = native.SessionOptions(slots=slots, length=length, chunk=chunk), c.c_void_p()
        native.check(lib.choir_session_create(model.address, c.byref(options), c.byref(address)))
        self._address, self._model, self._slots = address.value, model, slots
        self._vocab = model.config.struct.model.vocab_size

    def advance(self, tokens, *, every: bool = False) -> np.ndarray:
        """Appends tokens: [count] ids for a session of one slot, or a sequence of `slots` such arrays, perhaps empty ones.
        Returns the logits behind the last new token of each slot, [slots,V] float32, NaN where a slot got none; with `every`
        those behind every new token, [sum of counts,V]."""
        given = [tokens] if self._slots == 1 and (not len(tokens) or np.ndim(tokens[0]) == 0) else list(tokens)
        if len(given) != self._slots:
            raise native.ArgumentError(f"tokens for {len(given)} slots; the session has {self._slots}")
        parts = [native.ids(part, -1) for part in given]
        counts = np.array([len(part) for part in parts], np.int32)
        joined = native.array(np.concatenate(parts), np.int32)
        last = np.full((self._slots, self._vocab), np.nan, np.float32)
        behind = np.empty((len(joined), self._vocab), np.float32) if every else None
        native.check(
            lib.choir_session_advance(
                self.address,
                native.pointer(counts),
                native.pointer(joined),
                native.pointer(last),
                native.pointer(behind),
            )
        )
        return last if behind is None else behind

    def rewind(self, length: int = 0, slot: int = 0) -> None:
        """Forgets what follows the first `length` tokens of a slot."""
        native.check(lib.choir_session_rewind(self.address, slot, length))

    def length(self, slot: int = 0) -> int:
        """Tokens of a slot so far."""
        return lib.choir_session_length(self.address, slot)

    def close(self):
        super().close()
        self._model = None
