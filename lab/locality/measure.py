"""measure.py RUNS TEXT | report: measures the hit rates of caches of experts, and how much loss higher hit rates cost, for the
models of recipes locality and locality-curve. RUNS is a study's directory of runs; TEXT is a file, or the directory of
lab/texts, whose held-out text is then used. Every run adds a line to results.jsonl and is not measured again; `report`
writes the tables of docs/locality.md and of README.md, which has the plan. The script calls the program `choir` in PATH."""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS, PLAN = HERE / "results.jsonl", json.loads((HERE / "plan.json").read_text())
PAGE, PLAN_PAGE = ROOT / "docs/locality.md", HERE / "README.md"
sys.path[:0] = [str(HERE.parent), str(ROOT / "python")]
from choir import _files  # noqa: E402
from choir.study import recipe, statistics  # noqa: E402
from pages import arguments, put, rewrite  # noqa: E402
from runs import finished, shard, stored  # noqa: E402

TOKENS = 32768  # of the text
POINTS = (0.1, 0.2, 0.3, 0.4, 0.5)  # more hits than with the router's own choice
UNRANKED = ("hash",)  # routers without candidates, so without a curve


def held_out(texts, folder):
    """A file with the first held-out tokens of TEXTS/data as text."""
    import choir

    tokens = shard(texts / "data")[: TOKENS + 1]
    path = pathlib.Path(folder) / "heldout.txt"
    path.write_bytes(choir.Tokenizer(texts / "tokenizer.model").decode(tokens.tolist()).encode())
    return path


def arm_of(config):
    """The arm of recipe locality that a config is of."""
    model, router = config["model"], config["model"]["router"]
    for arm in recipe.load("locality")["arms"]:
        given = {key.removeprefix("router."): value for key, value in arm["set"].items()}
        if all(router.get(key) == value for key, value in given.items()) and (model["experts"] == 16) == ("times" in arm):
            return arm["name"]
    raise SystemExit(f"no arm of recipe locality: {router}")


