"""speed.py: one exported model in choir and in llama.cpp, in turns: tokens a second of reading a prompt and of writing.

    python3 -m venv v && v/bin/pip install xllamacpp numpy cffi          # a prebuilt llama.cpp
    export CHOIR_LIBRARY=build/libchoir.so CHOIR_PROGRAM=build/choir PYTHONPATH=python
    v/bin/python lab/serving/speed.py [--layers 8] [--prompt 256] [--tokens 64] [--rounds 5] [--threads 2]

The model is a Mixtral of fresh weights, two of eight experts a token, so that both compute the same. Medians. choir has no
8-bit weights; bf16 is emulated where the CPU has no such instructions. Exit status 1: the texts differ at the first token.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import xllamacpp

import choir

ROOT = pathlib.Path(__file__).parents[2]
MODEL = {
    "name": "speed",
    "d_model": 768,
    "d_hidden": 1536,
    "heads": 12,
    "kv_heads": 4,
    "experts": 8,
    "moe_every": 1,
    "position": "rope",
    "activation": "swiglu",
    "expert_activation": "swiglu",
    "router": {"name": "topk", "experts_per_token": 2, "normalize_gates": True, "aux_loss_weight": 0},
}
TRAIN = {"sequence_length": 512, "batch_sequences": 1, "steps": 1, "learning_rate": 0.01}


def program(*words):
    subprocess.run([os.environ["CHOIR_PROGRAM"], *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def fresh_model(at, layers):
    """A checkpoint, and its GGUF file in each type."""
    (at / "config.json").write_text(json.dumps({"model": {**MODEL, "layers": layers}, "train": TRAIN}))
    program("tokenizer", "train", "--out", at / "t.model", "--vocab-size", 2048, *sorted(ROOT.glob("docs/*.md")))
    program("init", "--out", at / "model", "--tokenizer", at / "t.model", at / "config.json")
    for kind in ("f32", "bf16", "q8_0"):
        program("export", "--format", "gguf", "--dtype", kind, "--sequences", 0, "--out", at / f"{kind}.gguf", at / "model")


class Choir:
    def __init__(self, at, kind, o):
        compute = "fp32" if kind == "f32" else kind
        self.model = choir.Model.load(str(at / "model"), compute=compute, emulate_bf16=True, threads=o.threads)
        self.session = choir.Session(self.model, length=o.prompt + o.tokens, chunk=o.prompt)

    def run(self, prompt, tokens):
        """Seconds to read the prompt and to write the tokens, each the most probable; and the tokens. The prompt's pass
        gives the first one, so that one pass fewer is timed."""
        self.session.rewind()
        begin = time.perf_counter()
        text = [int(np.argmax(self.session.advance(prompt)))]
        middle = time.perf_counter()
        while len(text) < tokens:
            text.append(int(np.argmax(self.session.advance(text[-1:]))))
        return middle - begin, (time.perf_counter() - middle) / (tokens - 1) * tokens, text


class Llama:
    def __init__(self, at, kind, o):
        p = xllamacpp.CommonParams()
        p.model.path = str(at / f"{kind}.gguf")
        p.n_ctx, p.n_parallel, p.n_batch, p.n_ubatch = o.prompt + o.tokens + 8, 1, o.prompt, o.prompt
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = o.threads
        p.cache_ram_mib, p.verbosity = 0, -1
        self.server = xllamacpp.Server(p)

    def run(self, prompt, tokens):
        asked = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
        said = self.server.handle_completions(asked)
        if said["usage"]["prompt_tokens"] != len(prompt) or said["usage"]["completion_tokens"] != tokens:
            sys.exit(f"llama.cpp did other work: {said}")
        t = said["timings"]
        return t["prompt_ms"] / 1000, t["predicted_ms"] / 1000, said["choices"][0]["text"]


def compare(at, kind, o, words):
    prompt = np.random.default_rng(1).integers(3, len(words), o.prompt).tolist()
    sides = {} if kind == "q8_0" else {"choir": Choir(at, kind, o)}
    sides["llama.cpp"], found = Llama(at, kind, o), {}
    for turn in range(o.rounds + 1):  # the first one reads the weights
        for name, side in sides.items():
            read, write, text = side.run(prompt, o.tokens)
            if turn:
                found.setdefault(name, []).append((o.prompt / read, o.tokens / write))
            if name == "choir":
                written = words.decode(text)
            elif kind == "f32" and text.strip()[:1] != written.strip()[:1]:
                sys.exit(f"other text: {written!r} in choir, {text!r} in llama.cpp")
    cells = []
    for i in range(2):
        of = {name: statistics.median(pair[i] for pair in pairs) for name, pairs in found.items()}
        ours, theirs = of.get("choir"), of["llama.cpp"]
        cells += [f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.2f}"] if ours else ["", f"{theirs:.1f}", ""]
    print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, value in (("layers", 8), ("prompt", 256), ("tokens", 64), ("rounds", 5), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        at = pathlib.Path(directory)
        fresh_model(at, o.layers)
        words = choir.Tokenizer(str(at / "t.model"))
        print("| type | prompt: choir | llama.cpp | times | writing: choir | llama.cpp | times |\n|---|--:|--:|--:|--:|--:|--:|")
        for kind in ("f32", "bf16", "q8_0"):
            compare(at, kind, o, words)


main()
