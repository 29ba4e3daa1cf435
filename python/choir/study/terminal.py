"""Output to a terminal: control characters in names and texts of recipes are escaped."""

import os
import re
import shutil
import sys
import textwrap

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def _shown(found: re.Match) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        code -= 0xDC00
        return f"\\x{code:02X}"
    return f"\\x{code:02X}" if code < 0x80 else f"\\u{code:04X}"


class Shown:
    """A stream that escapes control characters. A carriage return at the beginning or end belongs to a progress
    line."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, text: str) -> int:
        begin = text.startswith("\r")
        end = text.endswith("\r") and len(text) > begin
        inner = _OBEYED.sub(_shown, text[begin : len(text) - end])
        self._stream.write("\r" * begin + inner + "\r" * end)
        return len(text)

    def __getattr__(self, name: str):
        return getattr(self._stream, name)


def width() -> int:
    """Width of the terminal in columns; 80 if the output is not a terminal."""
    return shutil.get_terminal_size((80, 24)).columns


def fill(text: str, indent: str = "") -> str:
    """Wraps each line of a text at that width, never within a word; continuation lines are indented."""
    wrap = textwrap.TextWrapper(
        width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    return "\n".join(wrap.fill(line) for line in text.split("\n"))


def guard() -> None:
    """Escapes both streams from now on if they are terminals; elsewhere, names that are not UTF-8 are printed
    unchanged."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="surrogateescape")
    if sys.stdout.isatty():
        sys.stdout = Shown(sys.stdout)
    if sys.stderr.isatty():
        sys.stderr = Shown(sys.stderr)


def nobody_reads(stream) -> None:
    """Discards further output to a closed pipe."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
