"""Custom routers: functions on NumPy arrays that assign tokens to experts (docs/adding-a-router.md)."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import numbers
import os
import pathlib
import sys
import types
from typing import Any, Callable, Collection, Mapping, Optional, Tuple, Union

import numpy as np

from . import _library, _routers
from ._definition import DEPENDS_ON, router_of
from ._errors import ArgumentError, Error, FileError, FormatError, file_error
from ._plugin_router import PluginRouter

Function = Callable[..., np.ndarray]
Number = Union[float, Tuple[float, float, float], Tuple[float, float, float, str]]

MESSAGE_BYTES, MOST_OPTIONS = 256, 8  # the constants of choir/plugin.h
_BY_PLACE = ("scores", "valid", "capacity", "training")  # positional arguments of every function
# Keyword arguments, for functions that have a parameter of that name.
_BY_NAME = ("layer", "sequence_length", "seed", "first", "state", "choices")
_RESERVED = (*_BY_PLACE, *_BY_NAME, "chosen", "demand")  # names that options must not have
_KINDS = {  # types of a definition's arguments, and their names in messages
    **dict.fromkeys(("name", "summary", "version"), (str, "a text")),
    **dict.fromkeys(("normalize_gates", "choices_default", "experts_per_token_option", "draws"), ((bool, np.bool_, numbers.Integral), "True or False")),
    **dict.fromkeys(("capacity_factor", "aux_loss_weight"), (numbers.Real, "a number")),
    **dict.fromkeys(("choices", "experts_per_token"), (numbers.Integral, "a whole number")),
    "options": (Mapping, 'numbers by name, as {"share": 0.5}'),
}
_LOOKS = dict(zip(("nowhere", "in_training", "back", "around"), DEPENDS_ON))  # values of `looks`, up to 0.5
# By name: the definition in C, which keeps the objects that it points to (None without libchoir), and a Callback.
registered: dict[str, Any] = {}
definitions: list[PluginRouter] = []  # all so far: a layer keeps the one that it was created with
_earlier: list[Any] = []
_loading: list[set[str]] = []  # for each file being loaded: the names of its routers


def _code(function: Optional[Function]) -> Any:
    """The code object of a function or callable object; None: not written in Python."""
    return getattr(function, "__code__", getattr(type(function).__call__, "__code__", None))


def _wrong(function: Function, what: str) -> TypeError:
    """Reports an invalid return value, with the line at which the function begins."""
    code = _code(function)
    return TypeError(what + (f" ({pathlib.Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""))


def _shown(made: Any) -> str:
    return f"{made.dtype} of shape {made.shape}" if isinstance(made, np.ndarray) else type(made).__name__


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as second:  # noqa: BLE001 __str__ of a custom exception may raise anything
        return f"(a message that cannot be made: {type(second).__name__})"


def _where(error: BaseException, files: Collection[str]) -> str:
    """The exception in one line, with the last line of these files in its traceback."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        place = f" ({pathlib.Path(file).name}, line {trace.tb_lineno})" if file in files else place
        trace = trace.tb_next
    return f"{type(error).__name__}: {_message(error)}{place}"


def _parameters(function: Function) -> list[str]:
    try:
        return [name for name in _BY_NAME if name in inspect.signature(function).parameters]
    except ValueError:  # a function of C hides its parameters
        return []


