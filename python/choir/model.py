"""choir's models: load them, run them, compute gradients, evaluate, generate and score text."""

from __future__ import annotations

import copy
import dataclasses
import os
from typing import Any, Callable, Iterator, Optional, Sequence, Union

import numpy as np

from . import _native as native
from ._errors import renamed
from ._handle import Guard, Handle
from ._native import ffi, lib
from .config import Config, Path
from .tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Forward:
    """The result of a forward pass, with the routing of Model.routing."""

    loss: float
    """mean cross-entropy of the next token, in nats"""
    aux_loss: float
    """the load-balancing losses of all layers, weighted"""
    z_loss: float
    """the z-losses of all layers, weighted"""
    logits: Optional[np.ndarray]
    """[B,T,V] float32; None with logits=False"""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A held-out loss, and the routing with which it was computed."""

    loss: float
    """mean loss in nats per token"""
    perplexity: float
    bits_per_byte: float
    unigram_loss: float
    """loss of a unigram model, in nats per token"""
    gzip_bits_per_byte: float
    """bits per byte of gzip, if a whole text was evaluated; else NaN"""
    tokens: int
    """number of tokens that were evaluated"""
    bytes: int
    """number of bytes that were evaluated"""
    routing: str
    """the routing used: "batch", "threshold", ..."""
    looks_across_tokens: bool
    """True: the routing depends on other tokens of the batch, so the loss is not causal"""
    objective: str = "next_token"
    """kind of loss; "masked_diffusion": an upper bound; "masked_lm": over 15 % of the tokens (docs/diffusion.md)"""
    standard_error: float = 0.0
    """standard error of the loss from the sampling of masks; 0 for "next_token\""""


@dataclasses.dataclass(frozen=True)
class Text:
    """A generated text."""

    text: str
    tokens: np.ndarray
    """[count] int32, the new tokens, without the prompt"""
    prompt_tokens: int
    """number of tokens of the prompt"""
    end: str
    """why it ended: "length" (max_tokens), "eos" (end of text), "stop" (one of `stops`), "interrupted" (Ctrl-C)"""
    routing: str = ""
    """the routing used: the model's or, if that depends on other tokens, "threshold\""""


@dataclasses.dataclass(frozen=True)
class Scored:
    """The log-likelihood of a continuation."""

    log_likelihood: float
    """sum over the continuation's tokens, in nats; see `measure` for a model that is trained by masking"""
    greedy: Optional[bool]
    """whether every token of the continuation is the most probable one; None: the model is trained by masking"""
    tokens: np.ndarray
    """[count] int32, the continuation's tokens"""
    log_probability: np.ndarray
    """[count] float32, the log-probability of each token; for a bound, each token's contribution"""
    routing: str = ""
    """the routing used, as in Text"""
    measure: str = "log_likelihood"
    """kind of score; "log_likelihood_bound": an estimated lower bound (masked_diffusion); "pseudo_log_likelihood":
    masked_lm"""
    standard_error: float = 0.0
    """standard error of a bound, from the sampling of masks; else 0"""


def _prompt(owner, prompt, value: Union[str, Sequence[int]]) -> None:
    """Sets a choir_prompt in `owner` to a text or ids; an empty text is the start of a document."""
    if isinstance(value, str):
        raw = native.utf8(value)
        native.fill(owner, prompt, dict(text=ffi.from_buffer("char[]", raw or b"\0"), size=len(raw)))
    else:
        given = native.ids(value, -1)
        native.fill(owner, prompt, dict(tokens=native.pointer(given), count=len(given)))


def _has_tokenizer(path: Path) -> bool:
    """Whether a single checkpoint directory has a tokenizer; checkpoints of runs always have one."""
    found, given = ffi.new("char[4096]"), native.text(path)
    alone = lib.choir_checkpoint_find(given, found, len(found)) == 0 and ffi.string(found) == given
    return not alone or os.path.exists(os.path.join(path, "tokenizer.model"))


def _stream(stream: Callable[[int, str], Any], event: Any) -> None:
    if event.kind == lib.CHOIR_EVENT_TEXT:
        stream(event.text.sequence, ffi.buffer(event.text.text, event.text.size)[:].decode())


