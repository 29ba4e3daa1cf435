"""pages.py: rewrites the tables of lab/docs and docs/causality.md from the store of results (lab/results) only. At
most ten claims are pre-registered: their budget, learning rates, seeds and margin were written before their runs,
and their p values are corrected for the number of claims. Everything else is an estimate with an interval."""

from __future__ import annotations

import argparse
import collections
import csv
import dataclasses
import io
import math
import pathlib
import sys
import textwrap
from typing import Any, Callable, Optional

import numpy as np

LAB = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(LAB.parent / "python"))
from choir import _files  # noqa: E402
from choir.study import StudyError, figures, recipe as recipes, report, settings, tuned  # noqa: E402
from choir.study.claims import Claims, Finding, correct, label  # noqa: E402
from choir.study.recipe import check, read  # noqa: E402
from choir.study.statistics import Estimate  # noqa: E402
from choir.study.store import Store  # noqa: E402
from choir.study.study import Study  # noqa: E402

PRIMARY = 10  # claims at most


@dataclasses.dataclass
class Group:
    """A recipe at one budget, with its claims; `primary`: planned before its runs."""

    title: str
    study: Study
    findings: list[Finding]
    primary: bool


def _common_rates(study: Study) -> list[float]:
    """Learning rates with a run of seed 1 in every arm that has runs. With further rates, an arm would be tuned
    better than the others."""
    tried = [{rate for rate, loss in study.rates(arm.name) if math.isfinite(loss)} for arm in study.arms]
    tried = [rates for rates in tried if rates]
    return sorted(set.intersection(*tried)) if tried else []


def _study(plan: dict[str, Any], row: dict[str, Any], store: Store) -> Study:
    scale, recipe = recipes.load_scale(row["scale"]), recipes.load(row["recipe"])
    settings.check_scale(row["title"], {"set": row.get("set", {})})
    scale = {**scale, "rates": row["rates"], "set": {**scale.get("set", {}), **row.get("set", {})}}
    if only := row.get("arms"):
        arms = [arm for arm in recipe["arms"] if arm["name"] in only]
        for name in set(only) - {arm["name"] for arm in arms}:
            raise StudyError(f"{row['title']}: arm '{name}', which recipe {recipe['name']} does not have")
        claims = [c for c in recipe["claims"] if {c["arm"], c.get("rival", c["arm"])} <= set(only)]
        recipe = {**recipe, "arms": arms, "claims": claims}

    def made(rates: list[float]) -> Study:
        here, data = pathlib.Path(), row.get("data", plan["data"])
        return Study(recipe, {**scale, "rates": rates}, here, here, store, row["seeds"], row["tokens"], data, here)

    return made(row["rates"] if len(row["rates"]) == 1 else _common_rates(made(row["rates"])) or row["rates"])


def load(path: pathlib.Path, store: Store) -> tuple[dict[str, Any], list[Group]]:
    """A plan (claims.schema.json) and its groups. p is corrected for the number of all primary claims."""
    plan = read(path)
    check(path, plan, str(LAB / "claims.schema.json"))
    groups = []
    for row in plan["groups"]:
        study = _study(plan, row, store)
        kinds = tuned.KINDS if "tune" in study.recipe else {}
        found = Claims(study, None, {what: tuned.table(study, what) for what in kinds}).findings
        groups.append(Group(row["title"], study, found, row.get("primary", False)))
    primary = [f for group in groups if group.primary for f in group.findings]
    if len(primary) > PRIMARY:
        raise StudyError(f"{path}: {len(primary)} primary claims; {PRIMARY} at most, or each says less")
    correct([f for f in primary if f.estimate])
    return plan, groups


def number(f: Finding) -> str:
    """An estimate with its unit, which is omitted if it is nats."""
    unit = report.UNITS[f.claim["kind"]]
    return report.estimate(f) if unit == "nats" else f"{report.estimate(f)} {unit}"


def _tried(study: Study) -> str:
    return ", ".join(f"{rate:g}" for rate in study.scale["rates"])


def _taken(study: Study, f: Finding, between: str) -> str:
    """The learning rates of the arms that a claim compares."""
    rates = {study.rate(f.claim[who]) for who in ("arm", "rival") if who in f.claim}
    return between.join(f"{rate:g}" for rate in sorted(rates))


def _budgets(study: Study) -> str:
    return ", ".join(f"{steps * study.step_tokens(study.arms[0].name) / 1e6:.3g}" for steps in study.steps)


