"""The results of a study: an HTML page, its figures, a table for documents, and a summary for the terminal."""

from __future__ import annotations

import html
import math
import pathlib
import re
from typing import Any, Optional

import numpy as np

from .. import _files
from . import figures, foreign, statistics, terminal, turns, tuned
from .claims import UNITS, Claims, Finding, label
from .recipe import write as write_json
from .study import Study

# The colors and cards of the other pages (tools/pages/page.css).
_CSS = """
:root{color-scheme:light dark;--page:#f6f6f3;--card:#fff;--ink:#1c1c1a;--soft:#62625c;--grid:#e4e3de}
@media(prefers-color-scheme:dark){:root{--page:#161615;--card:#20201e;--ink:#ecece8;--soft:#a3a299;--grid:#35342f}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:28px 20px 48px;background:var(--page);color:var(--ink);font:15px/1.45 system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
h1{font-size:24px;margin:0 0 2px}
h2{font-size:17px;margin:34px 0 10px}
p{margin:4px 0 12px;color:var(--soft);max-width:75ch}
.scroll,figure{margin:0;background:var(--card);border:1px solid var(--grid);border-radius:8px;padding:10px 14px;overflow-x:auto}
table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--grid);padding:3px 13px 3px 0;text-align:right;vertical-align:top;white-space:nowrap}
th{white-space:normal;vertical-align:bottom}
th:first-child,td:first-child,.text{text-align:left;white-space:normal;min-width:14ch}
th:first-child,td:first-child{position:sticky;left:0;background:var(--card)}
tr:last-child td{border:0}
.answer{color:var(--ink);font-size:16.5px}
summary{cursor:pointer;margin-top:24px;font-weight:600}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,520px),1fr));gap:14px}
figcaption{font-weight:600}
svg{display:block;width:100%;min-width:440px;height:auto}
@media(max-width:640px){
thead{display:none}
table,tbody{display:block}
tr{display:block;padding:7px 0;border-bottom:1px solid var(--grid)}
tr:last-child,td{border:0}
td{display:flex;justify-content:space-between;gap:16px;padding:1px 0;white-space:normal}
td:not(:first-child)::before{content:attr(data-head);color:var(--soft);text-align:left}
td:not(:first-child){text-align:right}
td:first-child{font-weight:600}
td:empty{display:none}
}
"""


def regime(study: Study) -> str:
    """Describes the conditions of all numbers on the page: model size, budgets, schedule."""
    step, cooled = study.step_tokens(study.arms[0].name), study.scale.get("cooldown", 0.2)
    budgets = ", ".join(f"{steps * step / 1e6:.3g}" for steps in study.steps)
    first = study.finals(study.arms[0].name)
    windows = f"{first[0]['final']['causal']['tokens']:,} held-out tokens" if first else "held-out text"
    rates = ", ".join(f"{rate:g}" for rate in study.scale["rates"])
    return (
        f"{study.scale['name']}: {budgets} M tokens, {step:,} per step; the learning rate falls over the last {cooled:.0%} "
        f"of the steps; {windows}, the same for all; {study.seeds} seeds; learning rates tried at the largest budget: {rates}"
    )


def numbers(f: Finding) -> list[str]:
    """The mean of an estimate, and the ends of its interval if it has one."""
    low, high = f.estimate.interval()
    digits = 3 if f.logarithmic or UNITS[f.claim["kind"]].startswith("of") else 4
    every = [f.estimate.mean, low, high] if math.isfinite(high) else [f.estimate.mean]
    return [f"{f.shown(value):.{digits}f}" for value in every]


def estimate(f: Finding) -> str:
    if not f.estimate:
        return "-"
    mean, *ends = numbers(f)
    return f"{mean} ({ends[0]} to {ends[1]})" if ends else mean


def uneven(study: Study) -> dict[str, tuple[float, float]]:
    """Arms in which threshold routing assigns over 10 % more or fewer experts per token than the arm's own routing:
    both means, by arm."""
    found = {}
    for arm in study.arms:
        finals = [result["final"] for result in study.finals(arm.name)]
        pairs = [[f[how].get("experts_per_token") for how in ("own", "causal")] for f in finals]
        own, causal = np.mean([p for p in pairs if None not in p] or [[0.0, 0.0]], axis=0)
        if own and abs(causal / own - 1) > 0.1:
            found[arm.name] = (float(own), float(causal))
    return found


