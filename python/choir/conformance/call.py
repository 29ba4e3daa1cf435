"""Calls the function under test, with NumPy arrays or PyTorch tensors, and checks what it returns."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import traceback
import types
from typing import Any, Callable

import numpy as np

from .cases import Case

HALF_TYPES = ("float16", "bfloat16")


class Failure(Exception):
    """The function did not return a routing. `kind` is the name of the fault."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


@dataclasses.dataclass
class Result:
    chosen: np.ndarray  # [n,e] bool
    gates: np.ndarray  # [n,e] float64
    loss: float | None
    rtol: float  # tolerances of the comparison with expected values; larger for gates of 16 bits
    atol: float
    modified: bool = False  # whether the function modified its arguments


def described(error: BaseException, file: str | None) -> str:
    """`ValueError: text (file.py, line 12)`: the innermost line in the file, that of the function under test."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if frame.filename == file] or frames
    at = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    try:
        text = str(error)
    except Exception:
        text = "an exception without a text"
    return f"{type(error).__name__}: {text}{'' if isinstance(error, SyntaxError) else at}"  # a SyntaxError's text names file and line


def file_of(function: Callable) -> str | None:
    return getattr(getattr(function, "__code__", None), "co_filename", None)


def array(value: Any) -> tuple[np.ndarray, bool]:
    """Converts to a NumPy array; also returns whether its numbers have 16 bits."""
    if hasattr(value, "detach"):  # a PyTorch tensor, perhaps on a GPU or of type bfloat16, which NumPy lacks
        value = value.detach().cpu()
        half = str(value.dtype).split(".")[-1] in HALF_TYPES
        return np.asarray((value.float() if half else value).numpy()), half
    made = np.asarray(value)
    return made, made.dtype.name in HALF_TYPES


def matrix(name: str, value: Any, case: Case) -> tuple[np.ndarray, bool]:
    try:
        made, half = array(value)
        if made.dtype.kind == "c":
            raise TypeError(f"its type is {made.dtype}")
        made = made.astype(np.float64)
    except Exception as error:  # the array's library may raise any exception
        raise Failure("shape", f"{name} is not an array of numbers: {error}") from None
    if made.shape != case.scores.shape:
        expected = list(case.scores.shape)
        indices = made.shape == (expected[0], case.k)
        hint = ", which looks like indices: return a mask over all experts" if indices else ""
        raise Failure("shape", f"{name} has shape {list(made.shape)}, not [n,e] = {expected}{hint}")
    if not np.isfinite(made).all():
        raise Failure("not_finite", f"{name} has values that are not finite")
    return made, half


def checked(returned: Any, case: Case) -> Result:
    if not isinstance(returned, (tuple, list)) or len(returned) not in (2, 3):
        what = f"{len(returned)} values" if isinstance(returned, (tuple, list)) else f"a {type(returned).__name__}"
        raise Failure("shape", f"the function returned {what}, not (chosen, gates) or (chosen, gates, loss)")
    chosen, _ = matrix("chosen", returned[0], case)
    if not np.isin(chosen, (0, 1)).all():
        raise Failure("shape", "chosen has values other than true and false")
    gates, half = matrix("gates", returned[1], case)
    loss = None
    if len(returned) == 3 and returned[2] is not None:
        try:
            value = array(returned[2])[0]
            loss = float(value.reshape(()))
        except Exception as error:
            raise Failure("shape", f"loss is not one number: {error}") from None
        if not np.isfinite(loss):
            raise Failure("not_finite", "loss is not finite")
    return Result(chosen.astype(bool), gates, loss, 1e-2 if half else 1e-4, 1e-3 if half else 1e-6)


def as_numpy(values: np.ndarray) -> np.ndarray:
    return values.copy()


def as_torch(values: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(values.copy())


def call(function: Callable, convert: Callable, case: Case) -> Result:
    """Calls the function once. Its printed output goes to standard error."""
    scores, valid = convert(case.given), convert(case.valid)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            returned = function(scores, case.k, valid)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # including SystemExit and exceptions of test frameworks
        raise Failure("exception", described(error, file_of(function))) from error
    result = checked(returned, case)
    same = np.array_equal(array(scores)[0], case.given) and np.array_equal(array(valid)[0], case.valid)
    result.modified = not same
    return result


def modules_of(function: Callable) -> set[str]:
    """The top-level names of the modules that the function's file imports."""
    names = getattr(function, "__globals__", None) or vars(sys.modules.get(type(function).__module__, sys))
    return {value.__name__.split(".")[0] for value in list(names.values()) if isinstance(value, types.ModuleType)}


def works(function: Callable, convert: Callable, cases: list[Case]) -> bool:
    """Whether the function returns a result for at least one case: some functions accept one k only."""
    for case in cases:
        try:
            call(function, convert, case)
            return True
        except ImportError:  # PyTorch is not installed
            return False
        except Failure as failure:
            if failure.kind != "exception":
                return True
    return False


def converter(function: Callable, cases: list[Case]) -> Callable:
    """`as_numpy` or `as_torch`, depending on the arrays that the function accepts."""
    modules = modules_of(function)
    module = hasattr(function, "parameters")  # a torch.nn.Module
    kinds = [as_numpy, as_torch]
    for convert in reversed(kinds) if module or ("torch" in modules and "numpy" not in modules) else kinds:
        if works(function, convert, cases):
            return convert
    return as_torch if module or "torch" in modules else as_numpy
