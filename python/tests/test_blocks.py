"""The blocks of Python in README.md and docs/ run as they stand, in the order of their page, on small made-up data."""

import ast
import json
import os
import re
import shutil
import tempfile
import textwrap
import unittest
import warnings
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import numpy as np

import choir
import testing

try:
    import torch

    import choir.torch
except ImportError:
    torch = None

# Several processes (test_torch_parallel.py), transformers (test_export.py), or PEFT (test_torch_convert.py).
ELSEWHERE = "parallelize_module(", "DistributedDataParallel.", "from transformers import", "peft.PeftModel"
SMALLER = {"vocab_size=8192": "vocab_size=300", "steps=500": "steps=20"}


def blocks(page):
    """[(line, text)] of what is indented behind an empty line, and Python that calls, defines or imports something."""
    text = (testing.SOURCE / page).read_text(encoding="utf-8")
    for found in re.finditer(r"(?<=\n\n)((?:    .*\n|\n(?=    ))+)", text):
        block = textwrap.dedent(found[1])
        try:
            tree = ast.parse(block)
        except SyntaxError:
            continue
        if any(isinstance(node, (ast.Call, ast.Import, ast.FunctionDef)) for node in ast.walk(tree)):
            yield text[: found.start()].count("\n") + 1, block


def pages():
    return ["README.md", *(f"docs/{path.name}" for path in sorted((testing.SOURCE / "docs").glob("*.md")))]


def names():
    """What a page takes as given."""
    config = choir.Config(vocab_size=320, **testing.CONFIG)
    given = {
        "choir": choir, "scores": np.random.default_rng(1).random((64, 16), np.float32), "config": config,
        "tokens": np.zeros((8, 32), np.int32), "tokenizer": choir.Tokenizer("en.model"),
    }  # fmt: skip
    if torch:
        model = choir.torch.Transformer(config)
        given.update(F=torch.nn.functional, x=torch.randn(4, 8, 512), y=torch.randn(4, 8, 512), model=model,
                     optimizer=torch.optim.SGD(model.parameters(), 0.1))  # fmt: skip
    return given


def prepare():
    """A folder with books, a run and its data, a tokenizer, configs/ and a task."""
    at = testing.run().parent
    for name in ("data", "run"):
        shutil.copytree(at / name, name)
    shutil.copy(at / "en.model", "en.model")
    for folder in ("books", "configs", "glue/RTE"):
        os.makedirs(folder)
    lines = (at / "book.txt").read_text(encoding="utf-8").splitlines(True)
    for name, count in (("books/one.txt", 2000), ("page.txt", 100)):
        with open(name, "w", encoding="utf-8") as file:
            file.writelines(lines[:count])
    choir.Config(**testing.CONFIG).save("configs/nano.json")
    row = "{}\tIt rains.\tIt is wet.\tentailment\n{}\tIt rains.\tIt is dry.\tnot_entailment\n"
    for part in ("train", "dev"):
        with open(f"glue/RTE/{part}.tsv", "w", encoding="utf-8") as file:
            file.write("index\tsentence1\tsentence2\tlabel\n" + "".join(row.format(i, i) for i in range(8)))


class Blocks(unittest.TestCase):
    def run_page(self, page):
        known, written = names(), set()
        for line, block in blocks(page):
            needs_torch = "torch" in block or "layer(" in block or "optimizer" in block
            if any(word in block for word in ELSEWHERE) or (needs_torch and not torch):
                continue
            if "register_step_pre_hook" in block and not hasattr(torch.optim.SGD, "register_step_pre_hook"):
                print(f"NOT TESTED: {page}:{line}: this PyTorch has no hooks of optimizers")
                continue
            for made in re.findall(r'(?:out=|save\(|export\()"(\w+)"', block):
                self.assertNotIn(made, written, f"{page}:{line} writes what an earlier block has written")
                written.add(made)
                shutil.rmtree(made, ignore_errors=True)
            for large, small in SMALLER.items():
                block = block.replace(large, small)
            if "choir.Model.load" in block or "choir.route(" in block:
                known.update({key: value for key, value in names().items() if key in ("scores", "tokens")})
            if "choir.torch.route" in block:
                known["scores"] = torch.rand(64, 16)
            if needs_torch and "choir.route(" in block:  # README has both kinds of scores in one block
                block = block.replace("choir.route(scores", "choir.route(scores.numpy()")
            with self.subTest(f"{page}:{line}"):
                with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                    exec(compile(block, f"{page}:{line}", "exec"), known)

    def test_every_block_of_every_page_runs(self):
        before = os.getcwd()
        for page in pages():
            if not list(blocks(page)):
                continue
            with tempfile.TemporaryDirectory() as at, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                os.chdir(at)
                try:
                    prepare()
                    self.run_page(page)
                finally:
                    os.chdir(before)

    def test_they_are_found(self):
        self.assertGreaterEqual(len(list(blocks("docs/python.md"))), 8)
        self.assertEqual(len(list(blocks("README.md"))), 1)


if __name__ == "__main__":
    unittest.main()
