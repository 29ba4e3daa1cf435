"""libchoir through cffi: functions and structs as its public headers declare them; errors, strings and arrays."""

import os
import warnings
import weakref
from ctypes.util import find_library
from typing import Any

import numpy as np

from ._errors import FILE_ERRORS, OF_CODE, ArgumentError, Error, FileError, LibraryError
from ._headers import beside, declarations, version
from ._library import absent, without_cffi

_NAMED = os.environ.get("CHOIR_LIBRARY") or beside("libchoir.so")
try:
    import cffi
except ImportError:
    raise (without_cffi() if _NAMED else absent()) from None


def _check_functions(found, path):
    """Checks that the library has the declared functions: one of the same version may be an older build."""
    for name in dir(found):
        try:
            getattr(found, name)
        except AttributeError:
            raise LibraryError(
                f"{path} has no {name}, which this Python package needs: it was built from an older source; build it "
                "anew (ninja -C build, or pip install .), or name another libchoir.so in CHOIR_LIBRARY"
            ) from None


def _load():
    """Loads the library that CHOIR_LIBRARY names, that of the package (in a wheel), or the system's. Its version must
    be that of the modules, because they use the declarations of their own headers."""
    path = str(_NAMED or "libchoir.so.1")
    spins = not any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"))
    if spins:
        os.environ["GOMP_SPINCOUNT"] = "1000"  # libgomp reads it when it is loaded (docs/embedding.md)
    try:
        # DEEPBIND: prefer libchoir's libraries. PyTorch loads its libgomp for the whole process, and that one has
        # already read its settings.
        found = ffi.dlopen(path, os.RTLD_NOW | getattr(os, "RTLD_DEEPBIND", 0))
    except OSError as error:
        if not _NAMED and not find_library("choir"):
            raise absent() from None
        raise LibraryError(
            f"{error}; libchoir needs the libraries that it was built with (README.md), and CHOIR_LIBRARY may "
            "name another libchoir.so"
        ) from error
    finally:
        if spins:
            del os.environ["GOMP_SPINCOUNT"]
    its, ours = ffi.string(found.choir_version()).decode(), version()
    if ours and its != ours:
        raise LibraryError(
            f"{path} is of version {its}, and this Python package of {ours}: build or install both from one source "
            "(pip install . or, of an editable install, pip install -e . once more), or name a library of this "
            "version in CHOIR_LIBRARY"
        )
    _check_functions(found, path)
    return found


ffi = cffi.FFI()
ffi.cdef(declarations("choir.h", set()) + "void free(void *);")
lib = _load()
NULL = ffi.NULL

_ERRORS = {getattr(lib, f"CHOIR_ERROR_{code}"): kind for code, kind in OF_CODE.items()}

causes: list[BaseException] = []  # exceptions of Python routers, the causes of the errors that C then returns


def check(code):
    """Raises the exception for an error code, with the library's message; notices become warnings."""
    if not code:
        notices = string(lib.choir_notices())
        if notices:
            warnings.warn(notices.strip(), stacklevel=3)
        return
    message, kind = string(lib.choir_error_message()), _ERRORS.get(code, Error)
    cause = causes.pop() if causes else None
    causes.clear()
    if kind is FileError:
        said = message.rpartition(": ")[2]  # the names before it may contain the same words
        kind = next((k for reason, k in FILE_ERRORS.items() if said.startswith(os.strerror(reason))), kind)
    if isinstance(cause, KeyboardInterrupt):
        raise cause
    raise kind(message) from cause


# ---- strings ----


def text(value):
    """A path or string for C, where a string ends at its first NUL: a NUL within is refused."""
    raw = os.fsencode(value)
    if b"\0" in raw:
        raise ArgumentError(f"{value!r} has a NUL character in it")
    return raw


def utf8(value):
    """A string's bytes; TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"a text is wanted, not {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"character {error.start} of the text is no Unicode character: {value[error.start]!a}") from None


def wanted(value, kind):
    """Returns `value` if it has the class `kind`; TypeError otherwise."""
    if not isinstance(value, kind):
        raise TypeError(f"a choir.{kind.__name__} is wanted, not {type(value).__name__}")
    return value


def string(value):
    """A C string; None for NULL."""
    return None if value == NULL else ffi.string(value).decode(errors="replace")


# ---- structs ----

_kept: Any = weakref.WeakKeyDictionary()  # objects that a struct points to, kept alive with it


def keep(struct, *values):
    _kept.setdefault(struct, []).extend(values)
    return values[0]


def options(kind, **fields):
    """A new struct with the library's defaults and these fields; None leaves a default."""
    made = ffi.new(f"{kind} *")
    getattr(lib, f"{kind}_default")(made, ffi.sizeof(kind))
    fill(made, made, fields)
    return made