def _found(groups: list[Group], row: list[str]) -> Finding:
    """The finding that a plan names by group and claim; "negated": with the arm and its rival exchanged."""
    title, claim, *negated = row
    if negated not in ([], ["negated"]):
        raise StudyError(f"lab/claims.json: '{negated[0]}' of '{claim}' is not 'negated'")
    for group in groups:
        for f in group.findings:
            if (group.title, f.claim["text"]) == (title, claim) and f.estimate:
                return dataclasses.replace(f, estimate=f.estimate.negated()) if negated else f
    raise StudyError(f"lab/claims.json: no group '{title}' with a number for '{claim}'")


def answers(plan: dict[str, Any], groups: list[Group], store: Store) -> str:
    """One line per question, with the numbers from the store."""
    runs, low, high, _ = gaps(store)
    facts = {"runs": str(runs), "low": f"{low:.4f}", "high": f"{high:.4f}"}
    rows = []
    for one in plan["questions"]:
        numbers = [number(_found(groups, row)) for row in one.get("rows", [])]
        rows.append([one["question"], one["answer"].format(*numbers, **facts)])
    return report.markdown(["question", "answer"], rows).replace("--:", "---").replace("](docs/", "](../../docs/")


def primary_rows(groups: list[Group]) -> str:
    rows = []
    for group in groups:
        for f in group.findings if group.primary else []:
            found = ["no run yet", "", "", "planned", ""]
            if f.estimate:
                found = [number(f), f"{f.p:.2g} / {f.plain_p:.2g}", f"{f.corrected:.2g}", f.verdict, str(f.estimate.count)]
            rows.append([f.claim["text"], f.claim.get("paper", ""), *found])
    head = ["claim", "other paper", "here, 95 % CI", "p: pooled / plain pairs", "p, Holm", "result", "seeds"]
    return report.markdown(head, rows)


def claims_page(root: pathlib.Path, plan: dict[str, Any], groups: list[Group], store: Store) -> str:
    """lab/docs/claims.md: the written page, with its two tables rewritten."""
    text = _files.read_text(root / "lab" / "docs" / "claims.md")
    regimes = "".join(
        f"{group.title}: {group.study.scale['name']}, {_budgets(group.study)} M tokens; learning rates {_tried(group.study)}.\n"
        for group in groups if group.primary
    )  # fmt: skip
    text = put(text, primary_rows(groups) + "\n" + textwrap.fill(regimes, 120) + "\n", "primary")
    return put(text, answers(plan, groups, store), "questions")


def _drawn(rows: dict[str, Estimate]) -> str:
    """Estimates with 95 % intervals, one below the other, about a line at 0."""
    with figures.plt.rc_context(figures._SETTINGS):
        figure, axes = figures.plt.subplots(figsize=(9, 0.8 + 0.26 * len(rows)), layout="constrained")
        axes.axvline(0, color=figures._INK, linewidth=0.7)
        for at, one in enumerate(rows.values()):
            half = one.mean - one.interval()[0]
            axes.errorbar(one.mean, at, xerr=half, color=figures._COLOURS[0], marker="o", markersize=4, capsize=2, linewidth=1.3)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.invert_yaxis()
        axes.set_xlabel("nats, 95 % interval over seeds; exploratory")
        return figures._svg(figure)


def forest(plan: dict[str, Any], groups: list[Group]) -> str:
    """The evidence of the answers: every difference of losses that they name."""
    rows: dict[str, Any] = {}
    for one in plan["questions"]:
        for row in one.get("rows", []):
            f, group = _found(groups, row), next(group for group in groups if group.title == row[0])
            if report.UNITS[f.claim["kind"]] == "nats" and f.estimate.freedom > 0:
                tokens = group.study.steps[-1] * group.study.step_tokens(group.study.arms[0].name) / 1e6
                at = f"{group.study.scale['name']}, {tokens:.3g} M at {_taken(group.study, f, ' and ')}"
                rows[f"{label(f.claim)}; {at}"] = f.estimate.negated() if row[2:] else f.estimate  # as all comparisons have it
    return _drawn(rows)