def measure(run, text):
    config = json.loads((run / "config.json").read_text())
    experts, train = config["model"]["experts"], config["train"]
    command = ["choir", "stats", str(run), "--text", str(text), "--json", "--tokens", str(TOKENS), "--routing", "threshold"]
    if config["model"]["router"]["name"] not in UNRANKED:
        command += ["--cache", str(experts // 4), "--among", str(experts // 2)]
    stats = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    found, curve = stats["all"]["locality"], stats.get("trade", {}).get("curve", [])
    tokens = train["steps"] * train["batch_sequences"] * train["sequence_length"]
    return {
        "arm": arm_of(config), "seed": train["seed"], "rate": train["learning_rate"], "tokens": tokens,
        "run": run.name, "experts": experts, "text": stats["tokens"], "loss": stats["loss"],
        "reuse": found["reuse"], "hits": found["lru"][str(experts // 4)],
        "shuffled": {"reuse": found["shuffled"]["reuse"], "hits": found["shuffled"]["lru"][str(experts // 4)]},
        "curve": [{"among": p["among"], "loss": p["loss"], "hits": p["hit_rate"]} for p in curve],
    }  # fmt: skip


def price(line, points):
    """Nats per token that so many more hits cost; NaN: the curve ends before."""
    hits, loss = [p["hits"] for p in line["curve"]], [p["loss"] for p in line["curve"]]
    if not hits or max(hits) < hits[0] + points:
        return np.nan
    return float(np.interp(hits[0] + points, np.maximum.accumulate(hits), loss)) - loss[0]


VALUES = {
    "hits": lambda line: line["hits"],
    "order": lambda line: line["hits"] - line["shuffled"]["hits"],
    "reuse": lambda line: line["reuse"],
    "price": lambda line: price(line, PLAN["points"]),
}


def cell(values, form="{:.3f}"):
    estimate = statistics.of_values(values)
    if not estimate:
        return "-"
    low, high = estimate.interval()
    mean = form.format(estimate.mean)
    return mean if not np.isfinite(low) else f"{mean} ({form.format(low)} to {form.format(high)})"


def of_arms(lines, tokens):
    some = [line for line in lines if line["tokens"] == tokens and line["rate"] == PLAN["rate"]]
    names = [arm["name"] for arm in recipe.load("locality")["arms"]]
    return [(name, [line for line in some if line["arm"] == name]) for name in names if any(line["arm"] == name for line in some)]


def curve_table(lines):
    """Nats per token that higher hit rates cost, for the same increases with all routers."""
    yield "| M tokens | router | hits, own choice |" + "".join(f" +{p:.1f} hits |" for p in POINTS) + "\n|--:|---|--:|" + "--:|" * len(POINTS)
    for tokens in sorted({line["tokens"] for line in lines}):
        for name, some in of_arms(lines, tokens):
            if some[0]["curve"]:
                costs = [cell([price(line, points) for line in some]) for points in POINTS]
                yield f"| {tokens / 1e6:.2f} | {name} | {cell([line['hits'] for line in some])} | " + " | ".join(costs) + " |"


def draw(lines, path):
    """The curves of all seeds at the smallest budget."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for i, (name, some) in enumerate(of_arms(lines, min(line["tokens"] for line in lines))):
        for line in some:
            hits, loss = [100 * p["hits"] for p in line["curve"]], [p["loss"] - line["loss"] for p in line["curve"]]
            axes.plot(hits, loss, "o-" if i < 3 else "o--", color=f"C{i % 3}", markersize=3, linewidth=1, label=name if line is some[0] else None)
    axes.set(xlabel="hits, in per cent", ylabel="nats per token above own choice", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=100, metadata={"Software": None})


def arm_table(lines):
    yield "| M tokens | router | seeds | loss | reuse | hits | hits minus shuffled |\n|--:|---|--:|--:|--:|--:|--:|"
    for tokens in sorted({line["tokens"] for line in lines}):
        for name, some in of_arms(lines, tokens):
            cells = [cell([VALUES[value](line) for line in some]) for value in ("reuse", "hits", "order")]
            yield f"| {tokens / 1e6:.2f} | {name} | {len(some)} | {cell([line['loss'] for line in some])} | " + " | ".join(cells) + " |"


def difference(claim, lines):
    """Over paired seeds; None where a run is missing, or has no value."""
    arms = dict(of_arms(lines, PLAN["tokens"]))
    values = [{line["seed"]: VALUES[claim["value"]](line) for line in arms.get(claim[side], [])} for side in ("arm", "rival")]
    paired = [values[0].get(seed, np.nan) - values[1].get(seed, np.nan) for seed in range(1, PLAN["seeds"] + 1)]
    return statistics.of_values(paired) if np.isfinite(paired).all() else None


def claims(lines):
    """Text, estimate, p corrected over all claims of the plan, and result."""
    found = [difference(claim, lines) for claim in PLAN["claims"]]
    ps = statistics.holm([1.0 if e is None else e.p() for e in found])
    for claim, e, p in zip(PLAN["claims"], found, ps):
        if e is None:
            yield claim["text"], None, p, "planned"
        else:
            right = e.mean * claim["sign"] > 0
            yield claim["text"], e, p, ("confirmed" if right else "refuted") if p < statistics.LEVEL else "inconclusive"


def claims_table(lines):
    yield "| pre-registered claim | difference (95 % CI) | p, Holm | result |\n|---|--:|--:|--:|"
    for text, e, p, result in claims(lines):
        low, high = e.interval() if e else (0, 0)
        yield f"| {text} | {f'{e.mean:.4f} ({low:.4f} to {high:.4f})' if e else ''} | {f'{p:.2g}' if e else ''} | {result} |"


def page(given):
    lines = stored(RESULTS)
    given = put(given, "\n".join(curve_table(lines)) + "\n", of="lab/locality curve")
    return put(given, "\n".join(arm_table(lines)) + "\n", of="lab/locality")


def plan_page(given):
    return put(given, "\n".join(claims_table(stored(RESULTS))) + "\n", of="lab/locality claims")


def main():
    if not (o := arguments(__doc__, PAGE, page)):
        rewrite(PLAN_PAGE, plan_page)
        if stored(RESULTS):
            draw(stored(RESULTS), PAGE.parent / "locality.png")
        return
    known = {line["run"] for line in stored(RESULTS)}
    with tempfile.TemporaryDirectory() as folder:
        text = held_out(o.texts, folder) if o.texts.is_dir() else o.texts
        for run in sorted(path.parent for path in pathlib.Path(o.runs).glob("*/config.json")):
            if run.name not in known and finished(run):
                line = json.dumps(measure(run, text))
                _files.append(RESULTS, line)
                print(line, flush=True)


if __name__ == "__main__":
    main()
