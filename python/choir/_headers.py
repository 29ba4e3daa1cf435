"""The public headers of libchoir as cffi reads them."""

import importlib.metadata
import pathlib
import re
import sys

from ._library import absent

HERE = pathlib.Path(__file__).parent


def beside(name):
    """A file or directory of the package that is not a module, such as the libchoir.so of a wheel. In an editable
    install (pip install -e .) modules are in the source tree and other files elsewhere: choir.__path__ has both.
    None: not found."""
    places = [pathlib.Path(place) / name for place in sys.modules[__package__].__path__]
    return next((place for place in places if place.exists()), None)


def version():
    """The version of choir that these modules belong to, from the source tree or the installed package. None: unknown
    (a Debian package, which depends on a library of its version)."""
    source = HERE.parents[1] / "CMakeLists.txt"
    if source.exists():
        found = re.search(r"project\(choir VERSION ([0-9.]+)", source.read_text(encoding="utf-8"))
        if found:
            return found[1]
    try:
        return importlib.metadata.version("choir-moe")
    except importlib.metadata.PackageNotFoundError:
        return None


def declarations(name, seen):
    """A public header, after the headers that it includes, in the form that cffi reads: without comments and macros."""
    if name in seen:
        return ""
    seen.add(name)
    source = HERE.parents[1] / "include" / "choir"  # of the source tree, for an editable install
    place = source.parent if (source / "choir.h").exists() else beside("include")
    if place is None:
        raise absent()  # as in the wheel of choir.torch, which has no headers
    path = place / "choir" / name
    text = (path if path.exists() else path.with_name(name + ".in")).read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    before = "".join(declarations(one, seen) for one in re.findall(r'#include "choir/(\S+)"', text))
    text = re.sub(r"^[ \t]*#(.*\\\n)*.*\n", "", text, flags=re.M)
    return before + re.sub(r"\bCHOIR_(API|C_BEGIN|C_END)\b", "", text)