def served(study: Study) -> str:
    """A sentence that names the arms with another cost in serving than in training; empty: there are none."""
    costs = [f"{name} {own:.2f} in training and {causal:.2f} served" for name, (own, causal) in uneven(study).items()]
    return f"Comparisons with these arms are not at equal FLOPs; experts per token: {', '.join(costs)}" if costs else ""


def claim_rows(claims: Claims) -> list[list[str]]:
    rows, others = [], uneven(claims.study)
    for f in claims.findings:
        ps = f"{f.p:.3g} / {f.corrected:.3g}" if f.estimate and f.estimate.freedom > 0 else "-"
        of = f"{label(f.claim)}: " if "rival" in f.claim else ""  # the table below may have another sign
        here = f"{of}{estimate(f)} {UNITS[f.claim['kind']]}" if f.estimate else "-"
        costs = ", at unequal served cost" if others.keys() & {f.claim.get("arm"), f.claim.get("rival")} else ""
        rows.append([f.claim["text"], f.claim.get("paper", ""), here, ps, f.verdict + costs])
    return rows


CLAIM_HEAD = ["claim", "paper", "mean and 95 % CI", "p, raw / Holm", "result"]


def arm_head(study: Study) -> list[str]:
    return [
        "arm", "learning rate", f"{study.measure}, ± SD over seeds", "loss with its own routing, ± SD",
        "minus the first arm (95 % CI)", "experts per token: training / serving",
        "sum of gates: training / serving", "tokens at the cap / above it", "dropped", "demand above capacity",
        "experts reused from the previous token: text / shuffled tokens", "FLOPs per token", "step, s",
    ]  # fmt: skip


def _mean(values: list[Optional[float]], form: str) -> str:
    kept = [v for v in values if v is not None and math.isfinite(v)]
    return form.format(np.mean(kept)) if kept else "-"


def _both(finals: list[dict[str, Any]], key: str) -> str:
    return " / ".join(_mean([f[how].get(key) for f in finals], "{:.2f}") for how in ("own", "causal"))


def _reuse(finals: list[dict[str, Any]]) -> str:
    """Locality as served; results of versions before 0.6 do not have it."""
    found = [f["causal"].get("locality") for f in finals]
    if not found or None in found:
        return "-"
    return " / ".join(_mean([one["reuse"] for one in kind], "{:.1%}") for kind in (found, [one["shuffled"] for one in found]))


def _cap(results: list[dict[str, Any]]) -> str:
    """The shares of tokens that have as many experts as the cap allows, and more, with the router's own routing."""
    cap = results[0]["config"]["model"]["router"]["cap"] if results else 0
    if not cap or not results[0]["final"]["own"].get("histogram"):
        return "-"
    shares = [np.array(r["final"]["own"]["histogram"]) for r in results]
    return f"{np.mean([s[cap:].sum() for s in shares]):.1%} / {np.mean([s[cap + 1 :].sum() for s in shares]):.1%}"


def arm_rows(study: Study, times: dict[str, list[float]]) -> list[list[str]]:
    rows, table, own = [], study.table(study.steps[-1]), study.table(study.steps[-1], "own")
    for i, arm in enumerate(study.arms):
        results = study.finals(arm.name)
        finals = [result["final"] for result in results]
        apart = study.apart(i, study.steps[-1]) if i else None
        low, high = apart.interval() if apart else (math.nan, math.nan)
        ends = f" ({low:.4f} to {high:.4f})" if math.isfinite(high) else ""  # none with one seed
        spread = lambda row: f" ± {np.nanstd(row, ddof=1):.4f}" if np.isfinite(row).sum() > 1 else ""  # noqa: E731
        rows.append([
            arm.name, f"{study.rate(arm.name):g}" if study.rate(arm.name) else "-",
            _mean(list(table[i]), "{:.4f}") + spread(table[i]), _mean(list(own[i]), "{:.4f}") + spread(own[i]),
            f"{apart.mean:+.4f}{ends}" if apart else "",
            _both(finals, "experts_per_token"), _both(finals, "gate_sum"),
            _cap(results), _mean([f["own"].get("dropped") for f in finals], "{:.1%}"),
            _mean([f["own"].get("over_capacity") for f in finals], "{:.1%}"),
            _reuse(finals), _mean([r["train_flops_per_token"] / 1e6 for r in results], "{:.2f} M"),
            _mean([float(np.median(times[arm.name]))] if times.get(arm.name) else [], "{:.3f}"),
        ])  # fmt: skip
    return rows


