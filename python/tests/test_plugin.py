"""Routers of one's own (choir.router). One repeats expert_choice, so every result must have its bits; the other
routers break a rule each."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

import numpy as np

import choir
from choir import _native as native
import testing

try:
    import torch

    import choir.torch
except ImportError:
    torch = None

EXAMPLE = testing.SOURCE / "examples" / "own_router.py"
N, E = 40, 5
draw = np.random.default_rng(1)


@choir.experts_choose("own_ec")
def own_ec(scores, valid, capacity, training):
    """as expert_choice"""
    best = np.argsort(np.where(valid[:, None], -scores, np.inf), axis=0, kind="stable")[:capacity]
    chosen = np.zeros_like(scores, bool)
    np.put_along_axis(chosen, best, True, axis=0)
    return chosen


@choir.tokens_choose("own_top2", 2, aux_loss_weight=0.01)
def own_top2(scores, valid, capacity, training):
    """as topk"""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :2]
    chosen = np.zeros_like(scores, bool)
    np.put_along_axis(chosen, best, True, axis=1)
    return chosen & valid[:, None]


def balance(scores, valid, chosen):
    """The load-balancing loss of two choices."""
    count = valid.sum()
    slope = np.where(valid[:, None], scores.shape[1] * chosen.sum(0) / count / 2 / count, 0)
    return (slope * np.where(valid[:, None], scores, 0)).sum(), slope


@choir.experts_choose("own_min", options={"sign": (-1, -1, 1)}, ranking=lambda scores, valid, sign: sign * scores)
def own_min(scores, valid, capacity, training, sign):
    """experts take the tokens of the lowest scores"""
    return own_ec(-scores, valid, capacity, training)


choir.router("own_balance", looks="nowhere", choices=2, aux_loss_weight=0.01, loss=balance)(own_top2)
LOSSY = """
import choir, numpy as np
@choir.router("lossy", looks="nowhere", choices=2, aux_loss_weight=10, options={"tilt": 0.5},
              loss=lambda scores, valid, chosen, tilt: (tilt * (scores * chosen).sum() / 99, tilt * chosen / 99))
def lossy(scores, valid, capacity, training, tilt):
    best = np.argsort(-scores, axis=1, kind="stable")[:, :2]
    chosen = np.zeros_like(scores, bool)
    np.put_along_axis(chosen, best, True, axis=1)
    return chosen & valid[:, None]
