"""`python -m choir`, and the command `choir` of an installed wheel: the program, in place of this process."""

import os
import sys
from typing import Optional

from ._headers import beside
from ._library import absent


def on_path() -> Optional[str]:
    """The program on the PATH, as a Debian package installs it, but not the command of a wheel, which is a script."""
    for folder in os.get_exec_path():
        path = os.path.join(folder, "choir")
        if os.access(path, os.X_OK) and os.path.isfile(path):
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    return path
    return None


def main() -> None:
    own = beside("bin/choir") or on_path()
    if not own:
        sys.exit(f"choir: the program is not installed, neither in this package nor on the PATH; {absent()}")
    os.environ.setdefault("CHOIR_PYTHON", sys.executable)  # so that `choir study` uses this environment
    os.execv(own, ["choir", *sys.argv[1:]])


if __name__ == "__main__":
    main()
