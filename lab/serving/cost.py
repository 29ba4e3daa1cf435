"""cost.py RUNS DATA: measures how much held-out loss 8-bit weights (--compute q8_0) and bf16 add to that of fp32, in nats per
token, and which fraction of the (token, expert) assignments they change. RUNS is the directory of runs that the study's command trains:

    choir study run lab/serving/cost.json --scale pico-1m --data DATA --out S --seeds 3 --tokens 1024000
    export CHOIR_LIBRARY=build/libchoir.so CHOIR_PROGRAM=build/choir PYTHONPATH=python
    python3 lab/serving/cost.py S/runs DATA

Every model is served causally: expert choice with threshold routing, the others with their own routing. Loss and
assignments are measured on the same 64 held-out sequences for all types and models. Means over seeds with 95 % t intervals."""

import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import choir  # noqa: E402
from choir.study import statistics  # noqa: E402
from runs import windows  # noqa: E402

SEQUENCES = 64


def assignments(run, tokens, compute, causal):
    """Bool [MoE layers,tokens,experts]."""
    with tempfile.TemporaryDirectory() as folder:
        given, made = pathlib.Path(folder, "tokens.npy"), pathlib.Path(folder, "routes.npy")
        np.save(given, tokens)
        words = ["--compute", compute, "--save-routes", made] + (["--routing", "threshold"] if causal else [])
        subprocess.run([os.environ["CHOIR_PROGRAM"], "forward", *words, run, given], check=True, stdout=subprocess.DEVNULL)
        return np.load(made).astype(bool)


def measure(run, data):
    """The router of a run, and by type its loss and the fraction of fp32's assignments that it changes."""
    config = choir.Model.load(run).config
    router, found = config["router.name"], {}
    tokens = windows(data, SEQUENCES, config["train.sequence_length"])
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
            added = statistics.of_values([one[compute][0] - one["fp32"][0] for one in all_of])
            low, high = added.interval()
            cells.append(f"{added.mean:.5f} ({low:.5f} to {high:.5f})")
        for compute in ("bf16", "q8_0"):
            changed = statistics.of_values([one[compute][1] for one in all_of])
            half = changed.mean - changed.interval()[0]
            cells.append("-" if router == "dense" else f"{100 * changed.mean:.2f} % ± {100 * half:.2f}")
        print(f"| {router} | {len(all_of)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
