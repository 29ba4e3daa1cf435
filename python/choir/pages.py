"""The pages of the program choir; a notebook displays them."""

from __future__ import annotations

import html
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import Any, Optional, Sequence, Union

from . import _files
from ._errors import ArgumentError, Error, UnsupportedError
from ._fields import Path
from ._headers import beside


def program() -> str:
    """The path of the program `choir`: the environment variable CHOIR_PROGRAM, else the program in this package (a
    wheel contains it), else the one on the PATH."""
    found = os.environ.get("CHOIR_PROGRAM") or beside("bin/choir") or shutil.which("choir")
    if not found:
        raise UnsupportedError("the program choir is not here: install it, or name it in CHOIR_PROGRAM")
    return os.fspath(found)


def ask(*words: Any) -> str:
    """The output of a command."""
    try:
        done = subprocess.run([program(), *map(str, words)], capture_output=True, encoding="utf-8", errors="surrogateescape", check=False)
    except OSError as error:
        raise Error(f"{program()}: {error.strerror}; CHOIR_PROGRAM may name the program choir") from None
    if done.returncode:
        raise Error(done.stderr.strip() or f"choir {words[0]} ended with status {done.returncode}")
    return done.stdout


def _page(out: Path, *words: Any) -> Page:
    ask(*map(os.fspath, words), "--out", os.fspath(out))
    return Page(out)


class Page:
    """A page in the file `path`; a notebook displays it."""

    def __init__(self, path: Path):
        self.path = pathlib.Path(path)

    def __repr__(self) -> str:
        return f"Page({str(self.path)!r})"

    def _repr_html_(self) -> str:
        text = html.escape(_files.read_text(self.path, given=True))
        return f'<iframe srcdoc="{text}" sandbox="allow-scripts" style="width:100%;height:40em;border:0"></iframe>'


def report(*run: Path, out: Optional[Path] = None) -> Page:
    """Writes the page of `choir report`: curves and routing of one run, or a comparison of several runs.

    Args:
        run: run directories.
        out: the HTML file to write. None: RUN/report.html, for one run only.

    Returns a `Page`, which a notebook displays.

    Example: choir.report("run")"""
    if not run or (len(run) > 1 and out is None):
        raise ArgumentError("report takes runs, and of several `out`, the page to write")
    if out is not None:
        return _page(out, "report", *run)
    ask("report", *map(os.fspath, run))
    return Page(os.path.join(run[0], "report.html"))


def inspect(
    model: Union[Path, Sequence[Path]], text: Union[str, os.PathLike], *, out: Path, routing: Optional[str] = None
) -> Page:
    """Writes the page of `choir inspect`, which shows the experts of each token of a text.

    Args:
        model: a run or checkpoint; or a list of checkpoints of one run, among which the page has a slider.
        text: the text, or a pathlib.Path of its file.
        out: the HTML file to write.
        routing: "batch", "threshold", ... None: the routing of training, or threshold routing if the text has fewer
            tokens than the model has experts.

    Returns a `Page`, which a notebook displays.

    Example: choir.inspect("run", "The cat sat on the mat.", out="inspect.html")"""
    models = [model] if isinstance(model, (str, os.PathLike)) else list(model)
    words = ["inspect", *models] + (["--routing", routing] if routing else [])
    if not isinstance(text, str):
        return _page(out, *words, "--text", text)
    with tempfile.TemporaryDirectory() as at:
        named = os.path.join(at, "the text")  # the page's title shows this name
        _files.save(named, text)
        return _page(out, *words, "--text", named)
