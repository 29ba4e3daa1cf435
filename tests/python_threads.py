"""python_threads.py: what Python programs do with threads, for the thread sanitizer: runs beside each other with
callbacks, models with sessions, one tokenizer for all, a model that is closed while others use it. CHOIR_LIBRARY is a
libchoir.so of -DCHOIR_SANITIZE=thread, and the sanitizer's library is preloaded (./check --faults says how). With an
argument, two threads then use one model through the C interface, which is forbidden: the sanitizer reports a race.
"""

import os
import pathlib
import sys
import tempfile
import threading

os.RTLD_DEEPBIND = 0  # sanitizers refuse it

import choir  # noqa: E402
import numpy as np  # noqa: E402
from choir import _native  # noqa: E402

CONFIG = """{"model": {"layers": 2, "d_model": 16, "d_hidden": 16, "heads": 2, "experts": 4}, "train":
{"sequence_length": 16, "batch_sequences": 2, "steps": 6, "eval_every": 2, "checkpoint_every": 2, "learning_rate": 0.05}}"""


class Library:
    """libchoir with the sanitizer's free(), whose malloc() it takes from."""

    free = staticmethod(_native.ffi.dlopen(None).free)

    def __getattr__(self, name):
        return getattr(_native.lib, name)


def in_threads(count, work):
    """Calls work(i) in that many threads at once; what one raises ends all."""
    raised = []

    def guarded(i):
        try:
            work(i)
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for error in raised:
        raise error


def main():
    for module in list(sys.modules.values()):
        if module is not _native and getattr(module, "lib", None) is _native.lib:
            module.lib = Library()
    words, events = ["ka", "lo", "mi", "ten", "sur", "re", "vo"], []
    pathlib.Path("corpus.txt").write_text("".join(f"{words[i % 7]} {words[i * i % 5]}.\n" for i in range(3000)))
    pathlib.Path("config.json").write_text(CONFIG)
    choir.Tokenizer.train("corpus.txt", out="tokenizer.model", vocab_size=280, threads=2)
    choir.data.build("corpus.txt", tokenizer="tokenizer.model", out="data", holdout=0.1, threads=2)

    def train(i):
        choir.train(out=f"run{i}", config="config.json", data="data", threads=2, progress=events.append)

    in_threads(3, train)
    tokenizer = choir.Tokenizer("tokenizer.model")

    def use(i):
        model = choir.Model.load(f"run{i % 3}", threads=2)
        model.routing = "threshold"
        session = model.session(slots=2, length=64, chunk=8)
        for _ in range(4):
            session.advance([[1, 2, 3], [4, 5, 6]])
            session.rewind(0)
        model.generate("ka lo", max_tokens=8)
        for _ in range(3):
            tokenizer.decode(tokenizer.encode("ka lo mi ten" * 5))
        choir.route(np.random.default_rng(i).normal(size=(16, 4)).astype(np.float32), "expert_choice")

    in_threads(6, use)
    shared = choir.Model.load("run0", threads=1)
    shared.routing = "threshold"

    def close(i):
        try:
            shared.close() if i == 3 else shared.generate("ka", max_tokens=20)
        except (choir.BusyError, choir.ArgumentError, ValueError):
            pass

    in_threads(4, close)
    if sys.argv[1:]:
        model = choir.Model.load("run0", threads=1)
        in_threads(2, lambda i: [_native.lib.choir_model_set_routing(model.address, b"threshold") for _ in range(1000)])
    print(f"threads of Python: {len(events)} calls back, no race")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        main()
        os.chdir("/")
