"""speed.py: choir and a llama.cpp built for this machine, in turns: tokens per second of prompts and of generation.

    python3 -m venv v
    CMAKE_ARGS=-DGGML_NATIVE=ON v/bin/pip install --no-binary llama-cpp-python llama-cpp-python cffi
    export CHOIR_LIBRARY=build/libchoir.so CHOIR_PROGRAM=build/choir PYTHONPATH=python
    v/bin/python lab/serving/speed.py [--model 8|64] [--type f32|bf16|q8_0] [--rounds 5] [--threads 2]

The models are Mixtrals with fresh weights, so that both programs compute the same: 8 experts of width 1,536, two per
token, in 8 layers, and 64 experts of width 512, eight per token, in 12 layers. Medians. GB/s are the bytes of the
matrices that a generated token uses, times tokens per second; the bandwidth is what choir bench measures before.

Exit status 1: llama.cpp is not built for this machine, or the first tokens of f32 differ.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import llama_cpp
import numpy as np

import choir

ROOT = pathlib.Path(__file__).parents[2]
BASE = {
    "d_model": 768,
    "heads": 12,
    "kv_heads": 4,
    "moe_every": 1,
    "position": "rope",
    "activation": "swiglu",
    "expert_activation": "swiglu",
}
MODELS = {8: {"layers": 8, "d_hidden": 1536, "per_token": 2}, 64: {"layers": 12, "d_hidden": 512, "per_token": 8}}
TRAIN = {"sequence_length": 512, "batch_sequences": 1, "steps": 1, "learning_rate": 0.01}
BYTES = {"f32": 4, "bf16": 2, "q8_0": 34 / 32}
VOCABULARY = 2048
# What llama.cpp says of itself, and the CPU's flag for it.
UNITS = {"AVX2": "avx2", "AVX512": "avx512f", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16"}


def program(*words):
    done = subprocess.run([os.environ["CHOIR_PROGRAM"], *map(str, words)], check=True, stdout=subprocess.PIPE)
    return done.stdout


def check_native():
    """Prints what llama.cpp was built with, which must be all that the CPU has."""
    info = llama_cpp.llama_print_system_info().decode()
    print(f"llama.cpp of llama-cpp-python {llama_cpp.__version__}: {info}", flush=True)
    flags = set(pathlib.Path("/proc/cpuinfo").read_text().split())
    lacking = [unit for unit, flag in UNITS.items() if flag in flags and f"{unit} = 1" not in info]
    if lacking:
        sys.exit(f"this llama.cpp is not built for this machine: it lacks {', '.join(lacking)}")


def bandwidth():
    """GB/s of reading memory on all threads."""
    return json.loads(program("bench", "gemm", "m=64", "n=64", "k=64", "--json"))["peak"]["read_gbs"]


def used_bytes(shape, kind):
    """Bytes of the matrices that one token uses."""
    d, h = BASE["d_model"], shape["d_hidden"]
    attention = 2 * d * d + 2 * d * (d // BASE["heads"] * BASE["kv_heads"])
    values = shape["layers"] * (attention + shape["per_token"] * 3 * d * h) + VOCABULARY * d
    return values * BYTES[kind]


def fresh_model(at, experts):
    shape = MODELS[experts]
    router = {
        "name": "topk",
        "experts_per_token": shape["per_token"],
        "normalize_gates": True,
        "aux_loss_weight": 0,
    }
    model = {**BASE, "name": "speed", "layers": shape["layers"], "d_hidden": shape["d_hidden"], "experts": experts}
    (at / "config.json").write_text(json.dumps({"model": {**model, "router": router}, "train": TRAIN}))
    words = sorted(ROOT.glob("docs/*.md"))
    program("tokenizer", "train", "--out", at / "t.model", "--vocab-size", VOCABULARY, *words)
    program("init", "--out", at / "model", "--tokenizer", at / "t.model", at / "config.json")


class Choir:
    def __init__(self, at, kind, o):
        compute = "fp32" if kind == "f32" else kind
        self.model = choir.Model.load(str(at / "model"), compute=compute, emulate_bf16=True, threads=o.threads)
        self.session = choir.Session(self.model, length=o.prompt + o.tokens, chunk=o.prompt)

    def advance(self, tokens):
        return int(np.argmax(self.session.advance(tokens)))

    def clear(self):
        self.session.rewind()


class Llama:
    def __init__(self, at, kind, o):
        options = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(at / "model.gguf").encode(), options)
        c = llama_cpp.llama_context_default_params()
        c.n_ctx, c.n_batch, c.n_ubatch = o.prompt + o.tokens + 8, o.prompt, o.prompt
        c.n_threads = c.n_threads_batch = o.threads
        self.context = llama_cpp.llama_init_from_model(self.model, c)
        if not self.context:
            sys.exit("llama.cpp cannot make a context")

    def advance(self, tokens):
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(tokens))):
            sys.exit("llama.cpp cannot decode")
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(np.argmax(np.ctypeslib.as_array(logits, (VOCABULARY,))))

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def __del__(self):
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


def run(side, prompt, tokens):
    """Seconds for the prompt and for the tokens, each the most probable, and the tokens. The prompt's pass gives the
    first one, so that one pass fewer is timed."""
    side.clear()
    begin = time.perf_counter()
    text = [side.advance(prompt)]
    middle = time.perf_counter()
    while len(text) < tokens:
        text.append(side.advance(text[-1:]))
    return middle - begin, (time.perf_counter() - middle) / (tokens - 1) * tokens, text


def measure(at, kind, o):
    """Of each program the medians of tokens per second of prompt and generation."""
    prompt = np.random.default_rng(1).integers(3, VOCABULARY, o.prompt).tolist()
    sides = {"choir": Choir(at, kind, o)}
    sides["llama.cpp"], found, first = Llama(at, kind, o), {}, {}
    for turn in range(o.rounds + 1):  # the first one reads the weights
        for name, side in sides.items():
            reading, writing, text = run(side, prompt, o.tokens)
            first[name] = text[0]
            if turn:
                found.setdefault(name, []).append((o.prompt / reading, o.tokens / writing))
    if kind == "f32" and first["choir"] != first["llama.cpp"]:
        sys.exit(f"the first tokens differ: {first}")
    return {name: [statistics.median(pair[i] for pair in pairs) for i in range(2)] for name, pairs in found.items()}


def compare(at, experts, kind, o, read_gbs):
    program("export", "--format", "gguf", "--dtype", kind, "--sequences", 0, "--out", at / "model.gguf", at / "model")
    found = measure(at, kind, o)
    (at / "model.gguf").unlink()
    cells = []
    for i in range(2):
        ours, theirs = found["choir"][i] if "choir" in found else None, found["llama.cpp"][i]
        cells += [f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}"] if ours else ["", f"{theirs:,.0f}", ""]
    if "choir" in found:
        gbs = found["choir"][1] * used_bytes(MODELS[experts], kind) / 1e9
        cells += [f"{gbs:.1f}", f"{gbs / read_gbs:.2f}"]
    print(f"| {experts} | {kind} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=int, choices=MODELS, action="append", help="experts; default: both")
    parser.add_argument("--type", choices=BYTES, action="append", help="default: all")
    for name, value in (("prompt", 256), ("tokens", 64), ("rounds", 5), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    o = parser.parse_args()
    quiet = llama_cpp.llama_log_callback(lambda level, text, context: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p())
    llama_cpp.llama_backend_init()
    check_native()
    read_gbs = bandwidth()
    print(f"memory bandwidth, reading: {read_gbs:.1f} GB/s\n")
    sides = "choir | llama.cpp | times"
    print(f"| experts | type | prompt: {sides} | generation: {sides} | GB/s | share |")
    print("|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for experts in o.model or MODELS:
        with tempfile.TemporaryDirectory() as directory:
            at = pathlib.Path(directory)
            fresh_model(at, experts)
            for kind in o.type or BYTES:
                compare(at, experts, kind, o, read_gbs)


main()
