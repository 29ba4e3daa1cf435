"""choir study: list, noise, run, status, report, measure."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import pathlib
import re
import signal
import sys
import time
from typing import Any, Callable, NoReturn

from .. import Error, _files, plugin
from .._fields import nearest
from . import Stopped, StudyError, foreign, noise, pools, program, recipe, report, terminal, tuned, turns
from .jobs import Jobs
from .program import Runner
from .study import Study, all_in


def _run(o: argparse.Namespace) -> int:
    with contextlib.ExitStack() as held:
        return _run_all(o, held)


def _run_all(o: argparse.Namespace, held: contextlib.ExitStack) -> int:
    failed = False
    notice = lambda text: print(terminal.fill(f"choir study: {text}", "  "), file=sys.stderr)  # noqa: E731
    deadline = time.monotonic() + 60 * o.minutes if o.minutes else math.inf
    for number, name in enumerate(o.recipe):
        study = Study.make(name, o.data, o.out, o.scale, o.store, o.seeds, o.tokens, o.routers)
        if not number:
            held.enter_context(_files.claimed(study.out, "runs", notice))
        tuned_too = ["tuned"] if "tune" in study.recipe else []
        for part in (study.own, *(study.out / name for name in ["trunks", "runs", "configs", "logs", *tuned_too])):
            _files.directory(part)
        study.save()
        runner = Runner(o.backend)
        jobs = Jobs(runner, o.jobs or int(o.backend != "cpu"), deadline)
        _introduce(study, jobs)
        stopped = False
        try:
            _work(study, runner, jobs, *(pathlib.Path(d).resolve() if d else None for d in (o.tasks, o.texts)))
        except Stopped:
            stopped = True
        study = Study.open(study.own)
        page, claims = report.write(study)
        print(report.brief(study, claims, page))
        failed |= bool(jobs.failed)
        if stopped:
            print("stopped, and saved; the same command continues")
            return 0 if o.minutes and not jobs.interrupted else 3
    return int(failed)


def _introduce(study: Study, jobs: Jobs) -> None:
    """Prints, before the runs, which quantities are equal in all arms, and which are not."""
    jobs.say(report.regime(study))
    first = study.costs(study.arms[0].name)["train_flops_per_token"]
    wide = max(len(arm.name) for arm in study.arms)
    for arm in study.arms:
        costs = study.costs(arm.name)
        flops, active = costs["train_flops_per_token"], costs["active_parameters"]
        jobs.say(
            f"  {arm.name:<{wide}}  {active / 1e6:.3f} M active, {flops / 1e6:.3f} MFLOPs per token (x{flops / first:.2f})"
        )
    if report.power(study):
        jobs.say(report.power(study))
    epochs = study.steps[-1] * study.step_tokens(study.arms[0].name) / study.facts["train_tokens"]
    if epochs > 2:
        jobs.say(f"warning: each token is used {epochs:.1f} times; above 2, models memorize the training data")


def _work(
    study: Study, runner: Runner, jobs: Jobs, tasks: pathlib.Path | None, texts: pathlib.Path | None
) -> None:
    jobs.run("rates", study.lanes(runner, True))
    jobs.run("runs", study.lanes(runner, False))
    measured = study.recipe.get("measure", [])
    if "time" in measured and not turns.read(study):
        jobs.run("step times, in turns", [turns.Turns(study, runner)])
    if "tune" in study.recipe and tasks:
        lacking = [task for task in study.recipe["tune"]["tasks"] if not (tasks / tuned.folder(task)).is_dir()]
        if lacking:
            jobs.say(f"warning: {tasks}: no files of {', '.join(lacking)}; skipped")
        lines = tuned.missing(study, runner, tasks)
        jobs.run("runs to fine-tune", study.absent(runner, lines))
        jobs.run("fine-tuning", lines)
    if "texts" in study.recipe and texts:
        readings = foreign.missing(study, texts)
        jobs.run("runs that read texts", study.absent(runner, readings))
        jobs.run("texts", readings)


def _noise(o: argparse.Namespace) -> int:
    out = pathlib.Path(o.out)
    scale = noise.scale(o.config, out, o.seeds, o.tokens)
    study = Study.make("noise", o.data, o.out, str(scale), None, o.seeds, o.tokens)
    words = ["run", "noise", "--data", o.data, "--out", o.out, "--scale", str(scale), "--seeds", str(o.seeds)]
    status = _run(_parser().parse_args([*words, "--jobs", str(o.jobs)], argparse.Namespace(routers=[])))
    if not status:
        print(terminal.fill(noise.describe(study.table(study.steps[-1])), "    "))
    return status


def _list(o: argparse.Namespace) -> int:
    for name in recipe.names():
        one = recipe.load(name)
        figure = f" ({one['figure']})" if "figure" in one else ""
        print(terminal.fill(f"{name}: {one['title']}{figure}; {len(recipe.arms(one))} arms, {len(one['claims'])} claims", "    "))
        print(terminal.fill(f"    {one['question']}", "    "))
    return 0


def _status(o: argparse.Namespace) -> int:
    studies = []
    for study in all_in(pathlib.Path(o.dir)):
        arms = {}
        for arm in study.arms:
            ends = [study.final(arm.name, seed, s) for seed in range(1, study.seeds + 1) for s in study.steps]
            arms[arm.name] = {"rate": study.rate(arm.name), "done": sum(map(bool, ends)), "of": len(ends)}
        studies.append({"recipe": study.recipe["name"], "scale": study.scale["name"], "arms": arms})
    if o.json:
        print(json.dumps(studies, indent=1))
        return 0
    for one in studies:
        print(f"{one['recipe']}, {one['scale']}")
        wide = max(map(len, one["arms"]))
        for name, arm in one["arms"].items():
            rate = f"learning rate {arm['rate']:g}" if arm["rate"] else "no learning rate yet"
            print(terminal.fill(f"  {name:<{wide}}  {rate:<20}  {arm['done']} of {arm['of']} end points", "    "))
    return 0


def _report(o: argparse.Namespace) -> int:
    for study in all_in(pathlib.Path(o.dir)):
        print(report.write(study)[0])
    return 0


def _measure(o: argparse.Namespace) -> int:
    rows = pools.measure(pathlib.Path(o.run), pathlib.Path(o.data), o.sequences or 1024, o.threads)
    recipe.write(pathlib.Path(o.out), rows)
    return 0


def _reads(wanted: str, read: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argparse type that converts a word with `read`. If this returns None or fails, the message says that the
    word must be `wanted`."""

    def value(text: str) -> Any:
        try:
            found = read(text)
        except (ValueError, OverflowError):
            found = None
        if found is None:
            raise argparse.ArgumentTypeError(f"{text}: must be {wanted}")
        return found

    return value