def _csv(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def comparisons(groups: list[Group]) -> str:
    """lab/docs/results/comparisons.csv: every estimate, without a result."""
    setting = ["comparison", "scale", "M tokens", "rates tried", "rates taken", "measure"]
    rows = [[*setting, "what", "mean", "low", "high", "unit", "seeds"]]
    for group in groups:
        study, seen = group.study, set()
        for f in group.findings:
            if f.estimate and label(f.claim) not in seen:
                seen.add(label(f.claim))
                numbers = (report.numbers(f) + ["", ""])[:3]
                setting = [group.title, study.scale["name"], _budgets(study), _tried(study), _taken(study, f, ", ")]
                unit = report.UNITS[f.claim["kind"]]
                rows.append([*setting, study.measure, label(f.claim), *numbers, unit, str(f.estimate.count)])
    return _csv(rows)


def gaps(store: Store) -> tuple[int, float, float, list[list[str]]]:
    """For every stored run with expert choice over a batch: the difference of its causal loss, with threshold
    routing, and its loss with batch routing. Returns their number, minimum and maximum, and rows by setting."""
    by: dict[tuple, list[float]] = collections.defaultdict(list)
    for one in store.results():
        model, own, causal = one["config"]["model"], one["final"]["own"], one["final"]["causal"]
        router, routings = model["router"], (own["routing"], causal["routing"])
        if router["name"] == "expert_choice" and not router["threshold_after"] and routings == ("batch", "threshold"):
            scale = "pico" if model["d_model"] == 64 else "nano" if model["d_model"] == 128 else f"{model['d_model']} wide"
            setting = scale, model["experts"], router["capacity_factor"], one["tokens"]
            by[setting].append(causal["loss"] - own["loss"])
    every = [gap for each in by.values() for gap in each]
    rows = []
    for (scale, experts, factor, tokens), each in sorted(by.items()):
        shown = [f"{gap:.4f}" for gap in (np.mean(each), min(each), max(each))]
        rows.append([f"{scale}, {factor:g} of {experts}", f"{tokens / 1e6:.3g}", str(len(each)), *shown])
    return len(every), min(every), max(every), rows


def gaps_line(store: Store) -> str:
    runs, low, high, rows = gaps(store)
    means = [float(row[3]) for row in rows]
    return f"{runs} runs, {low:.4f} to {high:.4f} nats; means of a setting {min(means):.4f} to {max(means):.4f}.\n"


def gaps_file(store: Store) -> str:
    """lab/docs/results/thresholds.csv: the same by setting."""
    return _csv([["experts a token", "M tokens", "runs", "causal minus batch", "least", "most"], *gaps(store)[3]])


def put(text: str, rows: str, name: str = "", of: str = "lab/pages") -> str:
    """A page with other rows between its two marks, which are named `of` in a page with several tables."""
    begin, end = f"<!-- {of}: {name and name + ', '}begin -->", f"<!-- {of}: end -->"
    try:
        before, rest = text.split(begin + "\n")
        _, after = rest.split(end, 1)
    except ValueError:
        raise StudyError(f"the page has no lines '{begin}' and '{end}', each once") from None
    return f"{before}{begin}\n{rows}{end}{after}"


def rewrite(path: pathlib.Path, page: Callable[[str], str]) -> None:
    """Rewrites a page from its text."""
    _files.save(path, page(_files.read_text(path)))


def arguments(doc: Optional[str], path: pathlib.Path, page: Callable[[str], str]) -> Optional[argparse.Namespace]:
    """RUNS and TEXTS of a script that measures runs. With `report` there are none: the page is rewritten."""
    ask = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("runs", help="or 'report'")
    ask.add_argument("texts", nargs="?", type=pathlib.Path)
    given = ask.parse_args()
    if given.runs != "report":
        return given
    rewrite(path, page)
    return None


def pages(root: pathlib.Path) -> dict[pathlib.Path, str]:
    """The expected content of the pages of a source tree, by path."""
    store, docs, causality = Store(root / "lab" / "results"), root / "lab" / "docs", root / "docs" / "causality.md"
    plan, groups = load(root / "lab" / "claims.json", store)
    return {
        docs / "claims.md": claims_page(root, plan, groups, store),
        docs / "results" / "comparisons.csv": comparisons(groups),
        docs / "results" / "thresholds.csv": gaps_file(store),
        docs / "results" / "forest.svg": forest(plan, groups),
        causality: put(_files.read_text(causality), gaps_line(store)),
    }


if __name__ == "__main__":
    for path, text in pages(LAB.parent).items():
        _files.save(path, text)
        print(path)
