"""What Python knows without libchoir is what libchoir says: fields, routers, the rules of their options, configs, random
numbers and assignments."""

import itertools
import os
import pathlib
import pickle
import random
import re
import tempfile
import unittest
import unittest.mock

import numpy as np

import choir
import testing
from choir import _described, _library, _options, _plain, _router, _routers, plugin
from choir._native import lib

VALUES = {  # by option: what a random choice of options takes, good and bad
    "capacity_factor": (0, 0.01, 0.5, 1, 2, 9, 1e9, -1, "x"),
    "eval_capacity_factor": (0, 0.5, 3, 12),
    "capacity_start": (0, 0.5),
    "pool": ("batch", "sequence", "position", "group", "image"),
    "group_size": (1, 4, 33, 0),
    "cap": (0, 1, 2, 8, 9),
    "experts_per_token": (1, 2, 3, 9),
    "null_experts": (0, 2),
    "score": ("softmax", "sigmoid", "soft"),
    "z_loss_weight": (0, 0.01),
    "solver": ("exact", "dykstra"),
    "solver_lambda": (0.001, 0.01, 0),
    "solver_iterations": (100, 3),
    "solver_stages": (1, 5, 101),
    "threshold_after": (0, 7, 0.5),
    "estimator": ("batch", "last"),
    "normalize_gates": (True, False, 1),
    "aux_loss_weight": (0, 0.01, float("nan")),
    "priority": ("order", "score"),
    "jitter": (0, 0.01, 1),
    "decay": (0.99, 1),
    "consistency_weight": (0, 1),
    "nonsense": (1,),
}


def said(function):
    """What a call refuses, as a text; "": nothing. The nearest word is each side's own guess."""
    try:
        function()
        return ""
    except (choir.ArgumentError, TypeError) as error:
        return re.sub(r", did you mean .*?\?", "", str(error))


class Table(unittest.TestCase):
    def test_fields(self):
        ours, theirs = _plain.Config.fields(), choir.Config.fields()
        for one, other in itertools.zip_longest(ours, theirs):
            words = other.words if other.key != "model.router.name" else ()
            self.assertEqual((one.key, one.type, one.default, one.low), (other.key, other.type, other.default, other.low))
            self.assertEqual((one.high, one.above, one.words, one.help), (other.high, other.above, words, other.help))

    def test_routers(self):
        self.assertEqual(list(_router.OWN), [name for name in _described.routers() if name not in _routers.plugins])
        for name, router in _router.OWN.items():
            self.assertEqual(router, _described.router(name))

    def test_a_plug_in_is_described_alike(self):
        none = lambda scores, valid, capacity, training, **_: np.zeros_like(scores, bool)  # noqa: E731
        observe, loss = (lambda state, demand: state), (lambda scores, valid, chosen, **_: (0.0, scores))
        for number, more in enumerate((
            {},
            {"looks": "back", "choices": 3, "aux_loss_weight": 0.5, "normalize_gates": True},
            {"looks": "nowhere", "choices": 2, "observe": observe, "draws": True},
            {"looks": "in_training", "choices": 4, "choices_default": True, "capacity_factor": 1.5},
            {"loss": loss, "aux_loss_weight": 0.1, "options": {"share": (0.5, 0, 1, "what it is"), "any": 3}},
        )):
            choir.router(f"described{number}", summary="it", **more)(none)
            ours, theirs = _routers.find(f"described{number}"), _described.router(f"described{number}")
            for field in ("reads", "gates", "loss", "state", "choices", "draws", "plugin", "summary", "options", "defaults"):
                self.assertEqual(getattr(ours, field), getattr(theirs, field), f"{number}: {field}")

    def test_limits_of_definitions(self):
        self.assertEqual((plugin.MESSAGE_BYTES, plugin.MOST_OPTIONS), (lib.CHOIR_PLUGIN_MESSAGE_BYTES, lib.CHOIR_PLUGIN_OPTIONS))

    def test_definitions_are_refused_alike(self):
        none = lambda scores, valid, capacity, training, **_: np.zeros_like(scores, bool)  # noqa: E731
        refused = 0
        for name, more in (
            ("two words", {}), ("topk", {}), ("a" * 32, {}), ("mine", {"version": "a b"}), ("mine", {"choices": -1}),
            ("mine", {"capacity_factor": -1}), ("mine", {"capacity_factor": 0}), ("mine", {"aux_loss_weight": 1}),
            ("mine", {"choices": 2, "aux_loss_weight": float("nan")}), ("mine", {"choices": 2, "observe": none}),
            ("mine", {"options": {"a b": 1}}), ("mine", {"options": {"cap": 1}}), ("mine", {"options": {"share": (3, 0, 1)}}),
        ):  # fmt: skip
            ours = said(lambda: choir.router(name, **more)(none))
            made = unittest.mock.patch.object(plugin, "router_of", lambda *_: None)
            with made, unittest.mock.patch.object(plugin.dataclasses, "replace", lambda *_, **__: None):
                theirs = said(lambda: choir.router(name, **more)(none))
            self.assertEqual(ours, theirs, (name, more))
            refused += bool(ours)
        self.assertEqual(refused, 13)


