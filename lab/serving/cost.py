"""cost.py RUNS DATA: how much held-out loss 8-bit weights (--compute q8_0) and bf16 add to fp32, in nats per token, and how
many of the (token, expert) assignments they change. RUNS is the directory of runs that the study's command trains:

    choir study run lab/serving/cost.json --scale pico-1m --data DATA --out S --seeds 3 --tokens 1024000
    export CHOIR_LIBRARY=build/libchoir.so CHOIR_PROGRAM=build/choir PYTHONPATH=python
    python3 lab/serving/cost.py S/runs DATA

Every model is served causally: expert choice by thresholds, the others by their own routing. Loss and assignments are of
the same 64 held-out sequences for all types and models. Means over seeds with 95 % t intervals."""

import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from scipy import stats

import choir

HEADER = 128  # bytes of a shard's header
SEQUENCES = 64


def windows(data, length):
    """Held-out sequences [SEQUENCES,length] at equal distances."""
    tokens = np.memmap(data / "text.heldout.shard", "<u2", "r", HEADER)
    first = np.linspace(0, len(tokens) - length, SEQUENCES).astype(np.int64)
    return np.stack([tokens[i : i + length] for i in first]).astype(np.int32)


def assignments(run, tokens, compute, causal):
    """Bool [MoE layers,tokens,experts]."""
    with tempfile.TemporaryDirectory() as folder:
        given, made = pathlib.Path(folder, "tokens.npy"), pathlib.Path(folder, "routes.npy")
        np.save(given, tokens)
        words = ["--compute", compute, "--save-routes", made] + (["--routing", "threshold"] if causal else [])
        subprocess.run([os.environ["CHOIR_PROGRAM"], "forward", *words, run, given], check=True, stdout=subprocess.DEVNULL)
        return np.load(made).astype(bool)


def measure(run, data):
    """Of one run: its arm, and per type its loss and the share of fp32's assignments that it changes."""
    config = choir.Model.load(run).config
    router, found = config["router.name"], {}
    tokens = windows(data, config["train.sequence_length"])
    routes = None
    for compute in ("fp32", "bf16", "q8_0"):
        model = choir.Model.load(run, compute=compute)
        causal = model.looks_across_tokens
        if causal:
            model.routing = "threshold"
        changed = 0.0
        if router != "dense":
            now = assignments(run, tokens, compute, causal)
            routes = now if routes is None else routes
            changed = float((routes & ~now).sum() / routes.sum())
        found[compute] = (float(model.forward(tokens, logits=False).loss), changed)
    return router, found


def interval(values):
    """The mean and half the width of its 95 % t interval."""
    return np.mean(values), stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    runs, data = map(pathlib.Path, sys.argv[1:])
    by_router = {}
    for run in sorted(runs.iterdir()):
        router, found = measure(run, data)
        by_router.setdefault(router, []).append(found)
        print(run.name, {compute: round(loss, 5) for compute, (loss, _) in found.items()}, flush=True)
    print("| router | runs | loss, fp32 | bf16 minus fp32 | q8_0 minus fp32 | assignments changed: bf16 | q8_0 |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for router, all_of in by_router.items():
        if len(all_of) < 2:
            sys.exit(f"{runs}: {router} has {len(all_of)} finished run; an interval needs 2")
        cells = [f"{np.mean([one['fp32'][0] for one in all_of]):.3f}"]
        for compute in ("bf16", "q8_0"):
            mean, half = interval([one[compute][0] - one["fp32"][0] for one in all_of])
            cells.append(f"{mean:.5f} ({mean - half:.5f} to {mean + half:.5f})")
        for compute in ("bf16", "q8_0"):
            mean, half = interval([one[compute][1] for one in all_of])
            cells.append("-" if router == "dense" else f"{100 * mean:.2f} % ± {100 * half:.2f}")
        print(f"| {router} | {len(all_of)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
