"""Routers of one's own in choir.torch: random numbers, a state that training updates, and definitions that change."""

import copy
import dataclasses
import importlib
import pickle
import subprocess
import sys
import unittest

import choir
import numpy as np
import testing
from choir import _library
from choir._routers import find
from torch_cases import DEVICE, LAYERS, TorchTest, cannot_compile, experts_of, lacks, torch

RATE = 0.0625  # a power of two: sums of it are the same in float32 and float64


def best(worth, valid, count=2):
    """Each token's best experts."""
    chosen = np.zeros(worth.shape, bool)
    np.put_along_axis(chosen, np.argsort(-worth, axis=1, kind="stable")[:, :count], True, axis=1)
    return chosen & valid[:, None]


@choir.router("plain_top2", looks="nowhere", choices=2, aux_loss_weight=0.01)
def plain_top2(scores, valid, capacity, training):
    return best(scores, valid)


@choir.router("tosses", looks="in_training", choices=1, draws=True)
def tosses(scores, valid, capacity, training, seed):
    noise = np.random.default_rng(seed & 0x7FFFFFFF).random(scores.shape, np.float32) if training else 0
    return best(scores + noise, valid, 1)


@choir.experts_choose("loath", ranking=lambda scores, valid: -scores)
def loath(scores, valid, capacity, training):
    chosen = np.zeros(scores.shape, bool)
    taken = np.argsort(np.where(valid[:, None], scores, np.inf), axis=0, kind="stable")[:capacity]
    np.put_along_axis(chosen, taken, True, axis=0)
    return chosen


IN_C = []  # what libchoir calls


def balanced(state, demand, rate):
    return state + rate * np.sign(demand * len(demand) - demand.sum())


def biased(name="biased_top2", observe=balanced, **definition):
    """Registers a plug-in that does what bias_balanced does."""

    @choir.router(name, looks="nowhere", choices=2, options={"rate": RATE}, observe=observe, **definition)
    def biased_top2(scores, valid, capacity, training, rate, state):
        return best((scores - state.astype(np.float32)).astype(np.float32), valid)


biased()


