"""Files that are there whole, or not at all, whenever the process is killed or the power goes."""

from __future__ import annotations

import glob
import os
import pathlib
import platform


def _there(process: str) -> bool:
    return process.isdigit() and os.path.exists(f"/proc/{process}")


def save(path: pathlib.Path, text: str) -> None:
    """Replaces a file atomically. Removes temporary files of processes of this machine that were killed while saving."""
    if path.is_symlink() or (path.exists() and not path.is_file()):  # /dev/stdout stays what it is
        path.write_text(text, encoding="utf-8")
        return
    mine = f".{path.name}.{platform.node()}-"
    for old in path.parent.glob(glob.escape(mine) + "*"):
        if not _there(old.name[len(mine) :]):
            old.unlink(missing_ok=True)
    new = path.with_name(f"{mine}{os.getpid()}")
    try:
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
