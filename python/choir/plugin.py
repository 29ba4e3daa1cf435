"""A router of your own: a function on NumPy arrays that says who takes whom (docs/adding-a-router.md)."""

from __future__ import annotations

import hashlib
import inspect
import os
import pathlib
import runpy
from typing import Any, Callable, Mapping, Optional, Tuple, Union

import numpy as np

from . import _native as native
from . import routing
from ._native import ArgumentError, FileError, ffi, lib

Function = Callable[..., np.ndarray]
Number = Union[float, Tuple[float, float, float], Tuple[float, float, float, str]]

LOOKS = ("nowhere", "in_training", "back", "around")
_GIVEN = ("scores", "valid", "capacity", "training")  # to every function, by place
_ASKED = ("layer", "sequence_length", "seed", "first", "state", "choices")  # to one that has a parameter of that name
registered: dict[str, Any] = {}  # by name: the definition in C, which holds pointers to the rest, and an Asked
_earlier: list[Any] = []


def _marks(chosen: Any, n: int, e: int) -> np.ndarray:
    """What the function gave, which must be a whole choice: [n,e] bool."""
    if not isinstance(chosen, np.ndarray) or chosen.dtype != np.bool_ or chosen.shape != (n, e):
        what = f"{chosen.dtype} of shape {chosen.shape}" if isinstance(chosen, np.ndarray) else type(chosen).__name__
        raise TypeError(f"it gave {what}: must be bool of shape ({n}, {e})")
    return chosen


def _where(error: BaseException, file: Optional[str]) -> str:
    """The exception in a line, with the last line of the function's file that it went through."""
    trace, line = error.__traceback__, None
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == file else line
        trace = trace.tb_next
    place = f" ({pathlib.Path(file).name}, line {line})" if file and line else ""
    return f"{type(error).__name__}: {error}{place}"


def _asked(function: Function) -> list[str]:
    return [name for name in _ASKED if name in inspect.signature(function).parameters]