def rate_rows(study: Study) -> list[list[str]]:
    rows = []
    for arm in study.arms:
        tried = study.rates(arm.name)
        if arm.rate_of != arm.name or not any(math.isfinite(loss) for _, loss in tried):
            continue
        best, vertex = statistics.best_rate(*zip(*tried))
        shown = f"{vertex:.3g}" if vertex else "the best is the highest or lowest one: try more"
        rows.append([arm.name, ", ".join(f"{r:g}: {loss:.4f}" if math.isfinite(loss) else f"{r:g}: missing" for r, loss in tried), f"{best:g}", shown])
    return rows


def power(study: Study) -> Optional[str]:
    """Before a run: the difference that its seeds can detect."""
    deviation, arms = study.scale.get("deviation"), len(study.arms)
    if not deviation or study.seeds < 2 or arms < 2:
        return None
    floor = max(deviation, study.scale.get("chaos", 0.0))
    effect = statistics.detectable(floor, study.seeds, (arms - 1) * (study.seeds - 1))
    return (
        f"With {study.seeds} seeds this study has 80 % power for a difference of {effect:.4f} nats per token (standard "
        f"deviation of paired differences in earlier runs: {floor:g})"
    )


def power_seen(study: Study) -> Optional[str]:
    """After a run: the same, from the observed spread of its seeds."""
    apart = [study.apart(i, study.steps[-1]) for i in range(1, len(study.arms))]
    known = [one for one in apart if one and one.freedom > 0]
    if not known:
        return None
    worst = max(known, key=lambda one: one.detectable())
    return (
        f"With {worst.count} seeds this study has 80 % power for a difference of {worst.detectable():.4f} nats per token "
        f"(standard deviation of paired differences, from its own seeds: {worst.error * math.sqrt(worst.count):.4f})"
    )


def answer(f: Finding) -> str:
    """A one-sentence answer with a claim's numbers."""
    if not f.estimate:
        return f"No result for the claim \"{f.claim['text']}\" ({f.verdict})."
    unit, rival, arm = UNITS[f.claim["kind"]], f.claim.get("rival"), f.claim["arm"]
    low, high = f.estimate.interval()
    seen = f.verdict.capitalize()
    if f.claim["kind"] in ("loss", "optimum") and rival and "than_arm" not in f.claim:
        mean, ends = f.estimate.mean, (low, high)
        if mean < 0:
            mean, ends = -mean, (-high, -low)
        interval = f" (95 % CI {ends[0]:.4f} to {ends[1]:.4f})" if math.isfinite(high) else ""
        more = "lower" if f.estimate.mean < 0 else "higher"
        return f"{seen}: the loss of {rival} is {mean:.4f} nats per token {more} than that of {arm}{interval}."
    return f"{seen}: {f.claim['text'].rstrip('.')}. {label(f.claim)}: {estimate(f)} {unit}."


