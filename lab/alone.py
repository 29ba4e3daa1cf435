"""alone.py text RUN... | images [--work DIR] [--data DIR] | report: measures the loss of expert-choice models when
each token is routed alone, by four rules: thresholds; the router's top-K; and a predictor of the assignment from
the token (Mixture-of-Depths, 2404.02258; DiffMoE, 2503.14487), either with loads as even as those of thresholds
or where the predicted probability is above one half. Every model adds a line to alone.jsonl and is not run again;
`report` writes the table of docs/causality.md. Requires PyTorch 2.

The models are trained before and do not change; a predictor is then trained on 500 batches that they have not
seen."""

import argparse
import contextlib
import functools
import json
import pathlib
import sys

import numpy as np
from runs import shard, stored

LAB = pathlib.Path(__file__).resolve().parent
RESULTS, PAGE = LAB / "alone.jsonl", LAB.parent / "docs/causality.md"
STEPS, LAST = 500, 50  # of a predictor; its thresholds are means over the last
LATER = 10000  # the number of their first batch: none that a model saw
HELD = 1280  # windows of held-out text
RULES = {"thresholds": "thresholds", "best": "top-K", "predictor": "predictor, even loads", "half": "predictor, above 1/2"}


class Predictor:
    """The predictor of a layer: two linear maps with SiLU between them. Its logits predict which experts are
    assigned to a row in the batch."""

    def __init__(self, layer):
        from torch import nn, optim

        d, self.layer = layer.d_model, layer
        self.net = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, len(layer.thresholds)))
        self.optimizer = optim.Adam(self.net.parameters(), 3e-3)
        self.cutoffs = []

    def learn(self, rows, taken):
        import torch
        import torch.nn.functional as F

        logits = self.net(rows)
        loss = F.binary_cross_entropy_with_logits(logits, taken.float())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        cutoff = torch.quantile(logits.detach(), 1 - taken.float().mean(), 0)  # all experts take equally many
        self.cutoffs = [*self.cutoffs[1 - LAST :], cutoff]

    def takes(self, rows, rule):
        import torch

        if rule == "best":
            each = round(self.layer.options.capacity_factor)
            best = self.layer.gate(rows).topk(each).indices
            return torch.zeros(len(rows), len(self.layer.thresholds), dtype=torch.bool).scatter_(1, best, True)
        return self.net(rows) >= (torch.stack(self.cutoffs).mean(0) if rule == "predictor" else 0)