class Callback:
    """A registered function, and how to call it."""

    def __init__(
        self,
        function: Function,
        options: list[str],
        observe: Optional[Function],
        loss: Optional[Function],
        ranking: Optional[Function],
    ):
        self.function, self.options, self.more = function, options, _parameters(function)
        self.observe, self.loss, self.ranking = observe, loss, ranking
        codes = [_code(one) for one in (function, observe, loss, ranking)]
        self.files = [code.co_filename for code in codes if code]
        self.file = self.files[0] if codes[0] else None

    def _named(self, call: Any) -> dict[str, float]:
        return {name: call.options[i] for i, name in enumerate(self.options)}

    def update_state(self, call: Any, demand: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The state after a step, [e] float64; raises what `observe` raises."""
        assert self.observe
        made = self.observe(state, demand, **self._named(call))
        if np.shape(made) != state.shape:
            raise _wrong(self.observe, f"observe gave {_shown(made)}: must be numbers of shape {state.shape}")
        return np.asarray(made, np.float64)

    def loss_and_gradient(
        self, call: Any, scores: np.ndarray, valid: np.ndarray, chosen: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The router's loss, [] float64, and its gradient [n,e] float32; raises what `loss` raises."""
        assert self.loss
        made = self.loss(scores, valid, chosen, **self._named(call))
        pair = made if isinstance(made, (tuple, list)) else (made,)
        if [np.shape(part) for part in pair] != [(), scores.shape]:
            shown = " and ".join(map(_shown, pair)) or "nothing"
            raise _wrong(self.loss, f"loss gave {shown}: must be a number, and its gradient of shape {scores.shape}")
        return np.asarray(pair[0], np.float64), np.asarray(pair[1], np.float32)

    def ranked(self, call: Any, scores: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """The plug-in's ranking, [n,e] float32; raises what `ranking` raises."""
        assert self.ranking
        shape = scores.shape  # before the function has the array
        made = self.ranking(scores, valid, **self._named(call))
        if np.shape(made) != shape or np.asarray(made).dtype.kind not in "iuf":
            raise _wrong(self.ranking, f"ranking gave {_shown(made)}: must be numbers of shape {shape}")
        with np.errstate(over="ignore"):
            return np.asarray(made, np.float32)

    def choice(self, call: Any, scores: np.ndarray, valid: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The assignment [n,e] bool; raises what the function raises. `call` has the fields of choir_plugin_call. The
        function owns the arrays from then on, and may modify them."""
        more = {name: state if name == "state" else getattr(call, name) for name in self.more}
        more.update(self._named(call))
        shape = scores.shape  # before the function has the array
        made = self.function(scores, valid, call.capacity, bool(call.training), **more)
        if not isinstance(made, np.ndarray) or made.dtype != np.bool_ or made.shape != shape:
            raise _wrong(self.function, f"it gave {_shown(made)}: must be bool of shape {shape}")
        return made

    def message(self, error: BaseException) -> bytes:
        """The message of an exception for C, as UTF-8: unpaired surrogates are escaped."""
        text = _where(error, self.files).encode(errors="backslashreplace")[: MESSAGE_BYTES - 1]
        return text.replace(b"\0", b"\\0").decode(errors="ignore").encode()[: MESSAGE_BYTES - 1]


def _c_functions(callback: Callback) -> dict[str, Callable[..., int]]:
    """The functions in the form that C calls, by the fields of choir_tokens_choose."""
    from . import _native as native

    ffi = native.ffi

    def choose(call, chosen):
        made = callback.choice(call, *_scores(call), _array(call.state, call.e, np.float64))
        ffi.memmove(chosen, made.tobytes(), made.nbytes)

    def observe(call, demand, state):
        moved = callback.update_state(call, _array(demand, call.e, np.int64), _array(state, call.e, np.float64))
        ffi.memmove(state, moved.tobytes(), moved.nbytes)

    def loss(call, chosen, value, gradient):
        marks = _array(chosen, call.n * call.e, np.bool_).reshape(call.n, call.e)
        for address, made in zip((value, gradient), callback.loss_and_gradient(call, *_scores(call), marks)):
            ffi.memmove(address, made.tobytes(), made.nbytes)

    def rank(call, ranking):
        made = callback.ranked(call, *_scores(call))
        ffi.memmove(ranking, made.tobytes(), made.nbytes)

    def guarded(function):
        def called(_, call, *given):
            try:
                function(call, *given)
                return 0
            except BaseException as error:  # noqa: BLE001 C gets the message, and ends the run
                native.causes.append(error)
                message = callback.message(error)
                ffi.memmove(call.message, message + b"\0", len(message) + 1)
                return 1

        return called

    made = {
        "choose": (choose, callback.function),
        "observe": (observe, callback.observe),
        "loss": (loss, callback.loss),
        "rank": (rank, callback.ranking),
    }
    return {field: guarded(function) for field, (function, given) in made.items() if given is not None}


def _text_version(*functions: Optional[Function]) -> Optional[str]:
    """A checksum of functions in a script or notebook, whose file changes for other reasons; None: their source is
    not available."""
    try:
        text = "".join(inspect.getsource(function) for function in functions if function)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return None


def _array(address: Any, count: int, kind: Any) -> np.ndarray:
    from ._native import ffi

    return np.frombuffer(ffi.buffer(address, np.dtype(kind).itemsize * count), kind).copy()


def _scores(call: Any) -> tuple[np.ndarray, np.ndarray]:
    return _array(call.scores, call.n * call.e, np.float32).reshape(call.n, call.e), _array(call.valid, call.n, np.bool_)


def _check_signature(name: str, whose: str, function: Any, given: tuple[str, ...], named: Collection[str]) -> None:
    if not callable(function):
        raise ArgumentError(f"router '{name}': {whose} is {function!r}: must be a function")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # a function of C hides its parameters
    names = list(signature.parameters)
    wrong = [one for one in names if one in given and given[names.index(one) : names.index(one) + 1] != (one,)]
    try:
        signature.bind(*given, **dict.fromkeys(named))
        if not wrong:
            return
        reason = f"{wrong[0]} is its parameter number {names.index(wrong[0]) + 1}"
    except TypeError as error:
        reason = str(error)
    lacking = [one for one in given if one not in names] if set(names) & set(given) else []
    if lacking:
        reason = f"it lacks {', '.join(lacking)}; {' and '.join((', '.join(given[:-1]), given[-1]))} are given by place, in this order"
    raise ArgumentError(f"router '{name}': {whose} must take ({', '.join((*given, *named))}): {reason}")


def _check_functions(name: str, function: Any, options: Collection[str], observe: Any, loss: Any, ranking: Any) -> None:
    by_name = _parameters(function) if callable(function) else ()
    _check_signature(name, "its function", function, _BY_PLACE, (*options, *by_name))
    if observe is not None:
        _check_signature(name, "observe", observe, ("state", "demand"), options)
    if loss is not None:
        _check_signature(name, "loss", loss, ("scores", "valid", "chosen"), options)
    if ranking is not None:
        _check_signature(name, "ranking", ranking, ("scores", "valid"), options)


def _check_kinds(given: Mapping[str, Any]) -> None:
    """Refuses arguments of the wrong type."""
    if callable(given["name"]):
        raise ArgumentError('the router has no name: write @choir.experts_choose("name") above its function')
    for field, (kind, wanted) in _KINDS.items():
        if given.get(field) is not None and not isinstance(given[field], kind):
            raise ArgumentError(f"router '{given['name']}': {field} is {given[field]!r}: must be {wanted}")


def _option(router: str, option: Any, value: Any) -> dict[str, Any]:
    """An option as a C struct."""
    if not isinstance(option, str):
        raise ArgumentError(f"router '{router}': the name of an option is {option!r}: must be a text")
    if option in _RESERVED:
        raise ArgumentError(f"router '{router}': option '{option}' is what the call gives by that name: take another name")
    parts = value if isinstance(value, tuple) else (value, 0.0, 0.0)
    kinds = (numbers.Real, numbers.Real, numbers.Real, str)[: max(3, len(parts))]
    if len(parts) != len(kinds) or not all(map(isinstance, parts, kinds)):
        raise ArgumentError(
            f"router '{router}': option '{option}' is {value!r}: must be a number, (default, lowest, highest) or (default, "
            'lowest, highest, "what it is")'
        )
    if parts[1] > parts[2]:
        raise ArgumentError(f"router '{router}': option '{option}' is at least {parts[1]} and at most {parts[2]}: no number is")
    return dict(zip(("name", "value", "low", "high", "help"), (option, *parts)))


def _note_load(name: str) -> None:
    """Refuses two routers with the same name in one file, because a run would use the later one."""
    if _loading and name in _loading[-1]:
        raise ArgumentError(f"router '{name}': the file has two of that name: rename one")
    if _loading:
        _loading[-1].add(name)


def experts_choose(
    name: str,
    *,
    depends_on: str = "all",
    capacity_factor: float = 2.0,
    options: Optional[Mapping[str, Number]] = None,
    ranking: Optional[Function] = None,
    loss: Optional[Function] = None,
    aux_loss_weight: float = 0.0,
    normalize_gates: bool = False,
    draws: bool = False,
    summary: str = "",
    version: Optional[str] = None,
) -> Callable[[Function], Function]:
    """A decorator that registers a function as a router whose experts select tokens. Wherever choir accepts a
    router, you can then use its name. A token may have any number of experts. docs/adding-a-router.md is a
    tutorial.

    For the n tokens of a batch and e experts, choir calls the function with these arguments:
        scores: [n,e] float32: softmax of the router's logits, or sigmoids (option score).
        valid: [n] bool; False: padding, which must not be assigned to any expert.
        capacity: the maximum number of tokens of one expert.
        training: True in training, else False.
        options: every option, by name.
        layer, sequence_length, seed, first, choices: only if the function has a parameter of that name. The index
            of the layer; tokens per sequence; the seed of random numbers; the first token's number in the run, so
            that random numbers of the token in row t are a function of seed, layer and first + t; the maximum
            number of experts per token (0: no limit).

    The function returns the assignment, [n,e] bool: True if the expert processes the token. The result must depend
    on the arguments only, because every process of a run calls the function. Gates, their gradients, thresholds for
    generation and checkpoints are choir's part.

    Args:
        name: the router's name, 1 to 31 letters, digits and _. Built-in routers' names are refused.
        depends_on: the other tokens that a token's experts depend on: "all" tokens of the batch (default), or
            "past", those before it in the batch. choir tests this on random scores, and refuses a router that
            depends on more.
        capacity_factor: the mean number of experts per token, above 0 (default 2.0); `capacity` is computed from
            it. This sets the default of the router's option.
        options: up to eight numeric options by name. Each is a default, (default, lowest, highest) or (default,
            lowest, highest, "description"). The bounds (0, 0) mean any number.
        ranking: a function, if experts do not rank tokens by their scores. ranking(scores, valid, **options)
            returns numbers [n,e], higher for tokens that an expert prefers. Thresholds are computed from the
            ranking and compared with it. The ranking of a token must be a function of its own scores.
        loss: a function, if the router adds to the training loss. loss(scores, valid, chosen, **options) returns
            the loss, a number, and its gradient [n,e] with respect to the scores, for a constant assignment
            `chosen` [n,e]. Training adds the loss times the option aux_loss_weight.
        aux_loss_weight: default of the option aux_loss_weight, the weight of `loss`.
        normalize_gates: default of the option normalize_gates, which scales the gates of a token to sum 1.
        draws: True: the function is random in training. Then the option consistency_weight can be used.
        summary: one line for lists of routers; "": the first line of the function's docstring.
        version: 1 to 31 letters, digits and any of ._-; checkpoints store it, and training resumes only with the
            same version. None: a checksum of the function's file, or of the function in a script or notebook.

    Returns a decorator that returns the function unchanged.

    Raises ArgumentError for a definition or a function's signature that is not as described here.

    Example:
        @choir.experts_choose("louder", options={"share": (0.5, 0, 1)})
        def louder(scores, valid, capacity, training, share):
            heard = np.where(valid[:, None], scores, 0)
            best = np.argsort(-heard, axis=0, kind="stable")[:capacity]                  # [capacity,e] tokens
            chosen = np.zeros_like(scores, dtype=bool)
            np.put_along_axis(chosen, best, True, axis=0)
            return chosen & (heard > share * heard.max(axis=0))

        layer = choir.torch.MoE(512, 2048, 16, "louder", share=0.7)"""
    _check_kinds(given := locals())
    if depends_on not in DEPENDS_ON[2:]:
        raise ArgumentError(
            f"router '{name}': depends_on is {depends_on!r}: must be past or all; @choir.tokens_choose is for routers of which each "
            "token chooses for itself"
        )
    return _registering(given)


def tokens_choose(
    name: str,
    experts_per_token: int,
    *,
    depends_on: str = "none",
    capacity_factor: float = 0.0,
    experts_per_token_option: bool = False,
    options: Optional[Mapping[str, Number]] = None,
    observe: Optional[Function] = None,
    ranking: Optional[Function] = None,
    loss: Optional[Function] = None,
    aux_loss_weight: float = 0.0,
    normalize_gates: bool = False,
    draws: bool = False,
    summary: str = "",
    version: Optional[str] = None,
) -> Callable[[Function], Function]:
    """A decorator that registers a function as a router whose tokens select experts. Wherever choir accepts a
    router, you can then use its name. docs/adding-a-router.md is a tutorial.

    For the n tokens of a batch and e experts, choir calls the function with these arguments:
        scores: [n,e] float32: softmax of the router's logits, or sigmoids (option score).
        valid: [n] bool; False: padding, which must not be assigned to any expert.
        capacity: the maximum number of tokens of one expert.
        training: True in training, else False.
        options: every option, by name.
        state: only if the function has this parameter: the state [e] float64 of `observe`.
        layer, sequence_length, seed, first, choices: only if the function has a parameter of that name. The index
            of the layer; tokens per sequence; the seed of random numbers; the first token's number in the run, so
            that random numbers of the token in row t are a function of seed, layer and first + t; the maximum
            number of experts per token (0: no limit).

    The function returns the assignment, [n,e] bool: True if the expert processes the token. The result must depend
    on the arguments only, because every process of a run calls the function. Gates, their gradients, the
    load-balancing loss and checkpoints are choir's part.

    Args:
        name: the router's name, 1 to 31 letters, digits and _. Built-in routers' names are refused.
        experts_per_token: K, the maximum number of experts per token; 0: no limit.
        depends_on: the other tokens that a token's experts depend on: "none" (default); "in_training": all tokens
            of the batch in training, none in evaluation; "past": the tokens before it in the batch; "all". choir
            tests this on random scores, and refuses a router that depends on more. With "past" and "all",
            generation uses thresholds.
        capacity_factor: capacity of an expert, as a multiple of an even share of all choices; 0 (default):
            unlimited. With K = 0, it is the mean number of experts per token, above 0 unless depends_on is "none".
            This sets the default of the router's option. A router that depends on no other token always has
            unlimited capacity.
        experts_per_token_option: True: the router has an option experts_per_token; K, above 0, is its default.
        options: up to eight numeric options by name. Each is a default, (default, lowest, highest) or (default,
            lowest, highest, "description"). The bounds (0, 0) mean any number.
        observe: a function that updates a state after each training step. observe(state, demand, **options) returns
            the next state, [e] float64. demand [e] int64 is the number of tokens of the step that each expert
            processed. The state begins at 0, and is saved with the model in single precision. Only for routers with
            K above 0 that depend on no other token in evaluation.
        ranking: a function, only for depends_on "past" and "all", as for choir.experts_choose.
        loss: a function, as for choir.experts_choose, in place of the load-balancing loss. With K = 0 there is no
            load-balancing loss.
        aux_loss_weight: default of the option aux_loss_weight, the weight of `loss` or of the load-balancing loss.
        normalize_gates: default of the option normalize_gates, which scales the gates of a token to sum 1.
        draws: True: the function is random in training. Then the option consistency_weight can be used.
        summary: one line for lists of routers; "": the first line of the function's docstring.
        version: 1 to 31 letters, digits and any of ._-; checkpoints store it, and training resumes only with the
            same version. None: a checksum of the function's file, or of the function in a script or notebook.

    Returns a decorator that returns the function unchanged.

    Raises ArgumentError for a definition or a function's signature that is not as described here.

    Example:
        @choir.tokens_choose("best_two", 2, aux_loss_weight=0.01)
        def best_two(scores, valid, capacity, training):
            best = np.argsort(-scores, axis=1, kind="stable")[:, :2]                     # [n,2] experts
            chosen = np.zeros_like(scores, dtype=bool)
            np.put_along_axis(chosen, best, True, axis=1)
            return chosen & valid[:, None]

        layer = choir.torch.MoE(512, 2048, 16, "best_two")"""
    _check_kinds(given := locals())
    if depends_on not in DEPENDS_ON:
        raise ArgumentError(f"router '{name}': depends_on is {depends_on!r}: must be one of {', '.join(DEPENDS_ON)}")
    return _registering(given)


def router(
    name: str,
    *,
    looks: str = "around",
    options: Optional[Mapping[str, Number]] = None,
    choices: int = 0,
    choices_default: bool = False,
    draws: bool = False,
    capacity_factor: Optional[float] = None,
    normalize_gates: bool = False,
    aux_loss_weight: float = 0.0,
    observe: Optional[Function] = None,
    loss: Optional[Function] = None,
    summary: str = "",
    version: Optional[str] = None,
) -> Callable[[Function], Function]:
    """The decorator of 0.4 and 0.5. Use choir.experts_choose or choir.tokens_choose in new code.

    It is choir.tokens_choose if `choices` or `observe` is given or `looks` is "nowhere" or "in_training", else
    choir.experts_choose.

    Args:
        looks: `depends_on`: "nowhere" (none), "in_training", "back" (past) or "around" (all).
        choices: `experts_per_token`.
        choices_default: `experts_per_token_option`.
        capacity_factor: as in the new decorators; None: 0 with `choices`, else 2.

    The other arguments are those of the new decorators. Raises ArgumentError as they do."""
    _check_kinds(given := locals())
    if looks not in _LOOKS:
        raise ArgumentError(f"router '{name}': looks is {looks!r}: must be one of {', '.join(_LOOKS)}")
    for old in ("looks", "choices", "choices_default"):
        del given[old]
    given.update(depends_on=_LOOKS[looks], capacity_factor=(0.0 if choices else 2.0) if capacity_factor is None else capacity_factor)
    if choices or observe is not None or looks in ("nowhere", "in_training"):
        given.update(experts_per_token=choices, experts_per_token_option=bool(choices and choices_default))
    return _registering(given)


def _registering(given: dict[str, Any]) -> Callable[[Function], Function]:
    """The decorator that registers a function. given: the arguments of experts_choose or tokens_choose."""
    name, version, summary = given["name"], given["version"], given["summary"]
    more = [given.get(one) for one in ("observe", "loss", "ranking")]
    own = [_option(name, option, value) for option, value in (given["options"] or {}).items()]
    if len(own) > MOST_OPTIONS:
        raise ArgumentError(f"router '{name}': {len(own)} options, and at most {MOST_OPTIONS} are possible")

    def register(function: Function) -> Function:
        names = [option["name"] for option in own]
        _check_functions(name, function, names, *more)
        _note_load(name)
        line = summary or (inspect.getdoc(function) or f"{getattr(function, '__name__', name)} of Python").split("\n")[0]
        fields = {**given, "summary": line}
        for one in ("options", "observe", "loss", "ranking"):
            fields.pop(one, None)
        callback = Callback(function, names, *more)
        if function.__module__ != "__main__" and callback.file and os.path.isfile(callback.file):
            fields.update(file=callback.file)  # without a version, the file's checksum is used
        else:
            fields.update(version=version or _text_version(function, *more))
        defined = router_of(fields, own, *more)
        made = _in_c(fields, own, callback) if _library.available() else None
        _earlier.append(registered.get(name))  # a model may still use it
        registered[name] = (made, callback)
        number, text = len(definitions), version or _text_version(function, *more)
        _routers.plugins[name] = dataclasses.replace(defined, number=number, version=text or f"number {number}")
        definitions.append(PluginRouter(_routers.plugins[name], callback, fields["depends_on"]))
        return function

    return register


def _in_c(fields: dict[str, Any], own: list[dict[str, Any]], callback: Callback) -> Any:
    """Registers the definition in libchoir. Returns the C struct, which must stay alive."""
    from . import _native as native

    ffi, kind = native.ffi, "tokens" if "experts_per_token" in fields else "experts"
    made = ffi.new(f"choir_{kind}_choose *")
    places = {field: made for field, _ in ffi.typeof(made).item.fields}
    places.update({field: made.common for field, _ in ffi.typeof(made.common).fields})
    fields = {**fields, "size": ffi.sizeof(f"choir_{kind}_choose"), "depends_on": DEPENDS_ON.index(fields["depends_on"])}
    for field, called in _c_functions(callback).items():
        fields[field] = ffi.callback(ffi.typeof(getattr(places[field], field)), called, error=1)
    try:
        for field, value in fields.items():
            native.fill(made, places[field], {field: value})
        for i, option in enumerate(own):
            native.fill(made, made.common.options[i], option)
    except OverflowError as error:
        raise ArgumentError(f"router '{fields['name']}': a number of its definition is too large: {error}") from None
    native.check(getattr(native.lib, f"choir_router_register_{kind}")(made))
    return made


def definition_of(name: str, number: int, version: str) -> PluginRouter:
    """The definition with which a layer was created, in this process or in the one that pickled it. ArgumentError:
    no definition of that version is loaded."""
    same = [own for own in definitions if (own.router.name, own.router.version) == (name, version)]
    if not same:
        raise ArgumentError(
            f"router '{name}': the layer was made with version {version}, which is not loaded here: load the plug-in with "
            "choir.load_plugin, or make the layer anew"
        )
    return next((own for own in same if own.router.number == number), same[-1])


def version_of(router: str) -> Optional[str]:
    """The version of a plug-in, as stored in checkpoints; None for built-in routers and for plug-ins without a
    version."""
    if not _library.available():
        return None
    from . import _native as native

    return native.string(native.lib.choir_router_version(native.text(router)))


def trained_version(weights: Union[str, pathlib.Path]) -> Optional[str]:
    """The version of a plug-in's router in model.safetensors of a checkpoint."""
    from . import _native as native

    ffi, lib = native.ffi, native.lib
    found = ffi.new("choir_tensors **")
    native.check(lib.choir_tensors_load(native.text(weights), 0, found))
    version = native.string(lib.choir_tensors_metadata(found[0], b"choir_router"))
    lib.choir_tensors_free(found[0])
    return version


def _module(path: str) -> types.ModuleType:
    """An empty module for a file, with a unique name in sys.modules."""
    where = os.path.abspath(path)
    made = types.ModuleType(f"choir_plugin_{hashlib.sha256(os.fsencode(where)).hexdigest()[:12]}")
    made.__file__ = where
    return made


def _execute(path: str, module: types.ModuleType) -> None:
    """Runs a file as a module. It may import files of its folder, which is last on the path, so that they hide no
    other module."""
    with open(path, "rb") as file:
        source = file.read()
    folder, before = os.path.dirname(module.__file__ or ""), sys.modules.get(module.__name__)
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[module.__name__]
        if before:
            sys.modules[module.__name__] = before
        raise
    with open(path, "rb") as file:
        if file.read() != source:  # the routers' version may be the checksum of the file
            raise FileError(f"plug-in {path}: changed while it was loaded: load it again")


def _run(path: str) -> None:
    """Runs a file; another exception becomes the cause of a choir.Error."""
    _loading.append(set())
    try:
        _execute(path, _module(path))
        if not _loading[-1]:
            raise FormatError(
                f"plug-in {path}: has no router: no function in it is decorated with @choir.experts_choose(...) or "
                "@choir.tokens_choose(...), or only in a module that was imported before"
            )
    except (Error, KeyboardInterrupt):
        raise
    except BaseException as error:  # including sys.exit, which would end the caller
        if isinstance(error, OSError) and error.filename == path:
            raise file_error(f"plug-in {path}", error) from None
        raise FormatError(f"plug-in {path}: {_where(error, [path])}") from error
    finally:
        _loading.pop()


def load_plugin(path: Union[str, pathlib.Path]) -> list[str]:
    """Registers the routers of a file, like the option --plugin of the program.

    Args:
        path: a Python file with functions that are decorated with @choir.experts_choose or @choir.tokens_choose, or
            a shared library (choir/plugin.h), which requires libchoir.

    Returns the names of the file's routers. For a shared library, without those that were already registered.

    Raises FileError for a file that cannot be read, ArgumentError for a definition that is refused, and FormatError
    for a file without a router and for any other exception of the file, including SystemExit, which is then its
    `__cause__`.

    Example:
        choir.load_plugin("louder.py")
        layer = choir.torch.MoE(512, 2048, 16, "louder")"""
    if not pathlib.Path(path).is_file() and pathlib.Path(path).exists():
        raise FileError(f"plug-in {path}: is not a file")  # opening a pipe would wait
    before, known = dict(registered), _routers.routers()
    if pathlib.Path(path).suffix == ".py":
        _run(os.fspath(path))
    else:
        _library.require(f"{path}, a plug-in in C,")
        from . import _native as native

        native.check(native.lib.choir_plugin_load(native.text(path)))
    return [name for name in _routers.routers() if name not in known or registered.get(name) is not before.get(name)]
