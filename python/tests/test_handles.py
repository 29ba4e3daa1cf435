"""Copies, threads, callbacks, forks and signals: an exception or the right result."""

import copy
import errno
import gc
import locale
import multiprocessing
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings

import numpy as np

import choir
import testing
from choir import _plain

TOKENS = np.arange(32).reshape(2, 16)
SLOW = dict(
    layers=4, d_model=128, d_hidden=512, heads=4, experts=8, vocab_size=320, sequence_length=32, batch_sequences=8
)


def resident():
    """Resident memory of the process, in bytes."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Memory(unittest.TestCase):
    def test_handles_are_given_back(self):
        config = choir.Config(**{**SLOW, "d_expert": 2048})  # 34 MB of experts
        choir.Model(config, threads=1).close()
        before = resident()
        for turn in range(20):
            model = choir.Model(config, threads=1)
            trainer = choir.Trainer(model)
            if turn % 2:
                trainer.close()
                model.close()
                model.close()
            del model, trainer
        gc.collect()
        self.assertLess(resident() - before, 200e6)

    def test_closed(self):
        model = choir.Model.load(testing.run(), threads=1)
        model.routing = "threshold"
        session, trainer, words = model.session(), choir.Trainer(model), model.tokenizer
        batch = np.zeros(trainer.shape, np.int32)
        with model:
            session.advance([1, 2])
            self.assertRaisesRegex(choir.ArgumentError, "give at least one token", session.advance, [])
        for use in (lambda: model.forward([[1]]), lambda: model.config, lambda: trainer.step(batch), model.session):
            with self.assertRaisesRegex(ValueError, "this Model is closed"):
                use()
        session.advance([3])  # a session keeps the weights
        self.assertEqual(session.length(), 3)
        for one in (session, trainer, words):
            one.close()
            one.close()
        for use in (
            session.length,
            lambda: session.advance([3]),
            lambda: trainer.shape,
            lambda: words.encode("ka"),
        ):
            with self.assertRaisesRegex(ValueError, "closed"):
                use()
        self.assertEqual(
            [repr(one) for one in (model, session, words)],
            [f"{type(one).__name__}(closed)" for one in (model, session, words)],
        )


class Copies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = choir.Model.load(testing.run(), threads=1)
        cls.model.routing = "threshold"

    def test_models(self):
        for way in (copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))):
            made = way(self.model)
            self.assertEqual(made.routing, "threshold")
            np.testing.assert_array_equal(made.forward(TOKENS).logits, self.model.forward(TOKENS).logits)
            self.assertEqual(
                made.generate("ka", max_tokens=5, seed=1)[0].text,
                self.model.generate("ka", max_tokens=5, seed=1)[0].text,
            )
            before = self.model.get("embed.weight")
            made.set("embed.weight", np.zeros_like(before))
            np.testing.assert_array_equal(self.model.get("embed.weight"), before)
            made.tokenizer.close()
            made.close()
            self.assertEqual(len(self.model.tokenizer), 320)

    def test_tokenizers_and_configs(self):
        config = self.model.config
        for way in (copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
            words = way(self.model.tokenizer)
            self.assertEqual(words.decode(words.encode("kalo miten ä")), "kalo miten ä")
            words.close()
            made = way(config)
            self.assertEqual(made.as_dict(), config.as_dict())
            made.set("train.steps", 7)
            self.assertEqual(config["train.steps"], 20)

    def test_handles_that_cannot_be_copied(self):
        for one in (self.model.session(), choir.Trainer(copy.copy(self.model))):
            for way in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, "cannot be copied or pickled"):
                    way(one)


class OneCallAtATime(unittest.TestCase):
    def setUp(self):
        self.model = choir.Model.load(testing.run(), threads=1)
        self.model.routing = "threshold"

    def test_within_its_own_callback(self):
        model, trainer = self.model, choir.Trainer(self.model)
        batch = np.zeros(trainer.shape, np.int32)
        for use in (
            model.close,
            lambda: model.forward(TOKENS),
            lambda: model.generate("ka"),
            lambda: model.set("final_norm.weight", np.ones(32)),
            lambda: trainer.step(batch),
            lambda: setattr(model, "routing", "batch"),
        ):
            with self.assertRaisesRegex(choir.BusyError, "this Model is in use"):
                model.generate("ka", max_tokens=3, stream=lambda number, text: use())
        self.assertEqual(len(model.generate("ka", max_tokens=3, stream=lambda n, t: model.tokenizer.encode(t))), 1)

    def test_two_threads(self):
        """Each call gives the right result or is refused; both happen."""
        expected, found, refused = self.model.forward(TOKENS).logits, [], []

        def work():
            for _ in range(200):
                try:
                    found.append(np.array_equal(self.model.forward(TOKENS).logits, expected))
                except choir.BusyError:
                    refused.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        self.assertTrue(found and refused and all(found), (len(found), len(refused)))

    def test_close_during_a_call(self):
        at_work = threading.Event()
        thread = threading.Thread(
            target=lambda: self.model.generate("ka", max_tokens=300, stream=lambda n, t: at_work.set())
        )
        thread.start()
        at_work.wait(60)
        with self.assertRaisesRegex(choir.BusyError, "in use"):
            self.model.close()
        thread.join()
        self.model.close()

    def test_tokenizers_serve_threads(self):
        words, text = self.model.tokenizer, "kalo miten sur. " * 200
        expected, found = words.encode(text), []
        threads = [
            threading.Thread(target=lambda: found.append(np.array_equal(words.encode(text), expected)))
            for _ in range(8)
        ]
        for one in threads:
            one.start()
        words.close()  # what is being encoded keeps it
        for one in threads:
            one.join()
        self.assertTrue(all(found))


class Surroundings(unittest.TestCase):
    def test_fork(self):
        """A child of a process that has threads: work is refused in words, or done; it does not hang."""
        model = choir.Model.load(testing.run(), threads=2)
        expected = model.forward(TOKENS).loss
        ours, theirs = multiprocessing.Pipe()
        child = os.fork()
        if not child:
            try:
                theirs.send(model.forward(TOKENS).loss)
            except choir.Error as error:
                theirs.send(str(error))
            finally:
                os._exit(0)
        try:
            self.assertTrue(ours.poll(60), "the child hangs")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        message = ours.recv()
        self.assertTrue(message == expected or "fork" in message, message)

    def test_exit_during_a_daemon_threads_call(self):
        """The interpreter waits for what it would be called back from; its status is its own."""
        at = testing.run().parent
        program = (
            "import sys, threading, time, choir\n"
            "begun = threading.Event()\n"
            "def work():\n"
            "    while True:\n"
            "        choir.train(out=sys.argv[1], config=sys.argv[2], data=sys.argv[3], threads=1, steps=10**6,\n"
            "                    progress=lambda event: begun.set())\n"
            "threading.Thread(target=work, daemon=True).start()\n"
            "begun.wait(60)\n"
            "time.sleep(float(sys.argv[4]))\n"
            "raise SystemExit(5)\n"
        )
        for i in range(4):
            words = [at / f"exit-{i}", at / "config.json", at / "data", i / 50]
            ended = subprocess.run(
                [sys.executable, "-c", program, *map(str, words)], capture_output=True, text=True, timeout=120
            )
            self.assertEqual(ended.returncode, 5, ended.stderr)
            self.assertTrue(list((at / f"exit-{i}" / "checkpoints").iterdir()))  # the call was stopped, and saved

    def test_decimal_comma(self):
        with tempfile.TemporaryDirectory() as directory:
            if (
                os.system(f"localedef -i de_DE -f UTF-8 {directory}/de_DE.UTF-8 2>/dev/null")
                or "LOCPATH" in os.environ
            ):
                self.skipTest("NOT TESTED: decimal commas: no localedef or no de_DE (Debian: locales)")
            kept = locale.setlocale(locale.LC_ALL)
            os.environ["LOCPATH"] = directory
            try:
                locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
                self.assertEqual(locale.str(1.5), "1,5")
                config = choir.Config(**SLOW)
                config.set("train.learning_rate", 0.0125)
                config.set("router.capacity_factor", 1.5)
                self.assertEqual((config["train.learning_rate"], config.as_dict()["train"]["learning_rate"]), (0.0125, 0.0125))
                self.assertEqual(choir.route(np.eye(4), capacity_factor=1.5).capacity, 2)
                with self.assertRaises(FileNotFoundError):
                    choir.Model.load("nowhere")
            finally:
                del os.environ["LOCPATH"]
                locale.setlocale(locale.LC_ALL, kept)

    def test_ctrl_c_in_a_call_that_cannot_stop(self):
        """It ends, KeyboardInterrupt comes out, and the model is as usable as before."""
        model = choir.Model(choir.Config(**SLOW), threads=1)
        tokens = np.zeros((8, 512), np.int32)
        model.forward(tokens)
        begin = time.monotonic()
        threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with self.assertRaises(KeyboardInterrupt):
            for _ in range(200):
                model.forward(tokens)
        self.assertLess(time.monotonic() - begin, 60)
        self.assertTrue(np.isfinite(model.forward(TOKENS).loss))


class Exceptions(unittest.TestCase):
    def test_files(self):
        with self.assertRaises(FileNotFoundError) as caught:
            choir.Model.load("nowhere")
        self.assertIsInstance(caught.exception, choir.FileError)
        self.assertEqual(caught.exception.errno, errno.ENOENT)
        self.assertIn("nowhere", str(caught.exception))
        with self.assertRaises(FileNotFoundError):
            choir.Config("nowhere.json")
        with self.assertRaises(FileNotFoundError):
            choir.Tokenizer("nowhere.model")
        with self.assertRaises(choir.FileError):
            choir.Model.load(testing.run()).save(testing.directory() / "data")

    def test_names_that_are_not_utf8(self):
        """A model, a page, data and a plug-in under such names; a message says their bytes, and can be printed."""
        at = testing.directory() / os.fsdecode(b"z\xff")
        at.mkdir()
        with choir.Model.load(testing.run()) as model:
            model.save(at / "m")
        with choir.Model.load(at / "m") as model:
            self.assertTrue(model.generate("ka", max_tokens=1))
            for call in (lambda: model.generate("k\udcff", max_tokens=1), lambda: model.score([("k", "\ud800")])):
                self.assertRaisesRegex(choir.ArgumentError, "character [01] of the text is no Unicode character", call)
        for field in ("freeze", "model.name"):
            for kind in (choir.Config, _plain.Config):
                self.assertRaisesRegex(choir.ArgumentError, "is .a.*: must be text", kind().set, field, "a\udcff")
        shutil.copytree(testing.run(), at / "run")
        self.assertIn("<html", choir.report(at / "run").path.read_text())
        self.assertIn("<html", choir.inspect(at / "run", at / "m" / "config.json", out=at / "page.html").path.read_text())
        (at / "own.py").write_text("1 / 0")
        for call, says in (
            (lambda: choir.report(at / "none"), r"z\\xFF/none/metrics.jsonl: "),
            (lambda: choir.Model.load(at / "none"), r"z\\xFF/none: "),
            (lambda: choir.load_plugin(at / "own.py"), r"z\\xFF/own.py: ZeroDivisionError"),
            (lambda: choir.load_plugin(at / "none.py"), r"z\\xFF/none.py: No such file"),
        ):
            with self.assertRaisesRegex(choir.Error, says) as caught:
                call()
            str(caught.exception).encode()

    def test_a_damaged_checkpoint_is_a_warning(self):
        """A run's newest checkpoint is damaged, an earlier one is taken: that is said."""
        run, other = testing.run(), testing.directory() / "damaged"
        shutil.copytree(run, other)
        (whole,) = (other / "checkpoints").iterdir()
        later = whole.with_name(str(int(whole.name) + 1).zfill(len(whole.name)))
        shutil.copytree(whole, later)
        (later / "model.safetensors").write_bytes(b"damaged")
        (other / "best").unlink(missing_ok=True)  # it would name the earlier one
        with self.assertWarnsRegex(UserWarning, later.name):
            choir.Model.load(other)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            choir.Model.load(run)

    def test_no_attribute_errors(self):
        """What is of the wrong kind is named, and nothing of the package's inside."""
        model = choir.Model.load(testing.run(), threads=1)
        model.routing = "threshold"
        for call in (
            lambda: choir.Model("config.json"),
            lambda: choir.Model(None),
            lambda: choir.Trainer("run"),
            lambda: choir.Session(None),
            lambda: model.save("x", "en.model"),
            lambda: model.tokenizer.encode(b"ka"),
            lambda: model.tokenizer.encode(None),
            lambda: model.generate("ka", stops=[5]),
            lambda: model.generate("ka", stops=5),
            lambda: model.generate(5),
            lambda: model.score([1]),
            lambda: choir.Config(5),
            lambda: model.config.set(5, 1),
            lambda: choir.route(np.eye(4), router=5),
        ):
            with self.assertRaises(TypeError):
                call()

    def test_reprs(self):
        model = choir.Model.load(testing.run(), threads=1)
        self.assertEqual(repr(model), "Model(2 layers, d 32, 8 experts by expert_choice, 320 tokens)")
        self.assertEqual(repr(model.tokenizer), "Tokenizer(320 pieces)")
        self.assertIn("Model(2 layers", repr(choir.Trainer(model)))
        self.assertIn("8 experts", repr(model.config))
        self.assertEqual(
            repr(choir.route(np.eye(4), capacity_factor=1)), "Routing(4 tokens, 4 experts, load 1 to 1, dropped 0)"
        )


if __name__ == "__main__":
    unittest.main()
