"""What the tests share: a small run, made once by the program, and made-up text."""

import atexit
import functools
import os
import pathlib
import random
import shutil
import subprocess
import tempfile

import choir

SOURCE = pathlib.Path(__file__).resolve().parents[2]
CONFIG = dict(
    layers=2,
    d_model=32,
    d_hidden=48,
    heads=2,
    experts=8,
    **{"train.sequence_length": 32, "train.batch_sequences": 8, "train.steps": 20, "train.learning_rate": 0.05},
)


@functools.lru_cache(None)
def directory() -> pathlib.Path:
    made = tempfile.mkdtemp(prefix="choir-python-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return pathlib.Path(made)


def program(*words) -> str:
    return subprocess.run(
        [os.environ["CHOIR_PROGRAM"], *map(str, words)], check=True, capture_output=True, text=True
    ).stdout


@functools.lru_cache(None)
def run() -> pathlib.Path:
    """A trained run beside the data it was made of: DIRECTORY/run, DIRECTORY/data, DIRECTORY/en.model."""
    at, words = directory(), random.Random(1)
    syllables = ["ka", "lo", "mi", "ten", "sur", "ape", "rin", "do"]
    with open(at / "book.txt", "w", encoding="utf-8") as file:
        for _ in range(4000):
            file.write(" ".join("".join(words.choices(syllables, k=words.randint(1, 3))) for _ in range(9)) + ".\n")
    program("tokenizer", "train", "--out", at / "en.model", "--vocab-size", 320, at / "book.txt")
    program(
        "data", "build", "--out", at / "data", "--tokenizer", at / "en.model", "--holdout", 0.1, at / "book.txt"
    )
    config = choir.Config(vocab_size=320, **CONFIG)
    config.save(at / "config.json")
    program("train", "--config", at / "config.json", "--data", at / "data", "--out", at / "run")
    return at / "run"


def numbers(value):
    """All numbers of a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, (int, float)):
        yield float(value)
