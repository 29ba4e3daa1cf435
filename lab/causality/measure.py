"""measure.py RUNS TEXTS | report: measures how much loss models of expert choice add when each token is routed without its
batch. RUNS is the directory of runs of recipes serving, serving-layers and serving-long; TEXTS is the directory of
lab/texts. Every run adds a line to results.jsonl and is not measured again; `report` writes the tables of
docs/causality.md. README.md has the plan.

All losses of a run are measured on the same windows of held-out text. Batches mix all sources, as in training, or have
windows of one source, or of one document: only the windows that share a batch differ."""

import json
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS, PLAN, PAGE = HERE / "results.jsonl", json.loads((HERE / "plan.json").read_text()), ROOT / "docs/causality.md"
sys.path[:0] = [str(HERE.parent), str(ROOT / "python")]
from choir import _files  # noqa: E402
from choir.study import statistics  # noqa: E402
from pages import arguments, put  # noqa: E402
from runs import finished, shard, stored  # noqa: E402

POOL, LARGE = 16, 128  # sequences of a batch: as trained, and eight times as many
ALONE = ("threshold", "topk", "topk, other gates")  # rules that depend on no other token


def held_out(texts, length):
    """Held-out windows [N,length] in document order, and the source of each: every fourth group of POOL consecutive windows,
    if the whole group is in one of the texts. N is a multiple of POOL in each source."""
    import choir

    tokens = shard(texts / "data")
    tokenizer = choir.Tokenizer(texts / "tokenizer.model")
    whole = {path.stem: path.read_text(encoding="utf-8") for path in sorted(texts.glob("*.txt"))}

    def source(window):
        text = tokenizer.decode(window[8:72].tolist())
        return next((name for name, one in whole.items() if text in one), None)

    blocks, names = [], []
    for first in range(0, len(tokens) - POOL * length, 4 * POOL * length):
        block = np.asarray(tokens[first : first + POOL * length], np.int64).reshape(POOL, length)
        ends = {source(block[0]), source(block[-1])}
        if len(ends) == 1 and None not in ends:
            blocks.append(block)
            names += [ends.pop()] * POOL
    return np.concatenate(blocks), np.array(names)


def arrangements(names):
    """Orders of the windows: of one document, of one source, of all sources."""
    random = np.random.default_rng(0)
    order = np.arange(len(names))
    by_source = np.concatenate([random.permutation(order[names == name]) for name in dict.fromkeys(names)])
    return {"document": order, "source": by_source, "mixed": random.permutation(order)}


def label(config):
    gates = "sigmoid" if config["router.score"] == "sigmoid" else "sum 1" if config["router.normalize_gates"] else "raw"
    layers = ", every layer" if config["moe_every"] == 1 else ""
    return f"{config['router.capacity_factor']:g} of {config['experts']}, {gates}{layers}"


def measure(run, windows, names):
    """Losses in nats per token of one run, by the arrangement of its batches and by serving rule."""
    import choir
    from choir.study.foreign import by_topk

    def loss(model, order, pool=POOL):
        each = [model.forward(windows[order[i : i + pool]], logits=False).loss for i in range(0, len(order) - pool + 1, pool)]
        return round(float(np.mean(each)), 6)

    model, orders = choir.Model.load(run), arrangements(names)
    found = {f"batch, {name}": loss(model, order) for name, order in orders.items()}
    found["batch, mixed, large"] = loss(model, orders["mixed"], LARGE)
    model.routing = "threshold"
    found["threshold"] = loss(model, orders["mixed"])
    found["topk"] = loss(by_topk(run), orders["mixed"])
    other = not model.config["router.normalize_gates"]
    found["topk, other gates"] = loss(by_topk(run, normalize_gates=other), orders["mixed"])
    train = model.config["train.steps"] * model.config["train.batch_sequences"] * model.config["train.sequence_length"]
    return {"model": label(model.config), "seed": model.config["train.seed"], "rate": model.config["train.learning_rate"],
            "tokens": int(train), "run": run.name, "windows": len(windows), "loss": found}  # fmt: skip