def fill(owner, struct, fields):
    """Sets fields of `owner` or a struct in it; texts, lists of texts, and structs live as long as `owner`."""
    for name, value in fields.items():
        if isinstance(value, (str, bytes, os.PathLike)):
            value = keep(owner, ffi.new("char[]", text(value)))
        elif isinstance(value, list):
            value = keep(
                owner, ffi.new("char *[]", [keep(owner, ffi.new("char[]", text(v))) for v in value] + [NULL])
            )
        elif isinstance(value, ffi.CData):
            keep(owner, value)
        if value is not None:
            setattr(struct, name, value)


class View:
    """The fields of a struct as Python values: strings as str, a nested struct as a View."""

    def __init__(self, struct):
        self._c = struct

    def __getattr__(self, name):
        if name == "_c":  # copy.copy creates an object without it
            raise AttributeError(name)
        value = getattr(self._c, name)
        kind = ffi.typeof(value) if isinstance(value, ffi.CData) else None
        if kind is None or kind.kind == "pointer":
            return value
        return View(value) if kind.kind == "struct" else ffi.string(value).decode(errors="replace")

    @property
    def _fields_(self):
        kind = ffi.typeof(self._c)
        return [(n, f.type) for n, f in (kind.item if kind.kind == "pointer" else kind).fields if n != "reserved"]


def record(struct):
    """The fields of a struct as a dictionary: numbers, tuples of numbers, strings (None for NULL), the names of enums
    in lower case, and nested or referenced structs as dictionaries. Other pointers are omitted."""
    made = {}
    for name, kind in View(struct)._fields_:
        value = getattr(struct, name)
        if kind.kind == "enum":
            made[name] = kind.elements[value].split("_")[-1].lower()
        elif kind.kind == "primitive":
            made[name] = value
        elif kind.kind == "struct" or (kind.kind == "pointer" and kind.item.kind == "struct"):
            made[name] = record(value) if kind.kind == "struct" or (value and kind.item.fields) else None
        elif kind.kind == "array" and kind.item.cname == "double":
            made[name] = tuple(value)
        elif kind.kind != "function" and kind.item.cname == "char":
            made[name] = string(value)
    return made


# ---- arrays ----

_TYPES = {"float": np.float32, "int": np.int32, "int32_t": np.int32, "uint8_t": np.uint8}
_NAMES = {np.dtype(kind): f"{name}[]" for name, kind in _TYPES.items()}


def array(values, dtype, *shape):
    """`values` as a contiguous array of type `dtype`, without a copy if possible. -1 in shape: any length."""
    if np.iscomplexobj(values):
        raise ArgumentError("an array of complex numbers where real ones are wanted: take its real part or magnitude")
    given = np.asarray(values, dtype)
    if shape and (given.ndim != len(shape) or any(want not in (-1, got) for want, got in zip(shape, given.shape))):
        raise ArgumentError(f"an array of shape {given.shape} where {tuple(shape)} is wanted (-1: any)")
    return np.ascontiguousarray(given)


def ids(values, *shape):
    """Token ids as int32. An array of floats, or an id that needs more than 32 bits, is refused."""
    given = np.asarray(values)
    if given.size and given.dtype.kind not in "iu":
        raise ArgumentError(f"token ids must be integers, not {given.dtype}")
    if given.size and (given.max() > 2**31 - 1 or given.min() < -(2**31)):
        raise ArgumentError("a token id does not fit into 32 bits")
    return array(given, np.int32, *shape)


def pointer(values):
    """An array's memory for C; NULL for None."""
    return NULL if values is None else ffi.from_buffer(_NAMES[values.dtype], values)


def copied(address, count, dtype):
    """`count` values owned by C, copied to an array; None for NULL."""
    if address == NULL:
        return None
    item = ffi.typeof(address).item
    given = np.frombuffer(ffi.buffer(address, count * ffi.sizeof(item)), _TYPES[item.cname], count)
    return given.astype(dtype, copy=True)