def _numbers_of_tokens(text: str) -> list[int] | None:
    found = [int(float(part)) for part in text.split(",")]
    return found if min(found) >= 1 else None


_count = _reads("a whole number, not negative", lambda text: int(text) if int(text) >= 0 else None)
_minutes = _reads("a number, not negative", lambda text: float(text) if 0 <= float(text) < float("inf") else None)
_tokens = _reads("numbers from 1 on", _numbers_of_tokens)


def _plugins(verb: argparse.ArgumentParser, what: str) -> None:
    verb.add_argument("--plugin", action="append", default=[], metavar="FILE",
                      help=f"a router of your own (docs/adding-a-router.md): {what}; may be repeated")  # fmt: skip


def _load(files: list[str]) -> list[str]:
    """Loads router files, here and in the commands that this one starts. Returns the names of their routers."""
    program.load(files)  # first, so that a change of a file while it is loaded is detected
    return [name for file in files for name in plugin.load_plugin(file)]


class _Parser(argparse.ArgumentParser):
    """Names the verb or option that was probably meant."""

    verbs: dict[str, argparse.ArgumentParser] = {}

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.+)' \(|unrecognized arguments: (\S+)", message)
        helps = [parser.format_help() for parser in self.verbs.values()]
        words = [*self.verbs, *re.findall("--[a-z]+", "".join(helps))]
        super().error(message + (nearest((wrong[1] or wrong[2]).split("=")[0], words) if wrong else ""))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="choir study", description="Compare models with several seeds and confidence intervals.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    parser.verbs = verbs.choices
    run = verbs.add_parser("run", help="run a study: train all arms with all seeds, and write a report")
    run.add_argument("recipe", nargs="+", metavar="RECIPE", help="a name that 'choir study list' shows, or a JSON file")
    run.add_argument("--data", required=True, metavar="DIR", help="directory that 'choir data build' made")
    run.add_argument("--out", required=True, metavar="DIR", help="directory of studies; they share runs")
    run.add_argument("--store", metavar="DIR", help="directory of results [OUT/results]")
    run.add_argument("--scale", default="pico", help="a name in studies/scales.json, such as pico-1m, or a JSON file [pico]")
    run.add_argument("--seeds", type=_count, default=0, metavar="N", help="number of runs of each arm [the scale's]")
    run.add_argument("--tokens", type=_tokens, metavar="M,...",
                     help="training tokens after which the arms are compared [the scale's]")  # fmt: skip
    run.add_argument("--jobs", type=_count, default=0, metavar="J", help="number of runs at the same time [one per CPU; one on a device]")
    run.add_argument("--backend", default="cpu", metavar="NAME",
                     help="cpu or cuda; jobs share the device [cpu]")  # fmt: skip
    run.add_argument("--minutes", type=_minutes, default=0, metavar="T", help="stop after T minutes, and save [no limit]")
    run.add_argument("--tasks", metavar="DIR", help="directory with a folder for each labelled task, for recipes that fine-tune")
    run.add_argument("--texts", metavar="DIR", help="directory with NAME.txt for each text of the recipe")
    _plugins(run, "adds an arm for each of its routers")
    run.set_defaults(call=_run)
    before = verbs.add_parser("noise", help="measure, with a few runs, which differences a number of seeds can resolve")
    before.add_argument("--config", required=True, metavar="C", help="JSON config, or a name that 'choir configs' lists")
    before.add_argument("--data", required=True, metavar="DIR", help="directory that 'choir data build' made")
    before.add_argument("--out", required=True, metavar="DIR", help="directory of studies; they share runs")
    before.add_argument("--seeds", type=_count, default=4, metavar="N", help="number of seeds; each runs twice [4]")
    before.add_argument("--tokens", type=_tokens, metavar="M", help="training tokens [the config's]")
    before.add_argument("--jobs", type=_count, default=0, metavar="J", help="number of runs at the same time [one per CPU]")
    before.set_defaults(call=_noise)
    verbs.add_parser("list", help="list the recipes that come with choir").set_defaults(call=_list)
    status = verbs.add_parser("status", help="show the progress of the studies in a directory")
    status.add_argument("dir", metavar="DIR")
    status.add_argument("--json", action="store_true", help="print JSON")
    _plugins(status, "one that the studies used")
    status.set_defaults(call=_status)
    again = verbs.add_parser("report", help="write the reports of a directory again")
    again.add_argument("dir", metavar="DIR")
    _plugins(again, "one that the studies used")
    again.set_defaults(call=_report)
    measure = verbs.add_parser("measure", help="measure the loss of a run with batch routing, for pools of several sizes")
    measure.add_argument("run", metavar="RUN")
    measure.add_argument("--data", required=True, metavar="DIR", help="directory that 'choir data build' made")
    measure.add_argument("--out", required=True, metavar="FILE.json", help="file to write")
    measure.add_argument("--sequences", type=_count, default=0, metavar="N", help="maximum number of held-out sequences [1,024]")
    measure.add_argument("--threads", type=_count, default=0, metavar="N", help="number of threads [all CPUs]")
    measure.set_defaults(call=_measure)
    return parser


def main() -> int:
    terminal.guard()
    options = _parser().parse_args()
    try:
        options.routers = _load(getattr(options, "plugin", []))
        status = options.call(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        terminal.nobody_reads(sys.stdout)
        return 128 + signal.SIGPIPE
    except (StudyError, Error) as error:
        print(terminal.fill(f"choir study: {error}", "  "), file=sys.stderr)
    except OSError as error:
        print(terminal.fill(f"choir study: {error.filename or 'a file'}: {error.strerror}", "  "), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
