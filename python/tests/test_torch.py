"""choir.torch against PyTorch: routes are torch.topk's, gradients autograd's, a model is the same in both."""

import contextlib
import io
import json
import math
import runpy
import unittest
import unittest.mock

import numpy as np

import choir
import testing

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = None


@unittest.skipUnless(torch, "NOT TESTED: PyTorch is not installed")
class Torch(unittest.TestCase):
    def setUp(self):
        import choir.torch

        torch.manual_seed(1)
        torch.set_num_threads(2)
        self.route = choir.torch.route
        self.logits = torch.randn(64, 8)

    def test_routes_are_topk(self):
        scores = torch.softmax(self.logits, 1)
        gates, aux_loss, routing = self.route(scores, capacity_factor=2)
        best = scores.t().topk(16, dim=1)
        for i, tokens in enumerate(routing.indices):
            self.assertEqual(sorted(tokens.tolist()), sorted(best.indices[i].tolist()))
        wanted = torch.zeros(8, 64).scatter_(1, best.indices, best.values).t()
        self.assertTrue(torch.equal(gates, wanted))
        self.assertEqual(float(aux_loss), 0)

    def test_gradients_are_autograd_s(self):
        """Expert choice with and without normalized gates, and Switch with its loss, written in PyTorch."""
        cotangent = torch.randn(64, 8)
        for normalize in (False, True):
            ours, theirs = (self.logits.clone().requires_grad_() for _ in range(2))
            gates, _, _ = self.route(ours, logits=True, capacity_factor=2, normalize_gates=normalize)
            (gates * cotangent).sum().backward()
            scores = torch.softmax(theirs, 1)
            chosen = torch.zeros(8, 64).scatter_(1, scores.t().topk(16, dim=1).indices, 1).t()
            wanted = scores * chosen
            if normalize:
                wanted = wanted / wanted.sum(1, keepdim=True).clamp(min=1e-30)
            (wanted * cotangent).sum().backward()
            torch.testing.assert_close(gates, wanted)
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
        ours, theirs = (self.logits.clone().requires_grad_() for _ in range(2))
        gates, aux_loss, _ = self.route(ours, "switch_top1", logits=True, capacity_factor=8)
        ((gates * cotangent).sum() + 0.3 * aux_loss).backward()
        scores = torch.softmax(theirs, 1)
        first = F.one_hot(scores.argmax(1), 8).float()
        loss = 8 * (first.mean(0) * scores.mean(0)).sum()
        ((scores * first * cotangent).sum() + 0.3 * loss).backward()
        torch.testing.assert_close(aux_loss, loss)
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)

    def test_float64_and_other_layouts(self):
        double = self.logits.double().t().contiguous().t().requires_grad_()
        gates, _, _ = self.route(double, logits=True)
        self.assertEqual(gates.dtype, torch.float64)
        gates.sum().backward()
        self.assertEqual(double.grad.dtype, torch.float64)

    def test_layer_is_its_formula(self):
        layer = choir.torch.ExpertChoice(16, 24, 8, capacity_factor=2)
        x = torch.randn(2, 32, 16)
        out = layer(x)
        rows = x.view(-1, 16)
        scores = torch.softmax(rows @ layer.router, 1)
        wanted = torch.zeros_like(rows)
        for i in range(8):
            best = scores[:, i].topk(16).indices
            wanted[best] += scores[best, i, None] * (F.gelu(rows[best] @ layer.w1[i]) @ layer.w2[i].t())
        torch.testing.assert_close(out.view(-1, 16), wanted, rtol=1e-4, atol=1e-5)
        self.assertEqual([len(i) for i in layer.routing.indices], [16] * 8)

    def test_every_router_trains_a_layer(self):
        for router in choir.routers():
            if router in ("dense", "kmeans"):
                continue
            layer = choir.torch.ExpertChoice(16, 24, 8, router=router)
            ids = torch.arange(64).view(2, 32)
            loss = layer(torch.randn(2, 32, 16), ids).square().sum() + layer.aux_loss
            loss.backward()
            self.assertTrue(math.isfinite(float(layer.w1.grad.sum())), router)
            if router not in ("hash", "random"):
                self.assertGreater(float(layer.router.grad.abs().sum()), 0, router)

    def test_causal_layer_looks_at_no_other_token(self):
        layer = choir.torch.ExpertChoice(16, 24, 8, router="capped_expert_choice", cap=2, causal=True)
        with self.assertRaises(RuntimeError):
            layer.eval()(torch.randn(1, 8, 16))
        layer.train()
        for _ in range(3):
            layer(torch.randn(2, 32, 16))
        x = torch.randn(1, 8, 16)
        layer.eval()
        torch.testing.assert_close(layer(x)[:, :3], layer(x[:, :3]))

    def _model(self, **fields):
        config = choir.Config(vocab_size=320, **{**testing.CONFIG, **fields})
        return choir.torch.Transformer(config)

    def test_a_model_is_the_same_in_both(self):
        for router, options in (
            ("expert_choice", {}),
            ("capped_expert_choice", {"router.cap": 2}),
            ("switch_top1", {}),
            ("gshard_top2", {}),
            ("hash", {}),
        ):
            model = self._model(**{"router.name": router, **options})
            model.eval()
            tokens = torch.randint(0, 320, (8, 32))
            logits = model(tokens)
            loss = model.loss(tokens) + model.aux_loss
            loss.backward()
            with model.to_choir() as twin:
                out = twin.forward(tokens.numpy(), gradients=True)
                np.testing.assert_allclose(out.logits, logits.detach().numpy(), atol=2e-4, err_msg=router)
                self.assertAlmostEqual(out.loss + out.aux_loss, float(loss.detach()), places=4)
                np.testing.assert_allclose(
                    twin.get("layers.1.moe.experts.w1", gradient=True),
                    model.layers[1].moe.w1.grad.numpy(),
                    atol=2e-4,
                    err_msg=router,
                )
                np.testing.assert_allclose(
                    twin.get("layers.0.attn.rel_bias", gradient=True),
                    model.layers[0].attn.rel_bias.grad.numpy(),
                    atol=2e-4,
                )
                if router != "hash":
                    np.testing.assert_allclose(
                        twin.get("layers.1.moe.router.weight", gradient=True),
                        model.layers[1].moe.router.grad.numpy(),
                        atol=2e-4,
                        err_msg=router,
                    )
                back = choir.torch.Transformer.of(twin).eval()
                torch.testing.assert_close(back(tokens), logits)

    def test_what_choir_trained_is_routed_as_by_choir(self):
        """By thresholds and in evaluation, once there are some: each router by its own rule, gates normalized or not."""
        for router, options in (
            ("expert_choice", {}),
            ("expert_choice", {"router.normalize_gates": True, "router.threshold_after": 2}),
            ("capped_expert_choice", {"router.cap": 2}),
            ("global_topk", {"router.cap": 3}),
            ("quantile_balanced", {}),
            ("base", {}),
            ("hash", {}),
        ):
            config = choir.Config(vocab_size=320, **testing.CONFIG)
            for key, value in {"router.name": router, **options}.items():
                config.set(key, value)
            tokens = torch.randint(0, 320, (8, 32))
            with choir.Model(config, seed=1, threads=2) as model:
                trainer = choir.Trainer(model)
                for _ in range(3):
                    trainer.step(tokens.numpy())
                twin = choir.torch.Transformer.of(model).eval()
                for routing in ("batch", "threshold"):
                    model.routing = None if routing == "batch" else routing
                    for block in twin.layers:
                        if block.moe is not None:
                            block.moe.causal = routing == "threshold"
                    np.testing.assert_allclose(
                        twin(tokens).detach().numpy(),
                        model.forward(tokens.numpy()).logits,
                        atol=2e-4,
                        err_msg=f"{router} {options} {routing}",
                    )

    def test_draws_are_pytorch_s(self):
        """In training they are others in each pass, and those of the seed; jitter changes what the router reads."""
        x = torch.randn(2, 32, 16)
        for router, options in (("random", {}), ("gshard_top2", {"random_second": True}), ("switch_top1", {"jitter": 0.5})):
            layer = choir.torch.ExpertChoice(16, 24, 8, router=router, **options)

            def gates(seed):
                torch.manual_seed(seed)
                layer(x, torch.arange(64).view(2, 32))
                return layer.routing.gates.copy()

            self.assertTrue((gates(1) == gates(1)).all(), router)
            self.assertFalse((gates(1) == gates(2)).all(), router)
            layer.eval()
            self.assertTrue((gates(1) == gates(2)).all(), router)

    def test_refuses_what_only_choir_trains(self):
        x = torch.randn(2, 32, 16)
        with self.assertRaisesRegex(choir.UnsupportedError, "kmeans"):
            choir.torch.ExpertChoice(16, 24, 8, router="kmeans")
        with self.assertRaisesRegex(choir.UnsupportedError, "random"):
            self._model(**{"router.name": "random"})
        for router, option in (("expert_choice", "threshold_after"), ("random", "consistency_weight")):
            layer = choir.torch.ExpertChoice(16, 24, 8, router=router, **{option: 1})
            with self.assertRaisesRegex(choir.UnsupportedError, option):
                layer(x, torch.arange(64))
            layer.eval()(x, torch.arange(64))

    def test_trained_in_pytorch_evaluated_by_choir(self):
        """Trains with capped routing, exports, and `choir eval` gives PyTorch's loss, by the batch and by thresholds."""
        testing.run()
        book, path = testing.directory() / "book.txt", testing.directory() / "from_pytorch"
        example = testing.SOURCE / "examples" / "train_in_pytorch.py"
        words = [str(example), str(testing.directory() / "en.model"), str(book), str(path), "40"]
        with unittest.mock.patch("sys.argv", words), contextlib.redirect_stdout(io.StringIO()):
            made = runpy.run_path(str(example))
        model = made["model"]
        self.assertLess(made["loss"].item(), math.log(320) - 0.5)
        page = testing.directory() / "page.txt"
        page.write_text(book.read_text()[-3000:])
        told = json.loads(testing.program("eval", path, "--text", page, "--json"))
        with choir.Model.load(path) as twin:
            found = twin.evaluate(text=page)
            held = torch.from_numpy(twin.tokenizer.encode(page.read_text())).long()
            sizes = 8 * 32
            batch = held[:sizes].view(8, 32)
            model.eval()
            self.assertAlmostEqual(
                twin.forward(batch.numpy(), logits=False).loss, float(model.loss(batch).detach()), places=4
            )
            twin.routing = "threshold"
            causal = twin.forward(batch.numpy(), logits=False).loss
            for block in model.layers:
                if block.moe is not None:
                    block.moe.causal = True
            self.assertAlmostEqual(causal, float(model.loss(batch).detach()), places=4)
        self.assertIn(round(found.loss, 6), [round(x, 6) for x in testing.numbers(told)])


if __name__ == "__main__":
    unittest.main()