class Model(Handle):
    """A language model in memory. Model.load("run") loads one; Model(config, seed=1) has random weights.

    Args:
        config: a choir.Config with model.vocab_size above 0.
        seed: seed of the random weights.
        threads: number of threads; 0: all.
        compute: "fp32", "bf16" or "q8_0" (inference only: 8-bit weights); None: the config's.
        backend: "cpu", "reference" or, in a build with it, "cuda"; None: "cpu".
        emulate_bf16: True: emulate bf16 by fp32 if the CPU has no bf16 instructions.

    Raises ArgumentError for a config or an option that is refused, UnsupportedError for a backend or compute type
    that cannot run here, and OutOfMemoryError.

    Example:
        model = choir.Model.load("run")
        print(model.generate("Once upon a time")[0].text)"""

    _free = "choir_model_free"

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
        native.wanted(config, Config)
        self._run = dict(threads=threads, compute=compute, backend=backend, emulate_bf16=emulate_bf16)
        address, options = ffi.new("choir_model **"), native.options("choir_model_options", **self._run)
        native.check(lib.choir_model_create(config.address, seed, options, address))
        super().__init__(address[0])
        self.tokenizer: Optional[Tokenizer] = None
        """the tokenizer of the checkpoint; None: it has none"""

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
        """Loads a model.

        Args:
            path: a checkpoint directory, or a run directory, whose best checkpoint is loaded.
            tokenizer: False: do not load the checkpoint's tokenizer.
            threads, compute, backend, emulate_bf16: as for Model.
            unchecked: True: for inspection, accept weights that are not finite, and files that do not fit together.

        Raises FileError and FormatError for files that cannot be read, and what Model raises.

        Example: model = choir.Model.load("run", compute="q8_0")"""
        tokenizer = tokenizer and _has_tokenizer(path)
        run = dict(threads=threads, compute=compute, backend=backend, emulate_bf16=emulate_bf16)
        options = native.options("choir_model_options", unchecked=unchecked, **run)
        model, words = ffi.new("choir_model **"), ffi.new("choir_tokenizer **") if tokenizer else native.NULL
        native.check(lib.choir_model_load(native.text(path), options, model, words))
        made = cls._own(model[0])
        made._run = run
        made.tokenizer = Tokenizer._own(words[0]) if tokenizer else None
        return made

    def __reduce__(self):
        return _restored, (self.config, self._run, self.state(), self.routing, copy.copy(self.tokenizer))

    def __copy__(self) -> Model:
        """An independent copy with the same weights, routing and options. copy.deepcopy does the same."""
        made, arguments = self.__reduce__()
        return made(*arguments)

    def _words(self, tokenizer: Optional[Tokenizer] = None) -> Any:
        """The tokenizer to pass to C: `tokenizer`, else the model's, else NULL."""
        words = self.tokenizer if tokenizer is None else tokenizer
        return native.NULL if words is None else native.wanted(words, Tokenizer).address

    def __repr__(self) -> str:
        if self._address is None:
            return "Model(closed)"
        c = self.config
        moe = f", {c['experts']} experts by {c['router.name']}" if c["moe_every"] else ""
        return f"Model({c['layers']} layers, d {c['d_model']}{moe}, {c['vocab_size']} tokens)"

    def save(self, path: Path, tokenizer: Optional[Tokenizer] = None) -> None:
        """Writes a checkpoint directory atomically, with `tokenizer` or, if None, the model's."""
        with self.use() as address:
            native.check(lib.choir_model_save(address, self._words(tokenizer), native.text(path)))

    @property
    def config(self) -> Config:
        """A copy of the model's config."""
        return Config._of(lib.choir_config_copy, lib.choir_model_config(self.address))

    # ---- weights ----

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Returns the names and shapes of all weights, as in the checkpoint (docs/formats.md)."""
        return {name: shape for _, name, shape in self._parameters()}

    def _parameters(self) -> Iterator[tuple[int, str, tuple[int, ...]]]:
        for index in range(lib.choir_model_parameter_count(self.address)):
            p = ffi.new("choir_parameter *")
            native.check(lib.choir_model_parameter_at(self.address, index, p))
            yield index, native.string(p.name), tuple(p.shape[0 : p.dims])

    def _find(self, name: str) -> tuple[int, tuple[int, ...]]:
        for index, found, shape in self._parameters():
            if found == name:
                return index, shape
        raise KeyError(name)

    def get(self, name: str, *, gradient: bool = False) -> np.ndarray:
        """Returns a copy of a weight, float32, or of its gradient, after forward(..., gradients=True). KeyError: no
        such weight."""
        index, shape = self._find(name)
        values = np.empty(shape, np.float32)
        with self.use() as address:
            native.check(lib.choir_model_get_parameter(address, index, gradient, native.pointer(values)))
        return values

    def set(self, name: str, values) -> None:
        """Replaces the values of a weight. The shape must match. KeyError: no such weight."""
        index, shape = self._find(name)
        given = native.array(values, np.float32, *shape)
        with self.use() as address:
            native.check(lib.choir_model_set_parameter(address, index, native.pointer(given)))

    def state(self) -> dict[str, np.ndarray]:
        """Returns copies of all weights by name."""
        return {name: self.get(name) for name in self.parameters()}

    # ---- routing and passes ----

    @property
    def routing(self) -> str:
        """The routing of forward passes and evaluations: "batch" or another pool, whose tokens compete, or
        "threshold", which depends on no other token (docs/causality.md). You may set it; None: the config's.
        UnsupportedError: a routing that the model does not have, or thresholds that no training has set yet."""
        return native.string(lib.choir_model_routing(self.address))

    @routing.setter
    def routing(self, name: Optional[str]) -> None:
        with self.use() as address:
            native.check(lib.choir_model_set_routing(address, native.NULL if name is None else native.text(name)))

    @property
    def looks_across_tokens(self) -> bool:
        """Whether a token's experts depend on other tokens of the batch with the current routing."""
        return bool(lib.choir_model_looks_across_tokens(self.address))

    def forward(self, tokens, *, logits: bool = True, gradients: bool = False, assignment=None, taken=None) -> Forward:
        """Runs the model on tokens, with the current routing.

        Args:
            tokens: [B,T] integers, token ids.
            logits: False: do not return logits, which saves memory.
            gradients: True: also compute the gradients of loss + aux_loss + z_loss; read them with get(name,
                gradient=True). Not with routing "threshold".
            assignment: [MoE layers,B*T,e] bool or 0 and 1, a forced assignment in place of the routers'. None: the
                routers assign.
            taken: the name of `assignment` until version 0.5.

        Returns a `Forward`: loss, aux_loss, z_loss, logits.

        Raises ArgumentError for shapes and for tokens outside the vocabulary, UnsupportedError, and NumericError
        for a loss that is not finite.

        Example: loss = model.forward(ids[None], gradients=True).loss"""
        assignment = renamed("assignment", assignment, "taken", taken)
        given = native.ids(tokens, -1, -1)
        B, T = given.shape
        forced = None if assignment is None else self._routes(assignment, B * T)
        out = np.empty((B, T, self.config["vocab_size"]), np.float32) if logits else None
        result = ffi.new("choir_forward_result *")
        with self.use() as address:
            native.check(lib.choir_model_force_routing(address, B, T, native.pointer(forced)))
            try:
                native.check(
                    lib.choir_model_forward(
                        address, B, T, native.pointer(given), native.pointer(out), gradients, result
                    )
                )
            finally:
                lib.choir_model_force_routing(address, 0, 0, ffi.NULL)
        return Forward(**native.record(result), logits=out)

    def _routes(self, assignment, tokens: int) -> np.ndarray:
        with self.use() as address:
            wanted = lib.choir_model_moe_layer_count(address), tokens, self.config["model.experts"]
        marks = np.asarray(assignment)
        if marks.shape != wanted:
            raise native.ArgumentError(f"assignment has shape {marks.shape}; it must be {wanted}: MoE layers, tokens, experts")
        return np.ascontiguousarray(marks != 0, np.uint8)

    def evaluate(
        self,
        data: Optional[Path] = None,
        *,
        text: Optional[Path] = None,
        sequences: int = 0,
        progress: Optional[Callable[[int, int], Any]] = None,
    ) -> Evaluation:
        """Computes the loss on the held-out share of built data, or on a text file, with the current routing.

        Args:
            data: a built data directory.
            text: a UTF-8 text file, in place of `data`. It is encoded with the model's tokenizer.
            sequences: maximum number of sequences; 0: all.
            progress: called as progress(done, total), in sequences. It may raise an exception to stop.

        Returns an `Evaluation`: loss, bits_per_byte, routing, ...

        Example: print(model.evaluate("data").bits_per_byte)"""
        return self._evaluate(lib.choir_eval, progress, data=data, text=text, sequences=sequences)

    def calibrate(
        self,
        data: Optional[Path] = None,
        *,
        text: Optional[Path] = None,
        sequences: int = 0,
        capacity_factor: float = 0,
        progress: Optional[Callable[[int, int], Any]] = None,
    ) -> Evaluation:
        """Sets the model's thresholds to the mean cut-offs of evaluation batches. Use it to adapt generation to
        another kind of text or, with capacity_factor, to another mean number of experts per token.

        Args:
            data, text, sequences, progress: as for `evaluate`.
            capacity_factor: mean number of experts per token; it becomes the model's capacity factor in
                evaluations. 0: unchanged.

        Returns the `Evaluation` with the current routing.

        Raises UnsupportedError for a routing or a router without cut-offs."""
        return self._evaluate(
            lib.choir_calibrate,
            progress,
            data=data,
            text=text,
            sequences=sequences,
            capacity_factor=capacity_factor,
        )

    def _evaluate(self, call: Any, progress: Optional[Callable[[int, int], Any]], **fields: Any) -> Evaluation:
        options, r = native.options("choir_eval_options", **fields), ffi.new("choir_eval_result *")
        with self.use() as address, Guard() as guard:
            guard.on(options, "progress", lambda _, p: progress and p.total and progress(p.done, p.total))
            native.check(call(address, self._words(), options, r))
        found = {name: value for name, value in native.record(r).items() if name in Evaluation.__annotations__}
        lib.choir_eval_result_clear(r)
        return Evaluation(**{**found, "looks_across_tokens": bool(found["looks_across_tokens"])})

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
        """Generates continuations of prompts. If the model's routing depends on other tokens, generation uses
        threshold routing; Text.routing is the routing used. Ctrl-C stops between tokens.

        Args:
            prompts: a text, or a sequence of prompts, each a text or an array of token ids. An empty text begins a
                document.
            max_tokens: maximum number of new tokens.
            temperature: logits are divided by it; 0: always the most probable token.
            top_k: sample from the k most probable tokens only; 0: all.
            top_p: sample from the most probable tokens that together reach this probability only; 1: all.
            seed: seed of the samples.
            stops: a text, or texts, that end a sequence and are not part of the result.
            batch: sequences per pass. Results do not depend on it.
            stream: called as stream(number, text), with the number of the prompt, when new text has been generated.

        Returns a `Text` for each prompt, in their order.

        Raises ArgumentError for options and prompts that are refused, and UnsupportedError for a model that cannot
        generate, because it has no thresholds or because no training has set them.

        Example: print(model.generate("Once upon a time", max_tokens=64)[0].text)"""
        given = [prompts] if isinstance(prompts, str) else list(prompts)
        array = ffi.new("choir_prompt[]", max(len(given), 1))
        for i, prompt in enumerate(given):
            _prompt(array, array[i], prompt)
        options = native.options(
            "choir_generate_options",
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            batch=batch,
            stops=[native.utf8(stop) for stop in ([stops] if isinstance(stops, str) else stops)],
        )
        result = ffi.new("choir_generate_result *")
        with self.use() as address, Guard() as guard:
            guard.on(options, "progress", lambda *_: None)  # lets Ctrl-C stop the call
            if stream:
                guard.on(options, "event", lambda _, event: _stream(stream, event))
            native.check(lib.choir_generate(address, self._words(), array, len(given), options, result))
            try:
                return [
                    Text(
                        ffi.buffer(g.text, g.size)[:].decode() if g.size else "",
                        native.copied(g.tokens, g.count, np.int32),
                        g.prompt_count,
                        native.string(lib.choir_end_name(g.end)),
                        native.string(result.routing),
                    )
                    for g in result.sequences[0 : result.count]
                ]
            finally:
                lib.choir_generate_result_clear(result)

    def score(
        self,
        requests: Sequence[tuple[Any, Any]],
        *,
        batch: int = 16,
        mask_samples: int = 0,
        progress: Optional[Callable[[int, int], Any]] = None,
    ) -> list[Scored]:
        """Computes the log-likelihoods of continuations. The routing is the same as in `generate`, so a score
        depends only on the model and the request.

        Args:
            requests: pairs (context, continuation), each a text or an array of token ids. An empty context means
                the beginning of a document.
            batch: sequences per pass. Scores do not depend on it.
            mask_samples: for a model trained by masked_diffusion, whose scores are estimated lower bounds: the
                number of sets of masks per continuation; 0: 32. Must be 0 for other models.
            progress: called as progress(done, total), in requests. It may raise an exception to stop.

        Returns a `Scored` for each request, in their order.

        Raises ArgumentError for an empty continuation or tokens outside the vocabulary, and UnsupportedError as
        `generate`.

        Example: model.score([("The cat sat on the", " mat")])[0].log_likelihood"""
        array = ffi.new("choir_score_request[]", max(len(requests), 1))
        for i, (context, continuation) in enumerate(requests):
            _prompt(array, array[i].context, context)
            _prompt(array, array[i].continuation, continuation)
        options = native.options("choir_score_options", batch=batch, mask_samples=mask_samples)
        result = ffi.new("choir_score_result *")
        with self.use() as address, Guard() as guard:
            guard.on(options, "progress", lambda _, p: progress and progress(p.done, p.total))
            native.check(lib.choir_score(address, self._words(), array, len(requests), options, result))
            try:
                return [
                    Scored(
                        s.log_likelihood,
                        None if s.greedy < 0 else bool(s.greedy),
                        native.copied(s.tokens, s.count, np.int32),
                        native.copied(s.log_probability, s.count, np.float32),
                        native.string(result.routing),
                        native.string(result.measure),
                        s.standard_error,
                    )
                    for s in result.score[0 : result.count]
                ]
            finally:
                lib.choir_score_result_clear(result)

    def session(self, slots: int = 1, length: int = 1024, chunk: int = 512) -> Session:
        """Returns a `Session`: sequences with caches, which return logits, so that you choose the next token.

        Args:
            slots: number of sequences.
            length: maximum number of tokens of a sequence.
            chunk: tokens per pass; longer calls are split."""
        return Session(self, slots, length, chunk)


