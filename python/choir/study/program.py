"""Runs the program `choir` as a process: its arguments, its output, and stopping it."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
from typing import Any, Callable

from .. import _files, pages
from . import Stopped, StudyError

_STOPPED = 3  # the program's exit status after a signal: everything is saved
plugins: dict[str, bytes] = {}  # router files, which every command loads, and their content when the study began


def load(files: list[str]) -> None:
    """Registers router files for every command."""
    for file in filter(os.path.isfile, map(os.path.abspath, files)):  # loading reports the others
        plugins[file] = pathlib.Path(file).read_bytes()


def _with_plugins(words: tuple[Any, ...] | list[Any]) -> list[str]:
    """A command that loads them. A changed file is refused, because its results would be attributed to the earlier
    version."""
    for file, began in plugins.items():
        if pathlib.Path(file).read_bytes() != began:
            raise StudyError(f"{file}: has changed since the study began: run the study again, to train with the changed router")
    return [*map(str, words), *(f"--plugin={file}" for file in plugins)]


def ask(*words: Any) -> Any:
    """The JSON that a command prints."""
    return json.loads(pages.ask(*_with_plugins([*words, "--json"])))


def _last_line(log: pathlib.Path) -> str:
    with open(_files.opened(log), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
        lines = file.read().decode(errors="replace").replace("\r", "\n").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


class Runner:
    """Runs commands until a stop is requested; then running commands save and end. `backend`: of training."""

    def __init__(self, backend: str = "cpu") -> None:
        self.backend = backend
        # A reentrant lock, because a signal may arrive while it is held.
        self._lock, self._processes = threading.RLock(), set()
        self.stopping = False
        # If this process is killed, its children get SIGTERM and save a checkpoint.
        self._before = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []

    def places(self, threads: int) -> list[Any]:
        """Options of `choir train` that set where it runs."""
        return ["--threads", threads, "--backend", self.backend]

    def stop(self) -> None:
        with self._lock:
            self.stopping = True
            for process in self._processes:
                process.send_signal(signal.SIGTERM)

    def run(self, words: list[Any], log: pathlib.Path, watch: Callable[[], None]) -> None:
        """Runs one command; `watch` is called about twice a second. Its output goes to `log`."""
        with open(_files.opened(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
            with self._lock:
                if self.stopping:
                    raise Stopped
                process = subprocess.Popen(
                    [*self._before, pages.program(), *_with_plugins(words)], stdin=subprocess.DEVNULL, stdout=file,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
                self._processes.add(process)
            try:
                while True:
                    try:
                        process.wait(0.5)
                        break
                    except subprocess.TimeoutExpired:
                        watch()
            finally:
                with self._lock:
                    self._processes.discard(process)
        watch()
        if process.returncode == _STOPPED or (process.returncode and self.stopping):
            raise Stopped
        if process.returncode:
            last = _last_line(log) or "it printed no message"
            raise StudyError(f"{last} (status {process.returncode}; {log})")
