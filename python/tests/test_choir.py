"""choir in Python, with NumPy alone: ctest runs it, or `CHOIR_LIBRARY=build/libchoir.so CHOIR_PROGRAM=build/choir python3 -m
unittest discover python/tests`."""

import copy
import inspect
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import typing
import unittest
import xml.etree.ElementTree as ElementTree

import numpy as np

import choir
import testing
from choir import fields
from choir._native import ffi


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


class Layouts(unittest.TestCase):
    """The structs that cffi reads in the headers are those of the library, as tests/libchoir.abi has them."""

    def test_layouts(self):
        tree = ElementTree.parse(testing.SOURCE / "tests" / "libchoir.abi")
        found = {}
        for one in tree.iter("class-decl"):
            name = one.get("name", "")
            if name.startswith("choir_") and one.get("size-in-bits"):
                found[name] = one
        self.assertGreater(len(found), 15)
        for name, one in found.items():
            kind = ffi.typeof(name)
            self.assertEqual(ffi.sizeof(kind) * 8, int(one.get("size-in-bits")), name)
            members = [
                (int(m.get("layout-offset-in-bits")), m.find("var-decl").get("name"))
                for m in one.findall("data-member")
            ]
            self.assertEqual(members, [(field.offset * 8, part) for part, field in kind.fields], name)


class Route(unittest.TestCase):
    def setUp(self):
        self.logits = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32)

    def test_expert_choice_is_top_k(self):
        scores = softmax(self.logits)
        chosen = choir.route(scores, capacity_factor=2)
        for i, tokens in enumerate(chosen.indices):
            best = np.sort(np.argsort(-scores[:, i], kind="stable")[:16])
            np.testing.assert_array_equal(tokens, best)
            np.testing.assert_array_equal(chosen.gates[tokens, i], scores[tokens, i])
        self.assertEqual((chosen.gates != 0).sum(), 128)
        self.assertEqual(chosen.capacity, 16)
        self.assertIsNone(chosen.certificate)
        np.testing.assert_array_equal(chosen.load, np.full(8, 16))
        np.testing.assert_array_equal(chosen.cutoffs, [scores[t, i].min() for i, t in enumerate(chosen.indices)])

    def test_a_cap_is_proved(self):
        chosen = choir.route(self.logits, "capped_expert_choice", logits=True, cap=2, capacity_factor=1)
        self.assertEqual(chosen.histogram[3:].sum(), 0)
        self.assertEqual(chosen.certificate.assignments, 1)
        self.assertEqual(chosen.certificate.over_cap, 0)
        self.assertAlmostEqual(chosen.certificate.gap, 0, places=6)

    def test_every_router(self):
        for router in choir.routers():
            scores = self.logits[:, :1] if router == "dense" else self.logits
            chosen = choir.route(
                scores, router, logits=True, tokens=np.arange(64), valid=np.arange(64) != 5, training=True
            )
            self.assertEqual(chosen.gates.shape, scores.shape)
            self.assertTrue((chosen.gates[5] == 0).all())
            self.assertEqual(chosen.begin[-1], len(chosen.token))
            self.assertEqual(chosen.histogram.sum(), 64)

    def test_integers_are_numbers(self):
        whole = np.rint(8 * self.logits).astype(np.int64)
        made, wanted = choir.route(whole, logits=True), choir.route(whole.astype(np.float32), logits=True)
        np.testing.assert_array_equal(made.gates, wanted.gates)
        self.assertGreater(np.count_nonzero(made.gates), 0)

    def test_refuses_with_the_library_s_words(self):
        for words, call in {
            "'expert_choice' has no option 'k'; it takes ": lambda: choir.route(self.logits, k=2),
            "did you mean 'expert_choice'": lambda: choir.route(self.logits, "expert_choise"),
            "does not take it": lambda: choir.route(self.logits, "hash", cap=3, tokens=np.arange(64)),
            "where (-1, -1) is wanted": lambda: choir.route(self.logits[0]),
            "where (64,) is wanted": lambda: choir.route(self.logits, "hash", tokens=np.arange(63)),
            "complex numbers": lambda: choir.route(self.logits * 1j),
            "there must be at least 1": lambda: choir.route(self.logits[:0]),
            "must be integers": lambda: choir.route(self.logits, "hash", tokens=np.full(64, 0.5)),
            "32 bits": lambda: choir.route(self.logits, "hash", tokens=np.full(64, 1 << 40)),
        }.items():
            with self.assertRaises(choir.ArgumentError) as caught:
                call()
            self.assertIn(words, str(caught.exception))
        self.logits[7, 3] = np.nan
        with self.assertRaisesRegex(choir.NumericError, r"scores\[7,3\]"):
            choir.route(self.logits, logits=True)

    def test_scores_are_not_copied(self):
        request = choir.routing.Request(self.logits, logits=True)
        self.assertIs(request.scores, self.logits)
        choir.route(self.logits.astype(np.float64)[:, ::-1].T.copy().T, logits=True)  # any other array is


