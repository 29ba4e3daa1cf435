"""run.py [--data DIR] [--work DIR]: trains the runs of plan.json that results.jsonl lacks, one after the other. A finished
run adds a line; a killed run starts again from the beginning. To share the work, start several processes with the same
DIR, each on a separate core. Weights (EMA) stay in DIR, which does not belong in the repository.

All arms see the same pictures, classes, times and noise with the same seed, and weights with the same name have the same
initial values."""

import argparse
import copy
import fcntl
import functools
import json
import os
import pathlib
import sys
import time
import zlib

import torch
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "examples"))
sys.path.insert(0, str(HERE))
import choir.torch  # noqa: E402
import frechet  # noqa: E402
import images  # noqa: E402
from choir import _files  # noqa: E402
from plan import BINS, FIELDS, PLAN, RESULTS, final, stored, wanted  # noqa: E402

HELD = 512


def feed_forward(arm, d, layer):
    """The layer of a block: the arm's layer in every second block, a dense one in the others."""
    given = {k: v for k, v in PLAN["arms"][arm].items() if k not in ("title", "sorted")}
    if layer % 2 == 0 or not given:
        return nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
    experts = given.pop("num_experts", 16)
    return choir.torch.MoE(d, 4 * d * 16 // experts, experts, **given)


def make(arm, seed, width=PLAN["width"]):
    """A model with the initial weights of the seed's dense model where that has them; the others are drawn after them."""
    models = []
    for name in ("dense", arm):
        torch.manual_seed(seed)
        models.append(images.DiT(functools.partial(feed_forward, name, width), width, PLAN["layers"]))
    dense, model = models
    own = model.state_dict()
    model.load_state_dict(
        {name: weight for name, weight in dense.state_dict().items() if name in own}, strict=False
    )
    return model


def batch_of(pictures, labels, seed, step, arm):
    """The batch of a step, sorted by time for an arm whose groups have similar noise."""
    source = torch.Generator().manual_seed(zlib.crc32(f"{seed} {step}".encode()))
    batch = images.draw(pictures, labels, PLAN["batch"], source)
    order = batch[2].argsort() if PLAN["arms"][arm].get("sorted") else slice(None)
    return [part[order] for part in batch]


def held_out(pictures, labels):
    """Every held-out picture at one time in each of BINS intervals of (0,1), in batches of mixed times."""
    draw = torch.Generator().manual_seed(0)
    x, y = (pictures[:HELD].float() / 127.5 - 1).repeat(BINS, 1, 1), labels[:HELD].repeat(BINS)
    part = torch.arange(BINS).repeat_interleave(HELD)
    t = (part + torch.rand(len(x), generator=draw)) / BINS
    order = torch.randperm(len(x), generator=draw)
    return [a[order].split(PLAN["batch"]) for a in (x, y, t, torch.randn(x.shape, generator=draw), part)]


@torch.no_grad()
def evaluate(model, held, arm, thresholds=False):
    """Loss by bin, and experts of a patch by layer, bin and whether the patch is all background."""
    layers = images.mixtures(model)
    for layer in layers:
        layer.causal = thresholds
    model.eval()
    loss, seen = torch.zeros(BINS), torch.zeros(len(layers), BINS, 2, 2)
    for x, y, t, noise, part in zip(*held):
        order = t.argsort() if PLAN["arms"][arm].get("sorted") else torch.arange(len(t))
        x, part = x[order], part[order]
        loss.index_add_(0, part, images.flow_loss(model, x, y[order], t[order], noise[order]) / HELD)
        kind = 2 * part[:, None, None] + (x.unfold(1, 4, 4).unfold(2, 4, 4).amax((3, 4)) > -1)
        for layer, sums in zip(layers, seen):
            counts = torch.stack([layer.routing.assignment.sum(1).float(), torch.ones(kind.numel())], 1)
            sums.view(-1, 2).index_add_(0, kind.reshape(-1), counts)
    return {"loss": rounded(loss), "experts": rounded(seen[..., 0] / seen[..., 1])}


def rounded(a):
    return [rounded(part) for part in a] if a.dim() else round(a.item(), 5)


def run(key, data, judged, work):
    pictures, arm, rate, seed, steps, width = key
    begin, model = time.process_time(), make(arm, seed, width)
    ema, held, curve = copy.deepcopy(model), held_out(*data["t10k"]), {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 50)
        loss = images.flow_loss(model, *batch_of(*data["train"], seed, step, arm)).mean()
        loss = loss + sum(layer.aux_loss for layer in images.mixtures(model))
        optimizer.zero_grad()
        loss.backward()
        choir.torch.update_routers(model)
        optimizer.step()
        images.follow(ema, model, step + 1)
        if (step + 1) % (steps // 4) == 0 and step + 1 < steps:
            curve[step + 1] = round(sum(evaluate(ema, [some[::4] for some in held], arm)["loss"]) * 4 / BINS, 5)
    router, later = PLAN["arms"][arm].get("router"), range(steps, steps + 50)
    more = (batch_of(*data["train"], seed, step, arm) for step in later)
    if router == "quantile_balanced":  # its own routing goes by prices
        images.calibrate(ema, more)
    found = {**dict(zip(FIELDS, key)), "curve": curve}
    found["own"] = evaluate(ema, held, arm)
    if router in ("expert_choice", "global_topk"):
        images.calibrate(ema, more)
        found["thresholds"] = evaluate(ema, held, arm, True)
    found["frechet"] = frechet.distances(ema, judged, seed)
    torch.save(ema.state_dict(), work / ("-".join(map(str, key)) + ".pt"))
    return {**found, "torch": torch.__version__, "core_seconds": round(time.process_time() - begin)}


def data_of(pictures, folder):
    """Pictures and labels for training and evaluation, and the classifiers that evaluate samples."""
    if pictures == "clothes":
        source, at = images, images.fetch(folder)
    else:  # Pillow is needed for them alone
        import glyphs as source

        at = source.fetch(folder / "glyphs")
    data = {part: source.load(at, part) for part in ("train", "t10k")}
    return data, frechet.judges(data)


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--data", type=pathlib.Path, default="images/data")
    ask.add_argument("--work", type=pathlib.Path, default="images/study")
    o = ask.parse_args()
    torch.set_num_threads(1)
    _files.directory(o.work)
    data = functools.lru_cache(1)(lambda pictures: data_of(pictures, o.data))
    while True:
        for key in wanted(stored()):
            if key in stored():
                continue
            name = "-".join(map(str, key)) + ".lock"
            lock = open(_files.opened(o.work / name, os.O_WRONLY | os.O_CREAT), "w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another process has it
                continue
            if key in stored():
                continue
            found = run(key, *data(key[0]), o.work)
            _files.append(RESULTS, json.dumps(found))
            print(*key, round(final(found), 5), f"{found['core_seconds']} s", flush=True)
            break
        else:
            return


if __name__ == "__main__":
    main()
