"""check.py gguf|hf PROBE...: compares models that choir exports with choir, in llama.cpp or in vLLM. PROBE is llama.c or
vllm_probe.py:

    cc -O2 lab/serving/llama.c -I LLAMA/include -I LLAMA/ggml/include -L LIB -lllama -Wl,-rpath,LIB -o probe
    export CHOIR_LIBRARY=build/libchoir.so CHOIR_PROGRAM=build/choir PYTHONPATH=python:python/tests
    python3 lab/serving/check.py gguf ./probe
    python3 lab/serving/check.py hf python3 lab/serving/vllm_probe.py

Trains a small run of every kind and compares log-probabilities, greedy text and tokens with choir's. Exit status 1: a
result differs.
"""

import subprocess
import sys

import numpy as np
from scipy.special import log_softmax

import choir
import exported
import testing

form, *probe = sys.argv[1:]
failures = 0


def ask(path, what, text, *words):
    asked = subprocess.run([*probe, path, what, *words], input=text, capture_output=True)
    if asked.returncode:
        sys.exit(f"{path}: {what}: {asked.stderr.decode()[-2000:]}")
    return asked.stdout


def report(what, right):
    global failures
    failures += not right
    print(what, "" if right else "WRONG", flush=True)


def ids_of(rows):
    return "".join(" ".join(map(str, row)) + "\n" for row in rows).encode()


def compare(kind):
    both_ways = "attention" in exported.KINDS[kind][1]  # such a model has a mask, and writes in another way
    tokens = np.random.default_rng(1).integers(2, 320 + both_ways, (8, 24)).astype(np.int32)
    path = exported.export(kind, form)
    with choir.Model.load(exported.run(kind), compute="fp32") as model:
        model.routing = "threshold"
        ours = log_softmax(model.forward(tokens).logits, axis=-1)
        prompts = [row[:8] for row in tokens]
        if not both_ways:
            ours_greedy = [t.tokens.tolist() for t in model.generate(prompts, max_tokens=24, temperature=0)]
    theirs = np.frombuffer(ask(path, "logits", ids_of(tokens)), np.float32).reshape(ours.shape)
    off = np.abs(log_softmax(theirs.astype(np.float64), axis=-1) - ours)
    report(
        f"{kind}: log-probabilities differ by {off.max():.1e} of {np.abs(ours).max():.2f}",
        off.max() < 2e-5 * np.abs(ours).max(),
    )
    if both_ways:
        return
    greedy = [
        list(map(int, line.split())) for line in ask(path, "greedy", ids_of(prompts), "24").decode().splitlines()
    ]
    same = [b[: len(a)] == a for a, b in zip(ours_greedy, greedy)]  # choir ends at an end of text
    report(f"{kind}: greedy text equal for {sum(same)} of {len(same)} prompts", all(same))


def compare_tokens():
    path, lines = exported.export("llama", form), exported.lines(6000)
    words = choir.Tokenizer(testing.run().parent / "en.model")
    theirs = ask(path, "tokens", b"".join(line.encode() + b"\0" for line in lines)).decode().splitlines()
    off = sum(list(map(int, b.split())) != words.encode(a).tolist() for a, b in zip(lines, theirs))
    report(f"tokens differ for {off} of {len(lines)} lines", not off and len(lines) == len(theirs))


for kind, (architectures, _) in exported.KINDS.items():
    if architectures[form == "gguf"]:
        compare(kind)
compare_tokens()
sys.exit(failures > 0)