def applicable(head: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """The table without columns that have no value in any row."""
    kept = [i for i in range(len(head)) if not rows or any(row[i] not in ("", "-", "- / -") for row in rows)]
    return [head[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _table(head: list[str], rows: list[list[str]]) -> str:
    """A table whose text columns wrap, and whose number columns do not. On a narrow screen a row is a card of names
    and values."""
    head, rows = applicable(head, rows)
    sentences = [any(re.search("[a-z]{3} [a-z]{2}", row[i]) and "(" not in row[i] for row in rows) for i in range(len(head))]
    kind = [" class=text" if wraps else "" for wraps in sentences]
    named = [f'{kind[i]} data-head="{html.escape(name)}"' for i, name in enumerate(head)]
    cells = lambda tag, more, row: "".join(f"<{tag}{m}>{html.escape(c)}</{tag}>" for m, c in zip(more, row))  # noqa: E731
    body = "".join(f"<tr>{cells('td', named, row)}</tr>" for row in rows)
    return (
        f"<div class=scroll><table><thead><tr>{cells('th', kind, head)}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def markdown(head: list[str], rows: list[list[str]]) -> str:
    head, rows = applicable(head, rows)
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in lines)


def _listed(tables: list[tuple[str, list[str], list[list[str]]]]) -> str:
    """The titles of the tables in the details, each up to the colon."""
    return ", ".join(title.partition(":")[0].lower() for title, *_ in tables)


def write(study: Study) -> tuple[pathlib.Path, Claims]:
    """Writes report.html, table.md, summary.json and figures/ of the study from the results that exist."""
    times = turns.read(study)
    tunings = tuned.KINDS if "tune" in study.recipe else {}
    claims = Claims(study, times, {what: tuned.table(study, what) for what in tunings})
    tables = [("Claims", CLAIM_HEAD, claim_rows(claims)), ("Arms", arm_head(study), arm_rows(study, times))]
    if rate_rows(study):
        head = ["arm", f"learning rate: {study.measure}, seed 1", "used", "minimum of a parabola"]
        tables.append(("Learning rates", head, rate_rows(study)))
    tables += [(title, *tuned.rows(study, what)) for what, title in tunings.items()]
    if "texts" in study.recipe:
        tables.append((f"Texts: causal routing, and batch routing if it is the router's own; {foreign.sequences(study) or 'all'} sequences each",
                       *foreign.rows(study)))  # fmt: skip
    drawn, where = figures.all_of(study), regime(study)
    figures.save(drawn, study.own / "figures")
    recipe = study.recipe
    parts = [f"<h1>{html.escape(recipe['title'])}</h1>"]
    parts += [f"<p class=answer>{html.escape(answer(f))}</p>" for f in claims.findings]
    sentences = [f"{sentence}." for sentence in (power_seen(study) or power(study), served(study)) if sentence]
    parts += [f"<p>{html.escape(sentence)}</p>" for sentence in (*sentences, recipe["question"], f"{where}.")]
    if "figure" in recipe:
        parts.append(f"<p>Paper (arXiv:2202.09368): {html.escape(recipe['figure'])}.</p>")
    drawings = "".join(
        f"<figure><figcaption>{figures.CAPTIONS[title]}</figcaption>{svg}</figure>" for title, svg in drawn.items()
    )
    parts += [f"<div class=figures>{drawings}</div>"] if drawn else []
    parts.append(f"<h2>Claims</h2>{_table(*tables[0][1:])}<details><summary>Details: {_listed(tables[1:])}</summary>")
    parts += [f"<h2>{title}</h2>{_table(head, rows)}" for title, head, rows in tables[1:]]
    parts.append("</details>")
    page = study.own / "report.html"
    _files.save(
        page,
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=Content-Security-Policy content=\"default-src "
        "'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'\">"
        "<meta name=viewport content='width=device-width'>"
        f"<title>{html.escape(recipe['title'])}</title>"
        f"<style>{_CSS}</style>{''.join(parts)}</html>\n",
    )
    where = ". ".join(sentence for sentence in (where, served(study)) if sentence)
    text = "".join(f"### {title}\n\n{where}.\n\n{markdown(head, rows)}\n" for title, head, rows in tables)
    _files.save(study.own / "table.md", text)
    write_json(study.own / "summary.json", summary(study, claims))
    return page, claims


def summary(study: Study, claims: Claims) -> dict[str, Any]:
    """Every number of the page, seed by seed: for other programs."""
    finite = lambda value: value if math.isfinite(value) else None  # noqa: E731
    results = []
    for f in claims.findings:
        low, high = f.estimate.interval() if f.estimate else (math.nan, math.nan)
        results.append({
            **f.claim, "mean": f.estimate and f.shown(f.estimate.mean), "low": finite(f.shown(low)) if high < 700 else None,
            "high": finite(f.shown(high)) if high < 700 else None, "p": f.p, "holm": f.corrected, "verdict": f.verdict,
        })  # fmt: skip
    return {
        "recipe": study.recipe["name"], "scale": study.scale["name"], "regime": regime(study), "steps": study.steps,
        "claims": results,
        "arms": [
            {
                "name": arm.name, "rate": study.rate(arm.name),
                "causal": [[finite(v) for v in study.table(steps)[i]] for steps in study.steps],
                "own": [[finite(v) for v in study.table(steps, "own")[i]] for steps in study.steps],
            }
            for i, arm in enumerate(study.arms)
        ],
    }  # fmt: skip


def brief(study: Study, claims: Claims, page: pathlib.Path) -> str:
    """The answers, and each arm's loss, for a terminal."""
    paragraphs = [f"{study.recipe['title']}. {regime(study)}.", *(answer(f) for f in claims.findings)]
    paragraphs += [f"{sentence}." for sentence in (served(study), power_seen(study) or power(study)) if sentence]
    rows = arm_rows(study, {})
    wide = max(len(row[0]) for row in rows)
    lines = [f"  {row[0]:<{wide}}  {row[2]:>17}  {row[4]}" for row in rows]
    return "\n".join([*map(terminal.fill, paragraphs), *lines, str(page)])