class Options(unittest.TestCase):
    def test_the_rules_of_options(self):
        """Random options of every router, with 64 tokens: the same is refused, in the same words."""
        draw, seen = random.Random(1), set()
        for name in _router.OWN:
            router, e = _routers.find(name), 1 if name == "dense" else 8
            known = [option for option in VALUES if option in router.options] or ["capacity_factor"]
            for trial in range(150):
                some = draw.sample(known, min(len(known), draw.randint(0, 3)))
                some += [draw.choice(list(VALUES))] if trial % 10 == 0 else []
                given = {option: draw.choice(VALUES[option]) for option in some}
                length = draw.choice((0, 8))

                def ours(given=given, router=router, e=e, length=length):
                    values = _options.values_of(router, given)
                    _options.check(router, values)
                    _options.check_sizes(router, values, 64, e, length)

                theirs = lambda: choir.route(  # noqa: E731
                    np.zeros((64, e)), name, tokens=np.arange(64), sequence_length=length, **given
                )
                self.assertEqual(said(ours), said(theirs), (name, given, length))
                seen.add(re.sub(r"[\d.]+|'\w+'", "", said(ours)))
        self.assertGreater(len(seen), 25)  # that many kinds of refusals

    def test_configs(self):
        """Random changes of a config: the same values and the same refusals of models."""
        draw, refused = random.Random(2), set()
        base = {**testing.CONFIG, "vocab_size": 320}
        keys = [field for field in choir.Config.fields() if field.key.startswith("model.") and field.key != "model.name"]
        for _ in range(600):
            changes = {}
            for field in draw.sample(keys, 2):
                if field.key == "model.router.name":
                    changes[field.key] = draw.choice(list(_router.OWN))
                elif field.type is str:
                    changes[field.key] = draw.choice(field.words or ("", "1,2", "1", "x"))
                elif field.type is bool:
                    changes[field.key] = draw.random() < 0.5
                else:
                    changes[field.key] = draw.choice((0, 1, 2, 3, 8, 0.5, 100))

            def make(kind, changes=changes):
                config = kind(**base)
                config.update(changes)
                config.check()
                return config

            theirs, ours = said(lambda: make(choir.Config)), said(lambda: make(_plain.Config))
            if "parameters" not in theirs:
                self.assertEqual(ours, theirs, changes)
            if not theirs:
                self.assertEqual(make(_plain.Config).as_dict(), make(choir.Config).as_dict())
            refused.add(re.sub(r"[\d.]+", "", theirs))
        self.assertGreater(len(refused), 20)

    def test_a_config_in_files(self):
        with tempfile.TemporaryDirectory() as at:
            at = pathlib.Path(at)
            ours = _plain.Config(vocab_size=320, **{"router.name": "topk", "router.experts_per_token": 3}, **testing.CONFIG)
            ours.save(at / "ours.json")
            theirs = choir.Config(at / "ours.json")
            self.assertEqual(theirs.as_dict(), ours.as_dict())
            theirs.save(at / "theirs.json")
            self.assertEqual(_plain.Config(at / "theirs.json").as_dict(), ours.as_dict())
            self.assertEqual(pickle.loads(pickle.dumps(ours)).as_dict(), ours.as_dict())
            for text, message in (('{"model": {"layer": 1}}', "unknown key 'model.layer'"), ("{", "is no JSON"), ('{"model": 1}', "must be an object")):
                (at / "bad.json").write_text(text)
                for kind in (_plain.Config, choir.Config):
                    with self.assertRaises(choir.FormatError) as caught:
                        kind(at / "bad.json")
                    self.assertIn(str(at / "bad.json"), str(caught.exception))
                self.assertIn(message, said_of(lambda: _plain.Config(at / "bad.json")))
            with self.assertRaises(FileNotFoundError):
                _plain.Config(at / "absent.json")

    def test_keys_of_a_config(self):
        config = _plain.Config(**{"capacity_factor": 1, "router.name": "gshard_top2"})
        self.assertEqual((config["router.capacity_factor"], config["aux_loss_weight"], config.get("nothing", 3)), (1, 0.01, 3))
        for key in ("name", "nothing", ""):
            self.assertEqual(said(lambda key=key: config.set(key, 1)), said(lambda key=key: choir.Config().set(key, 1)))
        self.assertEqual(_plain.Config.describe("router.pool"), choir.Config.describe("router.pool"))
        self.assertEqual(_plain.Config.router_options("topk"), choir.Config.router_options("topk"))


