"""libchoir through ctypes: its functions, its errors, its memory. The rest of the package is written on this."""

import ctypes as c
import os
import pathlib
import signal
import threading
import weakref

import numpy as np

from ._structs import *  # noqa: F401,F403


class Error(Exception):
    """What libchoir refused or could not do; the message is the library's: file, field and value, and what to do."""


class ArgumentError(Error, ValueError):
    """A value out of range, or of the wrong kind."""


class FileError(Error, OSError):
    """The operating system refused: a missing file, permissions, a full disk."""


class FormatError(Error, ValueError):
    """A file's content is malformed, damaged, or does not match."""


class NumericError(Error, ArithmeticError):
    """NaN or infinity where a finite number must be."""


class UnsupportedError(Error):
    """This machine, build, router or routing cannot do it."""


class BusyError(Error):
    """Another process holds the run directory."""


class OutOfMemoryError(Error, MemoryError):
    """Not enough memory."""


class InterruptedRun(Error):
    """Stopped by a callback; what was promised has been saved."""


_ERRORS = (
    Error,
    ArgumentError,
    FileError,
    FormatError,
    OutOfMemoryError,
    NumericError,
    UnsupportedError,
    BusyError,
    InterruptedRun,
    FileError,
)


def _path():
    """What CHOIR_LIBRARY names, libchoir.so beside this file (a wheel has it), or that of the system."""
    beside = pathlib.Path(__file__).with_name("libchoir.so")
    return os.environ.get("CHOIR_LIBRARY") or (str(beside) if beside.exists() else "libchoir.so.0")


def _load():
    if not any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")):
        os.environ["GOMP_SPINCOUNT"] = "1000"  # read when libgomp is loaded; PyTorch may have done so before
    path = _path()
    try:
        return c.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"{error}; libchoir needs the libraries that it was built with (README.md), and CHOIR_LIBRARY may "
            "name another libchoir.so"
        ) from error


lib = _load()
for _name in (
    "choir_error_message",
    "choir_notices",
    "choir_version",
    "choir_model_routing",
    "choir_tokenizer_piece",
    "choir_end_name",
):
    getattr(lib, _name).restype = c.c_char_p
lib.choir_model_config_of.restype = c.POINTER(Config)
lib.choir_router_names.restype = c.POINTER(c.c_char_p)
lib.choir_tokenizer_bytes.restype = c.c_void_p
lib.choir_tokenizer_hash.restype = c.c_uint64
lib.choir_tokenizer_encode.argtypes = [c.c_void_p, c.c_char_p, c.c_size_t, c.c_void_p, c.c_void_p]
lib.choir_tokenizer_decode.argtypes = [c.c_void_p, c.c_void_p, c.c_size_t, c.c_void_p, c.c_void_p]
lib.choir_tokenizer_piece.argtypes = [c.c_void_p, c.c_int32]
lib.choir_checkpoint_find.argtypes = [c.c_char_p, c.c_char_p, c.c_size_t]
lib.choir_model_init.argtypes = [c.c_void_p, c.c_uint64, c.c_void_p, c.c_void_p]
lib.choir_model_forward.argtypes = [c.c_void_p, c.c_int, c.c_int] + [c.c_void_p] * 2 + [c.c_int, c.c_void_p]
lib.choir_model_parameter.argtypes = [c.c_void_p, c.c_int, c.c_void_p]
lib.choir_model_get_parameter.argtypes = [c.c_void_p, c.c_int, c.c_int, c.c_void_p]
lib.choir_model_set_parameter.argtypes = [c.c_void_p, c.c_int, c.c_void_p]
lib.choir_route_backward.argtypes = [c.c_void_p, c.c_void_p, c.c_double, c.c_void_p]
lib.choir_generate.argtypes = [c.c_void_p] * 3 + [c.c_int] + [c.c_void_p] * 2
lib.choir_score_requests.argtypes = [c.c_void_p] * 3 + [I64] + [c.c_void_p] * 2
lib.choir_session_advance.argtypes = [c.c_void_p] * 5
lib.choir_session_rewind.argtypes = [c.c_void_p, c.c_int, c.c_int]
lib.choir_session_length.argtypes = [c.c_void_p, c.c_int]
for _name in (
    """config_default config_load config_save config_set config_check router_default route_show checkpoint_load
    model_free model_save model_config_of model_parameter_count model_set_routing model_routing model_moe_layers
    model_looks_across_tokens tokenizer_load tokenizer_free tokenizer_vocab_size tokenizer_eos tokenizer_hash
    tokenizer_bytes trainer_create trainer_free trainer_sequences trainer_length trainer_step trainer_save trainer_resume
    session_create session_free generate_free score_free eval run_options_default generate_options_default
    session_options_default score_options_default""".split()
):
    _f = getattr(lib, "choir_" + _name)
    if _f.argtypes is None:
        _f.argtypes = [c.c_void_p] * {
            "config_load": 2,
            "config_save": 2,
            "config_set": 3,
            "router_default": 2,
            "route_show": 3,
            "checkpoint_load": 4,
            "model_save": 3,
            "model_set_routing": 2,
            "tokenizer_load": 2,
            "tokenizer_bytes": 2,
            "trainer_create": 3,
            "trainer_step": 4,
            "trainer_save": 3,
            "trainer_resume": 2,
            "session_create": 3,
            "eval": 4,
        }.get(_name, 1)
