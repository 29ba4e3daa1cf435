"""Tokenizers, data, whole runs and pages: in this process, equal to what the program makes."""

import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import unittest
from contextlib import redirect_stderr

import numpy as np

import choir
import testing


def newest(run):
    return max((run / "checkpoints").iterdir(), key=lambda path: int(path.name))


def weights(run):
    return (newest(run) / "model.safetensors").read_bytes()


class Runs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.programs, cls.at = testing.run(), testing.directory()
        cls.config = choir.Config(cls.at / "config.json")

    def test_tokenizer_and_data(self):
        lines = []
        book, own = self.at / "book.txt", self.at / "own.model"
        words = choir.Tokenizer.train(book, out=own, vocab_size=320, progress=lines.append)
        self.assertEqual((self.at / "own.model").read_bytes(), (self.at / "en.model").read_bytes())
        self.assertEqual(words.vocab_size, 320)
        self.assertTrue(lines and all(isinstance(line, str) for line in lines))
        pieces = choir.Tokenizer.train(book, out=self.at / "char.model", vocab_size=320, type="char")
        self.assertEqual(len(pieces.encode("kalo mi")), 7)
        with self.assertRaisesRegex(choir.ArgumentError, "type 'words' is not known"):
            choir.Tokenizer.train(book, out=self.at / "char.model", type="words")
        heard = []
        given = dict(out=self.at / "owndata", tokenizer=self.at / "own.model")
        made = choir.data.build([self.at / "book.txt"], **given, holdout=0.1, progress=heard.append)
        self.assertEqual(made, choir.data.info(self.at / "data"))
        self.assertEqual(heard[-1]["text_bytes"], made["train_bytes"] + made["heldout_bytes"])
        for name in ("text.train.shard", "text.heldout.shard"):
            self.assertEqual((self.at / "owndata" / name).read_bytes(), (self.at / "data" / name).read_bytes())

    def test_sources(self):
        words, sources = self.at / "en.model", {"a": self.at / "book.txt", "b": [str(self.at / "book.txt")]}
        made = choir.data.build(sources, weights={"a": 3, "b": 1}, out=self.at / "mixed", tokenizer=words)
        self.assertEqual(made["sources"], 2)
        output = json.loads((self.at / "mixed" / "data.json").read_text())["sources"]
        self.assertEqual([(one["name"], one["weight"]) for one in output], [("a", 3), ("b", 1)])
        with self.assertRaisesRegex(choir.ArgumentError, "'c' is no source; there are 'a', 'b'"):
            choir.data.build(sources, weights={"c": 3}, out=self.at / "none", tokenizer=words)
        with self.assertRaises(FileNotFoundError):
            choir.data.build("nowhere.txt", out=self.at / "none", tokenizer=words)
        self.assertFalse((self.at / "none").exists())

    def test_a_directory_stands_for_the_files_below_it(self):
        texts, words = self.at / "a directory of texts", self.at / "en.model"
        (texts / "b").mkdir(parents=True)
        read = [texts / "a.txt", texts / "b" / "x.txt", texts / "c.txt"]
        for count, name in enumerate([*read, texts / ".hidden"]):
            name.write_text("kalo mi ten\n" * (50 + count))
        (texts / "again").symlink_to(texts / "b")
        with self.assertWarnsRegex(UserWarning, "left out: 2 names .*the first .*[.]hidden"):
            choir.data.build(texts, out=self.at / "below", tokenizer=words, holdout=0)
        choir.data.build(read, out=self.at / "named", tokenizer=words, holdout=0)
        shards = [(self.at / name / "text.train.shard").read_bytes() for name in ("below", "named")]
        self.assertEqual(shards[0], shards[1])
        (self.at / "empty").mkdir()
        with self.assertRaisesRegex(choir.ArgumentError, "no input files"):
            choir.data.build(self.at / "empty", out=self.at / "none", tokenizer=words)

        def stop(event):
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            choir.data.build(self.at / "book.txt", out=self.at / "none", tokenizer=words, progress=stop)

    def test_train_is_the_program_s(self):
        events = []
        given = dict(config=self.config, data=self.at / "data")
        found = choir.train(**given, out=self.at / "trained", progress=events.append)
        self.assertEqual(weights(self.at / "trained"), weights(self.programs))
        steps = [event for event in events if event["kind"] == "step"]
        losses = [e["loss"] for e in steps]
        np.testing.assert_allclose(losses, choir.runs.metrics(self.programs)["loss"], rtol=1e-8)
        self.assertEqual([e["step"] for e in steps], list(range(1, 21)))
        self.assertEqual(events[0]["kind"], "memory")
        self.assertGreater(events[0]["memory"]["total"], events[0]["memory"]["weights"])
        self.assertEqual(found["loss"], choir.runs.evaluations(self.programs)["loss"][-1])
        self.assertRegex(str(found), r"^<held-out loss \d\.\d{4} nats per token \(threshold routing\), step 20; keys: .*layers")
        self.assertLess(len(repr(found)), 300)
        self.assertEqual(choir.train(out=self.at / "trained", resume=True), found)
        choir.train(init_from=self.at / "trained", data=self.at / "data", out=self.at / "further", steps=1)
        self.assertEqual(choir.Config(self.at / "further" / "config.json")["model.experts"], self.config["model.experts"])

    def test_nothing_held_out(self):
        choir.data.build(self.at / "book.txt", out=self.at / "all", tokenizer=self.at / "en.model", holdout=0)
        self.assertEqual(choir.train(config=self.config, data=self.at / "all", out=self.at / "blind", steps=1), {})

    def test_stops_and_resumes(self):
        """An exception of `progress` and Ctrl-C end a run behind a step that is saved; it goes on bit for bit."""
        out = self.at / "stopped"

        def fail(event):
            if event["kind"] == "step" and event["step"] == 7:
                raise ZeroDivisionError("progress")

        def interrupt(event):
            if event["kind"] == "step" and event["step"] == 13:
                os.kill(os.getpid(), signal.SIGINT)

        with self.assertRaises(ZeroDivisionError):
            choir.train(config=self.config, data=self.at / "data", out=out, progress=fail)
        self.assertEqual(choir.runs.metrics(out)["step"][-1], 7)
        with self.assertRaises(KeyboardInterrupt):
            choir.train(out=out, resume=True, progress=interrupt)
        self.assertIn(choir.runs.metrics(out)["step"][-1], (13, 14))
        choir.train(out=out, resume=True)
        self.assertEqual(weights(out), weights(self.programs))

    def test_minutes(self):
        out = self.at / "brief"
        found = choir.train(config=self.config, data=self.at / "data", out=out, steps=100000, minutes=0.01)
        self.assertEqual(found["step"], int(newest(out).name))
        self.assertLess(found["step"], 100000)
        cooled = self.at / "cooled"
        found = choir.train(config=self.config, data=self.at / "data", out=cooled, steps=100000, cooldown_steps=0.5,
                            minutes=0.01)
        self.assertEqual(found["step"], choir.Config(cooled / "config.json")["train.steps"])
        with self.assertRaises(choir.ArgumentError):
            choir.train(out=out, resume=True, minutes=-1)

    def test_ctrl_c_without_a_callback(self):
        out = self.at / "long"
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with self.assertRaises(KeyboardInterrupt):
            choir.train(config=self.config, data=self.at / "data", out=out, steps=100000)
        done = int(choir.runs.metrics(out)["step"][-1])
        self.assertEqual(int(newest(out).name), done)

    def test_a_line_of_progress(self):
        with redirect_stderr(io.StringIO()) as caught:
            choir.train(config=self.config, data=self.at / "data", out=self.at / "line", progress=True, steps=5)
        self.assertRegex(caught.getvalue(), r"^(this machine .+\n)?step 5 of 5  held-out loss \d\.\d+, \d\.\d+ bits per byte\n")

    def test_refused(self):
        x, data, missing = self.at / "x", self.at / "data", FileNotFoundError
        for kind, call in (
            (choir.ArgumentError, lambda: choir.train(out=x, config=self.config)),
            (choir.ArgumentError, lambda: choir.train(out=x, config=self.config, data=data, step=1)),
            (missing, lambda: choir.train(out=x, config="nowhere.json", data=data)),
            (missing, lambda: choir.train(out=x, resume=True)),
            (choir.ArgumentError, lambda: choir.finetune(out=x, init_from=self.programs)),
            (choir.ArgumentError, lambda: choir.finetune(out=x, init_from=self.programs, task="RTF", data=self.at)),
        ):
            with self.assertRaises(kind):
                call()
            self.assertFalse(x.exists())

    def test_finetune(self):
        task = {
            "name": "mine",
            "format": "jsonl",
            "splits": {"train": ["train.jsonl"], "dev": ["dev.jsonl"]},
            "columns": {"text": ["text"]},
            "label": ["label"],
            "labels": [{"word": " ka", "values": ["0"]}, {"word": " do", "values": ["1"]}],
            "template": "{text}",
            "cut": "text",
            "metrics": ["accuracy"],
        }
        (self.at / "mine.json").write_text(json.dumps(task))
        (self.at / "set").mkdir()
        for split in ("train", "dev"):
            rows = [{"text": ["sur", "rin"][i % 2] + " mi" * (i % 3), "label": str(i % 2)} for i in range(24)]
            (self.at / "set" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        given = dict(init_from=self.programs, task=self.at / "mine.json", data=self.at / "set", batch_sequences=8)
        events = []
        found = choir.finetune(out=self.at / "tuned", **given, progress=events.append, steps=12, eval_every=4)
        self.assertEqual([e["step"] for e in events if e["kind"] == "step"], list(range(1, 13)))
        best = max(e["measure"][0]["accuracy"] for e in events if e["kind"] == "eval")
        self.assertEqual(found["own"]["accuracy"], best)
        self.assertEqual(choir.finetune(out=self.at / "tuned", resume=True), found)
        hurried = choir.finetune(out=self.at / "hurried", **given, steps=100000, eval_every=100000, minutes=1e-9)
        self.assertEqual(hurried, {})
        for wrong in ({"patience": 3}, {"epochs": 2}, {"task": "RTE"}):
            with self.assertRaisesRegex(choir.ArgumentError, "are the run's own"):
                choir.finetune(out=self.at / "tuned", resume=True, **wrong)
        with self.assertRaisesRegex(choir.ArgumentError, "one of epochs and steps"):
            choir.finetune(out=self.at / "both", **given, steps=12, epochs=2)


class Pages(unittest.TestCase):
    def test_pages(self):
        run, at = testing.run(), testing.directory()
        page = choir.report(run)
        self.assertEqual(page.path, run / "report.html")
        shown = choir.inspect(run, "kalo <b>miten</b>. " * 40, out=at / "text.html")
        slider = choir.inspect([run, run], "kalo miten. " * 40, out=at / "both.html")
        self.assertIn('"later":[{', slider.path.read_text())
        again = choir.inspect(run, at / "config.json", out=at / "file.html")
        for one in (page, shown, again):
            self.assertTrue(one.path.read_text().lstrip().lower().startswith("<!doctype html"))
            self.assertRegex(one._repr_html_(), '^<iframe srcdoc="&lt;[^"]*" sandbox="allow-scripts" ')
        with self.assertRaisesRegex(choir.Error, "nowhere/metrics.jsonl"):
            choir.report("nowhere")


class OpenMP(unittest.TestCase):
    def test_waiting_threads_give_way(self):
        """The OpenMP runtime that choir loads spins for a short time, unless the environment says something else, and
        loading the library leaves the environment unchanged."""
        bare = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
        bare["OMP_DISPLAY_ENV"] = "verbose"
        for given, expected in (({}, "1000"), ({"GOMP_SPINCOUNT": "77"}, "77")):
            output = subprocess.run(
                [sys.executable, "-c", "import os; b = dict(os.environ); import choir; choir.Config(); assert b == os.environ"],
                env={**bare, **given},
                capture_output=True,
                text=True,
            )
            self.assertEqual(output.returncode, 0, output.stderr[-500:])
            self.assertIn(f"GOMP_SPINCOUNT = '{expected}'", output.stderr)

    def test_beside_another_runtime(self):
        """PyTorch shows its libgomp, whose settings are read by then, to the whole process: choir goes by its own."""
        if not list((pathlib.Path(choir.__file__).parents[1] / "choir_moe.libs").glob("libgomp*")):
            self.skipTest("NOT TESTED: choir's OpenMP runtime beside another one: only a wheel has its own")
        code = "import ctypes; ctypes.CDLL('libgomp.so.1', ctypes.RTLD_GLOBAL); import choir"
        bare = {**os.environ, "LD_DEBUG": "bindings"}
        output = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True)
        if "libgomp.so.1: cannot open" in output.stderr:
            self.skipTest("NOT TESTED: choir's OpenMP runtime beside another one: there is no libgomp.so.1")
        (bound,) = re.findall(r"binding file \S+/libchoir.so \[0\] to (\S+) .*`GOMP_parallel'", output.stderr)
        self.assertIn("choir_moe.libs/libgomp", bound)


if __name__ == "__main__":
    unittest.main()
