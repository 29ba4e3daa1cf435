"""Whole runs, like `choir train` and `choir finetune`."""

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
    """The display of progress=True: a line on standard error that is updated each step, in a terminal or a notebook,
    and one line per evaluation. If standard error is a file: evaluations only."""

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
    """The last evaluation of a run, as a dictionary that prints as one line; `dict(result)` prints all of it."""

    def __repr__(self) -> str:
        if not self:
            return "{}"
        more = f"step {self.get('step')}; keys: {', '.join(self)}"
        if "own" in self:  # of fine-tuning
            own = self["own"]
            return f"<dev accuracy {own['accuracy']:.2%} ({own['routing']} routing), {more}>"
        causal = self.get("threshold") or self
        return f"<held-out loss {causal['loss']:.4f} nats per token ({causal.get('routing', 'threshold')} routing), {more}>"


def _dictionary(event) -> dict[str, Any]:
    """An event with the fields of the step and of the evaluation beside its own."""
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
    """choir_train or choir_finetune: the function's options, and those of every run."""
    model = native.options("choir_model_options", **run)
    options = native.options("choir_train_options", model=model, **fields)
    told = Line() if progress is True else progress or (lambda event: None)

    def event(_, given):
        told(_dictionary(given))

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
    """Trains a model by a config on built data, in this process, into the run directory `out`.

    init_from: a checkpoint or run that the weights are initialized from; its config is used unless `config` is given.
    resume: continues the run in `out`, bit for bit, with its config and data unless they are given. Further
    options change the config's "train": steps=100, learning_rate=0.01. progress: True shows a line; a function is
    called with every step, evaluation and checkpoint as a dictionary (event["kind"] is "step", "eval", ...; the
    fields are those of choir_event and of the structs that it points to), and may raise to end the run. patience:
    ends the run after that many evaluations without a lower held-out loss; 0: never.

    Ctrl-C, an exception of `progress`, or the end of `minutes` ends the run after the step, which is saved;
    resume=True continues it. If train.cooldown_steps is a share, as 0.2, the learning rate falls over that share of
    the minutes. Returns
    the last evaluation as metrics.jsonl has it, {} if the data have no held-out share; it prints as one line.
    Errors are those of the files; NumericError: a loss that is not finite."""
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
    """Trains a checkpoint or run `init_from` on the labelled data of a task, and evaluates it on the dev set;
    docs/finetuning.md.

    task: a name ("RTE"), or a JSON file that describes the task. data: the directory of its files. epochs: 10 unless
    `steps` is given. patience: evaluations without a better one after which to end; 0: never. batch_sequences: number
    of texts in a batch of batch routing in evaluations; 0: no batch routing. Other parameters are those of `train`;
    `steps`, `learning_rate` and other fields of the config's "train" may be given. resume=True continues with the
    settings of the run.
    Returns result.json: the best accuracy, and the step of it; {} before the first evaluation."""
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
