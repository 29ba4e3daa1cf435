"""Complete training runs, like `choir train` and `choir finetune`."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from . import _files, runs
from . import _native as native
from ._errors import InterruptedRun
from ._handle import Guard
from ._native import ffi, lib
from .config import Config, Path

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .fields import FinetuneFields, TrainFields

Progress = Union[bool, Callable[[dict[str, Any]], Any]]


class Line:
    """The display of progress=True on standard error: in a terminal or a notebook, a line that is updated each
    step, and one line per evaluation; in a file, only the lines of evaluations."""

    def __init__(self) -> None:
        self._follows, self._shown = sys.stderr.isatty() or "ipykernel" in sys.modules, 0.0

    def __call__(self, event: dict[str, Any]) -> None:
        kind, where = event["kind"], f"step {event['step']} of {event['steps']}"
        due = time.monotonic() > self._shown + 0.2 or event["step"] == event["steps"]
        if kind == "step" and self._follows and due:
            self._shown = time.monotonic()
            self._print(f"{where}  loss {event['loss']:.4f}  {event['seconds_left']:.0f} s left", "")
        elif kind == "eval" and event["measure"]:
            self._print(where + "".join(f"  {m['accuracy']:.2%} by {m['routing']}" for m in event["measure"]), "\n")
        elif kind == "eval":
            self._print(f"{where}  held-out loss {event['loss']:.4f}, {event['bits_per_byte']:.3f} bits per byte", "\n")
        elif kind in ("notice", "waiting"):
            self._print(event["notice"].rstrip("\n"), "\n")

    def _print(self, text: str, end: str) -> None:
        before = "\r" if self._follows else ""
        print(f"{before}{text:<79}" if self._follows else text, end=end, file=sys.stderr, flush=True)


class Result(dict[str, Any]):
    """The last evaluation of a run: a dictionary that prints as one line. dict(result) prints completely."""

    def __repr__(self) -> str:
        if not self:
            return "{}"
        more = f"step {self.get('step')}; keys: {', '.join(self)}"
        if "own" in self:  # the result of fine-tuning
            own = self["own"]
            return f"<dev accuracy {own['accuracy']:.2%} ({own['routing']} routing), {more}>"
        causal = self.get("threshold") or self
        return f"<held-out loss {causal['loss']:.4f} nats per token ({causal.get('routing', 'threshold')} routing), {more}>"


def _dictionary(event) -> dict[str, Any]:
    """An event as a dictionary, together with the fields of its step and evaluation."""
    made = native.record(event)
    evals = [native.record(event.eval[i]) for i in range(event.evals)]
    if made["kind"] == "eval" and evals:
        made["threshold_loss"] = evals[1]["loss"] if evals[1:] else math.nan
    made["evals"], made["measure"] = evals, [native.record(event.measure[i]) for i in range(event.measures)]
    for part in (made.pop("result"), made.pop("speed"), made.pop("eval")):
        made = {**(part or {}), **made}
    del made["measures"], made["text"]
    return made


def _run(kind: str, progress: Progress, fields: dict[str, Any], **run: Any) -> None:
    """Calls choir_train or choir_finetune. fields: choir_train_options; run: choir_model_options."""
    model = native.options("choir_model_options", **run)
    options = native.options("choir_train_options", model=model, **fields)
    report = Line() if progress is True else progress or (lambda event: None)

    def event(_, given):
        report(_dictionary(given))

    with contextlib.suppress(InterruptedRun), Guard() as guard:
        guard.on(options, "event", event)
        native.check(getattr(lib, kind)(options))


def _settings(config: Config, fields: Mapping[str, Any]) -> Config:
    config.update({"train." + key: value for key, value in fields.items()})
    return config


def train(
    *,
    out: Path,
    config: Union[Config, Path, None] = None,
    data: Optional[Path] = None,
    init_from: Optional[Path] = None,
    resume: bool = False,
    progress: Progress = False,
    threads: int = 0,
    compute: Optional[str] = None,
    backend: Optional[str] = None,
    emulate_bf16: bool = False,
    minutes: float = 0,
    disk_minutes: float = 60,
    patience: int = 0,
    **fields: Unpack[TrainFields],
) -> Result:
    """Trains a model on built data, in this process. Ctrl-C, an exception of `progress`, or the end of `minutes`
    ends the run after the current step, which is saved; resume=True continues it.

    Args:
        out: the run directory.
        config: a Config, a JSON file, or the name of one of choir's configs. None: the config of `init_from` or of
            the resumed run, else the defaults.
        data: a built data directory. None with resume=True: the run's.
        init_from: a checkpoint or run from which the weights are initialized.
        resume: True: continue the run in `out`, bit for bit.
        progress: True: show a line. A function: it is called with a dictionary for every step, evaluation and
            checkpoint; event["kind"] is "step", "eval", ..., and the fields are those of choir_event and of the
            structs that it points to (include/choir/event.h).
        threads: number of threads; 0: all.
        compute: "fp32" or "bf16"; None: the config's.
        backend: as for choir.Model.
        emulate_bf16: True: emulate bf16 by fp32 if the CPU has no bf16 instructions.
        minutes: end the run after this time; 0: never. If train.cooldown_steps is a fraction, such as 0.2, the
            learning rate falls over the last fraction of the minutes.
        disk_minutes: maximum time that the run continues while the disk is full.
        patience: end the run after this number of evaluations without a lower held-out loss; 0: never.
        fields: fields of the config's "train" section, such as steps=100, learning_rate=0.01.

    Returns the last evaluation, as in metrics.jsonl; {} if the data have no held-out share. It prints as one line.

    Raises FileError and FormatError for files, ArgumentError for a config that is refused, and NumericError for a
    loss that is not finite.

    Example: result = choir.train(config="pico", data="data", out="run", progress=True)"""
    if config is None and (fields or not resume):
        config = os.path.join(out if resume else init_from, "config.json") if resume or init_from else Config()
    if config is not None:
        config = _settings(copy.copy(config) if isinstance(config, Config) else Config(config), fields)
    given = {"config": config and config.address, "init_from": init_from, "data": data, "out": out, "resume": resume}
    run = dict(threads=threads, compute=compute, backend=backend, emulate_bf16=emulate_bf16)
    given.update(minutes=minutes, disk_minutes=disk_minutes, patience=patience)
    _run("choir_train", progress, given, **run)
    return Result(next((line for line in reversed(runs.lines(out)) if line.get("event") == "eval"), {}))


def finetune(
    *,
    out: Path,
    init_from: Optional[Path] = None,
    task: Optional[Path] = None,
    data: Optional[Path] = None,
    recipe: str = "constant",
    epochs: Optional[float] = None,
    patience: int = 0,
    batch_sequences: int = 32,
    resume: bool = False,
    progress: Progress = False,
    threads: int = 0,
    backend: Optional[str] = None,
    emulate_bf16: bool = False,
    minutes: float = 0,
    disk_minutes: float = 60,
    **fields: Unpack[FinetuneFields],
) -> Result:
    """Fine-tunes a model on the labeled data of a task, and evaluates it on the task's dev set
    (docs/finetuning.md).

    Args:
        out: the run directory.
        init_from: the checkpoint or run to start from.
        task: name of a task, such as "RTE", or a JSON file that describes one.
        data: the directory of the task's files.
        recipe: "constant": a tenth of the checkpoint's learning rate, constant; "continued": the checkpoint's
            schedule, from its step on.
        epochs: epochs over the training set. None: 10, unless `steps` is given.
        patience: end after this number of evaluations without improvement; 0: never.
        batch_sequences: number of texts in a batch of batch routing in evaluations; 0: no batch routing.
        resume: True: continue the run in `out` with its settings.
        progress, threads, backend, emulate_bf16, minutes, disk_minutes: as for `train`.
        fields: fields of the config's "train" section, such as steps=100, learning_rate=1e-4.

    Returns the content of result.json, with the best accuracy and its step; {} before the first evaluation.

    Raises ArgumentError for arguments that are missing or do not go together, and what `train` raises.

    Example: choir.finetune(init_from="run", task="RTE", data="glue", out="rte")"""
    if epochs and "steps" in fields:
        raise native.ArgumentError("give one of epochs and steps")
    if resume:
        if init_from or task or recipe != "constant" or epochs or patience or batch_sequences != 32:
            raise native.ArgumentError(
                "init_from, task, recipe, epochs, patience and batch_sequences are the run's own with resume=True"
            )
        config = _settings(Config(os.path.join(out, "config.json")), fields) if fields else None
    else:
        if init_from is None or task is None or data is None:
            raise native.ArgumentError("give init_from, task and data: only resume=True can do without")
        config = Config._of(lib.choir_finetune_config_create, native.text(init_from), native.text(recipe))
        _settings(config, fields)
        epochs = 10 if epochs is None and "steps" not in fields else epochs
    given = {"config": config and config.address, "init_from": init_from, "data": data, "out": out, "resume": resume}
    given.update(epochs=epochs, patience=patience, batch_sequences=batch_sequences)
    given.update(minutes=minutes, disk_minutes=disk_minutes)
    loaded = ffi.new("choir_task **")
    try:
        if task is not None:
            native.check(lib.choir_task_load(native.text(task), loaded))
            given["task"] = loaded[0]
        run = dict(threads=threads, backend=backend, emulate_bf16=emulate_bf16)
        _run("choir_finetune", progress, given, **run)
    finally:
        lib.choir_task_free(loaded[0])
    try:
        return Result(json.loads(_files.read(os.path.join(out, "result.json"))))
    except FileNotFoundError:
        return Result()
