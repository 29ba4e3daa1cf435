"""Turns texts into the token files that training reads."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, Callable, Iterable, Optional, Union

from . import _native as native
from ._handle import Guard
from ._native import ffi, lib
from .config import Path

Files = Union[Path, Iterable[Path]]


def _below(path: bytes, left_out: list[bytes]) -> list[bytes]:
    """The file itself or, for a directory, all files below it, sorted by name as the program sorts them. Names that
    begin with a dot, links to directories and special files are skipped."""
    if not os.path.isdir(path):
        return [path]
    found = []
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        if entry.name[:1] != b"." and (entry.is_dir(follow_symlinks=False) or entry.is_file()):
            found += _below(entry.path, left_out)
        else:
            left_out.append(entry.path)
    return found


def files(value: Files) -> list[bytes]:
    """One or several paths for C: files, or directories for all files below them."""
    several, left_out = [value] if isinstance(value, (str, os.PathLike)) else value, []
    found = [file for one in several for file in _below(native.text(one), left_out)]
    if left_out:
        warnings.warn(
            f"left out: {len(left_out)} names that begin with a dot, link to a directory or are no files, the first "
            f"{os.fsdecode(left_out[0])}; name each to have it read",
            stacklevel=3,
        )
    return found


def build(
    inputs: Union[Files, Mapping[str, Files]],
    *,
    out: Path,
    tokenizer: Path,
    weights: Optional[Mapping[str, float]] = None,
    field: Optional[str] = None,
    separator: Optional[str] = None,
    holdout: float = 0.01,
    seed: int = 0,
    threads: int = 0,
    replace_invalid: bool = False,
    progress: Optional[Callable[[dict[str, Any]], Any]] = None,
) -> dict[str, Any]:
    """Tokenizes texts into the directory `out` (docs/data.md). On an error nothing is written.

    Args:
        inputs: files of plain text or JSON lines, also compressed ones, or directories of them; or several sources
            by name, such as {"books": ["a.txt.xz"]}.
        out: the directory to create.
        tokenizer: a .model file.
        weights: weights of the sources, by which training mixes them. None: their numbers of tokens.
        field: the field of JSON lines that contains the text.
        separator: the line between documents of plain text.
        holdout: fraction of the documents that are held out for evaluation.
        seed: selects the held-out documents.
        threads: number of threads; 0: all.
        replace_invalid: True: replace bytes that are not UTF-8 by U+FFFD. False: they are an error.
        progress: called with a dictionary of done, total (bytes of input), tokens, documents, ... It may raise an
            exception to stop.

    Returns info(out).

    Example: choir.data.build("books", out="data", tokenizer="en.model")"""
    named = dict(inputs) if isinstance(inputs, Mapping) else {"text": inputs}
    unknown = [name for name in weights or {} if name not in named]
    if unknown:
        raise native.ArgumentError(f"weights: {unknown[0]!r} is no source; there are {', '.join(map(repr, named))}")
    sources = ffi.new("choir_data_source[]", max(len(named), 1))
    for i, (name, given) in enumerate(named.items()):
        weight = float((weights or {}).get(name, 0))
        native.fill(sources, sources[i], dict(name=name, inputs=files(given), weight=weight))
    options = native.options(
        "choir_data_build_options",
        sources=sources,
        source_count=len(named),
        tokenizer=tokenizer,
        output=out,
        field=field,
        separator=separator,
        holdout=holdout,
        seed=seed,
        threads=threads,
        replace_invalid=replace_invalid,
    )
    with Guard() as guard:
        guard.on(options, "progress", lambda _, given: progress and progress(native.record(given)))
        native.check(lib.choir_data_build(options))
    return info(out)


def info(directory: Path) -> dict[str, Any]:
    """Checks the files of built data, and returns a dictionary: vocab_size, sources, tokens and bytes of training
    and held-out data, documents."""
    data, found = ffi.new("choir_data **"), ffi.new("choir_data_info *")
    native.check(lib.choir_data_load(native.text(directory), data))
    lib.choir_data_get_info(data[0], found)
    lib.choir_data_free(data[0])
    return native.record(found)
