"""python -m choir.conformance FILE.py:function"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import pathlib
import sys
from typing import Callable

from .call import described
from .cases import VectorError
from .report import check

EPILOG = """The function is f(scores [n,e], k, valid [n]) -> (chosen [n,e], gates [n,e]), or
(chosen, gates, loss), with NumPy arrays or PyTorch tensors. The exit status is
0 if it follows a published convention, else 1. docs/conformance.md has the
conventions and what every fault means."""


def load(place: str) -> Callable:
    """The function that FILE.py:function names; `function` may have dots."""
    file, colon, name = place.rpartition(":")
    if not colon or not name:
        raise SystemExit(f"choir.conformance: {place} is not FILE.py:function")
    if not pathlib.Path(file).is_file():
        raise SystemExit(f"choir.conformance: no such file: {file}")
    sys.path.insert(0, str(pathlib.Path(file).resolve().parent))
    # A unique module name, because the file's own may be that of a module that NumPy or PyTorch imports.
    spec = importlib.util.spec_from_file_location(f"conformance_of_{pathlib.Path(file).stem}", file)
    if spec is None or spec.loader is None:
        raise SystemExit(f"choir.conformance: {file} is not a Python file (*.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise SystemExit(f"choir.conformance: {file} cannot be imported: {described(error, file)}") from None
    try:
        found = functools.reduce(getattr, name.split("."), module)
    except Exception:  # a __getattr__ of the file may raise anything
        raise SystemExit(f"choir.conformance: {file} has no function {name}") from None
    if not callable(found) or isinstance(found, type):
        raise SystemExit(f"choir.conformance: {name} in {file} is a {type(found).__name__}, not a function")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m choir.conformance",
        description="Says which published routing convention a function follows, and where it differs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("function", metavar="FILE.py:function", help="the router to check")
    parser.add_argument(
        "--experts-choose", action="store_true", help="experts choose tokens: k is the number of tokens per expert"
    )
    parser.add_argument("--logits", action="store_true", help="the function takes logits, not their softmax")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    given = parser.parse_args()
    function = load(given.function)
    try:
        report = check(function, experts_choose=given.experts_choose, logits=given.logits, name=given.function)
    except VectorError as error:
        raise SystemExit(f"choir.conformance: {error}") from None
    print(json.dumps(report.as_dict(), indent=2) if given.json else report)
    return 0 if report.convention else 1


if __name__ == "__main__":
    sys.exit(main())
