"""Objects that own memory of libchoir, and callbacks that may raise exceptions."""

import atexit
import contextlib
import copy
import os
import signal
import threading

from ._errors import BusyError
from ._native import ffi, keep, lib


class _Calls:
    """Calls in progress that have callbacks. C must not call back after the interpreter has ended: at exit, calls of
    daemon threads are stopped and waited for."""

    PATIENCE = 60  # seconds to wait at exit for a step to end

    def __init__(self):
        self.ending = False
        self._forget()
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self):
        """After a fork the child process does not have its parent's threads."""
        self._count = 0
        self._changed = threading.Condition()

    def begin(self):
        with self._changed:
            self.check()
            self._count += 1

    def check(self):
        """At exit a thread ends silently: CPython aborts if a thread writes its traceback at that time."""
        if not self.ending:
            return
        message = "choir: the interpreter is about to end; no call begins"
        raise RuntimeError(message) if threading.current_thread() is threading.main_thread() else SystemExit(message)

    def end(self):
        with self._changed:
            self._count = max(0, self._count - 1)
            self._changed.notify_all()

    def _end(self):
        with self._changed:
            self.ending = True
            self._changed.wait_for(lambda: not self._count, self.PATIENCE)


_calls = _Calls()


class Guard:
    """Callbacks that may raise, including KeyboardInterrupt: the first exception stops the work and is raised by
    `with`."""

    def __init__(self):
        self.error = None
        self._kept = None
        self._interrupts = 0

    def _interrupted(self, number, frame):
        """Handles Ctrl-C within a callback, which may come before its `try`: it is remembered, and raised when C has
        returned. A second Ctrl-C is raised immediately, for functions that do not return."""
        self._interrupts += 1
        if self._interrupts > 1:
            self._kept(number, frame)
            return
        try:
            self._kept(number, frame)
        except BaseException as error:  # noqa: BLE001
            self.error = self.error or error

    def callback(self, kind, function):
        """Wraps `function` as a callback of a C type; it stops the work by raising."""
        void = kind.result.kind == "void"

        def call(*arguments):
            if _calls.ending:
                return None if void else True
            if self.error is None:
                try:
                    function(*arguments)
                except BaseException as error:  # noqa: BLE001 KeyboardInterrupt too
                    self.error = error
            return None if void else self.error is not None

        return ffi.callback(kind, call)

    def on(self, struct, field, function):
        """Does the same for a field of a struct."""
        kind = dict(ffi.typeof(struct).item.fields)[field].type
        setattr(struct, field, keep(struct, self.callback(kind, function)))

    def __enter__(self):
        _calls.begin()
        kept = signal.getsignal(signal.SIGINT)
        if callable(kept) and threading.current_thread() is threading.main_thread():
            self._kept = kept
            signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, kind, value, trace):
        _calls.end()
        if self._kept is not None:
            signal.signal(signal.SIGINT, self._kept)
            self._kept = None
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        _calls.check()
        return False


class Handle:
    """Owns memory allocated by C, which `close`, the end of `with`, or garbage collection frees. One call at a time:
    calls from another thread or from within a callback are refused, and so is `close` during a call."""

    _free = ""

    def __init__(self, address, *kept):
        """kept: objects that the C handle uses; they stay alive as long as the handle."""
        free = getattr(lib, self._free)
        self._address = ffi.gc(address, lambda p: (free(p), kept))
        self._in_use = threading.Lock()

    @classmethod
    def _own(cls, address):
        """Wraps a handle that C code has created."""
        made = cls.__new__(cls)
        Handle.__init__(made, address)
        return made

    @property
    def address(self):
        if self._address is None:
            raise ValueError(f"this {type(self).__name__} is closed")
        return self._address

    @contextlib.contextmanager
    def use(self):
        """Reserves the handle during a call: `with self.use() as address`."""
        if not self._in_use.acquire(blocking=False):
            raise BusyError(
                f"this {type(self).__name__} is in use: one call at a time, and none from within its callbacks"
            )
        try:
            yield self.address
        finally:
            self._in_use.release()

    def close(self):
        if self._address is not None:
            with self.use():
                self._address = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __deepcopy__(self, memo):
        return copy.copy(self)

    def __reduce__(self):
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: make another of its model")