class Configs(unittest.TestCase):
    def test_fields(self):
        config = choir.Config(vocab_size=320, **testing.CONFIG)
        self.assertEqual(config["model.layers"], 2)
        self.assertEqual(config["layers"], 2)
        self.assertEqual(config["router.name"], "expert_choice")
        config.set("router.normalize_gates", True)
        self.assertEqual(config.as_dict()["model"]["router"]["normalize_gates"], True)
        with self.assertRaisesRegex(choir.ArgumentError, "layer"):
            config.set("model.layer", 3)
        with self.assertRaises(KeyError):
            config["model.layer"]
        config.set("model.heads", 5)
        with self.assertRaises(choir.ArgumentError):
            config.check()


class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.at = testing.run()
        cls.model = choir.Model.load(cls.at, threads=2)

    def setUp(self):
        self.model.routing = None

    def test_tokenizer(self):
        for path in (self.at, testing.directory() / "en.model", testing.directory() / "data"):
            with choir.Tokenizer(path) as words:
                self.assertEqual(words.decode(words.encode("kalo miten ä\0b")), "kalo miten ä\0b")
                self.assertEqual(words.vocab_size, 320)
                self.assertIn("ka", [words.piece(i) for i in range(320)])
        with self.assertRaises(ValueError):
            words.encode("closed")
        with self.assertRaisesRegex(choir.FileError, "nowhere"):
            choir.Tokenizer("nowhere")

    def test_forward_is_the_program_s(self):
        tokens = self.model.tokenizer.encode("kalo miten sur ape rin do. " * 4)[:16].reshape(1, 16)
        out = self.model.forward(tokens, gradients=True)
        self.assertEqual(out.logits.shape, (1, 16, 320))
        logp = np.log(softmax(out.logits[0].astype(np.float64)))
        self.assertAlmostEqual(out.loss, -logp[np.arange(15), tokens[0, 1:]].mean(), places=5)
        self.assertEqual(self.model.get("embed.weight", gradient=True).shape, (320, 32))
        with self.assertRaisesRegex(choir.ArgumentError, "outside the vocabulary"):
            self.model.forward(np.full((1, 16), 400))

    def test_evaluate_is_the_program_s(self):
        output = json.loads(testing.program("eval", self.at, "--data", testing.directory() / "data", "--json"))
        found = self.model.evaluate(testing.directory() / "data")
        self.assertTrue(found.looks_across_tokens)
        losses = [x for x in testing.numbers(output)]
        self.assertTrue(any(abs(x - found.loss) < 1e-6 for x in losses), (found, output))

        def stop(done, total):
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.model.evaluate(testing.directory() / "data", progress=stop)

    def test_calibrate_sets_thresholds(self):
        data = testing.directory() / "data"
        with choir.Model.load(self.at, threads=2) as model:
            model.routing = "threshold"
            before = model.evaluate(data).loss
            with self.assertRaises(choir.UnsupportedError):
                model.calibrate(data)
            model.routing = None
            model.calibrate(data, capacity_factor=1)
            model.routing = "threshold"
            self.assertNotAlmostEqual(model.evaluate(data).loss, before, places=6)

    def test_generate_and_score(self):
        self.assertTrue(self.model.looks_across_tokens)  # as it is loaded
        loaded = self.model.generate("kalo", max_tokens=4, temperature=0)[0]
        self.assertEqual(loaded.routing, "threshold")
        self.model.routing = "threshold"
        self.assertFalse(self.model.looks_across_tokens)
        self.assertEqual(self.model.generate("kalo", max_tokens=4, temperature=0)[0].text, loaded.text)
        heard = []
        one, two = self.model.generate(
            ["kalo miten", self.model.tokenizer.encode("sur")],
            max_tokens=12,
            temperature=0,
            stream=lambda number, text: heard.append((number, text)),
        )
        self.assertEqual("".join(t for n, t in heard if n == 0), one.text)
        self.assertEqual(two.end, "length")
        self.assertEqual(len(two.tokens), 12)
        empty, end = self.model.generate(["", [self.model.tokenizer.eos]], max_tokens=4, temperature=0)
        self.assertEqual(empty.text, end.text)  # a document begins after the end of another
        (scored,) = self.model.score([(self.model.tokenizer.encode("sur"), two.tokens)])
        self.assertTrue(scored.greedy)
        self.assertAlmostEqual(scored.log_likelihood, float(scored.log_probability.sum()), places=4)
        self.assertEqual((scored.measure, scored.standard_error), ("log_likelihood", 0))
        config = choir.Config("diffusion-nano", vocab_size=64, layers=2, d_model=32, d_hidden=32)
        with choir.Model(config, seed=3, threads=2) as masked:
            (scored,) = masked.score([([1, 2, 3], [4, 5, 6, 7])], mask_samples=8)
        self.assertEqual((scored.measure, scored.routing, scored.greedy), ("log_likelihood_bound", "sequence", None))
        self.assertGreater(scored.standard_error, 0)
        self.assertAlmostEqual(scored.log_likelihood, float(scored.log_probability.sum()), places=4)

        def fail(number, text):
            raise ZeroDivisionError("stream")

        with self.assertRaises(ZeroDivisionError):
            self.model.generate("kalo", stream=fail)

    def test_weights_of_8_bits(self):
        data, loss = testing.directory() / "data", {}
        for compute in ("fp32", "q8_0"):
            with choir.Model.load(self.at, compute=compute, threads=2) as model:
                model.routing = "threshold"
                loss[compute] = model.evaluate(data).loss
                (text,) = model.generate("kalo", max_tokens=12, temperature=0)
                rounded = model.get("layers.1.moe.experts.w1")
        self.assertAlmostEqual(loss["q8_0"], loss["fp32"], delta=0.01)
        self.assertNotEqual(loss["q8_0"], loss["fp32"])
        exact = self.model.get("layers.1.moe.experts.w1")
        np.testing.assert_allclose(rounded, exact, atol=np.abs(exact).max() / 200)
        with choir.Model.load(self.at, compute="q8_0", threads=1) as model:
            self.assertEqual(model.generate("kalo", max_tokens=12, temperature=0)[0].text, text.text)
            for refused in (
                lambda: choir.Trainer(model),
                lambda: model.save(testing.directory() / "rounded"),
                lambda: model.forward([[1, 2, 3, 4]], gradients=True),
            ):
                with self.assertRaisesRegex(choir.UnsupportedError, "'q8_0' is for inference"):
                    refused()
            with self.assertRaisesRegex(choir.NumericError, "element 0 is nan"):
                model.set("layers.1.moe.experts.w1", exact * np.nan)
            np.testing.assert_array_equal(model.get("layers.1.moe.experts.w1"), rounded)

    def test_sessions(self):
        self.model.routing = "threshold"
        tokens = self.model.tokenizer.encode("kalo miten sur ape. " * 4)[:8]
        whole = self.model.forward(tokens[None]).logits[0]
        with self.model.session(length=16) as session:
            first = session.advance(tokens[:5], every=True)
            last = session.advance(tokens[5:])
            np.testing.assert_allclose(first, whole[:5], atol=1e-4)
            np.testing.assert_allclose(last[0], whole[7], atol=1e-4)
            self.assertEqual(session.length(), 8)
            session.rewind(5)
            np.testing.assert_array_equal(session.advance(tokens[5:]), last)
            with self.assertRaises(choir.ArgumentError):
                session.advance(np.zeros(20, np.int32))

    def test_ctrl_c(self):
        """A signal in the midst of a long text ends it, within tokens and not at its end."""
        self.model.routing = "threshold"
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with self.assertRaises(KeyboardInterrupt):
            for _ in range(100):
                self.model.generate(["kalo"] * 8, max_tokens=2000, seed=3)

    def test_fields_are_spelt_out(self):
        """Editors and type checkers are told what the library takes."""

        def of(section, *left_out):
            names = (field.key.rsplit(".", 1) for field in choir.Config.fields())
            kinds = {name: choir.Config.describe(f"{at}.{name}").type for at, name in names if at == section}
            return {name: kind for name, kind in kinds.items() if name not in left_out}

        train = of("train")
        self.assertEqual(typing.get_type_hints(fields.TrainerFields), train)
        self.assertEqual(typing.get_type_hints(fields.TrainFields), of("train", "compute"))
        self.assertEqual(typing.get_type_hints(fields.FinetuneFields), of("train", "batch_sequences"))
        self.assertEqual(typing.get_type_hints(fields.RouterOptions), of("model.router", "name"))
        self.assertEqual(typing.get_type_hints(fields.ConfigFields), train | of("model") | of("parallel"))
        given = inspect.signature(choir.route).parameters.values()
        beside = {p.name for p in given if p.kind == p.KEYWORD_ONLY}
        self.assertEqual(set(fields.RouteArguments.__annotations__) - set(fields.RouterOptions.__annotations__), beside)

    def test_fields_set_together_have_no_order(self):
        fields = {"router.normalize_gates": True, "router.capacity_factor": 3, "router.name": "global_topk", "router.cap": 4}
        for order in itertools.permutations(fields):
            given = {key: fields[key] for key in order}
            made, updated = choir.Config(**given), choir.Config()
            updated.update(given)
            for config in (made, updated):
                self.assertEqual({key: config[key] for key in fields}, fields)
        before = made.as_dict()
        for wrong in ({"steps": 7, "router.cap": "x"}, {"steps": 7, "router.capp": 1}):
            with self.assertRaises(choir.ArgumentError):
                made.update(wrong)
        made.update({})
        self.assertEqual(made.as_dict(), before)

    def test_configs_are_copied_and_printed(self):
        config = choir.Config(vocab_size=320, seed=2**53 - 1, clip_norm=0.1 + 0.2, **testing.CONFIG)
        for other in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
            self.assertEqual(other.as_dict(), config.as_dict())
            other.set("steps", 7)
            self.assertNotEqual(other["steps"], config["steps"])
        self.assertEqual((config["seed"], config["clip_norm"], config["tied"]), (2**53 - 1, 0.1 + 0.2, True))
        self.assertEqual((config.get("seed"), config.get("sead"), config.get("sead", 3)), (2**53 - 1, None, 3))
        self.assertTrue("train.seed" in config and "sead" not in config)
        bare = choir.Config()
        bare.set("router.name", "quantile_balanced")
        self.assertEqual(pickle.loads(pickle.dumps(bare)).as_dict(), bare.as_dict())
        path = testing.directory() / "config.json"
        config.save(path)
        self.assertEqual(config.as_dict(), json.loads(path.read_text()))
        pool = choir.Config.describe("router.pool")
        self.assertEqual((pool.key, pool.type, pool.default), ("model.router.pool", str, "batch"))
        self.assertIn("sequence", pool.words)
        rate = choir.Config.describe("learning_rate")
        self.assertEqual((rate.low, rate.above, rate.high), (0, True, 1000))
        with self.assertRaisesRegex(choir.ArgumentError, "did you mean"):
            choir.Config.describe("router.poo")
        defaults = {field.key.rpartition(".")[2]: field.default for field in choir.Config.router_options("switch_top1")}
        self.assertEqual((defaults["capacity_factor"], "pool" in defaults), (1.25, False))

    def test_training(self):
        config = choir.Config(vocab_size=320, **testing.CONFIG)
        model = choir.Model(config, seed=3, threads=2)
        trainer = choir.Trainer(model, optimizer="adamw", learning_rate=3e-3, beta1=0.9)
        self.assertEqual(trainer.shape, (8, 32))
        tokens = np.random.default_rng(1).integers(0, 320, trainer.shape)
        first = trainer.step(tokens)
        for _ in range(20):
            last = trainer.step(tokens)
        self.assertEqual(last.step, 21)
        self.assertLess(last.loss, first.loss - 0.5)
        path = testing.directory() / "own"
        trainer.save(path, self.model.tokenizer)
        other = choir.Trainer(choir.Model(config, threads=2), optimizer="adamw", learning_rate=3e-3, beta1=0.9)
        other.resume(path)
        self.assertEqual(other.step(tokens), trainer.step(tokens))
        output = testing.program("eval", path, "--data", testing.directory() / "data", "--json")
        with choir.Model.load(path) as read:
            found = read.evaluate(testing.directory() / "data")
        self.assertTrue(any(abs(x - found.loss) < 1e-6 for x in testing.numbers(json.loads(output))))
        with self.assertRaises(choir.ArgumentError):
            trainer.step(tokens[:4])
        trainer.save(testing.directory() / "wordless")
        with choir.Model.load(testing.directory() / "wordless") as read:
            self.assertIsNone(read.tokenizer)

    def test_weights(self):
        shapes = self.model.parameters()
        self.assertEqual(shapes["layers.1.moe.experts.w1"], (8, 32, 48))
        kept = self.model.get("layers.1.moe.experts.w1")
        before = self.model.forward([[1, 2, 3, 4, 5, 6, 7, 8]]).loss
        self.model.set("layers.1.moe.experts.w1", kept * 2)
        self.assertNotEqual(self.model.forward([[1, 2, 3, 4, 5, 6, 7, 8]]).loss, before)
        self.model.set("layers.1.moe.experts.w1", kept)
        self.assertEqual(self.model.forward([[1, 2, 3, 4, 5, 6, 7, 8]]).loss, before)
        with self.assertRaises(KeyError):
            self.model.get("layers.9.w")
        with self.assertRaises(choir.ArgumentError):
            self.model.set("final_norm.weight", [1, 2])

    def test_arguments_that_c_would_misread(self):
        """Integers are not cut to C's width, texts not at a NUL; None is no path; a text is one stop, a number no prompt."""
        model, tokens = self.model, np.zeros((8, 32), np.int32)
        trainer = choir.Trainer(model)
        model.routing = "threshold"
        for kind, call in (
            (OverflowError, lambda: model.generate("ka", max_tokens=2**32 + 3)),
            (OverflowError, lambda: model.generate("ka", top_k=2**32)),
            (OverflowError, lambda: model.generate("ka", seed=-1)),
            (OverflowError, lambda: model.session(slots=2**32 + 1)),
            (OverflowError, lambda: choir.route(np.ones((4, 4)), sequence_length=2**32)),
            (choir.ArgumentError, lambda: model.generate([5, 6])),
            (choir.ArgumentError, lambda: choir.route(5)),
            (choir.ArgumentError, lambda: trainer.step(tokens, np.full((8, 32), 2**32 - 1, np.uint32))),
            (choir.ArgumentError, lambda: model.save("a\0b")),
            (TypeError, lambda: model.save(None)),
            (TypeError, lambda: trainer.resume(None)),
            (TypeError, lambda: choir.Tokenizer(None)),
            (TypeError, lambda: choir.Model.load(None)),
            (TypeError, lambda: choir.route(np.ones((4, 4)), None)),
        ):
            with self.assertRaises(kind):
                call()
        one = model.generate("ka", max_tokens=30, stops="lo")[0]
        self.assertEqual(one.text, model.generate("ka", max_tokens=30, stops=["lo"])[0].text)

    def test_runs(self):
        steps, evaluations = choir.runs.metrics(self.at), choir.runs.evaluations(self.at)
        np.testing.assert_array_equal(steps["step"], np.arange(1, 21))
        self.assertTrue(np.isfinite(steps["loss"]).all())
        self.assertEqual(evaluations["step"][-1], 20)
        self.assertTrue(np.isfinite(evaluations["threshold_loss"]).all())
        timing = choir.runs.timing(self.at)
        self.assertTrue((np.diff(timing["time"]) >= 0).all())  # to a millisecond, which a step may not take
        self.assertTrue((timing["seconds"] > 0).all())
        process = choir.runs.lines(self.at, "timing.jsonl")[0]
        self.assertEqual((process["event"], process["version"]), ("process", choir.__version__))

    def test_examples(self):
        examples = testing.SOURCE / "examples"
        for words in (["route.py"], ["compare_runs.py", str(self.at)]):
            output = subprocess.run(
                [sys.executable, str(examples / words[0]), *words[1:]], check=True, capture_output=True
            )
            self.assertGreater(len(output.stdout.splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
