"""Serves the routers of a file to the program `choir`, which starts this module as a child process
(cli/plugin_python.c): python3 -m choir._serve SOCKET FILE."""

import json
import math
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import types

import numpy as np

from . import plugin
from ._native import Error, ffi, lib, string

CHOICE, STATE, LOSS, RANKING = range(4)  # kinds of requests
shown: set[bytes] = set()  # messages whose traceback has been printed
QUESTION = struct.Struct("=9i4x2Q8d")
FIELDS = ("router", "n", "e", "sequence_length", "capacity", "training", "layer", "asks", "choices", "seed", "first")


def described(made) -> dict:
    """A definition in the form that the program reads."""
    common, experts = made.common, ffi.typeof(made) is ffi.typeof("choir_experts_choose *")
    kind = ("depends_on", "capacity_factor") if experts else ("depends_on", "capacity_factor", "experts_per_token", "experts_per_token_option")
    return {
        "experts_choose": experts,
        "name": string(common.name),
        "summary": string(common.summary),
        "file": ffi.string(common.file).decode(errors="backslashreplace") if common.file else None,  # JSON has no bytes
        "version": plugin.version_of(string(common.name)),  # version that this process loaded
        "has_observe": not experts and bool(made.observe),
        "has_loss": bool(common.loss),
        "ranks": bool(common.rank),
        "options": [
            {"name": string(o.name), "help": string(o.help), "value": o.value, "low": o.low, "high": o.high}
            for o in common.options
            if o.name
        ],
        **{field: getattr(common, field) for field in ("draws", "normalize_gates", "aux_loss_weight")},
        **{field: getattr(made, field) for field in kind},
    }


def of_files(error: BaseException, files):
    """The traceback without choir's own frames: from the first line in one of these files on. None: it has no such
    line."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename not in files:
        trace = trace.tb_next
    return trace


def answer(callback: plugin.Callback, call: types.SimpleNamespace, read) -> bytes:
    """Answers a request: the assignment for scores [n,e], valid [n] and state [e]; the state updated by demand [e];
    the loss of scores, valid and chosen [n,e], with its gradient; or the ranking for scores and valid."""
    n, e = call.n, call.e
    array = lambda kind, *shape: np.frombuffer(read(math.prod(shape) * np.dtype(kind).itemsize), kind).reshape(shape).copy()  # noqa: E731
    given = [array(np.int64, e)] if call.asks == STATE else [array(np.float32, n, e), array(np.bool_, n)]
    if call.asks != RANKING:
        given.append(array(np.bool_, n, e) if call.asks == LOSS else array(np.float64, e))
    try:
        made = (callback.choice, callback.update_state, callback.loss_and_gradient, callback.ranked)[call.asks](call, *given)
        return struct.pack("=i", 0) + b"".join(part.tobytes() for part in (made if call.asks == LOSS else (made,)))
    except BaseException as error:  # including sys.exit: the run must end with a message
        message = callback.message(error)
        trace = of_files(error, callback.files)
        if trace and message not in shown:  # `observe` is called for every layer before the run ends
            traceback.print_exception(type(error), error, trace)
        shown.add(message)
        return struct.pack("=i", 1) + message.ljust(lib.CHOIR_PLUGIN_MESSAGE_BYTES, b"\0")


def serve(stream, routers: list) -> None:
    """Answers requests until the program has ended."""
    while head := stream.read(QUESTION.size):
        values = QUESTION.unpack(head)
        call = types.SimpleNamespace(**dict(zip(FIELDS, values)), options=values[len(FIELDS) :])
        stream.write(answer(routers[call.router], call, stream.read))
        stream.flush()


def end_with_program(connection: int) -> None:
    """Ends this process soon after the program ends, even while a function of the plug-in does not return. The process
    ignores the signals that end the program."""
    ended = select.poll()
    ended.register(connection, 0)  # POLLHUP is always reported
    ended.poll()
    time.sleep(2)  # time for the exit handlers of the file
    os._exit(1)


def load(file: str) -> None:
    """Loads the routers of the file; on an exception prints its traceback, without choir's own frames, and exits."""
    try:
        plugin.load_plugin(file)
    except Error as error:
        raised = error.__cause__ or error
        limit = None if error.__cause__ else 1
        traceback.print_exception(type(raised), raised, of_files(raised, [file]), limit)
        sys.exit(1)


def main() -> None:
    number, file = sys.argv[1:]
    threading.Thread(target=end_with_program, args=(int(number),), daemon=True).start()
    for stops in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stops, signal.SIG_IGN)  # the program still sends requests while it saves
    load(file)
    definitions, routers = zip(*plugin.registered.values()) if plugin.registered else ((), ())
    description = json.dumps([described(made) for made in definitions]).encode()
    with socket.socket(fileno=int(number)) as connection, connection.makefile("rwb") as stream:
        stream.write(struct.pack("=i", len(description)) + description)
        stream.flush()
        serve(stream, routers)


if __name__ == "__main__":
    main()