class Asked:
    """A registered function, and how to ask it."""

    def __init__(self, function: Function, options: list[str], observe: Optional[Function], loss: Optional[Function]):
        self.function, self.options, self.more, self.observe, self.loss = function, options, _asked(function), observe, loss
        self.file = getattr(getattr(function, "__code__", None), "co_filename", None)

    def _named(self, call: Any) -> dict[str, float]:
        return {name: call.options[i] for i, name in enumerate(self.options)}

    def moved(self, call: Any, demand: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The state after a step, [e] float64, or what `observe` raises."""
        assert self.observe
        made = np.asarray(self.observe(state, demand, **self._named(call)), np.float64)
        if made.shape != state.shape:
            raise TypeError(f"observe gave an array of shape {made.shape}: must be {state.shape}")
        return made

    def lost(self, call: Any, scores: np.ndarray, valid: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the router adds to the loss, [] float64, and its gradient [n,e] float32, or what `loss` raises."""
        assert self.loss
        value, gradient = self.loss(scores, valid, chosen, **self._named(call))
        made = np.asarray(value, np.float64), np.asarray(gradient, np.float32)
        if made[0].shape != () or made[1].shape != scores.shape:
            shapes = " and ".join(str(array.shape) for array in made)
            raise TypeError(f"loss gave arrays of shape {shapes}: must be (), a number, and {scores.shape}, its gradient")
        return made

    def choice(self, call: Any, scores: np.ndarray, valid: np.ndarray, state: np.ndarray) -> np.ndarray:
        """[n,e] bool, or what the function raises; `call` has the fields of choir_plugin_call. The arrays become the
        function's own."""
        more = {name: state if name == "state" else getattr(call, name) for name in self.more}
        more.update(self._named(call))
        return _marks(self.function(scores, valid, call.capacity, bool(call.training), **more), *scores.shape)

    def told(self, error: BaseException) -> bytes:
        """What C says of an exception."""
        return _where(error, self.file).encode()[: lib.CHOIR_PLUGIN_MESSAGE_BYTES - 1]


def _callbacks(asked: Asked) -> dict[str, Callable[..., int]]:
    """The functions as C calls them, by the fields of choir_plugin_router."""

    def choose(call, chosen):
        made = asked.choice(call, *_scores(call), _array(call.state, call.e, np.float64))
        ffi.memmove(chosen, made.tobytes(), made.nbytes)

    def observe(call, demand, state):
        moved = asked.moved(call, _array(demand, call.e, np.int64), _array(state, call.e, np.float64))
        ffi.memmove(state, moved.tobytes(), moved.nbytes)

    def loss(call, chosen, value, gradient):
        marks = _array(chosen, call.n * call.e, np.bool_).reshape(call.n, call.e)
        for address, made in zip((value, gradient), asked.lost(call, *_scores(call), marks)):
            ffi.memmove(address, made.tobytes(), made.nbytes)

    def guarded(function):
        def called(_, call, *given):
            try:
                function(call, *given)
                return 0
            except BaseException as error:  # noqa: BLE001 C gets the message, and ends what it does
                native.causes.append(error)
                told = asked.told(error)
                ffi.memmove(call.message, told + b"\0", len(told) + 1)
                return 1

        return called

    made = {"choose": choose, **({"observe": observe} if asked.observe else {}), **({"loss": loss} if asked.loss else {})}
    return {field: guarded(function) for field, function in made.items()}


def _text_version(*functions: Optional[Function]) -> Optional[str]:
    """A checksum of functions of a script or notebook, whose file changes for other reasons; None: nobody has their text."""
    try:
        text = "".join(inspect.getsource(function) for function in functions if function)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return None


def _array(address: Any, count: int, kind: Any) -> np.ndarray:
    return np.frombuffer(ffi.buffer(address, np.dtype(kind).itemsize * count), kind).copy()


def _scores(call: Any) -> tuple[np.ndarray, np.ndarray]:
    return _array(call.scores, call.n * call.e, np.float32).reshape(call.n, call.e), _array(call.valid, call.n, np.bool_)


def _check_signature(name: str, function: Function, options: Mapping[str, Number]) -> None:
    try:
        inspect.signature(function).bind(*_GIVEN, **dict.fromkeys((*options, *_asked(function))))
    except TypeError as error:
        wanted = ", ".join((*_GIVEN, *options))
        raise ArgumentError(f"router '{name}': its function must take ({wanted}): {error}") from None


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
    """Makes the function below it a router, known by its name to everything in choir that takes one.

        @choir.router("louder", looks="around", options={"share": 0.5})
        def louder(scores, valid, capacity, training, share):
            return chosen

    The function gets scores [n,e] float32, valid [n] bool (padding is False, and nobody may take it), the number of
    tokens that one expert may take, whether this is training, and its options by name; `layer`, `sequence_length`,
    `seed`, `first` (the number of its first token in the run) and `choices` too where it has parameters of these names.
    It gives [n,e] bool: who takes whom, a function of its arguments alone, since every process of a run makes the choice.

    looks: which other tokens a token's experts depend on: "nowhere", "in_training" (on all, elsewhere on none), "back"
        (those before it in the batch), "around" (all). It is measured.
    options: numbers by name, each a default or (default, lowest, highest) or (default, lowest, highest, "what it is").
    choices: experts that each token takes at most; 0: experts choose.
    choices_default: the option experts_per_token says how many, and `choices` is its default.
    draws: training draws, by seed and first.
    capacity_factor: what capacity comes from: of experts that choose, the mean experts a token (2); else of an expert's
        even share of all choices, 0 (the default) being room for all.
    observe: observe(state, demand, **options), called after each step of training, gives a state [e] float64 that
        starts at 0 and is kept with the model in single precision; demand [e] int64: tokens of the step that each
        expert took; the function gets it by a parameter `state`.
    loss: loss(scores, valid, chosen, **options) gives what the loss has times the option aux_loss_weight, in the place of
        the load-balancing loss: a number, and its gradient [n,e] by the scores, `chosen` being constant.
    normalize_gates, aux_loss_weight: defaults of the router's options.
    version: what checkpoints keep, and training goes on with no other; without it a checksum of the function's file, or
        in a script or notebook of the function.

    Raises ArgumentError."""
    if looks not in LOOKS:
        raise ArgumentError(f"router '{name}': looks is {looks!r}: must be one of {', '.join(LOOKS)}")

    def register(function: Function) -> Function:
        own = dict(options or {})
        _check_signature(name, function, own)
        if len(own) > lib.CHOIR_PLUGIN_OPTIONS:
            raise ArgumentError(f"router '{name}': {len(own)} options, and at most {lib.CHOIR_PLUGIN_OPTIONS} are possible")
        made = ffi.new("choir_plugin_router *")
        kinds = {field: kind.type for field, kind in ffi.typeof("choir_plugin_router").fields}
        told = summary or (inspect.getdoc(function) or f"{function.__name__} of Python").split("\n")[0]
        factor = (0.0 if choices else 2.0) if capacity_factor is None else capacity_factor
        fields = dict(name=name, summary=told, looks=LOOKS.index(looks), choices=choices, capacity_factor=factor)
        fields.update(normalize_gates=normalize_gates, aux_loss_weight=aux_loss_weight)
        fields.update(choices_default=choices_default, draws=draws)
        asked = Asked(function, list(own), observe, loss)
        if function.__module__ != "__main__" and asked.file and os.path.isfile(asked.file):
            fields.update(file=asked.file, version=version)  # without a version the file's checksum is taken
        else:
            fields.update(version=version or _text_version(function, observe, loss))
        for field, called in _callbacks(asked).items():
            fields[field] = ffi.callback(kinds[field], called, error=1)
        native.fill(made, made, fields)
        for i, (option, value) in enumerate(own.items()):
            numbers = value if isinstance(value, tuple) else (value, 0.0, 0.0)
            native.fill(made, made.options[i], dict(zip(("name", "value", "low", "high", "help"), (option, *numbers))))
        native.check(lib.choir_router_register(made))
        _earlier.append(registered.get(name))  # with which a model may still run
        registered[name] = (made, asked)
        return function

    return register


def version_of(router: str) -> Optional[str]:
    """The version of a plug-in, which checkpoints keep; None for choir's own routers and for plug-ins without one."""
    return native.string(lib.choir_router_version(native.text(router)))


def load_plugin(path: Union[str, pathlib.Path]) -> list[str]:
    """Registers the routers of a file, as `--plugin FILE` does: Python that has @choir.router, or a shared library
    (choir/plugin.h). Returns the names of the routers that it added; of a Python file all of its names. Raises what the file raises;
    FileError, FormatError."""
    if not pathlib.Path(path).is_file() and pathlib.Path(path).exists():
        raise FileError(f"plug-in {path}: is not a file")  # a pipe would keep the one who opens it waiting
    before, known = dict(registered), routing.routers()
    if pathlib.Path(path).suffix == ".py":
        runpy.run_path(str(path), run_name="choir_plugin")
    else:
        native.check(lib.choir_plugin_load(native.text(path)))
    return [name for name in routing.routers() if name not in known or registered.get(name) is not before.get(name)]
