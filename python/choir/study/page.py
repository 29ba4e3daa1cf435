"""The page of claims: what recipes claim, by the store alone, with p corrected over the whole page. A plan says which
recipes at which budgets; the rule for learning rates is that of studies, over rates that all arms have tried."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import pathlib
import textwrap
from typing import Any, Iterator, Optional

import numpy as np

from .. import _files
from . import StudyError, recipe as recipes
from . import foreign, report, statistics, tuned
from .claims import Claims, Finding, resolution, verdict
from .recipe import check, read
from .store import Store, whole
from .study import Study

BEGIN, END = "<!-- choir study claims: begin -->", "<!-- choir study claims: end -->"
STATUS = {
    "holds": "confirmed", "contradicted": "excluded", "the paper's figure is excluded": "excluded",
    "not resolved": "not resolved", "one seed: no verdict": "one seed",
}  # fmt: skip
HEAD = ["claim", "paper", "here: mean and 95 % interval", "p (Holm)", "status", "seeds"]


@dataclasses.dataclass
class Group:
    """A recipe at one budget, and those of its claims that any run speaks to."""

    title: str
    study: Study
    findings: list[Finding]


def _common_rates(study: Study) -> list[float]:
    """Rates that seed 1 of every arm with any run has tried: an arm with more of them would be the better searched one."""
    tried = [{rate for rate, loss in study.rates(arm.name) if math.isfinite(loss)} for arm in study.arms]
    tried = [rates for rates in tried if rates]
    return sorted(set.intersection(*tried)) if tried else []


def _study(plan: dict[str, Any], row: dict[str, Any], store: Store) -> Study:
    scale, recipe = recipes.load_scale(row["scale"]), recipes.load(row["recipe"])
    scale = {**scale, "rates": row["rates"], "set": {**scale.get("set", {}), **row.get("set", {})}}
    without = row.get("without", [])  # what another group compares by the same runs
    for text in set(without) - {claim["text"] for claim in recipe["claims"]}:
        raise StudyError(f"{row['title']}: without '{text}', which recipe {recipe['name']} does not claim")
    recipe = {**recipe, "claims": [claim for claim in recipe["claims"] if claim["text"] not in without]}
    if only := row.get("arms"):
        arms = [arm for arm in recipe["arms"] if arm["name"] in only]
        for name in set(only) - {arm["name"] for arm in arms}:
            raise StudyError(f"{row['title']}: arm '{name}', which recipe {recipe['name']} does not have")
        claims = [c for c in recipe["claims"] if {c["arm"], c.get("rival", c["arm"])} <= set(only)]
        recipe = {**recipe, "arms": arms, "claims": claims}

    def made(rates: list[float]) -> Study:
        here, data = pathlib.Path(), row.get("data", plan["data"])
        return Study(recipe, {**scale, "rates": rates}, here, here, store, row["seeds"], row["tokens"], data)

    return made(row["rates"] if len(row["rates"]) == 1 else _common_rates(made(row["rates"])) or row["rates"])


def load(path: pathlib.Path, store: Store) -> tuple[dict[str, Any], list[Group]]:
    """A plan (claims.schema.json) and its groups, their p values corrected over all of them together."""
    plan = read(path)
    check(path, plan, "claims.schema.json")
    groups = []
    for row in plan["groups"]:
        study = _study(plan, row, store)
        kinds = tuned.KINDS if "tune" in study.recipe else {}
        found = Claims(study, None, {what: tuned.table(study, what) for what in kinds}).findings
        groups.append(Group(row["title"], study, [f for f in found if f.estimate]))
    every = [f for group in groups for f in group.findings if f.estimate.freedom > 0]
    for f, corrected in zip(every, statistics.holm([f.p for f in every])):
        f.corrected = corrected
        f.verdict = verdict(f)
    return plan, groups


def _status(f: Finding) -> str:
    missed = f"; {resolution(f)} would have been seen" if f.verdict == "not resolved" else ""
    return STATUS[f.verdict] + missed


def _row(f: Finding) -> list[str]:
    unit = "" if f.logarithmic else " " + report.UNITS[f.claim["kind"]]
    p = f"{f.corrected:.2g}" if f.estimate.freedom > 0 else "-"
    here = report.estimate(f) + (" times" if f.logarithmic else unit)
    return [f.claim["text"], f.claim.get("paper", ""), here, p, _status(f), str(f.estimate.count)]


def _regime(study: Study) -> str:
    budgets = ", ".join(f"{steps * study.step_tokens(study.arms[0].name) / 1e6:.3g}" for steps in study.steps)
    rates = {arm.name: study.rate(arm.name) for arm in study.arms if study.finals(arm.name)}
    taken = collections.defaultdict(list)
    for name, rate in rates.items():
        taken[rate].append(name)
    if len(taken) == 1:
        told = f"all at {next(iter(taken)):g}"
    else:
        told = "; ".join(f"{rate:g}: {', '.join(names)}" for rate, names in sorted(taken.items()))
    of = ", ".join(f"{rate:g}" for rate in study.scale["rates"])
    chosen = f"rate {of}" if len(study.scale["rates"]) == 1 else f"rates (of {of}) {told}"
    bound = "" if study.measure == "causal loss" else f" Nats are of the {study.measure} ([diffusion.md](diffusion.md))."
    return f"{study.scale['name']}, {budgets} M tokens; {chosen}.{bound}"


def claims_page(plan: dict[str, Any], groups: list[Group]) -> str:
    """docs/claims.md."""
    every = [f for group in groups for f in group.findings]
    count = collections.Counter(STATUS[f.verdict] for f in every if f.claim.get("paper"))
    count["untested"] = len(plan["untested"])
    told = ", ".join(f"{count[status]} {status}" for status in ("confirmed", "excluded", "not resolved", "untested"))
    lines = [
        "# Claims", "",
        "Made by `choir study claims` from `lab/results`; do not edit. Every comparison that the store of results",
        "allows, against what the paper (Zhou et al. 2022) says where it says anything. [studies.md](studies.md) has the",
        f"statistics and the rules. Of the paper's sentences: {told}.", "",
        f"- **p** is corrected by Holm over all {sum(f.estimate.freedom > 0 for f in every)} comparisons of this page.",
        "- **confirmed**: p below 0.05 on the claimed side. **excluded**: the other side was seen, or the paper's figure",
        "  is outside the interval. **not resolved**: anything else, with what the deviation seen here would have shown",
        "  with a power of 0.8.",
        "- **Rates**: of those that seed 1 of every arm has tried, each arm's lowest loss at the largest budget, seed 1.",
        "- No deviation of paired runs below 0.0069 nats (chaos) is believed. Positive: the claimed side is better.", "",
    ]  # fmt: skip
    for group in groups:
        if group.findings:
            lines += [f"## {group.title}", "", _regime(group.study), ""]
            lines += [report.markdown(HEAD, [_row(f) for f in group.findings])]
    lines += ["## Untested", "", report.markdown(["claim", "paper", "why"], [
        [one["text"], one["paper"], one["why"]] for one in plan["untested"]])]  # fmt: skip
    return _page(lines)


def _page(lines: list[str]) -> str:
    """Lines of text are wrapped at 120 characters; those of tables and headings are not."""
    made = []
    for line in lines:
        made += [line] if line.startswith(("|", "#")) else textwrap.wrap(line, 120) or [""]
    return "\n".join(made).rstrip("\n") + "\n"


def summary(plan: dict[str, Any], groups: list[Group]) -> str:
    """The rows for README."""
    rows = []
    for one in plan["summary"]:
        (group,) = [group for group in groups if group.title == one["group"]]
        (f,) = [f for f in group.findings if f.claim["text"] == one["claim"]]
        tokens = group.study.steps[-1] * group.study.step_tokens(group.study.arms[0].name) / 1e6
        paper = one.get("paper", f.claim.get("paper", ""))
        rows.append([one["text"], paper, _row(f)[2], STATUS[f.verdict], str(f.estimate.count), f"{tokens:.3g}"])
    return report.markdown(["claim", "paper", "here, 95 %", "status", "seeds", "M tokens"], rows)


def _flat(fields: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in fields.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


_ASIDE = (
    "train.rate", "train.seed", "train.steps", "train.cooldown_steps", "model.router.name", "parallel.", "model.name",
    "train.eval_", "train.checkpoint", "train.keep_", "train.file_", "train.expert_copies",
)  # fmt: skip


def runs_page(store: Store) -> str:
    """docs/results/table.md: every run of the store, none left out."""
    cells: dict[tuple, list[dict[str, Any]]] = collections.defaultdict(list)
    results = [read(path) for path in sorted(store.directory.glob("*.json"))
               if not path.name.startswith(("tuned-", "texts-"))]  # fmt: skip
    flat = [dict(_flat(whole(result["config"]))) for result in results]
    keys = {key for fields in flat for key in fields}
    usual = {key: collections.Counter(json.dumps(f.get(key)) for f in flat).most_common(1)[0][0] for key in keys}
    for result, fields in zip(results, flat):
        own = {key: v for key, v in fields.items() if not key.startswith(_ASIDE) and json.dumps(v) != usual[key]}
        told = ", ".join(f"{key.split('.')[-1]} {json.dumps(v)}".replace('"', "") for key, v in sorted(own.items()))
        scale = (fields["model.d_model"], fields["model.router.name"], told, result["tokens"], fields["train.rate"])
        cells[scale].append(result)
    rows = []
    for (width, router, told, tokens, rate), found in sorted(cells.items()):
        loss, own = ([one["final"][how]["loss"] for one in found] for how in ("causal", "own"))
        spread = f" ± {np.std(loss, ddof=1):.4f}" if len(loss) > 1 else ""
        seeds = sorted(one["seed"] for one in found)
        row = [router, told, f"{tokens / 1e6:.2f}", f"{rate:g}", f"{np.mean(loss):.4f}{spread}", f"{np.mean(own):.4f}"]
        rows.append([*row, f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"])
    usually = ", ".join(f"{key.split('.')[-1]} {usual[key]}".replace('"', "") for key in ("model.d_model", "model.experts"))
    head = ["router", "what is unusual", "M tokens", "rate", "causal loss", "own routing", "seeds"]
    return _page([
        "# All runs", "",
        f"Made by `choir study claims`; do not edit. The {len(results)} cooled runs of `lab/results`: held-out loss in",
        f"nats a token, mean and deviation over seeds. Usual is pico ({usually}). With objective masked_diffusion it is an",
        "upper bound, not a causal loss.", "",
        report.markdown(head, rows),
    ])  # fmt: skip


def put(text: str, rows: str) -> str:
    """A page with other rows between its two marks."""
    try:
        before, rest = text.split(BEGIN + "\n")
        _, after = rest.split(END)
    except ValueError:
        raise StudyError(f"the page has no lines '{BEGIN}' and '{END}', each once") from None
    return f"{before}{BEGIN}\n{rows}{END}{after}"


def texts_tables(groups: list[Group]) -> str:
    """Losses by text, of every recipe that names texts."""
    studies = [group.study for group in groups if "texts" in group.study.recipe]
    return "\n".join(f"{_regime(study)}\n\n{report.markdown(*foreign.rows(study))}" for study in studies)


def pages(root: pathlib.Path) -> dict[pathlib.Path, str]:
    """By path, what the pages of a source tree should be."""
    store = Store(root / "lab" / "results")
    plan, groups = load(root / "lab" / "claims.json", store)
    made = {
        root / "docs" / "claims.md": claims_page(plan, groups),
        root / "docs" / "results" / "table.md": runs_page(store),
        root / "README.md": put(_files.read_text(root / "README.md"), summary(plan, groups)),
    }
    texts, page = texts_tables(groups), root / "docs" / "foreign.md"
    if texts and page.exists():
        made[page] = put(_files.read_text(page), texts)
    return made