class Session(Handle):
    """`slots` sequences of a model, each with a cache of the keys and values of its tokens so far. The logits of a
    sequence do not depend on how its tokens are divided into calls, or on the other sequences. `Model.session`
    creates one.

    Raises UnsupportedError for a model that cannot generate, as Model.generate.

    Example:
        session = model.session()
        logits = session.advance(model.tokenizer.encode("Once upon a time"))             # [1,V]
        logits = session.advance([int(logits[0].argmax())])"""

    _free = "choir_session_free"

    def __init__(self, model: Model, slots: int = 1, length: int = 1024, chunk: int = 512):
        native.wanted(model, Model)
        options = native.options("choir_session_options", slots=slots, length=length, chunk=chunk)
        address = ffi.new("choir_session **")
        with model.use() as used:
            native.check(lib.choir_session_create(used, options, address))
            super().__init__(address[0], used)
        self._slots, self._vocab = slots, model.config["vocab_size"]

    def advance(self, tokens, *, every: bool = False) -> np.ndarray:
        """Appends tokens to the sequences, and returns logits.

        Args:
            tokens: [count] token ids, for a session with one slot; or a sequence of `slots` such arrays, which may
                be empty, but not all.
            every: True: return the logits after every new token.

        Returns the logits after the last new token of each slot, [slots,V] float32, NaN for a slot without new
        tokens. With `every`, the logits after every new token, [sum of counts,V], slot by slot.

        Raises ArgumentError, with nothing changed, for a token outside the vocabulary, and for a sequence that
        would become longer than the session's `length`."""
        given = [tokens] if self._slots == 1 and (not len(tokens) or np.ndim(tokens[0]) == 0) else list(tokens)
        if len(given) != self._slots:
            raise native.ArgumentError(f"tokens for {len(given)} slots; the session has {self._slots}")
        parts = [native.ids(part, -1) for part in given]
        counts = ffi.new("int[]", [len(part) for part in parts])
        joined = native.array(np.concatenate(parts), np.int32)
        if not len(joined):
            raise native.ArgumentError("no slot gets a token, so there are no logits behind one: give at least one token")
        last = np.full((self._slots, self._vocab), np.nan, np.float32)
        behind = np.empty((len(joined), self._vocab), np.float32) if every else None
        with self.use() as address:
            native.check(
                lib.choir_session_advance(
                    address,
                    counts,
                    native.pointer(joined),
                    native.pointer(last),
                    native.pointer(behind),
                )
            )
        return last if behind is None else behind

    def rewind(self, length: int = 0, slot: int = 0) -> None:
        """Removes the tokens after the first `length` tokens of a slot; 0: begins a new sequence."""
        with self.use() as address:
            native.check(lib.choir_session_rewind(address, slot, length))

    def length(self, slot: int = 0) -> int:
        """Returns the number of tokens in a slot."""
        return lib.choir_session_length(self.address, slot)

    def __repr__(self) -> str:
        return "Session(closed)" if self._address is None else f"Session({self._slots} slots)"


def _restored(config, run, state, routing, tokenizer) -> Model:
    made = Model(config, **run)
    for name, values in state.items():
        made.set(name, values)
    made.routing, made.tokenizer = routing, tokenizer
    return made