libc = c.CDLL(None)
libc.free.argtypes = [c.c_void_p]


def check(code):
    """Raises what an error code stands for, with the library's message."""
    if code:
        kind = _ERRORS[code] if 0 < code < len(_ERRORS) else Error
        raise kind(lib.choir_error_message().decode())


def text(value):
    """A path or text as the C interface takes it, where a text ends at its first NUL: one within is refused."""
    raw = os.fsencode(value)
    if b"\0" in raw:
        raise ArgumentError(f"{value!r} has a NUL character in it")
    return raw


def optional(value):
    """The same where None is left to the library."""
    return None if value is None else text(value)


def array(values, dtype, *shape):
    """`values` as a contiguous array of this type, the array itself where it is that. -1 in shape: any length."""
    given = np.asarray(values, dtype)
    if shape and (given.ndim != len(shape) or any(want not in (-1, got) for want, got in zip(shape, given.shape))):
        raise ArgumentError(f"an array of shape {given.shape} where {tuple(shape)} is wanted (-1: any)")
    return np.ascontiguousarray(given)


def ids(values, *shape):
    """Token ids as int32. An array of floats, or an id beyond 32 bits, is refused and not rounded."""
    given = np.asarray(values)
    if given.size and given.dtype.kind not in "iu":
        raise ArgumentError(f"token ids must be integers, not {given.dtype}")
    if given.size and (given.max() > 2**31 - 1 or given.min() < -(2**31)):
        raise ArgumentError("a token id does not fit into 32 bits")
    return array(given, np.int32, *shape)


def pointer(values):
    """The address of an array's data; None stays None."""
    return None if values is None else values.ctypes.data


def copied(address, count, dtype):
    """`count` values that C owns, as an array of our own; None where there are none."""
    if not address:
        return None
    if not count:
        return np.empty(0, dtype)
    return np.ctypeslib.as_array(address, (count,)).astype(dtype, copy=True)


class Guard:
    """Callbacks that may raise, Ctrl-C included: the first exception stops the work and comes out of `with`."""

    def __init__(self):
        self.error = None
        self._kept = None

    def _interrupted(self, number, frame):
        """Ctrl-C within a callback may come before its `try`: remembered, and raised when C has returned."""
        try:
            self._kept(number, frame)
        except BaseException as error:  # noqa: BLE001
            self.error = self.error or error

    def call(self, function, *arguments):
        if self.error is None:
            try:
                return function(*arguments)
            except BaseException as error:  # noqa: BLE001 KeyboardInterrupt too
                self.error = error
        return 1

    def __enter__(self):
        kept = signal.getsignal(signal.SIGINT)
        if callable(kept) and threading.current_thread() is threading.main_thread():
            self._kept = kept
            signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, kind, value, trace):
        if self._kept is not None:
            signal.signal(signal.SIGINT, self._kept)
            self._kept = None
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return False


class Handle:
    """Owns a pointer that C made; `close` or the end of `with` gives it back, and so does forgetting it. What C made of
    another handle's is closed before that one."""

    _free = None

    def __init__(self, address, of=None):
        self._address, self._users = address, weakref.WeakSet()
        if of is not None:
            of._users.add(self)

    @property
    def address(self):
        if not self._address:
            raise ValueError(f"this {type(self).__name__} is closed")
        return self._address

    def close(self):
        address, self._address = getattr(self, "_address", None), None
        if address:
            for user in list(self._users):
                user.close()
            type(self)._free(address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()