class Plugins(TorchTest):
    def setUp(self):
        super().setUp()
        self.x = torch.randn(2, 32, 16, device=DEVICE)
        self.ids = torch.randint(0, 99, (2, 32), device=DEVICE)

    def layer(self, router, **options):
        torch.manual_seed(5)
        return self.torch.MoE(16, 24, experts_of(router), router, **{"device": DEVICE, **options})

    def test_random_numbers(self):
        """A router takes some from PyTorch's generator only where it draws, so that pairs by seed are paired."""
        cases = [*LAYERS, ("plain_top2", {}), ("biased_top2", {}), ("tosses", {}), ("switch_top1", {"jitter": 0.1})]
        drawing = ("random", "tosses")
        for router, options in self.each(cases):
            layer = self.layer(router, **options)
            for training in (True, False):
                torch.manual_seed(3)
                layer.train(training)(self.x, self.ids)
                torch.manual_seed(3) if (router in drawing or options.get("jitter")) and training else None
                after = torch.rand(1, device=DEVICE)
                torch.manual_seed(3)
                self.assertTrue(torch.equal(after, torch.rand(1, device=DEVICE)), (router, training))
        layer, twin = self.layer("tosses"), self.layer("tosses")
        takens = []
        for one, seed in ((layer, 1), (twin, 1), (twin, 2)):
            torch.manual_seed(seed)
            one(self.x)
            takens.append(one.routing.assignment)
        self.assertTrue(torch.equal(takens[0], takens[1]) and not torch.equal(takens[0], takens[2]))

    def test_pairs_with_dropout(self):
        losses = []
        for router in ("topk", "plain_top2"):
            layer = self.layer(router, **({"top_k": 2} if router == "topk" else {}))
            torch.manual_seed(1)
            losses.append(torch.nn.functional.dropout(layer(self.x), 0.5).square().mean())
        torch.testing.assert_close(*losses)

    def test_vmap(self):
        """Of a router that draws nothing, with PyTorch's default of no randomness."""
        if lacks("vmap", "func.functional_call", "library.custom_op"):
            return
        for router in ("plain_top2", "biased_top2"):
            layer = self.layer(router)
            state = dict(layer.named_parameters()), dict(layer.named_buffers())
            out = torch.func.vmap(lambda x, layer=layer, state=state: torch.func.functional_call(layer, state, (x,)))(self.x)
            torch.testing.assert_close(out, torch.stack([layer(x) for x in self.x]))

    def test_a_ranking_in_c(self):
        """choir.torch asks libchoir for the assignments of a plug-in in C, with thresholds too, as of one in Python."""
        if not _library.available():
            self.skipTest("libchoir is not there")
        from choir import _native as native

        ffi, lib = native.ffi, native.lib

        def callback(kind, function):
            def called(_, call, out):
                scores = np.frombuffer(ffi.buffer(call.scores, 4 * call.n * call.e), np.float32).reshape(call.n, call.e)
                valid = np.frombuffer(ffi.buffer(call.valid, call.n), bool)
                made = function(scores, valid, call.capacity, False)
                ffi.memmove(out, made.tobytes(), made.nbytes)
                return 0

            IN_C.append(ffi.callback(f"int(void *, const choir_plugin_call *, {kind} *)", called))
            return IN_C[-1]

        definition, name = ffi.new("choir_experts_choose *"), ffi.new("char[]", b"loath_in_c")
        IN_C.append((definition, name))
        definition.common.size, definition.common.name = ffi.sizeof("choir_experts_choose"), name
        definition.common.choose = callback("uint8_t", loath)
        definition.common.rank = callback("float", lambda scores, *_: -scores)
        definition.depends_on, definition.capacity_factor = lib.CHOIR_DEPENDS_ON_ALL, 2
        native.check(lib.choir_router_register_experts(definition))
        scores = torch.rand(48, 4, device=DEVICE).softmax(1)
        a, b = (self.torch.route(scores, router) for router in ("loath", "loath_in_c"))
        self.assertTrue(torch.equal(a.taken, b.taken) and torch.equal(a.cutoffs, b.cutoffs))
        served = [self.torch.route(scores.flip(0, 1), router, thresholds=a.cutoffs) for router in ("loath", "loath_in_c")]
        self.assertTrue(torch.equal(served[0].gates, served[1].gates) and served[0].taken.any())
        self.assertTrue(torch.equal(self.torch.route(scores, "loath_in_c", thresholds=a.cutoffs).taken, a.taken))

    def pair(self, **more):
        """bias_balanced, and the plug-in that repeats it."""
        ours = self.layer("bias_balanced", score="softmax", bias_rate=RATE, **more)
        return ours, self.layer("biased_top2", **more)

    def trained(self, layer, run=None, steps=3):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for step in range(steps):
            optimizer.zero_grad()
            for half in (self.x + step, -self.x):
                (layer if run is None else run)(half).square().mean().backward()
            self.torch.update_routers(layer)
            optimizer.step()
        return layer

    def test_a_state_is_trained(self):
        """Bit for bit as bias_balanced: two forwards a step, padding, a step with NaN, a copy, evaluation."""
        ours, theirs = (self.trained(layer) for layer in self.pair())
        self.assertGreater(float(theirs.thresholds.abs().max()), 0)
        torch.testing.assert_close(theirs.state_dict(), ours.state_dict())
        self.assertTrue(torch.equal(theirs.thresholds, ours.thresholds))
        spoilt, valid = self.x.clone(), torch.rand(2, 32, device=DEVICE) > 0.3
        spoilt[0, 0] = float("nan")
        for layer in (ours, theirs):
            layer(spoilt), self.torch.update_routers(layer)
            self.assertEqual(int(layer.observed), 3)
            layer(self.x, None, valid), self.torch.update_routers(layer)
        self.assertTrue(torch.equal(theirs.thresholds, ours.thresholds))
        for twin in (theirs, copy.deepcopy(theirs), pickle.loads(pickle.dumps(theirs))):
            torch.testing.assert_close(twin.eval()(self.x), ours.eval()(self.x))
        fresh = self.layer("biased_top2")
        fresh.load_state_dict(theirs.state_dict())
        self.torch.load_router_state(fresh, self.torch.router_state(theirs))
        torch.testing.assert_close(fresh.eval()(self.x), ours(self.x))
        scores = torch.softmax(self.x.reshape(-1, 16)[:, :8], 1)
        taken = [
            self.torch.route(scores, router, thresholds=ours.thresholds, training=training, **options).taken
            for router, options in (("biased_top2", {}), ("bias_balanced", {"score": "softmax"}))
            for training in (True, False)
        ]
        for other in taken[1:]:
            self.assertTrue(torch.equal(taken[0], other))

    def test_a_state_under_compilation_and_checkpointing(self):
        wanted = self.trained(self.pair()[1]).state_dict()
        if not cannot_compile("a state of a plug-in"):
            layer = self.pair()[1]
            torch._dynamo.reset()
            self.trained(layer, torch.compile(layer, backend="aot_eager", fullgraph=True))
            torch.testing.assert_close(layer.state_dict(), wanted)
        if not lacks("activation checkpointing", "_C._current_graph_task_id"):
            layer = self.pair()[1]
            again = importlib.import_module("torch.utils.checkpoint").checkpoint
            self.trained(layer, lambda x: again(layer, x.clone().requires_grad_(), use_reentrant=False))
            torch.testing.assert_close(layer.state_dict(), wanted)

    def test_a_state_in_a_model(self):
        """Trained here, exported: choir routes by the same state."""
        config = choir.Config(vocab_size=320, **{**testing.CONFIG, "moe_every": 1, "router.name": "biased_top2"})
        model = choir.torch.Transformer(config)
        tokens = torch.randint(0, 320, (4, 32))
        for _ in range(3):
            model(tokens)
            choir.torch.update_routers(model)
        self.assertGreater(float(model.layers[0].moe.thresholds.abs().max()), 0)
        wanted = model.eval()(tokens).detach().numpy()
        with model.to_choir() as twin:
            twin.routing = "threshold"
            np.testing.assert_allclose(twin.forward(tokens.numpy()).logits, wanted, atol=2e-4)
            again = choir.torch.Transformer.of(twin).eval()
        np.testing.assert_allclose(again(tokens).detach().numpy(), wanted, atol=2e-5)

    def test_errors_of_observe(self):
        """Raises with router and reason, and the state is as before."""
        for name, observe, kind, why in (
            ("fails", lambda state, demand, rate: state / 0 if demand.sum() < 0 else 1 / 0, choir.ArgumentError, "ZeroDivisionError"),
            ("grows", lambda state, demand, rate: state + 1e300, choir.NumericError, "'grows': its state of expert 0 is 1e.300"),
            ("shrinks", lambda state, demand, rate: state[1:], choir.ArgumentError, "must be numbers of shape .8,."),
        ):
            biased(name, observe)
            layer = self.layer(name)
            layer(self.x)
            with self.assertRaisesRegex(kind, why):
                self.torch.update_routers(layer)
            self.assertEqual((int(layer.observed), float(layer.thresholds.abs().max())), (0, 0))
        request = importlib.import_module("choir.torch.request")
        in_c = dataclasses.replace(find("biased_top2"), number=-1)
        with self.assertRaisesRegex(choir.UnsupportedError, "a plug-in in C, keeps a state"):
            request._check_known(in_c, {name: field.default for name, field in in_c.options.items()})

    def shifting(self, by):
        @choir.router("shifting", looks="around", version=f"v{by}")
        def shifting(scores, valid, capacity, training):
            chosen = np.zeros(scores.shape, bool)
            chosen[(np.arange(capacity) + by) % len(scores)] = True
            return chosen & valid[:, None]

    def test_a_definition_that_changes(self):
        """A layer and its copies keep the one they were made with, with another capacity or pool, too; a later layer has the
        new one; a pickle asks for its version."""
        self.shifting(0)
        old = self.layer("shifting")
        wanted, half = old(self.x), self.layer("shifting", capacity_factor=1.0)(self.x)
        pickled = pickle.dumps(old)
        self.shifting(7)
        for twin in (old, copy.deepcopy(old), pickle.loads(pickled)):
            torch.testing.assert_close(twin(self.x), wanted, rtol=0, atol=0)
            torch.testing.assert_close(twin(self.x, pool="batch"), wanted, rtol=0, atol=0)
            twin.capacity_factor = 1.0
            torch.testing.assert_close(twin(self.x), half, rtol=0, atol=0)
            twin.capacity_factor = 2.0
        self.assertGreater(float((self.layer("shifting")(self.x) - wanted).detach().abs().max()), 0.01)
        file = testing.directory() / "layer.pickle"
        file.write_bytes(pickled)
        output = subprocess.run(
            [sys.executable, "-c", f"import pickle, torch, choir.torch; pickle.load(open({str(file)!r}, 'rb'))(torch.zeros(4, 16))"],
            capture_output=True,
            text=True,
        )
        self.assertIn("router 'shifting': the layer was made with version v0, which is not loaded here", output.stderr)


if __name__ == "__main__":
    unittest.main()
