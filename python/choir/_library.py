"""Finds out whether libchoir is available. Functions that need it call `require`; the others work without it."""

from __future__ import annotations

import functools
import importlib
import platform
import sys
from typing import Optional

from ._errors import LibraryError

_WHEELS = ("x86_64", "aarch64")  # machines with wheels that contain libchoir, on Linux
_GLIBC = (2, 34)  # oldest glibc for these wheels


@functools.lru_cache(None)
def missing() -> Optional[str]:
    """The reason why libchoir is not available; None: it is loaded. LibraryError: it exists and does not fit this
    package."""
    try:
        importlib.import_module("._native", __package__)
    except LibraryError as error:
        if error.absent:
            return str(error)
        raise
    return None


def available() -> bool:
    return missing() is None


def require(what: str) -> None:
    """Raises LibraryError if libchoir is missing. The message names the caller, the reason, and the remedy."""
    if why := missing():
        raise LibraryError(f"{what} needs choir's C library: {why}")


def _machine() -> str:
    """ "Linux x86_64, glibc 2.36"."""
    libc, version = platform.libc_ver()
    system = f"{platform.system()} {platform.machine()}"
    if platform.system() != "Linux":
        return system
    return f"{system}, {libc} {version}" if libc else f"{system}, a C library that is not glibc"


def _has_wheel() -> bool:
    libc, version = platform.libc_ver()
    if not sys.platform.startswith("linux") or platform.machine() not in _WHEELS or libc != "glibc":
        return False
    return tuple(map(int, version.split(".")[:2])) >= _GLIBC


def without_cffi() -> LibraryError:
    """The reason if Python cannot call an existing libchoir."""
    return LibraryError(
        "libchoir is called by cffi, which is not installed: pip install cffi, or Debian's python3-cffi. choir.torch works without it",
        absent=True,
    )


def absent() -> LibraryError:
    """The reason if no libchoir was found."""
    here, build = _machine(), "build it (README.md) and name libchoir.so in CHOIR_LIBRARY"
    if _has_wheel():
        reason = (
            f"libchoir is not installed ({here}): install the wheel that contains it (pip install --force-reinstall choir-moe), or "
            f"{build}"
        )
    else:
        low = ".".join(map(str, _GLIBC))
        reason = (
            f"libchoir is not installed, and there is no wheel with it for this machine ({here}): wheels with it are for Linux with glibc {low} or later on "
            f"{' and '.join(_WHEELS)}. Run this on such a machine, or {build}"
        )
    return LibraryError(f"{reason}. choir.torch works without it", absent=True)
