"""The runs that plan.json requires, and their results in results.jsonl."""

import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
PLAN, RESULTS = json.loads((HERE / "plan.json").read_text()), HERE / "results.jsonl"
BINS = 8  # parts of (0,1) in which loss by noise is reported
FIELDS = ("set", "arm", "rate", "seed", "steps", "width")


def stored():
    lines = RESULTS.read_text().splitlines() if RESULTS.is_file() else []
    made = ({"width": PLAN["width"], **json.loads(line)} for line in lines)  # lines of the first stages have none
    return {tuple(line[field] for field in FIELDS): line for line in made}


def final(line):
    """The held-out loss with the arm's own routing. It selects learning rates, and claims are about it."""
    return sum(line["own"]["loss"]) / BINS


def given(stage, what):
    """A setting of the stage, or of the whole plan if the stage does not have it."""
    return stage.get(what, PLAN[what])


def key_of(stage, arm, rate, seed):
    return (stage["set"], arm, rate, seed, given(stage, "steps"), given(stage, "width"))


def rates_of(stage, arm, kept):
    """The learning rates to try with the first seed, and the best one; None while a result is missing. If the lowest or
    the highest of several rates is the best, one beyond it is tried as well."""
    seed, tried = given(stage, "seeds")[0], list(given(stage, "rates"))
    if len(tried) == 1:
        return tried, tried[0]
    while all(key_of(stage, arm, rate, seed) in kept for rate in tried):
        best = min(tried, key=lambda rate: final(kept[key_of(stage, arm, rate, seed)]))
        if min(tried) < best < max(tried):
            return tried, best
        tried.append(best / 2 if best == min(tried) else best * 2)
    return tried, None


def runs_of(stage, kept):
    """The runs of a stage that are known so far: first the learning rates, then the other seeds."""
    first, *others = given(stage, "seeds")
    found = {arm: rates_of(stage, arm, kept) for arm in stage["arms"]}
    for seed in (first, *others):
        for arm, (tried, best) in found.items():
            for rate in tried if seed == first else [best] if best else []:
                yield key_of(stage, arm, rate, seed)


def wanted(kept):
    """All runs, in the order of the plan."""
    for stage in PLAN["stages"]:
        yield from runs_of(stage, kept)
