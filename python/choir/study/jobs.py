"""Runs many jobs at once, each on separate CPUs, with one line that shows progress and remaining time."""

from __future__ import annotations

import concurrent.futures
import os
import queue
import signal
import sys
import time
from typing import Any, Callable, Sequence, TextIO

from .. import Error
from . import Stopped, StudyError, terminal
from .program import Runner


class Work:
    """A piece of work for `arms`: `steps` steps in total, of `flops` each. `at`: steps of its finished parts;
    `now`: steps of the part in progress."""

    arms: list[str]
    steps: int
    flops: float
    at = now = 0

    def run(self, threads: int, report: Callable[[str], None]) -> None:
        raise NotImplementedError


def duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 60 else f"{minutes}:{int(seconds % 60):02d} min"


class Jobs:
    """`count` workers (0: one per CPU), until all work is done, the user stops it, or time.monotonic() reaches
    `deadline`."""

    def __init__(self, runner: Runner, count: int, deadline: float) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        self.count = min(count or len(cpus), len(cpus))
        share = len(cpus) // self.count
        self._cpus = [set(cpus[i * share : (i + 1) * share]) for i in range(self.count)]
        self.threads, self.runner = share, runner
        self.failed: list[str] = []
        self.interrupted = False
        self._deadline = deadline
        self._terminal, self._shown, self._last = sys.stderr.isatty(), 0.0, 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)

    def _interrupt(self, *_: Any) -> None:
        self.interrupted = True
        self.runner.stop()

    def _print(self, text: str, stream: TextIO, end: str = "\n") -> None:
        """Prints; a closed pipe, as with `| head`, counts as an interruption."""
        try:
            print(text, end=end, file=stream, flush=True)
        except BrokenPipeError:
            terminal.nobody_reads(stream)
            self._interrupt()

    def say(self, text: str) -> None:
        """Prints a text that stays, wrapped at the width of the terminal."""
        if self._last:
            self._print("\r" + " " * self._last + "\r", sys.stderr, "")
        self._last = 0
        self._print(terminal.fill(text, "    "), sys.stdout)

    def _show(self, text: str) -> None:
        if time.monotonic() - self._shown < (0.5 if self._terminal else 30):
            return
        self._shown = time.monotonic()
        if self._terminal:
            self._print("\r" + text.ljust(self._last), sys.stderr, "")
            self._last = len(text)
        else:
            self._print(text, sys.stderr)

    def run(self, what: str, works: Sequence[Work]) -> None:
        """Runs all work; a failure is reported, and the other work continues. Raises Stopped."""
        slots: queue.Queue[set[int]] = queue.Queue()
        for cpus in self._cpus:
            slots.put(cpus)

        def one(work: Work) -> Any:
            cpus = slots.get()
            try:
                os.sched_setaffinity(0, cpus)  # for this thread and the processes that it starts
                return work.run(self.threads, lines.append)
            finally:
                slots.put(cpus)

        lines: list[str] = []
        begun = time.monotonic()
        total = sum(work.steps * work.flops for work in works)
        with concurrent.futures.ThreadPoolExecutor(self.count) as pool:
            waiting = {pool.submit(one, work): work for work in works}
            stopped = False
            while waiting:
                done, _ = concurrent.futures.wait(waiting, 0.5, concurrent.futures.FIRST_COMPLETED)
                while lines:
                    self.say(lines.pop(0))
                if time.monotonic() > self._deadline and not self.runner.stopping:
                    self.runner.stop()
                for future in done:
                    stopped |= self._end(waiting.pop(future), future.exception())
                made = sum((work.at + work.now) * work.flops for work in works)
                left = (time.monotonic() - begun) * (total - made) / made if made else float("nan")
                self._show(
                    f"{what}: {len(works) - len(waiting)} of {len(works)} done"
                    + (f", {100 * made / total:.0f} %, {duration(left)} left" if made and total else "")
                )
        if stopped:
            raise Stopped

    def _end(self, work: Work, error: BaseException | None) -> bool:
        """Whether the work was stopped."""
        if isinstance(error, (StudyError, Error, OSError)):
            self.failed.append(work.arms[0])
            self.say(f"failed: {', '.join(work.arms)}: {error}")
        elif error and not isinstance(error, Stopped):
            raise error
        return isinstance(error, Stopped)