"""


@choir.router(
    "own_bias", looks="nowhere", choices=2, options={"rate": (0.001, 0, 1)},
    observe=lambda state, demand, rate: state + rate * np.sign(demand - demand.mean()),
)  # fmt: skip
def own_bias(scores, valid, capacity, training, rate, state):
    """as bias_balanced with softmax"""
    return own_top2((scores - state.astype(np.float32)), valid, capacity, training)


TWINS = (("own_ec", "expert_choice"), ("own_top2", "topk"))


def scores_of(seed=0):
    made = np.exp(np.random.default_rng(seed).normal(size=(N, E)))
    return (made / made.sum(1, keepdims=True)).astype(np.float32)


class Routing(unittest.TestCase):
    def test_is_choirs_own(self):
        valid, d = np.arange(N) % 7 != 2, scores_of(5)
        for own, choirs in TWINS:
            for more in ({}, {"valid": valid}, {"normalize_gates": True, "training": True}):
                a, b = (choir.route(scores_of(), name, **more) for name in (own, choirs))
                np.testing.assert_array_equal(a.gates, b.gates)
                if own == "own_ec":
                    np.testing.assert_array_equal(a.cutoffs, b.cutoffs)
                a, b = (choir.route_backward(scores_of(), d, n, aux_weight=0.5, **more) for n in (own, choirs))
                np.testing.assert_array_equal(a, b)

    def test_a_loss(self):
        for more in ({}, {"valid": np.arange(N) % 7 != 2}):
            a, b = (choir.route(scores_of(), name, **more) for name in ("own_balance", "topk"))
            self.assertAlmostEqual(a.aux_loss, b.aux_loss, 6)
            a, b = (choir.route_backward(scores_of(), None, n, aux_weight=3, **more) for n in ("own_balance", "topk"))
            np.testing.assert_allclose(a, b, atol=1e-7)
            self.assertTrue(a.any())
        self.assertRaisesRegex(choir.ArgumentError, "aux_scope", choir.route, scores_of(), "own_balance", aux_scope="sequence")

    def test_a_ranking(self):
        """Cut-offs of a ranking serve as many tokens as the router took: the same ones, if it takes those of the highest."""
        valid = np.arange(N) % 7 != 2
        for sign in (-1, 1):
            for more in ({}, {"valid": valid}):
                made = choir.route(scores_of(), "own_min", sign=sign, **more)
                served = choir.route(scores_of(), "own_min", sign=sign, thresholds=made.cutoffs, **more)
                np.testing.assert_array_equal(served.load, made.load)
                self.assertEqual((served.gates == made.gates).all(), sign < 0)

    def test_rankings_that_are_wrong(self):
        function = lambda scores, valid, capacity, training, **_: own_ec(scores, valid, capacity, training)  # noqa: E731

        def no_opinion(scores, valid):
            raise ValueError("no opinion")

        for says, ranking in (
            (r"ranking gave float32 of shape .5,.: must be numbers of shape .40, 5.*test_plugin.py, line \d", lambda scores, valid: scores[0]),
            ("ranking gave <U1 of shape", lambda scores, valid: np.full(scores.shape, "x")),
            ("ranking gave NoneType", lambda scores, valid: None),
            (r"ValueError: no opinion \(test_plugin.py, line", no_opinion),
            ("the ranking of token 0 at expert 0 is nan", lambda scores, valid: scores * np.nan),
            ("the ranking of token 0 at expert 0 is inf", lambda scores, valid: scores + 1e300),
            ("the ranking of token 0 changes when it is alone", lambda scores, valid: scores - scores.mean(0)),
            ("ranking is 3: must be a function", 3),
            (r"ranking must take \(scores, valid\)", lambda scores: scores),
            (r"ranking must take \(scores, valid\)", lambda scores, valid, share: scores),
        ):  # fmt: skip
            with self.subTest(says):
                with self.assertRaisesRegex(choir.Error, "router 'wayward': .*" + says):
                    choir.experts_choose("wayward", ranking=ranking)(function)
                    choir.route(scores_of(), "wayward")
                if torch and callable(ranking) and "must take" not in says:
                    with self.assertRaisesRegex(choir.Error, "router 'wayward': .*" + says):
                        choir.torch.route(torch.tensor(scores_of()), "wayward")
        good = lambda scores, valid: scores @ np.eye(E, dtype=np.float32)  # noqa: E731 may add in another order
        choir.experts_choose("wayward", ranking=good)(function)
        choir.route(scores_of(), "wayward")

    def test_parameters_of_a_function(self):
        seen = {}

        @choir.router("wayward", looks="around", options={"share": (0.5, 0, 1), "more": -2})
        def asks(scores, valid, capacity, training, share, more, seed, layer, sequence_length):
            seen.update(locals())
            scores[:] = valid[:] = 0
            return np.zeros_like(scores, bool)

        self.assertEqual(choir.route(scores_of(), "wayward", share=0.25, training=True, seed=7).load.sum(), 0)
        self.assertEqual((seen["share"], seen["more"], seen["capacity"], seen["training"]), (0.25, -2, 16, True))
        self.assertEqual((seen["seed"], seen["sequence_length"], seen["valid"].any()), (7, N, False))

    def refused(self, says, function, **definition):
        with self.assertRaisesRegex(choir.Error, says) as caught:
            choir.router("wayward", **definition)(function)
            choir.route(scores_of(), "wayward")
        return caught.exception

    def test_is_not_believed(self):
        none = lambda scores, *_, **options: np.zeros_like(scores, bool)  # noqa: E731
        self.refused("must take", lambda scores: None)
        self.refused("looks is 'up'", none, looks="up")
        self.refused("share is 2", lambda s, v, c, t, share: none(s), options={"share": (2, 0, 1)})
        self.refused("share is nan by default: must be a number from 0 to 1", none, options={"share": (np.nan, 0, 1)})
        self.refused("share is nan by default: must be a finite number", none, options={"share": np.nan})
        self.refused("version is 'a/b'", none, version="a/b")
        self.refused("an option of choir's", lambda s, v, c, t, cap: none(s), options={"cap": 1})
        self.refused("float32 of shape", lambda scores, *_: scores)
        self.refused("gave NoneType", lambda *_: None)
        self.refused("expert 0 took 40 tokens, and its capacity is 16", lambda s, *_: np.ones_like(s, bool))
        self.refused("has 5 experts", lambda s, *_: np.ones_like(s, bool), choices=2)
        four = lambda s, v, c, t: own_ec(s, v, min(c, 4), t)  # noqa: E731
        self.refused(r"declares depends_on none.*token \d+", four, looks="nowhere")
        self.refused(r"declares depends_on past.*token \d+", own_ec, looks="back")
        self.refused("gave list and list: must be a number, and its gradient of shape .40, 5", none, loss=lambda *_: ([1, 2], [0]))
        self.refused(r"loss gave float: must be .*test_plugin.py, line \d", none, loss=lambda *_: 1.5)
        self.refused("ZeroDivisionError.*test_plugin.py, line", none, loss=lambda *_: (1 / 0, 0))
        self.refused("its loss is nan", none, loss=lambda s, *_: (np.nan, s))
        self.refused("gradient of token 0 at expert 0 is inf", none, loss=lambda s, *_: (0, np.full_like(s, np.inf)))
        self.refused("asked again", lambda s, *_: draw.random(s.shape) > 0.9)
        error = self.refused("IndexError.*test_plugin.py, line", lambda s, *_: s[N:][7])
        self.assertIsInstance(error.__cause__, IndexError)

    def test_definitions_that_are_wrong(self):
        function = lambda scores, valid, capacity, training, **options: np.zeros_like(scores, bool)  # noqa: E731
        state = {"looks": "nowhere", "choices": 2}
        for says, wrong in (
            *((f"'wayward': option '{o}' is what the call gives", {"options": {o: 1}}) for o in ("seed", "layer", "first", "valid", "demand")),
            *((r"'wayward': option 'share' is .*: must be a number, \(default", {"options": {"share": value}})
              for value in ("x", None, (1,), (1, 0), (0, 0, 1, "what", 5), (0, 0, 1, 3), [0, 0, 1])),
            ("option 'share' is at least 1 and at most 0", {"options": {"share": (0.5, 1, 0)}}),
            ("'wayward': the name of an option is 3", {"options": {3: 1}}),
            ("'wayward': options is .*: must be numbers by name", {"options": ["share"]}),
            ("'wayward': version is 1: must be a text", {"version": 1}),
            ("'wayward': summary is 2: must be a text", {"summary": 2}),
            ("'wayward': choices is 1.5: must be a whole number", {"choices": 1.5}),
            ("'wayward': experts_per_token is 1099511627776: must be from 0 to 65536", {"choices": 2**40}),
            ("'wayward': capacity_factor is 'x': must be a number", {"capacity_factor": "x"}),
            ("'wayward': loss is 3: must be a function", {"loss": 3}),
            ("'wayward': observe is 3: must be a function", {"observe": 3, **state}),
            (r"'wayward': observe must take \(state, demand, share\): multiple", {"observe": lambda s, share: s, "options": {"share": 1}, **state}),
            ("'wayward': observe must take .*: demand is its parameter number 1", {"observe": lambda demand, state: state, **state}),
            (r"'wayward': loss must take \(scores, valid, chosen\): missing", {"loss": lambda s, v, c, d: (0, s)}),
        ):  # fmt: skip
            with self.subTest(says), self.assertRaisesRegex(choir.ArgumentError, says):
                choir.router("wayward", **wrong)(function)
        for says, function in (
            ("it lacks capacity; scores, valid, capacity and training are given by place", lambda scores, valid, training, layer: scores),
            ("training is its parameter number 3", lambda scores, valid, training, capacity: scores),
        ):
            with self.subTest(says), self.assertRaisesRegex(choir.ArgumentError, says):
                choir.router("wayward")(function)
        with self.assertRaisesRegex(choir.ArgumentError, r'write @choir.experts_choose\("name"\)'):
            choir.experts_choose(function)
        for says, wrong in (
            ("depends_on is 'none': must be past or all; @choir.tokens_choose", lambda: choir.experts_choose("wayward", depends_on="none")),
            ("depends_on is 'up': must be one of none, in_training, past, all", lambda: choir.tokens_choose("wayward", 1, depends_on="up")),
            ("capacity_factor is 0: must be a number above 0", lambda: choir.experts_choose("wayward", capacity_factor=0)(both)),
            ("served with thresholds and has no state: leave observe out", lambda: choir.tokens_choose("wayward", 1, depends_on="all", observe=lambda state, demand: state)(both)),
            ("observe and experts_per_token_option need experts_per_token, which is 0", lambda: choir.tokens_choose("wayward", 0, observe=lambda state, demand: state)(both)),
            (r"in evaluation .none., so no thresholds serve it: leave ranking out", lambda: choir.tokens_choose("wayward", 1, ranking=lambda scores, valid: scores)(both)),
            (r"in evaluation .in_training., so no thresholds", lambda: choir.tokens_choose("wayward", 1, depends_on="in_training", ranking=lambda scores, valid: scores)(both)),
        ):
            both = lambda scores, valid, capacity, training: np.zeros_like(scores, bool)  # noqa: E731
            with self.subTest(says), self.assertRaisesRegex(choir.ArgumentError, says):
                wrong()

    def test_an_object_that_is_called(self):
        class Chooser:
            def __call__(self, scores, valid, capacity, training):
                return own_ec(scores, valid, capacity, training)

        choir.router("object", looks="around")(Chooser())
        np.testing.assert_array_equal(choir.route(scores_of(), "object").gates, choir.route(scores_of(), "own_ec").gates)


class Runs(unittest.TestCase):
    """Training, resuming, evaluation and generation."""

    def trained(self, router, steps=6, name=None, **more):
        out = testing.directory() / (name or f"own-{router}")
        config = choir.Config(testing.run().parent / "config.json")
        config.set("router.name", router)
        config.set("router.score", "softmax")
        data = testing.directory() / "data"
        choir.train(config=config, data=data, out=out, steps=steps, **{"checkpoint_every": 3, "grad_chunks": 4, **more})
        return out

    def test_as_choirs_own(self):
        for own, choirs in TWINS:
            losses = []
            for router in (own, choirs):
                run = self.trained(router)
                with choir.Model.load(run) as model:
                    text = model.generate("ka", max_tokens=8, seed=3)[0].text
                    evaluations = []
                    for routing in ("batch", "threshold" if own == "own_ec" else "batch"):
                        model.routing = routing
                        evaluations.append(model.evaluate(testing.directory() / "data").loss)
                losses.append((text, evaluations))
            self.assertEqual(*losses)

    def test_a_config_of_before(self):
        """It trains the latest definition of its router, and the run's files have that definition's defaults."""
        own = dict(options={"share": (0.5, 0, 1)}, aux_loss_weight=0.25)
        function = lambda scores, valid, capacity, training, **_: own_top2(scores, valid, capacity, training)  # noqa: E731
        choir.tokens_choose("breaks", 2, **own)(function)
        config = choir.Config(testing.run().parent / "config.json")
        config.update({"router.share": 0.25, "router.score": "softmax", "router.name": "breaks"})
        choir.tokens_choose("breaks", 2, **{**own, "aux_loss_weight": 0.5})(function)
        choir.train(config=config, data=testing.directory() / "data", out=(out := testing.directory() / "renewed"), steps=2)
        for file in (out / "config.json", out / "checkpoints" / "00000002" / "config.json"):
            router = json.loads(file.read_text())["model"]["router"]
            self.assertEqual((router["aux_loss_weight"], router["share"]), (0.5, 0.25), file)

    def test_a_state_is_kept(self):
        runs = [self.trained(name) for name in ("own_bias", "bias_balanced")]
        resumed = self.trained("own_bias", steps=3, name="resumed")
        choir.train(out=resumed, resume=True, steps=6)
        weights = [(run / "checkpoints" / "00000006" / "model.safetensors").read_bytes() for run in (*runs, resumed)]
        self.assertEqual(weights[0], weights[2])
        losses = [choir.Model.load(run).evaluate(testing.directory() / "data").loss for run in runs]
        self.assertEqual(*losses)

    def test_a_state_that_grows(self):
        choir.router("grows_on", looks="nowhere", choices=2, observe=lambda state, demand: np.append(state, 1))(own_top2)
        says = r"'grows_on': TypeError: observe gave float64 of shape .9,.: must be numbers of shape .8,. \(test_plugin.py, line \d"
        with self.assertRaisesRegex(choir.Error, says):
            self.trained("grows_on")

    def test_a_dropped_state(self):
        """An `observe` that fails ends its own step, also the last one, and no checkpoint has half a step."""

        @choir.router("breaks", looks="nowhere", choices=2, observe=lambda state, demand: state + 1 / self.divisor.pop())
        def breaks(scores, valid, capacity, training, state):
            return own_top2(scores - state.astype(np.float32), valid, capacity, training)

        for steps in (3, 5):
            self.divisor = [0] + [1] * steps  # of `observe`, from the last to the first: one MoE layer
            with self.assertRaisesRegex(choir.Error, "layer 1: router 'breaks': ZeroDivisionError"):
                self.trained("breaks", name=f"forgets-{steps}", steps=steps + 1, checkpoint_every=steps, eval_every=0)
            kept = testing.directory() / f"forgets-{steps}" / "checkpoints"
            self.assertEqual(sorted(path.name for path in kept.iterdir()), [f"{steps:08d}"])
        config = choir.Config("pico", layers=2, d_model=32, d_hidden=48, heads=2, vocab_size=64, **{"router.name": "breaks"})
        with choir.Model(config) as model, choir.Trainer(model, batch_sequences=2, sequence_length=16) as trainer:
            tokens, at = np.arange(32).reshape(2, 16), testing.directory() / "forgets-trainer"
            self.divisor = [1, 0, 1]
            trainer.step(tokens)
            trainer.save(at)
            with self.assertRaisesRegex(choir.Error, "ZeroDivisionError") as caught:
                trainer.step(tokens)
            self.assertIsInstance(caught.exception.__cause__, ZeroDivisionError)
            for save in (trainer.save, model.save):
                self.assertRaisesRegex(choir.ArgumentError, "step 2 ended between", save, testing.directory() / "half")
            self.assertRaisesRegex(choir.ArgumentError, "step 2 ended between", trainer.step, tokens)
            trainer.resume(at)
            self.assertEqual(trainer.step(tokens).step, 2)

    def test_interrupted_twice(self):
        """The first Ctrl-C waits for the step; the second ends a function that does not return."""
        reached, self.allowed = [], 8

        @choir.router("breaks", looks="around")
        def breaks(scores, valid, capacity, training):
            self.allowed -= training and len(scores) == 256
            for number in (1, 2) if self.allowed < 0 else ():
                signal.raise_signal(signal.SIGINT)
                reached.append(number)
            return own_ec(scores, valid, capacity, training)

        before = signal.getsignal(signal.SIGINT)
        with self.assertRaises(KeyboardInterrupt):
            self.trained("breaks", name="interrupted", steps=20)
        self.assertEqual((reached, signal.getsignal(signal.SIGINT)), ([1], before))
        self.allowed = 10**9
        with choir.Model.load(testing.directory() / "interrupted") as model:
            self.assertTrue(np.isfinite(model.evaluate(testing.directory() / "data").loss))
        choir.train(out=testing.directory() / "interrupted", resume=True, steps=9)

    def test_a_broken_one_ends_the_run(self):
        calls = []

        @choir.router("breaks", looks="around")
        def breaks(scores, valid, capacity, training):
            calls.append(training)
            if len(scores) == 256 and training and sum(calls) > self.allowed:
                raise RuntimeError("there is no tea")
            return own_ec(scores, valid, capacity, training)

        self.allowed = 10**9
        self.trained("breaks", name="whole", steps=3)
        calls.clear()
        self.allowed = 8
        with self.assertRaisesRegex(choir.Error, "layer 1: router 'breaks': RuntimeError: there is no tea"):
            self.trained("breaks", name="broken", steps=20)
        self.allowed = 10**9
        with choir.Model.load(testing.directory() / "broken") as model:  # the last checkpoint
            self.assertTrue(np.isfinite(model.evaluate(testing.directory() / "data").loss))


class Program(unittest.TestCase):
    """--plugin FILE.py: the program asks a process of Python beside it."""

    def run_program(self, *words, **more):
        done = subprocess.run([os.environ["CHOIR_PROGRAM"], *map(str, words)], capture_output=True, text=True, **more)
        return done.returncode, done.stdout, done.stderr

    def test_words_that_are_texts(self):
        """`--plugin` in another option's value or behind `--` is a text; elsewhere it is the option."""
        run, at = testing.run(), testing.directory() / "words"
        at.mkdir()
        (at / "word.py").write_text("open('hit', 'w')\n" + EXAMPLE.read_text().replace("louder", "word"))
        word = "--plugin=word.py"
        for words, loads in (
            (("generate", run, "--max-tokens", 1, "--prompt", word), False),
            (("generate", run, "--max-tokens", 1, "--prompt", "--plugin", "--prompt", "word.py"), False),
            (("info", "--", word), False),
            (("help", "--", word), False),
            (("info", run, word), True),
            (("info", "--set", "steps=3", word, run), True),
            ((word, "info", run), True),
            (("--plugin", "word.py", "help", "word"), True),
            (("help", "routers", "--plugin", "word.py"), True),
        ):
            with self.subTest(words):
                output = self.run_program(*words, cwd=at)
                self.assertEqual((at / "hit").exists(), loads, output)
                (at / "hit").unlink(missing_ok=True)
        self.assertEqual(self.run_program(word, "study", "list", cwd=at)[0], 2)
        self.assertFalse((at / "hit").exists())

    def test_nothing_of_the_current_directory(self):
        """No interpreter imports a file of the directory that the program is called in, whatever PYTHONPATH has."""
        at, other = testing.directory() / "hostile", testing.directory() / "named"
        for folder in (at, other):
            folder.mkdir()
        for name in ("linecache", "importlib", "argparse", "sitecustomize", "re", "numpy", "choir", "helps"):
            (at / f"{name}.py").write_text(f"open({str(at / 'hit')!r}, 'a').write('{name} ')\n")
        (other / "helps.py").write_text("share = 0.5\n")
        (file := other / "far.py").write_text("import helps\n" + EXAMPLE.read_text().replace("louder", "far"))
        found = {shutil.which(f"python3.{minor}") for minor in range(10, 20)} - {None}
        for python in [sys.executable, *sorted(found)]:
            for path in (None, "", ":", ".", "./", f":{other}", f"{other}:"):
                env = {**os.environ, "CHOIR_PYTHON": python, "PYTHONPATH": path or ""}
                if path is None:
                    del env["PYTHONPATH"]
                with self.subTest(python=python, path=path):
                    output = self.run_program("help", "far", "--plugin", file, cwd=at, env=env)
                    if python == sys.executable and path and str(other) in path:
                        self.assertEqual(output[0], 0, output)
                    if path == ":":
                        self.run_program("study", "--help", cwd=at, env=env)
                    self.assertFalse((at / "hit").exists(), (at / "hit").exists() and (at / "hit").read_text())

    def test_route(self):
        np.save(testing.directory() / "s.npy", scores_of())
        words = ("route", "--router", "louder", "--set", "router.share=0.25", testing.directory() / "s.npy", "--json")
        code, out, output = self.run_program(*words, "--plugin", EXAMPLE)
        self.assertEqual((code, output), (0, ""))
        choir.load_plugin(EXAMPLE)
        self.assertEqual(json.loads(out)["load"], choir.route(scores_of(), "louder", share=0.25).load.tolist())
        self.assertIn("of the loudest token", self.run_program("help", "louder", "--plugin", EXAMPLE)[1])
        self.assertIn("--plugin FILE", self.run_program(*words)[2])
        self.assertIn("router.share is 2: must be", self.run_program(*words, f"--plugin={EXAMPLE}", "--set", "router.share=2")[2])
        self.assertIn("score, share): leave it out", self.run_program(*words, f"--plugin={EXAMPLE}", "--set", "router.cap=3")[2])

    def test_a_loss(self):
        (file := testing.directory() / "lossy.py").write_text(LOSSY)
        testing.run()
        choir.load_plugin(file)
        config, data = testing.directory() / "config.json", testing.directory() / "data"
        runs, weights = [testing.directory() / f"lossy-{i}" for i in range(3)], []
        for run, tilt in zip(runs, (0.25, 0.25, 0)):
            sets = [word for key in ("router.name=lossy", f"router.tilt={tilt}", "steps=2") for word in ("--set", key)]
            if run is runs[0]:
                code, _, output = self.run_program("train", "--config", config, "--data", data, "--out", run, *sets, "--plugin", file)
                self.assertEqual(code, 0, output)
            else:
                options = choir.Config(config)
                for key, value in (("router.name", "lossy"), ("router.tilt", tilt), ("steps", 2)):
                    options.set(key, value)
                choir.train(config=options, data=data, out=run)
            weights.append((run / "checkpoints" / "00000002" / "model.safetensors").read_bytes())
        self.assertEqual(weights[0], weights[1])
        self.assertNotEqual(weights[0], weights[2])

    def test_invalid_plugin_files(self):
        for text, says in (("x = 1", "has no router"), ("import nope", "No module named 'nope'")):
            file = testing.directory() / "none.py"
            file.write_text(text)
            code, _, output = self.run_program("help", "routers", "--plugin", file)
            self.assertEqual(code, 1)
            self.assertIn(says, output)
        self.assertIn("No such file", self.run_program("help", "--plugin", "absent.py")[2])
        os.mkfifo(pipe := testing.directory() / "pipe.py")  # which nobody writes
        for other in (testing.directory(), pipe):
            self.assertIn("is not a file", self.run_program("help", "--plugin", other)[2])
            self.assertRaisesRegex(choir.FileError, "is not a file", choir.load_plugin, other)
        self.assertEqual(self.run_program("help", "--plugin")[0], 2)
        (source := testing.directory() / "own.c").write_text("int x;")
        self.assertIn(f"own.c -o {source.with_suffix('.so')}", self.run_program("help", "--plugin", source)[2])

    def test_exceptions_of_a_file(self):
        file = testing.directory() / "raises.py"
        for text, says in (
            ("x = 1", "has no router"),
            ("def f(:", r"SyntaxError.*raises.py, line 1"),
            ("import sys\nsys.exit('no tea')", r"SystemExit: no tea \(raises.py, line 2\)"),
            ("\n1 / 0", r"ZeroDivisionError: division by zero \(raises.py, line 2\)"),
        ):
            file.write_text(text)
            with self.subTest(text), self.assertRaisesRegex(choir.FormatError, says):
                choir.load_plugin(file)
        with self.assertRaisesRegex(choir.FileError, "plug-in absent.py: No such file") as caught:
            choir.load_plugin("absent.py")
        self.assertIsInstance(caught.exception, FileNotFoundError)

    def test_modules_next_to_the_file(self):
        """A file imports what stands beside it, behind all other modules, and is a module itself."""
        (folder := testing.directory() / "beside").mkdir()
        (folder / "json.py").write_text("1 / 0\n")
        (folder / "helper_of_it.py").write_text("share = 0.5\n")
        (file := folder / "kin.py").write_text(
            "import dataclasses, json, pickle, sys, typing\nimport helper_of_it\n"
            f"assert sys.path[-1] == {str(folder)!r}\n"
            "class Kept: pass\n"
            + EXAMPLE.read_text().replace("louder", "kin").replace(
                "    heard",
                "    dataclasses.make_dataclass('Made', [('x', int)], namespace={'__module__': __name__})(1)\n"
                "    typing.get_type_hints(Kept)\n    assert type(pickle.loads(pickle.dumps(Kept()))) is Kept\n    heard",
                1,
            )
        )
        np.save(testing.directory() / "beside.npy", scores_of())
        words = ("route", "--router", "kin", testing.directory() / "beside.npy", "--plugin", file)
        for cwd in (folder, "/"):
            code, _, output = self.run_program(*words, cwd=cwd)
            self.assertEqual((code, output), (0, ""))
        file.write_text(file.read_text() + f"import pathlib\npathlib.Path({str(file)!r}).write_text('')\n")
        self.assertIn("changed while it was loaded", self.run_program(*words)[2])

    def test_messages_of_any_kind(self):
        """An exception whose message is no text, cannot be made, or is long."""
        testing.run()
        np.save(testing.directory() / "mute.npy", scores_of())
        text = "class Mute(Exception):\n    def __str__(self): return 1 / 0\n" + EXAMPLE.read_text().replace("louder", "mute")
        for raised, says in (
            ("ValueError('\\udcff\\0.txt')", r"ValueError: \\udcff\\0.txt"),
            ("Mute()", r"Mute: \(a message that cannot be made: ZeroDivisionError\) \(mute.py, line"),
            ("ValueError('\u00e9' * 999)", "ValueError: \u00e9\u00e9"),
        ):
            (file := testing.directory() / "mute.py").write_text(text.replace("    heard", f"    raise {raised}\n    heard", 1))
            with self.subTest(raised):
                code, _, output = self.run_program("route", "--router", "mute", testing.directory() / "mute.npy", "--plugin", file)
                self.assertEqual(code, 1)
                self.assertRegex(output.splitlines()[-1], "router 'mute': " + says)

    def test_tracebacks(self):
        """They begin with the file's own line, and come once, though every layer asks `observe`."""
        testing.run()
        file = testing.directory() / "short.py"
        file.write_text(LOSSY.replace("lossy", "short").replace("aux_loss_weight=10, options={", "options={3: 1, "))
        output = self.run_program("help", "--plugin", file)[2]
        self.assertRegex(output, r'^Traceback .*\n  File ".*short.py", line 3, in')
        self.assertIn("router 'short': the name of an option is 3", output)
        text = LOSSY.replace("lossy", "short").replace("loss=lambda scores, valid, chosen, tilt: (", "observe=lambda state, demand, tilt: (0, ")
        file.write_text(text.replace("aux_loss_weight=10, ", "").replace("tilt * (scores * chosen).sum() / 99, tilt * chosen / 99", "1 / 0"))
        words = ["--set", "router.name=short", "--set", "moe_every=1", "--plugin", file, "--out", testing.directory() / "short-run"]
        output = self.run_program("train", "--config", testing.directory() / "config.json", "--data", testing.directory() / "data", *words)[2]
        self.assertEqual((output.count("Traceback"), output.count("_serve.py")), (1, 0), output)
        self.assertRegex(output, r"router 'short': ZeroDivisionError: division by zero \(short.py, line 4\)")

    def test_two_of_one_name(self):
        first, other = testing.directory() / "first.py", testing.directory() / "other.py"
        first.write_text(EXAMPLE.read_text().replace("louder", "twin"))
        other.write_text(first.read_text() + "# another\n")
        code, _, output = self.run_program("help", "--plugin", first, "--plugin", other)
        self.assertEqual((code, output), (1, f"choir: router 'twin': {first} has one of that name, and {other} another: rename one\n"))
        self.assertEqual(self.run_program("help", "--plugin", first, "--plugin", f"{testing.directory()}/./first.py")[0], 0)
        choir.load_plugin(first)
        self.assertRaisesRegex(choir.ArgumentError, "first.py has one of that name, and .*other.py another", choir.load_plugin, other)
        other.write_text(EXAMPLE.read_text().replace("louder", "both") + '\nchoir.router("both", looks="around", options={"share": 0})(both)\n')
        self.assertRaisesRegex(choir.ArgumentError, "router 'both': the file has two of that name", choir.load_plugin, other)
        first.write_text(first.read_text() + "# anew\n")
        self.assertEqual(choir.load_plugin(first), ["twin"])  # a file that changed is another version of the same

    def test_names_that_are_not_utf8(self):
        """Two files whose names differ in such bytes only are two."""
        files = [testing.directory() / os.fsdecode(b"own" + byte + b".py") for byte in (b"\xfe", b"\xff")]
        for number, file in enumerate(files):
            file.write_text(EXAMPLE.read_text().replace("louder", "bytes") + f"# {number}\n")
        self.assertEqual(self.run_program("help", "bytes", "--plugin", files[0])[0], 0)
        code, _, output = self.run_program("help", "bytes", "--plugin", files[0], "--plugin", files[1])
        self.assertEqual(code, 1, output)
        self.assertRegex(output, r"own\\xfe.py has one of that name, and .*own\\xff.py another")

    def test_a_changed_file(self):
        testing.run()
        file, run = testing.directory() / "grows.py", testing.directory() / "grown"
        file.write_text(text := EXAMPLE.read_text().replace("louder", "grows"))
        config, data = testing.directory() / "config.json", testing.directory() / "data"
        sets = [word for key in ("router.name=grows", "steps=2") for word in ("--set", key)]
        train = ("train", "--config", config, "--data", data, "--out", run, *sets, "--plugin", file)
        self.assertEqual(self.run_program(*train)[0], 0)
        again = ("train", "--out", run, "--resume", "--set", "steps=3", "--plugin", file)
        file.write_text(text + "# another\n")
        code, _, output = self.run_program(*again)
        trained = re.search(r'put version="([0-9a-f]{16})" into', output)
        self.assertTrue(code == 1 and trained and f"that of {file} is" in output, output)
        with self.assertRaisesRegex(choir.ArgumentError, "another rule"):
            choir.load_plugin(file)
            choir.train(out=run, resume=True, steps=3)
        code, _, output = self.run_program("eval", run, "--plugin", file)
        self.assertTrue(code == 0 and f"note: {run}" in output and f"of version {trained[1]}, and that of {file}" in output, output)
        file.write_text(text.replace('"grows",', f'"grows", version="{trained[1]}",'))
        self.assertEqual(self.run_program(*again)[0], 0)
        file.write_text(text)
        self.assertEqual(self.run_program(*again[:-3], "steps=4", *again[-2:])[0], 0)

    def test_exits_and_idle_processes(self):
        testing.run()
        file = testing.directory() / "tired.py"
        text = EXAMPLE.read_text().replace("louder", "tired")
        file.write_text(text.replace("    heard", "    if len(scores) > 99: raise SystemExit('no tea')\n    heard", 1))
        config, data = testing.directory() / "config.json", testing.directory() / "data"
        sets = [word for key in ("router.name=tired", "steps=2") for word in ("--set", key)]
        train = ("train", "--config", config, "--data", data, *sets, "--plugin", file, "--out", testing.directory())
        code, _, output = self.run_program(*train[:-1], train[-1] / "tired-run")
        self.assertEqual(code, 1)
        self.assertIn("router 'tired': SystemExit: no tea (tired.py, line", output)
        file.write_text(text.replace("return chosen &", "return chosen & False &"))
        code, _, output = self.run_program(*train[:-1], train[-1] / "idle-run")
        self.assertEqual((code, output.count("router 'tired' took none of ")), (0, 1), output)

    def test_cost_of_serving(self):
        """A router that does not rank by its scores: thresholds give a token other experts, and that is said."""
        testing.run()
        file, out, data = testing.directory() / "odd.py", testing.directory() / "odd-run", testing.directory() / "data"
        text = EXAMPLE.read_text().replace("louder", "odd")
        file.write_text(text.replace("np.argsort(-heard,", "np.argsort(np.where(valid[:, None], heard, np.inf),").replace(
            "(heard > share * heard.max(axis=0))", "valid[:, None]"
        ))  # fmt: skip
        words = ("--config", testing.directory() / "config.json", "--data", data, "--set", "steps=4")
        code, shown, output = self.run_program("train", *words, "--set", "router.name=odd", "--out", out, "--plugin", file)
        self.assertEqual(code, 0, output)
        says = r"layer 1: threshold routing assigns [\d.]+ experts per token, and router 'odd' itself"
        self.assertEqual(len(re.findall(says, shown + output)), 1, shown + output)
        self.assertRegex(self.run_program("eval", out, "--plugin", file)[2], says)
        text = file.read_text()
        file.write_text(text.replace('"odd", ', '"odd", ranking=lambda scores, valid, **_: -scores, ', 1))
        self.assertNotEqual(text, file.read_text())
        ranked = testing.directory() / "odd-ranked"
        train = ("train", *words, "--set", "router.name=odd", "--set", "learning_rate=0.001", "--out", ranked)
        code, shown, output = self.run_program(*train, "--plugin", file)
        self.assertEqual((code, re.findall(says, shown + output)), (0, []), shown + output)
        code, shown, output = self.run_program("eval", ranked, "--plugin", file)
        self.assertEqual((code, re.findall(says, shown + output)), (0, []), shown + output)
        for without in (("eval", out), ("train", "--resume", "--set", "steps=5", "--out", out)):
            code, shown, output = self.run_program(*without)
            self.assertEqual((code, (shown + output).count("one of your own comes with --plugin FILE")), (1, 1), output)

    def test_python_ends_with_the_program(self):
        file = testing.directory() / "endless.py"
        file.write_text("import sys\nprint('here', file=sys.stderr, flush=True)\nwhile True: pass\n")
        words = [os.environ["CHOIR_PROGRAM"], "help", "--plugin", file]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as program:
            self.assertEqual(program.stderr.readline(), "here\n")
            program.kill()
            self.assertEqual(program.stderr.read(), "")  # to its end, which comes when Python has closed it, too

    def test_run(self):
        run, data = testing.directory() / "own-program", testing.directory() / "data"
        testing.run()
        sets = [word for key in ("router.name=louder", "steps=4", "checkpoint_every=2") for word in ("--set", key)]
        train = ("train", "--config", testing.directory() / "config.json", "--data", data, "--out", run, *sets)
        self.assertIn("--plugin FILE", self.run_program(*train)[2])
        self.assertEqual(self.run_program(*train, "--plugin", EXAMPLE)[0], 0)
        self.assertIn("--plugin FILE", self.run_program("eval", run)[2])
        losses = {}
        for name, words in {"eval": ("eval", run, "--json"), "probe": ("probe", run, "--json")}.items():
            code, out, output = self.run_program(*words, "--plugin", EXAMPLE)
            self.assertEqual(code, 0, output)
            losses[name] = json.loads(out)
        self.assertEqual(self.run_program("generate", run, "--prompt", "ka", "--max-tokens", 3, "--plugin", EXAMPLE)[0], 0)
        choir.load_plugin(EXAMPLE)
        with choir.Model.load(run) as model:
            self.assertAlmostEqual(model.evaluate(data).loss, losses["eval"]["loss"], 8)
        _, out, _ = self.run_program("train", "--out", run, "--resume", "--set", "steps=99", "--minutes", 1e-6, "--plugin", EXAMPLE)
        self.assertIn(f"--resume --out {run} --plugin {EXAMPLE}\n", out)