def above(line, rule, reference="batch, mixed"):
    return line["loss"][rule] - line["loss"][reference]


def interval(estimate):
    low, high = estimate.interval()
    shown = f"{estimate.mean:.4f}"
    return shown if not np.isfinite(low) else f"{shown} ({low:.4f} to {high:.4f})"


def order(model):
    """Sorts models by sparsity, the sparsest last, then by gates."""
    shape, gates = model.split(", ", 1)
    each, experts = map(int, shape.split(" of "))
    return -each / experts, experts, ("raw", "sum 1", "sigmoid", "raw, every layer").index(gates)


def table(lines):
    yield ("| K of E, gates | M tokens | seeds | batch | threshold | top-K, gates of training | top-K, other gates | "
           "threshold, batches of one source | threshold, batches of one document |\n|---|" + "--:|" * 8)  # fmt: skip
    for tokens, _, model in sorted({(line["tokens"], order(line["model"]), line["model"]) for line in lines}):
        some = [line for line in lines if (line["tokens"], line["model"]) == (tokens, model)]
        cells = [statistics.of_values([above(line, rule) for line in some]) for rule in ALONE]
        cells += [statistics.of_values([above(line, "threshold", f"batch, {one}") for line in some]) for one in ("source", "document")]
        loss = np.mean([line["loss"]["batch, mixed"] for line in some])
        yield f"| {model} | {tokens / 1e6:.3g} | {len(some)} | {loss:.4f} | " + " | ".join(map(interval, cells)) + " |"


def estimate(claim, lines):
    """Over seeds: the mean over the claim's models; None where a run is missing."""
    values = []
    for seed in range(1, PLAN["seeds"] + 1):
        each = []
        for model in claim["models"]:
            for tokens in claim["tokens"]:
                found = [line for line in lines if (line["model"], line["tokens"], line["seed"], line["rate"]) == (model, tokens, seed, PLAN["rate"])]
                each.append(above(found[0], claim["rule"], f"batch, {claim['batches']}") if found else np.nan)
        values.append(np.mean(np.reshape(each, (-1, len(claim["tokens"]))) @ ([1] if len(claim["tokens"]) == 1 else [1, -1])))
    return statistics.of_values(values) if np.isfinite(values).all() else None


def claims(lines):
    """Text, estimate, p corrected over all claims of the plan, and result."""
    found = [estimate(claim, lines) for claim in PLAN["claims"]]
    sides = [(-claim["within"], claim["within"]) if "within" in claim else (-np.inf, claim["below"]) if "below" in claim
             else (claim["above"], np.inf) for claim in PLAN["claims"]]  # fmt: skip
    ps = statistics.holm([1.0 if e is None else e.p(low if np.isfinite(low) else high) if np.isinf([low, high]).any()
                          else e.p_side(low, high) for e, (low, high) in zip(found, sides)])  # fmt: skip
    for claim, e, (low, high), p in zip(PLAN["claims"], found, sides, ps):
        if e is None:
            yield claim["text"], None, p, "planned"
        else:
            yield claim["text"], e, p, ("confirmed" if low < e.mean < high else "refuted") if p < statistics.LEVEL else "inconclusive"


def claims_table(lines):
    yield "| pre-registered claim | estimate (95 % CI) | p, Holm | result |\n|---|--:|--:|--:|"
    for text, e, p, result in claims(lines):
        yield f"| {text} | {interval(e) if e else ''} | {f'{p:.2g}' if e else ''} | {result} |"


def page(given):
    lines = stored(RESULTS)
    given = put(given, "\n".join(claims_table(lines)) + "\n", of="lab/causality claims")
    return put(given, "\n".join(table(lines)) + "\n", of="lab/causality")


def main():
    if not (o := arguments(__doc__, PAGE, page)):
        return
    known, given = {line["run"] for line in stored(RESULTS)}, None
    for run in sorted(pathlib.Path(o.runs).glob("expert_choice-*")):
        if run.name not in known and finished(run):
            given = given or held_out(o.texts, 128)
            line = json.dumps(measure(run, *given))
            _files.append(RESULTS, line)
            print(line, flush=True)


if __name__ == "__main__":
    main()
