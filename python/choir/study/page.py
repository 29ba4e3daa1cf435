"""The page of claims, from the store of results alone: at most ten primary claims, whose budget, rates, seeds and margin
were written before their runs and whose p is corrected over them; of everything else estimates with intervals."""

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
from . import figures, foreign, report, tuned
from .claims import Claims, Finding, correct, label
from .recipe import check, read
from .store import Store, whole
from .study import Study

BEGIN, END = "<!-- choir study claims: begin -->", "<!-- choir study claims: end -->"
PRIMARY = 10  # claims at most


@dataclasses.dataclass
class Group:
    """A recipe at one budget, with its claims; `primary`: planned before its runs."""

    title: str
    study: Study
    findings: list[Finding]
    primary: bool


def _common_rates(study: Study) -> list[float]:
    """Rates that seed 1 of every arm with any run has tried: an arm with more of them would be the better searched one."""
    tried = [{rate for rate, loss in study.rates(arm.name) if math.isfinite(loss)} for arm in study.arms]
    tried = [rates for rates in tried if rates]
    return sorted(set.intersection(*tried)) if tried else []


def _study(plan: dict[str, Any], row: dict[str, Any], store: Store) -> Study:
    scale, recipe = recipes.load_scale(row["scale"]), recipes.load(row["recipe"])
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
    """A plan (claims.schema.json) and its groups; p is corrected over all primary claims together."""
    plan = read(path)
    check(path, plan, "claims.schema.json")
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
    return f"{report.estimate(f)} {report.UNITS[f.claim['kind']]}"


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
    bound = "" if study.measure == "causal loss" else f" Nats are of the {study.measure} ([diffusion.md](../diffusion.md))."
    return f"{study.scale['name']}, {budgets} M tokens; {chosen}.{bound}"


def _found(groups: list[Group], row: list[str]) -> Finding:
    """What a plan names by its group and its claim."""
    for group in groups:
        for f in group.findings:
            if [group.title, f.claim["text"]] == row and f.estimate:
                return f
    raise StudyError(f"lab/claims.json: no group '{row[0]}' with a number for '{row[1]}'")


def answers(plan: dict[str, Any], groups: list[Group], store: Store, first: bool = False) -> str:
    """A line a question; its numbers are put in from the store."""
    runs, low, high, _ = gaps(store)
    facts = {"runs": str(runs), "low": f"{low:.4f}", "high": f"{high:.4f}"}
    rows = []
    for one in plan["questions"]:
        numbers = [number(_found(groups, row)) for row in one.get("rows", [])]
        if one.get("readme") or not first:
            rows.append([one["question"], one["answer"].format(*numbers, **facts)])
    table = report.markdown(["question", "answer so far"], rows).replace("--:", "---")
    return table if first else table.replace("](docs/", "](")


def primary_rows(groups: list[Group]) -> str:
    rows = []
    for group in groups:
        for f in group.findings if group.primary else []:
            found = ["no run yet", "", "planned", ""]
            if f.estimate:
                found = [number(f), f"{f.corrected:.2g}", f.verdict, str(f.estimate.count)]
            rows.append([f.claim["text"], f.claim.get("paper", ""), *found])
    return report.markdown(["claim", "other paper", "here, 95 %", "p, Holm", "verdict", "seeds"], rows)


def claims_page(root: pathlib.Path, plan: dict[str, Any], groups: list[Group], store: Store) -> str:
    """docs/claims.md: the written page, with its two tables made anew."""
    text = _files.read_text(root / "docs" / "claims.md")
    regimes = "".join(f"{group.title}: {_regime(group.study)}\n" for group in groups if group.primary)
    text = put(text, primary_rows(groups) + "\n" + _page([regimes]), "primary")
    return put(text, answers(plan, groups, store), "questions")


def forest(plan: dict[str, Any], groups: list[Group]) -> str:
    """What the answers rest on: every difference of losses that they name."""
    rows: dict[str, Any] = {}
    for one in plan["questions"]:
        for row in one.get("rows", []):
            f, group = _found(groups, row), next(group for group in groups if group.title == row[0])
            if report.UNITS[f.claim["kind"]] == "nats" and f.estimate.freedom > 0:
                tokens = group.study.steps[-1] * group.study.step_tokens(group.study.arms[0].name) / 1e6
                rates = sorted({group.study.rate(f.claim[who]) for who in ("arm", "rival")})
                at = " and ".join(f"{rate:g}" for rate in rates)
                rows[f"{label(f.claim)}; {group.study.scale['name']}, {tokens:.3g} M at {at}"] = f.estimate
    return figures.forest(rows)


