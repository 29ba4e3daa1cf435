"""`python -m choir`, and the command `choir` of an installed wheel: the program, in place of this process."""

import os
import sys

from ._headers import HERE, beside


def main() -> None:
    own = beside("bin/choir")
    if not own:
        sys.exit(f"{HERE}/bin/choir is not there: install choir's wheel (pip install .), or build the program (README.md)")
    os.environ.setdefault("CHOIR_PYTHON", sys.executable)  # for `choir study`: this environment's own packages
    os.execv(own, ["choir", *sys.argv[1:]])


if __name__ == "__main__":
    main()
