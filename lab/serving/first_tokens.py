"""first_tokens.py TEXT...: counts for how many of 16 prompts choir and llama.cpp generate the same first token with 8-bit
weights.

xllamacpp is a prebuilt llama.cpp:

    python3 -m venv v && v/bin/pip install xllamacpp cffi numpy
    export CHOIR_LIBRARY=build/libchoir.so CHOIR_PROGRAM=build/choir PYTHONPATH=python
    v/bin/python lab/serving/first_tokens.py TEXT.txt [--steps 400] [--threads 2]

Trains two small models on the texts: top-2 (exported as a Mixtral) and expert choice (exported as GLM-4.5 MoE, which serves
it by top-K of score minus threshold). Both are exported with q8_0; choir runs top-2 from its own run, with --compute
q8_0, and expert choice from the exported file, imported again, so that both programs compute the same function. Prompts are
64 tokens of held-out text. Exit status 1: fewer than 15 of 16 first tokens are equal."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import xllamacpp

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import choir  # noqa: E402
from runs import windows  # noqa: E402

PROMPTS, LENGTH, VOCABULARY = 16, 64, 2048
MODEL = {
    "name": "first-tokens",
    "layers": 4,
    "d_model": 128,
    "d_hidden": 128,
    "heads": 4,
    "kv_heads": 2,
    "experts": 8,
    "moe_every": 1,
    "position": "rope",
    "activation": "swiglu",
    "expert_activation": "swiglu",
}
ROUTERS = {
    "top-2": {"name": "topk", "experts_per_token": 2, "normalize_gates": True, "aux_loss_weight": 0.01},
    "expert choice": {"name": "expert_choice", "score": "sigmoid", "capacity_factor": 2},
}
TRAIN = {"sequence_length": 128, "batch_sequences": 16, "learning_rate": 0.04, "eval_every": 0}


def program(*words):
    subprocess.run([os.environ["CHOIR_PROGRAM"], *map(str, words)], check=True, stdout=subprocess.PIPE)


def train(at, name, steps):
    config = {"model": {**MODEL, "router": ROUTERS[name]}, "train": {**TRAIN, "steps": steps}}
    if name == "expert choice":
        config["model"]["dense_layers"] = 1
    (at / "config.json").write_text(json.dumps(config))
    program("train", "--config", at / "config.json", "--data", at.parent / "data", "--out", at / "model")


def by_choir(model, each, threads):
    with choir.Model.load(model, compute="q8_0", threads=threads) as loaded, choir.Session(loaded, length=LENGTH) as session:
        for prompt in each:
            session.rewind()
            yield int(np.argmax(session.advance(prompt)))


def by_llama(path, each, threads):
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup, params.verbosity = str(path), 4 * LENGTH, 1, False, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    for prompt in each:
        asked = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1, "cache_prompt": False}
        made = server.handle_completions(asked)
        yield made["choices"][0]["logprobs"]["content"][0]["id"]


def equal(at, name, threads):
    """The number of prompts whose first tokens are equal."""
    program("export", "--format", "gguf", "--dtype", "q8_0", "--out", at / "model.gguf", at / "model")
    ours = at / "model"
    if name == "expert choice":
        ours = at / "imported"
        program("import", "--out", ours, at / "model.gguf")
    each = windows(at.parent / "data", PROMPTS, LENGTH).tolist()
    pairs = zip(by_choir(ours, each, threads), by_llama(at / "model.gguf", each, threads))
    return sum(one == other for one, other in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", nargs="+", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--threads", type=int, default=2)
    o, counts = parser.parse_args(), {}
    with tempfile.TemporaryDirectory() as directory:
        at = pathlib.Path(directory)
        program("tokenizer", "train", "--out", at / "t.model", "--vocab-size", VOCABULARY, *o.text)
        program("data", "build", "--out", at / "data", "--tokenizer", at / "t.model", *o.text)
        for name in ROUTERS:
            one = at / name.replace(" ", "-")
            one.mkdir()
            train(one, name, o.steps)
            counts[name] = equal(one, name, o.threads)
            print(f"{name}: {counts[name]} of {PROMPTS} first tokens are equal", flush=True)
    return min(counts.values()) < PROMPTS - 1


if __name__ == "__main__":
    sys.exit(main())
