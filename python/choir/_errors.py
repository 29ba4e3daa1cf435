"""choir's exceptions, which do not need libchoir."""

import errno
import os
import re


def _code(surrogate):
    code = ord(surrogate[0])
    return f"\\x{code - 0xDC00:02X}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04X}"


def printable(text):
    """A printable text: bytes of a file name that are not UTF-8, which Python represents as surrogates, become \xFF."""
    return re.sub("[\ud800-\udfff]", _code, text)


class Error(Exception):
    """What libchoir refused or could not do; the message is the library's: file, field and value, and what to do."""

    def __str__(self):
        return printable(super().__str__())


class ArgumentError(Error, ValueError):
    """A value out of range, or of the wrong kind."""


class FileError(Error, OSError):
    """The operating system refused: a missing file, permissions, a full disk. It is a FileNotFoundError,
    PermissionError or FileExistsError where Python's open would raise that."""


class FormatError(Error, ValueError):
    """A file's content is malformed, damaged, or does not match."""


class NumericError(Error, ArithmeticError):
    """NaN or infinity where a finite number must be."""


class UnsupportedError(Error):
    """This machine, build, router or routing cannot do it."""


class BusyError(Error):
    """Another process holds the run directory, or another call the object."""


class OutOfMemoryError(Error, MemoryError):
    """Not enough memory."""


class InterruptedRun(Error):
    """Stopped by a callback; what was promised has been saved."""


class LibraryError(UnsupportedError, ImportError):
    """libchoir, or what Python needs to call it, is not installed (absent), or does not fit this package."""

    def __init__(self, *message, absent=False):
        super().__init__(*message)
        self.absent = absent


for _kind in list(vars().values()):
    if isinstance(_kind, type):
        _kind.__module__ = __package__  # by which users import it

# By the names of libchoir's codes, CHOIR_ERROR_...
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

# FileError where Python has a name of its own for the reason.
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
    """The value of an argument that was called `old` until version 0.5, given under one of its names."""
    if value is not None and given is not None:
        raise ArgumentError(f"{name} and {old} are one argument, whose name until 0.5 was {old}: give {name} only")
    return given if value is None else value