def comparisons_page(groups: list[Group]) -> str:
    """docs/results/comparisons.md: all of them, without a verdict."""
    lines = [
        "# All comparisons", "",
        "Made by `choir study claims` from `lab/results`; do not edit. **Exploratory**: what the runs of each recipe give,",
        "with 95 % intervals that nothing corrects for the number of rows, so no row is a verdict. A difference is in",
        "held-out nats a token, causal where the model is. Intervals are over seeds. [claims.md](../claims.md) has the claims,",
        "[table.md](table.md) all runs, [studies.md](../studies.md) the statistics.", "",
    ]  # fmt: skip
    for group in groups:
        rows: dict[str, list[str]] = {}
        for f in group.findings:
            if f.estimate:
                rows.setdefault(label(f.claim), [label(f.claim), number(f), str(f.estimate.count)])
        if rows:
            lines += [f"## {group.title}", "", _regime(group.study), ""]
            lines += [report.markdown(["what", "mean and 95 % interval", "seeds"], list(rows.values()))]
    return _page(lines)


def gaps(store: Store) -> tuple[int, float, float, list[list[str]]]:
    """Of every stored run that was trained by expert choice over a batch: the causal loss, by thresholds, less that by
    batch. Their number, least and most, and rows by setting."""
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
        found = f"{np.mean(each):.4f} ({min(each):.4f} to {max(each):.4f})"
        rows.append([f"{scale}, {factor:g} of {experts}", f"{tokens / 1e6:.3g}", str(len(each)), found])
    return len(every), min(every), max(every), rows


def gaps_table(store: Store) -> str:
    runs, low, high, rows = gaps(store)
    means = [float(row[-1].split()[0]) for row in rows]
    return (
        f"{runs} runs, {low:.4f} to {high:.4f} nats; means of a setting {min(means):.4f} to {max(means):.4f}.\n\n"
        + report.markdown(["experts a token", "M tokens", "runs", "causal minus batch: mean (least to most)"], rows)
    )  # fmt: skip


def _page(lines: list[str]) -> str:
    """Lines of text are wrapped at 120 characters; those of tables and headings are not."""
    made = []
    for line in lines:
        made += [line] if line.startswith(("|", "#")) else textwrap.wrap(line, 120) or [""]
    return "\n".join(made).rstrip("\n") + "\n"


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
    results = store.results()
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


def put(text: str, rows: str, name: str = "") -> str:
    """A page with other rows between its two marks; a page with several tables names them."""
    begin = BEGIN.replace("claims:", f"claims: {name},") if name else BEGIN
    try:
        before, rest = text.split(begin + "\n")
        _, after = rest.split(END, 1)
    except ValueError:
        raise StudyError(f"the page has no lines '{begin}' and '{END}', each once") from None
    return f"{before}{begin}\n{rows}{END}{after}"


def texts_tables(groups: list[Group]) -> str:
    """Losses by text, of every recipe that names texts and is no claim."""
    studies = [group.study for group in groups if "texts" in group.study.recipe and not group.primary]
    return "\n".join(f"{_regime(study)}\n\n{report.markdown(*foreign.rows(study))}" for study in studies)


def pages(root: pathlib.Path) -> dict[pathlib.Path, str]:
    """By path, what the pages of a source tree should be."""
    store, docs = Store(root / "lab" / "results"), root / "docs"
    plan, groups = load(root / "lab" / "claims.json", store)
    return {
        docs / "claims.md": claims_page(root, plan, groups, store),
        docs / "results" / "comparisons.md": comparisons_page(groups),
        docs / "results" / "table.md": runs_page(store),
        docs / "results" / "texts.md": put(_files.read_text(docs / "results" / "texts.md"), texts_tables(groups)),
        docs / "results" / "forest.svg": forest(plan, groups),
        docs / "causality.md": put(_files.read_text(docs / "causality.md"), gaps_table(store)),
        root / "README.md": put(_files.read_text(root / "README.md"), answers(plan, groups, store, True)),
    }
