"""choir.torch.Transformer is choir's model: weights go both ways, and losses are the same."""

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

from torch_cases import TorchTest, lacks, torch

UNLEARNED = ("hash", "random", "kmeans")  # whose router no gradient trains


def set_causal(model, causal):
    for block in model.layers:
        if block.moe is not None:
            block.moe.causal = causal


class Models(TorchTest):
    def _model(self, **fields):
        config = choir.Config(**{"vocab_size": 320, **testing.CONFIG, **fields})
        return choir.torch.Transformer(config)

    def test_refuses(self):
        for fields, why in (({"vocab_size": 0}, "vocab_size is 0"), ({"heads": 7}, "heads")):
            with self.assertRaisesRegex(choir.ArgumentError, why):
                self._model(**fields)

    def test_a_model_is_the_same_in_both(self):
        """Each router, and the block of today: rope, shared keys, norms of heads, a head of its own. Logits, the loss and
        every gradient that PyTorch has."""
        rope = {"position": "rope", "rope_theta": 100.0}
        for fields in (
            *({"router.name": name} for name in ("switch_top1", "gshard_top2", "hash", "random", "kmeans")),
            {"router.name": "capped_expert_choice", "router.cap": 2, "router.gate_on": "input"},
            {},
            rope,
            {"kv_heads": 1},
            {"qk_norm": True, "kv_heads": 2},
            {"tied": False, "embed_scale": 0.7, "head_scale": 0.3},
            {**rope, "rope_fraction": 0.5, "qk_norm": True, "kv_heads": 1, "tied": False, "embed_scale": 3.0},
            {"qk_norm": True, "qk_norm_whole": True, "kv_heads": 1},
            {"moe_every": 1, "layer_capacity": "1,3", "router.eval_capacity_factor": 1.5},
            {"activation": "swiglu", "expert_activation": "swiglu", "shared_experts": 2},
            {"activation": "gelu", "expert_activation": "geglu", "dense_layers": 1, "moe_every": 1},
        ):
            model, by_router = self._model(**fields).eval(), "router.name" in fields
            with torch.no_grad():  # norms of ones would hide an error
                for name, weight in model.named_parameters():
                    if "norm" in name and not by_router:
                        weight.add_(0.3 * torch.randn_like(weight))
            tokens = torch.randint(0, 320, (8, 32))
            logits = model(tokens)
            loss = model.loss(tokens) + model.aux_loss
            loss.backward()
            gradients = {  # the weight of scores is a view of the gate's weight
                name: weight.grad if weight.is_leaf else weight._base.grad.t() for name, weight in model._named().items()
            }
            compared, without = 0, set()
            with model.to_choir() as twin:
                out = twin.forward(tokens.numpy(), gradients=True)
                atol = 2e-4 if by_router else 5e-4
                np.testing.assert_allclose(out.logits, logits.detach().numpy(), atol=atol, err_msg=str(fields))
                self.assertAlmostEqual(out.loss + out.aux_loss + out.z_loss, float(loss.detach()), places=4)
                for name in twin.parameters():
                    if gradients[name] is None:
                        without.add(name.split(".", 2)[-1])
                        continue
                    ours, theirs = twin.get(name, gradient=True), gradients[name].numpy()
                    np.testing.assert_allclose(ours, theirs, atol=2e-4, err_msg=f"{name} {fields}")
                    compared += 1
                learned = fields.get("router.name") not in UNLEARNED
                self.assertLessEqual(
                    without, {"moe.thresholds"} if learned else {"moe.thresholds", "moe.router.weight"}
                )
                self.assertGreater(compared, 10)
                back = choir.torch.Transformer.of(twin).eval()
                torch.testing.assert_close(back(tokens), logits)

    def test_shared_experts_of_0_3_load(self):
        """Their weights' names began with the block's `ffn`."""
        model = self._model(moe_every=1, shared_experts=2)
        given = model.state_dict()
        old = {name.replace(".moe.shared.", ".ffn."): weight for name, weight in given.items()}
        self.assertNotEqual(set(old), set(given))
        fresh = self._model(moe_every=1, shared_experts=2)
        fresh.load_state_dict(old)
        for name, weight in fresh.state_dict().items():
            self.assertTrue(torch.equal(weight, given[name]), name)

    def test_forced_routing(self):
        """Given choices, in place of the routers': logits and gradients here and in libchoir. A replayed routing changes
        nothing."""
        for router in ("expert_choice", "topk"):
            balance = {"router.aux_loss_weight": 0.0} if router == "topk" else {}
            model = self._model(**{"moe_every": 1, "router.name": router, **balance}).train()
            tokens = torch.randint(0, 320, (4, 32))
            logits = model(tokens)
            replayed = torch.stack([block.moe.routing.assignment for block in model.layers])
            torch.testing.assert_close(model(tokens, replayed.view(2, 4, 32, 8)), logits, atol=2e-5, rtol=0)
            taken = torch.rand(2, 128, 8) < 0.3
            out = model(tokens, taken)
            out[:, :-1].log_softmax(2).gather(2, tokens[:, 1:, None]).mean().neg().backward()
            self.assertTrue(torch.equal(torch.stack([block.moe.routing.assignment for block in model.layers]), taken))
            with model.to_choir() as twin:
                theirs = twin.forward(tokens.numpy(), gradients=True, assignment=taken.numpy())
                np.testing.assert_allclose(theirs.logits, out.detach().numpy(), atol=2e-4)
                for name, weight in model._named().items():
                    if weight.grad is not None:
                        np.testing.assert_allclose(twin.get(name, gradient=True), weight.grad.numpy(), atol=2e-4, err_msg=name)
                again = twin.forward(tokens.numpy(), taken=taken.numpy())  # the name until 0.5
                np.testing.assert_array_equal(again.logits, theirs.logits)
                torch.testing.assert_close(model(tokens, taken=taken), out, atol=0, rtol=0)
                with self.assertRaisesRegex(choir.ArgumentError, "give assignment only"):
                    twin.forward(tokens.numpy(), assignment=taken.numpy(), taken=taken.numpy())
                with self.assertRaisesRegex(choir.ArgumentError, "MoE layers, tokens, experts"):
                    twin.forward(tokens.numpy(), assignment=taken.numpy()[:1])
                self.assertFalse(np.allclose(twin.forward(tokens.numpy()).logits, theirs.logits, atol=1e-3))
        layer = choir.torch.MoE(8, 16, 4, router="gshard_top2")
        with self.assertRaisesRegex(choir.ArgumentError, "forced routing"):
            layer(torch.randn(3, 8), assignment=torch.ones(3, 4, dtype=torch.bool))
        with self.assertRaisesRegex(choir.ArgumentError, "4 experts for each of the 3 tokens"):
            choir.torch.MoE(8, 16, 4)(torch.randn(3, 8), assignment=torch.ones(2, 4, dtype=torch.bool))

    def test_records_of_all_layers(self):
        """A record of all layers of the model, as engines make it, is mapped to its MoE layers; another length is refused."""
        tokens = torch.randint(0, 320, (4, 32))
        for router in ("expert_choice", "topk"):
            model = self._model(**{"layers": 3, "moe_every": 2, "router.name": router})
            wanted = model(tokens)
            record = self.torch.routed_experts(model)
            self.assertEqual((tuple(record.shape[:2]), model.choir_layers), ((128, 3), ((1,), 3)))
            self.assertTrue(bool((record[:, [0, 2]] == -1).all()))
            taken = self.torch.recorded(record.view(4, 32, 3, -1), 8)
            for given in (taken, taken[1:2]):
                torch.testing.assert_close(model(tokens, given), wanted)
            with self.assertRaisesRegex(choir.ArgumentError, "assignment has 2 layers; it must have 1, .* or 3, one per layer"):
                model(tokens, taken[:2])
        with self.assertRaisesRegex(choir.ArgumentError, "no routing yet"):
            self.torch.routed_experts(self._model())

    def test_tokens_and_configs_as_choir_has_them(self):
        """Ids of 32 bits, which a tokenizer gives; and a config that is set anew is not the model's."""
        config = choir.Config(vocab_size=320, **testing.CONFIG)
        model, tokens = choir.torch.Transformer(config).eval(), torch.randint(0, 320, (8, 32))
        self.assertEqual(model.loss(tokens.int()), model.loss(tokens))
        config.set("layers", 6)
        with model.to_choir() as made:
            self.assertEqual(made.config["layers"], testing.CONFIG["layers"])
        with self.assertRaises(IndexError):
            model(torch.full((8, 32), -1))

    def test_positions_in_bf16(self):
        """Far ones too are turned by their own angle, whatever the model's type."""
        model = self._model(position="rope", **{"train.sequence_length": 1024})
        rope, x = model.layers[0].attn.rope, torch.randn(1, 2, 1024, 16).bfloat16()
        wanted = rope(x.float())
        turned = model.bfloat16().layers[0].attn.rope(x)
        self.assertEqual(turned.dtype, torch.bfloat16)
        torch.testing.assert_close(turned.float(), wanted, rtol=0.02, atol=0.05)

    def test_models_of_choir_are_routed_equally(self):
        """By thresholds and in evaluation, once there are some: each router by its own rule, gates normalized or not."""
        for router, options in (
            ("expert_choice", {}),
            ("expert_choice", {"router.normalize_gates": True, "router.threshold_after": 2}),
            ("capped_expert_choice", {"router.cap": 2}),
            ("global_topk", {"router.cap": 3}),
            ("quantile_balanced", {}),
            ("bias_balanced", {}),
            ("base", {}),
            ("hash", {}),
            ("random", {}),
            ("kmeans", {}),
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
                    set_causal(twin, routing == "threshold")
                    ours, theirs = twin(tokens).detach().numpy(), model.forward(tokens.numpy()).logits
                    np.testing.assert_allclose(ours, theirs, atol=2e-4, err_msg=f"{router} {options} {routing}")

    def test_weights_that_others_make(self):
        """A parametrized weight, as weight_norm makes one, goes out as what it is in the forward pass."""

        class Doubled(torch.nn.Module):
            def forward(self, weight):
                return 2 * weight

        model = self._model(seed=3)
        before = model.layers[0].attn.q.weight.detach().clone()
        torch.nn.utils.parametrize.register_parametrization(model.layers[0].attn.q, "weight", Doubled())
        torch.nn.utils.parametrize.register_parametrization(model, "embed", Doubled())
        with model.to_choir() as twin:
            np.testing.assert_array_equal(twin.get("layers.0.attn.q.weight"), 2 * before.numpy())
            np.testing.assert_array_equal(twin.get("embed.weight"), model.embed.detach().numpy())

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
        output = json.loads(testing.program("eval", path, "--text", page, "--json"))
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
            set_causal(model, True)
            self.assertAlmostEqual(causal, float(model.loss(batch).detach()), places=4)
        self.assertIn(round(found.loss, 6), [round(x, 6) for x in testing.numbers(output)])

    def test_dense_and_experts_side_by_side(self):
        """The example learns with both, and tells of both kinds of loss. In so few steps it learns how frequent each byte
        is: losses end 0.005 to 0.011 nats above the entropy of the text's bytes, with 4 seeds."""
        if lacks("examples/nanogpt_moe.py", "nn.functional.scaled_dot_product_attention"):
            return
        example = testing.SOURCE / "examples" / "nanogpt_moe.py"
        small = "--layers 2 --width 32 --context 32 --batch 8 --steps 60 --rate 0.01".split()
        testing.run()
        book = testing.directory() / "book.txt"
        counts = torch.bincount(torch.tensor(list(book.read_bytes()))).double()
        entropy = float(torch.distributions.Categorical(counts).entropy())
        words, out = [str(example), str(book), *small, "--device", "cpu"], io.StringIO()
        with unittest.mock.patch("sys.argv", words), contextlib.redirect_stdout(out):
            runpy.run_path(str(example), run_name="__main__")
        output = out.getvalue()
        for name in ("dense: held out", "expert choice: held out", "causally by thresholds:"):
            self.assertAlmostEqual(float(output.split(name)[1].split()[0].rstrip(",")), entropy, delta=0.03, msg=output)


if __name__ == "__main__":
    unittest.main()
