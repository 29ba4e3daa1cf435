"""loads.py RUNS TEXTS | report: measures how uneven the loads of devices are in the runs of recipe loads, which are
in the directory RUNS. Training is measured by phase, from the runs' logs. Serving is measured with the trained
models, forward only, in batches of several sizes, over 131,072 tokens of the training text in TEXTS (lab/texts).
Every run adds a line to loads.jsonl; `report` writes the tables of lab/docs/results.md. Requires PyTorch 2. The
imbalance is the load of the fullest of 8 or 32 devices divided by the even load, averaged over layers."""

import json
import pathlib
import sys

import numpy as np
from runs import shard, stored

LAB = pathlib.Path(__file__).resolve().parent
RESULTS, PAGE = LAB / "loads.jsonl", LAB / "docs/results.md"
PHASES = [(0, 50), (50, 100), (100, 200), (200, 300), (300, 400), (400, 450), (450, 500)]  # steps
BATCHES = (2048, 16384, 131072)  # tokens
WINDOWS = 1024  # of 128 tokens
DEVICES = (8, 32)
sys.path[:0] = [str(LAB), str(LAB.parent / "python")]


def label(config):
    router = config["model"]["router"]
    name = router["name"]
    if name == "topk":
        return f"top-2, loss {router['aux_loss_weight']:g}"
    last = " of the last step" if router.get("estimator") == "last" else ""
    return {"expert_choice": "EC", "bias_balanced": "top-2, bias"}.get(name, f"top-2, quantiles{last}")


def by_phase(run):
    """[phases][8, 32 devices] of the training log."""
    steps = [line for line in map(json.loads, open(run / "metrics.jsonl")) if line.get("event") == "step"]
    fullest = np.array([line["fullest"] for line in steps])[:, [0, 2]]
    return [fullest[first:last].mean(0).round(4).tolist() for first, last in PHASES]


def served(run, texts):
    """By batch size in tokens: the load of the fullest of 8 and of 32 devices, averaged over batches."""
    import choir.torch
    import torch

    made = choir.torch.Transformer.of(choir.Model.load(str(run)))
    length = made.config["train.sequence_length"]
    tokens = shard(texts / "data", "train")
    first = np.random.default_rng(0).integers(0, len(tokens) - length, WINDOWS)
    layers = [block.moe for block in made.layers if block.moe is not None]
    for layer in layers:
        layer.causal = True
    made.eval()
    taken = [[] for _ in layers]
    with torch.no_grad():
        for some in np.split(first, WINDOWS // 16):
            made(torch.from_numpy(np.stack([tokens[i : i + length] for i in some]).astype(np.int64)))
            for kept, layer in zip(taken, layers):
                kept.append(layer.routing.assignment.reshape(16 * length, -1).sum(0).numpy())  # an expert's load in 2,048 tokens
    found = {}
    for size in BATCHES:
        each = []
        for kept in taken:
            loads = np.add.reduceat(np.array(kept, float), range(0, len(kept), size // 2048))
            each.append([loads.reshape(len(loads), d, -1).sum(2).max(1) * d / loads.sum(1) for d in DEVICES])
        found[str(size)] = np.mean(each, (0, 2)).round(4).tolist()
    return found


def order(name):
    return ("EC", "top-2, quantiles", "top-2, quantiles of the last step", "top-2, loss 0.01", "top-2, loss 0.1", "top-2, bias").index(name)


def table(lines):
    from choir.study.statistics import of_values

    phases = [f"{first + 1} to {last}" for first, last in PHASES]
    yield "| 32 devices | seeds | " + " | ".join(phases) + " | served: 2,048 | 16,384 | 131,072 tokens |\n|---|" + "--:|" * (len(phases) + 4)
    for name in sorted({line["arm"] for line in lines}, key=order):
        some = [line for line in lines if line["arm"] == name]
        values = [[line["phases"][i][1] for line in some] for i in range(len(PHASES))]
        values += [[line["served"][str(size)][1] for line in some if line["served"]] for size in BATCHES]
        cells = []
        for each in values:
            e = of_values(each)
            if e is None:
                cells.append("")
                continue
            low, high = e.interval()
            cells.append(f"{e.mean:.2f}" + (f" ({low:.2f} to {high:.2f})" if np.isfinite(low) else ""))
        yield f"| {name} | {len(some)} | " + " | ".join(cells) + " |"


def page(given):
    from pages import put

    return put(given, "\n".join(table(stored(RESULTS))) + "\n", of="lab/loads")


def main():
    from choir import _files
    from pages import arguments

    if not (o := arguments(__doc__, PAGE, page)):
        return
    import torch

    torch.set_num_threads(1)
    from choir.study import recipe
    from choir.study.configs import config as config_of
    from choir.study.store import differences, significant

    planned = recipe.load("loads")
    configs = [config_of(planned, recipe.load_scale("pico-1m"), arm, 4096).as_dict()["model"] for arm in recipe.arms(planned)]
    known = {line["run"] for line in stored(RESULTS)}
    for run in sorted(pathlib.Path(o.runs).iterdir()):
        config = json.loads((run / "config.json").read_text())
        wanted = any(not differences(significant({"model": one}), significant({"model": config["model"]})) for one in configs)
        if run.name in known or not wanted or not (run / "checkpoints" / "00000500").is_dir():
            continue
        last = config["model"]["router"].get("estimator") == "last"  # choir.torch does not have it
        line = {"arm": label(config), "seed": config["train"]["seed"], "run": run.name, "phases": by_phase(run),
                "served": {} if last else served(run, o.texts)}  # fmt: skip
        _files.append(RESULTS, json.dumps(line))
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
