"""What plan.json asks for, and which of it results.jsonl has."""

import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
PLAN, RESULTS = json.loads((HERE / "plan.json").read_text()), HERE / "results.jsonl"
BINS = 8  # parts of (0,1) in which loss by noise is told
FIELDS = ("set", "arm", "rate", "seed")


def stored():
    lines = RESULTS.read_text().splitlines() if RESULTS.is_file() else []
    return {tuple(line[field] for field in FIELDS): line for line in map(json.loads, lines)}


def final(line):
    """The held-out loss that chooses rates and that claims are about: by the arm's own routing."""
    return sum(line["own"]["loss"]) / BINS


def rates_of(pictures, arm, kept):
    """The rates to try with the first seed, and the best; None while one is missing. An end of the rates that is best is
    followed by one beyond it."""
    seed, tried = PLAN["seeds"][0], list(PLAN["rates"])
    while all((pictures, arm, rate, seed) in kept for rate in tried):
        best = min(tried, key=lambda rate: final(kept[pictures, arm, rate, seed]))
        if min(tried) < best < max(tried):
            return tried, best
        tried.append(best / 2 if best == min(tried) else best * 2)
    return tried, None


def wanted(kept):
    """Runs in the order of the plan: a stage's arms, first the rates, then the other seeds."""
    for stage in PLAN["stages"]:
        pictures, first = stage["set"], PLAN["seeds"][0]
        found = {arm: rates_of(pictures, arm, kept) for arm in stage["arms"]}
        yield from ((pictures, arm, rate, first) for arm, (tried, _) in found.items() for rate in tried)
        for seed in PLAN["seeds"][1:]:
            yield from ((pictures, arm, best, seed) for arm, (_, best) in found.items() if best)
