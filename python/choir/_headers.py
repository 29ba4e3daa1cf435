"""The public headers of libchoir as cffi reads them."""

import pathlib
import re

HERE = pathlib.Path(__file__).parent


def declarations(name, seen):
    """A public header, and before it those that it includes, as cffi reads them: without comments and macros."""
    if name in seen:
        return ""
    seen.add(name)
    inside = HERE / "include" / "choir"  # where the package is installed; else it is read in choir's source
    path = (inside if inside.exists() else HERE.parents[1] / "include" / "choir") / name
    text = (path if path.exists() else path.with_name(name + ".in")).read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    before = "".join(declarations(one, seen) for one in re.findall(r'#include "choir/(\S+)"', text))
    text = re.sub(r"^[ \t]*#(.*\\\n)*.*\n", "", text, flags=re.M)
    return before + re.sub(r"\bCHOIR_(API|C_BEGIN|C_END)\b", "", text)