SCALE = {
    "config": {
        "model": {"layers": 2, "d_model": 32, "d_hidden": 48, "heads": 2, "experts": 8},
        "train": {"sequence_length": 32, "batch_sequences": 8, "learning_rate": 0.05},
    },
    "budgets": [2560], "seeds": 2, "rates": [0.05], "deviation": 0.01,
}  # fmt: skip
RECIPE = {
    "name": "one", "title": "One arm", "question": "Is mine better?",
    "arms": [{"name": "EC", "set": {"router.name": "expert_choice"}}],
    "claims": [{"text": "EC learns.", "paper": "", "kind": "over_capacity", "arm": "EC"}],
}  # fmt: skip


@unittest.skipUnless(importlib.util.find_spec("statsmodels"), "statsmodels is not installed")
class Study(unittest.TestCase):
    """--plugin makes one more arm, and a file that changed makes other runs."""

    def test_an_arm_more(self):
        testing.run()
        at, out = testing.directory(), testing.directory() / "own-study"
        for name, value in (("scale", SCALE), ("recipe", RECIPE)):
            (at / f"own-{name}.json").write_text(json.dumps(value))
        (folder := at / "10:30").mkdir()
        file = folder / "mine.py"
        file.write_text(EXAMPLE.read_text().replace("louder", "mine"))
        words = ["run", at / "own-recipe.json", "--scale", at / "own-scale.json", "--data", at / "data", "--out", out]
        output = testing.program("study", *words, "--plugin", file)
        self.assertRegex(" ".join(output.split()), r"the loss of EC is [\d.]+ nats per token (higher|lower) than that of mine")
        with self.assertRaises(subprocess.CalledProcessError) as refused:
            testing.program("study", "status", out)
        self.assertIn("--plugin FILE", refused.exception.stderr)
        status = json.loads(testing.program("study", "status", out, "--json", "--plugin", file))
        self.assertEqual({arm["done"] for arm in status[0]["arms"].values()}, {2})
        file.write_text(file.read_text() + "# another\n")
        status = json.loads(testing.program("study", "status", out, "--json", "--plugin", file))
        self.assertEqual([arm["done"] for arm in status[0]["arms"].values()], [2, 0])

    def test_a_file_that_changes_meanwhile(self):
        """Runs of another version are neither begun nor stored as those of the one that the study began with."""
        testing.run()
        from choir.study import StudyError, store

        at, out = testing.directory(), testing.directory() / "moving-study"
        (at / "moving-scale.json").write_text(json.dumps(SCALE))
        (at / "moving-recipe.json").write_text(json.dumps(RECIPE))
        file = at / "moving.py"
        text = EXAMPLE.read_text().replace("louder", "moving")
        edits = f"    if training and len(scores) == 256: __import__('pathlib').Path({str(file)!r}).write_text('')\n    heard"
        file.write_text(text.replace("    heard", edits, 1))
        words = ["run", at / "moving-recipe.json", "--scale", at / "moving-scale.json", "--data", at / "data", "--out", out]
        with self.assertRaises(subprocess.CalledProcessError) as failed:
            testing.program("study", *words, "--jobs", 1, "--plugin", file)
        message = " ".join((failed.exception.stdout + failed.exception.stderr).split())  # lines are wrapped
        self.assertIn("moving.py: has changed since the study began", message)
        results = store.Store(out / "results").results()
        self.assertLessEqual(sum(one["config"]["model"]["router"]["name"] == "moving" for one in results), 1)
        run = next(path for path in sorted(out.glob("*/moving-*")) if (path / "checkpoints").exists())
        with self.assertRaisesRegex(StudyError, "was trained by router 'own_ec' of version [0-9a-f]{16}, but this study has version"):
            store._check_router(run, "own_ec")

    def test_an_arm_that_the_recipe_has(self):
        from choir.study import recipe

        (file := testing.directory() / "known.py").write_text(EXAMPLE.read_text().replace("louder", "known"))
        choir.load_plugin(file)
        arms = [*RECIPE["arms"], {"name": "less", "set": {"router.name": "known", "router.share": 0.1}}]
        (at := testing.directory() / "known.json").write_text(json.dumps({**RECIPE, "arms": arms}))
        made = recipe.load(str(at), ["known", "own_ec"])
        self.assertEqual([arm["name"] for arm in made["arms"]], ["EC", "less", "own_ec"])
        self.assertEqual(made["name"], "one-with-own-ec")
        self.assertEqual(recipe.load(str(at), ["known"]), recipe.load(str(at)))