@contextlib.contextmanager
def instead(layers, forward):
    """Replaces the layers' forward by forward(layer, original_forward, x, ...)."""
    for layer in layers:
        layer.forward = functools.partial(forward, layer, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def losses(model, layers, batch, evaluate):
    """The held-out loss and the experts per token with each rule. evaluate() returns both; batch(step) runs a batch
    of training."""
    import torch

    predictors = {layer: Predictor(layer) for layer in layers}

    def learn(layer, own, x, *rest, **given):
        out = own(x, *rest, **given)
        with torch.enable_grad():
            predictors[layer].learn(x.detach().reshape(-1, x.shape[-1]), layer.routing.assignment)
        return out

    def routed(rule, layer, own, x, *rest, **given):
        taken = predictors[layer].takes(x.reshape(-1, x.shape[-1]), rule).view(*x.shape[:-1], -1)
        return own(x, *rest, **{**given, "assignment": taken})

    model.eval()
    with torch.no_grad():
        with instead(layers, learn):
            for step in range(STEPS):
                batch(LATER + step)
        found = {"own": evaluate()}
        for rule in ("best", "predictor", "half"):
            with instead(layers, functools.partial(routed, rule)):
                found[rule] = evaluate()
        for layer in layers:
            layer.causal = True
        found["thresholds"] = evaluate()
    return found


def store(model, seed, measure):
    """Adds a line, unless the model already has one."""
    from choir import _files

    if (model, seed) not in [(line["model"], line["seed"]) for line in stored(RESULTS)]:
        _files.append(RESULTS, json.dumps({"model": model, "seed": seed, **measure()}))


def rounded(loss, each):
    return {"loss": round(float(loss), 5), "experts": round(float(each), 3)}


def text(run):
    """A checkpoint of `choir study run lost`, on its training data: a name, a seed, and a function that measures
    it."""
    import choir.torch
    import torch
    import torch.nn.functional as F

    made = choir.torch.Transformer.of(choir.Model.load(str(run)))
    config, data = made.config, pathlib.Path((run / "data.path").read_text())
    B, T = config["train.batch_sequences"], config["train.sequence_length"]
    train, held = (shard(data, part) for part in ("train", "heldout"))
    layers = [block.moe for block in made.layers if block.moe is not None]
    order = np.random.default_rng(0).permutation((len(held) - 1) // T)[:HELD]  # not a document beside itself

    def batch(step):
        draw = np.random.default_rng(step)
        first = draw.integers(0, len(train) - T, B)
        made(torch.from_numpy(np.stack([train[i : i + T] for i in first]).astype(np.int64)))

    def evaluate():
        total = taken = 0.0
        for first in range(0, len(order), B):
            rows = [held[i * T : i * T + T + 1] for i in order[first : first + B]]
            windows = torch.from_numpy(np.stack(rows).astype(np.int64))
            logits = made(windows[:, :-1])
            total += F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="sum").item()
            taken += np.mean([layer.routing.assignment.float().sum(1).mean().item() for layer in layers]) * len(rows)
        return rounded(total / (len(order) * T), taken / len(order))

    name = f"text, {config['router.capacity_factor']:g} of {config['experts']}"
    return name, config["train.seed"], lambda: losses(made, layers, batch, evaluate)


def pictures(weights, seed, steps, data):
    """The same for the weights of arm ec-batch of lab/images."""
    sys.path.insert(0, str(LAB / "images"))
    import images
    import run
    import torch

    model, found = run.make("ec-batch", seed), data["t10k"]
    model.load_state_dict(torch.load(weights))
    layers, held = images.mixtures(model), run.held_out(*found)

    def batch(step):
        images.flow_loss(model, *run.batch_of(*data["train"], seed, step, "ec-batch"))

    def evaluate():
        taken, loss = [], []
        for x, y, t, noise, _ in zip(*held):
            loss.append(images.flow_loss(model, x, y, t, noise).mean().item())
            taken.append(np.mean([layer.routing.assignment.float().sum(1).mean().item() for layer in layers]))
        return rounded(np.mean(loss), np.mean(taken))

    return f"pictures, {steps} steps", seed, lambda: losses(model, layers, batch, evaluate)


def table():
    """For each rule: how much higher its loss is than with batch routing, and its experts per token."""
    from choir.study.statistics import of_values

    lines = sorted(stored(RESULTS), key=lambda line: (line["model"], line["seed"]))
    yield "| model | seeds | loss, batch routing | " + " | ".join(RULES.values()) + " |\n|---|--:|--:|" + "--:|" * len(RULES)
    for model in dict.fromkeys(line["model"] for line in lines):
        some, cells = [line for line in lines if line["model"] == model], []
        if len(some) < 2:  # no interval yet
            continue
        for rule in RULES:
            e = of_values([line[rule]["loss"] - line["own"]["loss"] for line in some])
            low, high = e.interval()
            each = np.mean([line[rule]["experts"] for line in some])
            cells.append(f"{e.mean:.4f} ({low:.4f} to {high:.4f}); {each:.2f}")
        own = np.mean([line["own"]["loss"] for line in some])
        yield f"| {model} | {len(some)} | {own:.4f} | " + " | ".join(cells) + " |"


def page(given):
    sys.path[:0] = [str(LAB), str(LAB.parent / "python")]
    from pages import put

    return put(given, "\n".join(table()) + "\n", of="lab/alone")


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("what", choices=["text", "images", "report"])
    ask.add_argument("runs", nargs="*", type=pathlib.Path)
    ask.add_argument("--data", type=pathlib.Path, default="images/data")
    ask.add_argument("--work", type=pathlib.Path, default="images/study")
    o = ask.parse_args()
    if o.what == "report":
        from pages import rewrite

        rewrite(PAGE, page)
        return
    sys.path[:0] = [str(LAB.parent / "examples"), str(LAB / "images")]
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    for run in o.runs if o.what == "text" else ():
        store(*text(run))
    if o.what == "images":
        import run as study

        data = study.data_of("clothes", o.data)[0]
        for weights in sorted(o.work.glob("clothes-ec-batch-0.008-*-64.pt")):
            seed, steps = weights.stem.split("-")[-3:-1]
            store(*pictures(weights, int(seed), int(steps), data))


if __name__ == "__main__":
    main()