def said_of(function):
    try:
        function()
        return ""
    except choir.Error as error:
        return str(error)


def by_expert(routing, n, e):
    taken = np.zeros((n, e), bool)
    taken[routing.token, routing.expert] = True
    return taken


def scores_of(draw, n, e, scale=1.0):
    weight = np.exp(scale * draw.standard_normal((n, e)))
    return (weight / weight.sum(1, keepdims=True)).astype(np.float32)


try:
    import torch

    from choir.torch import draws, host
except ImportError:
    torch = None


@unittest.skipIf(torch is None, "PyTorch")
class Choices(unittest.TestCase):
    def chosen(self, router, scores, valid, training=True, tokens=None, seed=0, layer=0, library=False, **options):
        """What a layer gets of the host, with libchoir or without."""
        call = host.Call(request.options_of(router, scores.shape[1], **options).given, training, seed, layer, tokens)
        with unittest.mock.patch.object(_library, "available", lambda: library):
            return host.choose(call, scores, valid)

    def test_random_experts(self):
        draw = np.random.default_rng(1)
        for n, e, K in ((64, 8, 3), (200, 33, 1), (40, 4, 4)):
            tokens, scores = draw.integers(0, 2**31 - 1, n), np.zeros((n, e), np.float32)
            for seed, layer in ((0, 0), (2**62 - 1, 3), (12345, 7)):
                for training in (True, False):
                    more = {"tokens": tokens, "training": training, "seed": seed, "layer": layer}
                    theirs = choir.route(scores, "random", experts_per_token=K, **more)
                    ours = self.chosen("random", scores, np.ones(n, bool), experts_per_token=K, **more)
                    self.assertTrue((ours.taken == by_expert(theirs, n, e)).all())
        index = np.array([0, 1, 2**40, 2**63 + 5], np.uint64)
        self.assertEqual(len(set(draws.bits(1, 6, 0, index).tolist())), 4)

    def test_best_pairs(self):
        draw = np.random.default_rng(2)
        for n, e, options in ((64, 8, {"cap": 2}), (50, 8, {"cap": 3, "capacity_factor": 2.9}), (64, 8, {"cap": 1, "eval_capacity_factor": 0.5})):
            for scores in (scores_of(draw, n, e), np.round(scores_of(draw, n, e) * 16).astype(np.float32) / 16):  # with ties
                valid = draw.random(n) > 0.2
                for training in (True, False):
                    ours, theirs = (
                        self.chosen("global_topk", scores, valid, training, library=library, **options) for library in (False, True)
                    )
                    for field in ("taken", "cutoffs", "demand", "dropped"):
                        np.testing.assert_array_equal(getattr(ours, field), getattr(theirs, field), field)

    def test_plug_ins(self):
        """A plug-in of Python is asked without libchoir: the same arguments, choices, loss and gradient as by choir.route."""
        calls = []

        @choir.router("asked", looks="around", options={"share": 0.5}, loss=lambda s, v, c, share: ((s * c).sum(), c * np.float32(share)))
        def asked(scores, valid, capacity, training, share, layer, sequence_length, seed, first, choices):
            calls.append((scores.tobytes(), valid.tobytes(), capacity, training, share, layer, sequence_length, seed, first, choices))
            best = np.where(valid[:, None], scores, -1).argsort(0)[::-1][:capacity]
            chosen = np.zeros(scores.shape, bool)
            np.put_along_axis(chosen, best, True, 0)
            return chosen & valid[:, None]

        draw = np.random.default_rng(3)
        scores, valid = scores_of(draw, 64, 8), draw.random(64) > 0.1
        given = {"share": 0.25, "capacity_factor": 1.1, "eval_capacity_factor": 3}
        for training in (True, False):
            ours = self.chosen("asked", scores, valid, training, seed=9, layer=2, **given)
            mine = calls[-1]
            theirs = choir.route(scores, "asked", valid=valid, training=training, seed=9, layer=2, **given)
            self.assertEqual(mine, calls[-1])
            self.assertTrue((ours.taken == by_expert(theirs, 64, 8)).all())
            np.testing.assert_array_equal(ours.cutoffs, theirs.cutoffs)
            self.assertAlmostEqual(ours.loss, theirs.aux_loss, places=6)
            slope = choir.route_backward(
                scores, None, "asked", aux_weight=1.0, valid=valid, training=training, seed=9, layer=2, **given
            )
            np.testing.assert_allclose(ours.gradient, slope, rtol=1e-6)

    def test_plug_ins_are_not_believed(self):
        """Without libchoir what a function gives is refused in libchoir's words."""
        none = lambda s: np.zeros_like(s, bool)  # noqa: E731
        four = lambda s, v, c, t: (s >= np.sort(s, 0)[-min(c, 4)]) & v[:, None]  # noqa: E731
        for says, function, more in (
            ("expert 0 took 64 tokens, and its capacity is 16", lambda s, *_: np.ones_like(s, bool), {}),
            ("token 0 has 8 experts, and choices allows 2", lambda s, *_: np.ones_like(s, bool), {"choices": 2}),
            ("it gave NoneType: must be bool", lambda *_: None, {}),
            ("IndexError", lambda s, *_: s[100:][7], {}),
            ("depends_on none, but the experts of token", four, {"looks": "nowhere"}),
            ("depends_on past, but the experts of token", four, {"looks": "back"}),
            ("chooses otherwise when it is asked again", lambda s, *_: np.random.random(s.shape) > 0.9, {}),
            ("is padding \\(valid is 0\\), and an expert took it", lambda s, v, c, t: (np.arange(len(s)) >= len(s) - 1)[:, None] & ~none(s), {}),
            ("its loss is not finite", lambda s, *_: none(s), {"loss": lambda s, *_: (np.nan, s)}),
        ):
            choir.router("doubted", **{"looks": "around", **more})(function)
            with self.assertRaisesRegex(choir.Error, says), unittest.mock.patch.object(_library, "available", lambda: False):
                self.chosen("doubted", scores_of(np.random.default_rng(4), 64, 8), np.ones(64, bool))

    def test_a_layer_keeps_its_definition(self):
        """A router that is defined anew changes layers that are made later; copies and pickled layers keep theirs."""

        def define(expert):
            @choir.router("again", looks="nowhere", choices=1, version=f"v{expert}")
            def again(scores, valid, capacity, training):
                chosen = np.zeros(scores.shape, bool)
                chosen[:, expert] = valid
                return chosen

        def expert_of(layer):
            layer(torch.randn(16, 8))
            return int(layer.routing.load.argmax())

        import copy

        define(1)
        layer = choir.torch.MoE(8, 8, 4, "again")
        define(2)
        self.assertEqual([expert_of(one) for one in (layer, copy.deepcopy(layer), choir.torch.MoE(8, 8, 4, "again"))], [1, 1, 2])
        again = pickle.loads(pickle.dumps(layer))
        self.assertEqual(expert_of(again), 1)
        old = [own for own in plugin.definitions if own.router.version != "v1"]
        with unittest.mock.patch.object(plugin, "definitions", old):
            host._read.cache_clear()
            with self.assertRaisesRegex(choir.ArgumentError, "made with version v1, which is not loaded here"):
                expert_of(again)
        host._read.cache_clear()

    def test_assignments(self):
        """The same assignments and prices as libchoir's, with ties, too, and through coarser problems."""
        draw = np.random.default_rng(5)
        for n, e, options in ((64, 8, {"cap": 2}), (99, 8, {"cap": 3, "capacity_factor": 2.5}), (40, 5, {"cap": 1, "capacity_factor": 0.9}), (1100, 8, {"cap": 2})):
            for grid in (0, 16):
                scores, valid = scores_of(draw, n, e, 2), draw.random(n) > 0.1
                scores = np.round(scores * grid).astype(np.float32) / grid if grid else scores
                ours, theirs = (
                    self.chosen("capped_expert_choice", scores, valid, library=library, **options) for library in (False, True)
                )
                np.testing.assert_array_equal(ours.taken, theirs.taken)
                np.testing.assert_array_equal(ours.cutoffs.astype(np.float32), theirs.cutoffs)
        for n, e in ((64, 8), (61, 8), (7, 8), (1101, 8)):
            for grid in (0, 2):
                logits, valid = draw.standard_normal((n, e)).astype(np.float32), draw.random(n) > 0.1
                logits = np.round(logits * grid) / grid if grid else logits
                ours, theirs = (self.chosen("base", logits, valid, library=library) for library in (False, True))
                np.testing.assert_array_equal(ours.taken, theirs.taken)

    def test_empty_batches_and_no_tokens(self):
        """Scores of -inf are assigned where there is no other way; a pool of padding has no assignment."""
        draw = np.random.default_rng(6)
        logits, lowest = draw.standard_normal((16, 4)).astype(np.float32), np.finfo(np.float32).min
        logits[:14, 1:] = lowest
        ours, theirs = (self.chosen("base", logits, np.ones(16, bool), library=library) for library in (False, True))
        np.testing.assert_array_equal(ours.taken, theirs.taken)
        direct = choir.route(np.where(logits > lowest, logits, -np.inf), "base", logits=True, training=True)
        np.testing.assert_array_equal(ours.taken, by_expert(direct, 16, 4))
        for router, options in (("base", {}), ("capped_expert_choice", {"cap": 2}), ("global_topk", {"cap": 2})):
            for library in (False, True):
                nobody = self.chosen(router, logits, np.zeros(16, bool), library=library, **options)
                self.assertEqual((int(nobody.taken.sum()), nobody.dropped), (0, 0))

    def test_dykstra(self):
        """The same rounds: prices within rounding, and nearly the same choices."""
        draw = np.random.default_rng(7)
        for stages in (1, 5):
            scores, valid = scores_of(draw, 64, 8), draw.random(64) > 0.1
            options = {"cap": 2, "solver": "dykstra", "solver_stages": stages}
            ours, theirs = (self.chosen("capped_expert_choice", scores, valid, library=library, **options) for library in (False, True))
            np.testing.assert_allclose(ours.cutoffs, theirs.cutoffs, atol=1e-6)
            self.assertLessEqual(int((ours.taken != theirs.taken).sum()), 4)
            np.testing.assert_array_equal(ours.taken.sum(0), theirs.taken.sum(0))


if torch is not None:
    import choir.torch
    from choir.torch import request

if __name__ == "__main__":
    unittest.main()
