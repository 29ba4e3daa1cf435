"""choir's exceptions, which do not need libchoir."""

import errno
import os
import re


def _code(surrogate):
    code = ord(surrogate[0])
    return f"\\x{code - 0xDC00:02X}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04X}"


def printable(text):
    """A printable text: bytes of a file name that are not UTF-8, which Python represents as surrogates, become \\xFF."""
    return re.sub("[\ud800-\udfff]", _code, text)


class Error(Exception):
    """The base class of choir's errors. The message names the file, the field and its value, and what to do."""

    def __str__(self):
        return printable(super().__str__())


class ArgumentError(Error, ValueError):
    """A value is out of range or has the wrong type."""


class FileError(Error, OSError):
    """The operating system refused an operation: a missing file, permissions, a full disk. It is also a
    FileNotFoundError, PermissionError or FileExistsError if Python's open would raise that."""


class FormatError(Error, ValueError):
    """A file's content is malformed, damaged, or does not match."""


class NumericError(Error, ArithmeticError):
    """A number is NaN or infinite where a finite number is required."""


class UnsupportedError(Error):
    """The operation is not supported by this machine, build, router or routing."""


class BusyError(Error):
    """The run directory is in use by another process, or the object by another call."""


class OutOfMemoryError(Error, MemoryError):
    """Not enough memory."""


class InterruptedRun(Error):
    """A callback stopped the run; the state has been saved as documented."""


class LibraryError(UnsupportedError, ImportError):
    """libchoir, or a package that is needed to call it, is not installed (absent), or does not fit this package."""

    def __init__(self, *message, absent=False):
        super().__init__(*message)
        self.absent = absent


for _kind in list(vars().values()):
    if isinstance(_kind, type):
        _kind.__module__ = __package__  # users import it from choir

# Exceptions by libchoir's error codes, CHOIR_ERROR_...
OF_CODE = {
    "ARGUMENT": ArgumentError,
    "IO": FileError,
    "FULL": FileError,
    "FORMAT": FormatError,
    "MEMORY": OutOfMemoryError,
    "NUMERIC": NumericError,
    "UNSUPPORTED": UnsupportedError,
    "BUSY": BusyError,
    "INTERRUPTED": InterruptedRun,
}

# FileError for reasons that have an exception class of their own in Python, by errno.
FILE_ERRORS = {
    code: type("FileError", (FileError, type(OSError(code, ""))), {"__module__": "choir", "errno": code})
    for code in (errno.ENOENT, errno.EACCES, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
}


def file_error(path, error):
    """Converts Python's OSError to a FileError that names the path. Other exceptions are returned unchanged."""
    if not isinstance(error, OSError) or isinstance(error, Error):
        return error
    return FILE_ERRORS.get(error.errno, FileError)(f"{os.fspath(path)}: {error.strerror}")


def renamed(name, value, old, given):
    """The value of an argument that was called `old` until version 0.5. ArgumentError: both names were passed."""
    if value is not None and given is not None:
        raise ArgumentError(f"{name} and {old} are one argument, whose name until 0.5 was {old}: give {name} only")
    return given if value is None else value