@unittest.skipUnless(torch, "PyTorch is not installed")
class Torch(unittest.TestCase):
    def test_route(self):
        scores, valid = torch.tensor(scores_of(), requires_grad=True), torch.arange(N) % 7 != 2
        for own, choirs in TWINS:
            for more in ({}, {"valid": valid}, {"normalize_gates": True}):
                a, b = (choir.torch.route(scores, name, **more) for name in (own, choirs))
                self.assertEqual(repr(a), f"Routing({N} tokens, {E} experts, gates of torch.float32 on cpu)")
                torch.testing.assert_close(a.gates, b.gates, rtol=0, atol=0)
                torch.testing.assert_close(a.aux_loss, b.aux_loss)
                d = [torch.autograd.grad(r.gates.square().sum() + r.aux_loss, scores)[0] for r in (a, b)]
                torch.testing.assert_close(*d)

    def test_a_loss(self):
        scores, valid = torch.tensor(scores_of(), requires_grad=True), torch.arange(N) % 7 != 2
        for more in ({}, {"valid": valid}):
            a, b = (choir.torch.route(scores, name, **more) for name in ("own_balance", "topk"))
            torch.testing.assert_close(a.aux_loss, b.aux_loss)
            torch.testing.assert_close(*(torch.autograd.grad(r.aux_loss, scores)[0] for r in (a, b)))
        grads, x = [], torch.randn(3, N, 16)
        for name in ("own_balance", "topk"):
            torch.manual_seed(1)
            layer = choir.torch.MoE(16, 24, E, router=name, aux_loss_weight=0.5)
            run = torch.compile(layer, backend="aot_eager") if hasattr(torch.library, "custom_op") else layer
            (run(x).square().mean() + layer.aux_loss).backward()
            grads.append(layer.gate.weight.grad)
        torch.testing.assert_close(*grads)

    def test_a_ranking(self):
        """Cut-offs, and assignments by thresholds, are libchoir's; a layer is served with as many experts as in training."""
        choir.experts_choose("object", ranking=lambda s, valid: -s, loss=balance, aux_loss_weight=1)(
            lambda scores, valid, capacity, training: own_ec(-scores, valid, capacity, training)
        )
        valid = np.arange(N) % 7 != 2
        for router, more in (("own_min", {}), ("own_min", {"sign": 0.5}), ("object", {})):
            for given in ({}, {"valid": valid}):
                a = choir.route(scores_of(), router, **more, **given)
                tensors = {key: torch.from_numpy(value) for key, value in given.items()}
                b = choir.torch.route(torch.tensor(scores_of()), router, **more, **tensors)
                np.testing.assert_array_equal(a.cutoffs, b.cutoffs)
                np.testing.assert_array_equal(a.gates, b.gates)
                thresholds = (a.cutoffs + np.linspace(-0.05, 0.05, E)).astype(np.float32)
                a = choir.route(scores_of(9), router, thresholds=thresholds, **more, **given)
                scores = torch.tensor(scores_of(9), requires_grad=True)
                b = choir.torch.route(scores, router, thresholds=torch.from_numpy(thresholds), **more, **tensors)
                np.testing.assert_array_equal(a.gates, b.gates.detach())
                slope = torch.autograd.grad(b.gates.sum(), scores)[0]
                np.testing.assert_array_equal(slope, b.taken.float())
        for router in ("own_min", "object"):
            torch.manual_seed(1)
            layer, x = choir.torch.MoE(16, 24, E, router), torch.randn(3, N, 16)
            run = torch.compile(layer, backend="aot_eager") if hasattr(torch.library, "custom_op") else layer
            run(x)
            chosen = layer.routing.taken.sum()
            choir.torch.update_routers(layer)
            layer.eval().causal = True
            run(x)
            self.assertEqual(layer.routing.taken.sum(), chosen)
            torch.testing.assert_close(layer(x)[1:2, 3:4], layer(x[1:2, 3:4]))

    def test_scores_that_are_nan(self):
        """A step that will not count is no error of the ranking."""
        choir.experts_choose("wayward", ranking=lambda scores, valid: 2 * scores)(own_ec)
        scores = torch.tensor(scores_of())
        scores[3] = np.nan
        made = choir.torch.route(scores, "wayward")
        self.assertTrue(torch.isfinite(made.cutoffs).all())

    def test_a_state(self):
        """At state 0 the choice is libchoir's; test_torch_plugin has the rest."""
        made = choir.torch.route(torch.tensor(scores_of()), "own_bias")
        torch.testing.assert_close(made.gates, torch.from_numpy(choir.route(scores_of(), "own_bias").gates))

    def test_gates_of_its_own_are_refused(self):
        callback = native.ffi.callback("int(void *, const choir_plugin_call *, const uint8_t *, float *)", lambda *_: 0)
        choose = native.ffi.callback("int(void *, const choir_plugin_call *, uint8_t *)", lambda *_: 0)
        texts = [native.ffi.new("char[]", text) for text in (b"weighed", b"gates of its own")]
        definition = native.ffi.new("choir_plugin_router *")
        definition.name, definition.summary = texts
        definition.choices, definition.choose, definition.gates = 2, choose, callback
        native.check(native.lib.choir_router_register(definition))
        with self.assertRaisesRegex(choir.UnsupportedError, "'weighed' has gates of its own"):
            choir.torch.route(torch.tensor(scores_of()), "weighed")

    def test_layer(self):
        for own, choirs in TWINS:
            torch.manual_seed(1)
            layers = [choir.torch.MoE(16, 24, E, router=name) for name in (own, choirs)]
            layers[0].load_state_dict(layers[1].state_dict())
            x, seen = torch.randn(3, N, 16), []
            for layer in layers:
                layer.train()
                out = layer(x)
                (out.square().sum() + layer.aux_loss).backward()
                choir.torch.update_routers(layer)
                layer.eval()
                layer.causal = True
                seen.append((out, layer.gate.weight.grad, layer.thresholds, layer(x)))
            for a, b in zip(*seen):
                torch.testing.assert_close(a, b)


if __name__ == "__main__":
    unittest.main()
