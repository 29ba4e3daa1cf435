"""What layers of choir.torch have beside routing: names, shared experts, losses that are injected,
statistics, capacities that change, and transformers' blocks. In float64, with random cotangents, against plain formulas."""

import copy
import importlib.util
import inspect
import math
import unittest
import unittest.mock

import choir
import testing
from choir import fields
from torch_cases import DEVICE, LAYERS, TorchTest, cannot_compile, experts_of, lacks, said, torch

if torch:
    import torch.nn.functional as F
    import torch.utils.checkpoint


class Options(TorchTest):
    def setUp(self):
        super().setUp()
        self.x = torch.randn(2, 32, 16, device=DEVICE, dtype=torch.float64)
        self.ids = torch.randint(0, 99, (2, 32), device=DEVICE)
        self.cotangent = torch.randn_like(self.x)

    def layer(self, router, options, **more):
        torch.manual_seed(3)
        options = {**options, "jitter": 0} if router == "switch_top1" else options
        made = {"device": DEVICE, "dtype": torch.float64, **options, **more}
        return self.torch.MoE(16, 24, experts_of(router), router, **made)

    def gradients(self, layer, run=None, scale=0.0):
        """Output, and the gradients of x and all weights."""
        x = self.x.clone().requires_grad_()
        layer.zero_grad()
        torch.manual_seed(7)
        out = (layer if run is None else run)(x, self.ids)
        ((out * self.cotangent).sum() + (scale * layer.aux_loss if scale else 0)).backward()
        return [out.detach(), x.grad, *(w.grad for w in layer.parameters() if w.grad is not None)]

    def equal(self, ours, theirs):
        self.assertEqual(len(ours), len(theirs))
        for one, other in zip(ours, theirs):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)

    def test_options_that_only_the_library_has(self):
        """An option of a router that nobody has taught choir.torch is refused by name, and taken where it does nothing."""
        request = importlib.import_module("choir.torch.request")
        with unittest.mock.patch.object(request, "KNOWN", request.KNOWN - {"gate_on"}):
            self.torch.route(self.x[0], "topk", experts_per_token=3, gate_on="output")
            with self.assertRaisesRegex(choir.UnsupportedError, "gate_on is 'input': choir.torch has router 'topk'"):
                self.torch.route(self.x[0], "topk", experts_per_token=3, gate_on="input")

    def test_options_are_spelt_out(self):
        """Editors and type checkers are told what MoE takes."""
        beside = lambda of: {p.name for p in inspect.signature(of).parameters.values() if p.kind == p.KEYWORD_ONLY}
        router = set(fields.RouterOptions.__annotations__)
        given = set(fields.LayerOptions.__annotations__)
        self.assertEqual(given, (router - {"cap"}) | beside(self.torch.MoE))
        own = {"activation", "device", "dtype"}
        self.assertEqual(set(fields.ConvertOptions.__annotations__), given - own | {"cap", "top_k"})
        for kind in (self.torch.ExpertChoice, self.torch.TokenChoice):
            self.assertFalse(given & set(inspect.signature(kind).parameters))

    def test_shared_experts(self):
        for activation, act in (("gelu", F.gelu), ("swiglu", F.silu)):
            layer = self.layer("expert_choice", {}, activation=activation, shared_experts=2)
            alone = self.layer("expert_choice", {}, activation=activation)
            alone.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("shared")})
            self.assertEqual(layer.shared.up.weight.shape, (48, 16))

            def twin(x, ids, layer=layer, alone=alone, act=act):
                up = x @ layer.shared.up.weight.t()
                hidden = act(up) if layer.shared.gate is None else act(x @ layer.shared.gate.weight.t()) * up
                return alone(x, ids) + hidden @ layer.shared.down.weight.t()

            ours, theirs = self.gradients(layer), self.gradients(layer, twin)[:2]
            self.equal(ours[:2], theirs)
            valid = torch.rand(2, 32, device=DEVICE) > 0.3
            self.assertEqual(float(layer(self.x, None, valid)[~valid].abs().sum().detach()), 0)
            self.assertEqual(layer(self.x[:0]).shape, (0, 32, 16))

    def test_injected_losses(self):
        """As if they had been added; under reentrant checkpointing, too, which loses layer.aux_loss."""
        cases = [case for case in LAYERS if case[0] in ("topk", "gshard_top2", "switch_top1")]
        for router, options in self.each(cases):
            options = {**options, "aux_loss_weight": 0.7}
            wanted = self.gradients(self.layer(router, options), scale=0.5)
            with self.assertWarnsRegex(UserWarning, "has no gradient.*inject_aux_loss"):
                plain = self.layer(router, options)
                torch.utils.checkpoint.checkpoint(plain, self.x.clone().requires_grad_(), self.ids, use_reentrant=True)
            layer = self.layer(router, options, inject_aux_loss=0.5)
            self.equal(self.gradients(layer), wanted)
            self.assertFalse(layer.aux_loss.requires_grad)
            self.assertGreater(float(layer.aux_loss), 0)
            self.assertFalse(layer(self.x, self.ids)._is_view())
            for reentrant in (True, False):

                def run(x, ids, reentrant=reentrant, layer=layer):
                    return torch.utils.checkpoint.checkpoint(layer, x, ids, use_reentrant=reentrant)

                self.equal(self.gradients(layer, run), wanted)

    def test_capacity_may_change(self):
        for router, options in self.each([case for case in LAYERS if case[0] in ("expert_choice", "gshard_top2")]):
            layer = self.layer(router, {**options, "capacity_factor": 2.0})
            for factor in (1.0, 3.0):
                layer.capacity_factor = factor
                self.assertEqual(layer.capacity_factor, factor)
                fresh = self.layer(router, {**options, "capacity_factor": factor})
                self.equal(self.gradients(layer), self.gradients(fresh))
            with self.assertRaisesRegex(choir.ArgumentError, "capacity_factor"):
                layer.capacity_factor = -1.0
            self.assertEqual(layer.capacity_factor, 3.0)

    def test_the_pool_of_a_call(self):
        with_pools = [case for case in LAYERS if case[0] in ("expert_choice", "capped_expert_choice", "global_topk")]
        for router, options in self.each(with_pools):
            layer = self.layer(router, {**options, "pool": "batch", "group_size": 16})
            for pool in ("sequence", "group", "position", "batch"):
                theirs = self.layer(router, {**options, "pool": pool, "group_size": 16})
                self.equal(self.gradients(layer, lambda x, ids: layer(x, ids, pool=pool)), self.gradients(theirs))
            self.assertEqual(layer.options.pool, "batch")  # of that call alone
            alone = layer(self.x[1:], pool="sequence")
            torch.testing.assert_close(layer(self.x, pool="sequence")[1:], alone, rtol=1e-10, atol=1e-12)
        layer = self.layer("expert_choice", {})
        self.assertFalse(torch.allclose(layer(self.x), layer(self.x, pool="sequence")))
        with self.assertRaisesRegex(choir.ArgumentError, '"image": must be one of'):
            layer(self.x, pool="image")
        if not cannot_compile("a compiled layer takes the pool of a call"):
            compiled = torch.compile(lambda x: layer(x, pool="sequence"), fullgraph=True, backend="aot_eager")
            self.equal([compiled(self.x)], [layer(self.x, pool="sequence")])

    def test_packed_sequences(self):
        """Each is a pool, and has a balancing loss, as a call of its own would; of equal ones the same as a dimension."""
        cases = [(name, {**options, "pool": "sequence"}) for name, options in LAYERS if "expert_choice" in name or name == "global_topk"]
        for router, options in self.each([*cases, ("topk", {"aux_scope": "sequence", "null_experts": 2})]):
            layer = self.layer(router, options)
            for lengths in ((5, 40, 1, 18), (64,)):
                rows = self.x.flatten(0, 1)
                out, loss = layer(self.x, lengths=lengths), layer.aux_loss
                parts = [(layer(part), layer.aux_loss) for part in rows.split(lengths)]
                torch.testing.assert_close(out.flatten(0, 1), torch.cat([y for y, _ in parts]), rtol=1e-10, atol=1e-12)
                torch.testing.assert_close(loss, sum(part for _, part in parts) / len(parts))
            self.equal([layer(self.x, lengths=(32, 32)), layer.aux_loss], [layer(self.x), layer.aux_loss])
            for lengths in ((63,), (65, -1), (64, 0)):
                with self.assertRaisesRegex(choir.ArgumentError, "lengths of sequences"):
                    layer(self.x, lengths=lengths)

    def test_statistics(self):
        self.assertEqual(self.torch.stats(torch.nn.Linear(2, 2)), {})
        for router, options in self.each(LAYERS):
            model = torch.nn.Sequential(self.layer(router, options))
            layer, e = model[0], experts_of(router)
            layer(self.x, self.ids)
            self.assertEqual(self.torch.stats(model)["0"].forwards, 0)  # begins
            valid, seen = torch.rand(2, 32, device=DEVICE) > 0.2, []
            for mask in (None, valid):
                layer(self.x, self.ids, mask)
                seen.append((layer.routing, torch.ones_like(valid) if mask is None else mask))
            made = self.torch.stats(model)["0"]
            load = sum(routing.load for routing, _ in seen).double()
            tokens = sum(int(mask.sum()) for _, mask in seen)
            none = sum(int((mask.view(-1) & ~routing.assignment.any(1)).sum()) for routing, mask in seen)
            asked = sum(int(routing.demand.sum()) for routing, _ in seen)
            self.assertEqual((made.forwards, made.tokens), (2, tokens))
            torch.testing.assert_close(made.load, (load / load.sum()).tolist())
            self.assertAlmostEqual(made.max_load, float(load.max() / load.mean()))
            self.assertAlmostEqual(made.experts_per_token, float(load.sum()) / tokens)
            self.assertAlmostEqual(made.unrouted, none / tokens)
            self.assertAlmostEqual(made.dropped, sum(int(routing.dropped) for routing, _ in seen) / asked)
            rows, entropy = self.x.view(-1, 16), 0.0
            for _, mask in seen:
                p = request_scores(layer, rows[mask.view(-1)])
                p = p / p.sum(1, keepdim=True)
                entropy -= float((p * p.log()).sum().detach())
            self.assertAlmostEqual(made.entropy, entropy / tokens, places=6)
            self.assertLess(made.entropy, math.log(e) + 1e-9)
            self.assertEqual(made.cutoffs is None, all(r.cutoffs is None for r, _ in seen))
            if made.cutoffs is not None:
                wanted = sum(torch.where(torch.isfinite(r.cutoffs), r.cutoffs.double(), 0.0) for r, _ in seen)
                wanted = wanted / sum(torch.isfinite(r.cutoffs) for r, _ in seen).clamp(min=1)
                torch.testing.assert_close(made.cutoffs, wanted.tolist())
            self.assertEqual(self.torch.stats(model)["0"].forwards, 0)
            if not lacks("activation checkpointing", "_C._current_graph_task_id"):
                x = self.x.clone().requires_grad_()
                torch.utils.checkpoint.checkpoint(layer, x, self.ids, use_reentrant=False).sum().backward()
                self.assertEqual(self.torch.stats(model)["0"].forwards, 1)

    def test_compiled_with_all_of_it(self):
        if cannot_compile("torch.compile"):
            return
        layer = self.layer("topk", {"experts_per_token": 3}, shared_experts=1, inject_aux_loss=1.0)
        self.torch.stats(layer)
        twin = copy.deepcopy(layer)
        compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
        self.equal(self.gradients(twin, compiled), self.gradients(layer))
        ours, theirs = (self.torch.stats(one)[""] for one in (twin, layer))
        self.assertEqual(ours.forwards, 1)
        torch.testing.assert_close(ours.load, theirs.load)


def misses(law, package):
    """Whether a package that the law needs is not installed; then says so."""
    missing = importlib.util.find_spec(package) is None
    if missing and law not in said:
        print(f"\nNOT TESTED: {law}: {package} is not installed")
        said.add(law)
    return missing


def request_scores(layer, rows):
    """What the layer's scores of rows are, those of routers that read logits by softmax."""
    logits = rows @ layer.gate.weight.t().to(rows.dtype)
    if layer.router_name == "kmeans":
        logits = logits - layer.gate.weight.double().square().sum(1) / 2
    if layer.router_name not in ("base", "kmeans") and layer.options.score == "sigmoid":
        return torch.sigmoid(logits)
    return torch.softmax(logits, 1)


class Transformers(TorchTest):
    def models(self):
        if misses("choir.torch.convert", "transformers"):
            return []
        import transformers

        if int(transformers.__version__.split(".")[0]) < 5:
            print(f"\nNOT TESTED: choir.torch.convert: transformers {transformers.__version__} is older than 5")
            return []
        small = dict(hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, vocab_size=99)
        small = dict(small, num_key_value_heads=2, num_experts_per_tok=3)
        made = []
        for name, fields in (
            ("Mixtral", {"num_local_experts": 8}),
            ("Olmoe", {"num_experts": 8, "norm_topk_prob": False}),
            ("Qwen3Moe", {"num_experts": 8, "moe_intermediate_size": 24, "norm_topk_prob": True, "head_dim": 8}),
        ):
            config = getattr(transformers, name + "Config")(**small, **fields)
            config._experts_implementation = "eager"  # their grouped product knows no float64
            model = getattr(transformers, name + "ForCausalLM")(config).double().eval()
            with torch.no_grad():
                for weight in model.parameters():
                    if weight.dim() > 1:
                        weight.normal_(std=weight.shape[-1] ** -0.5)
            made.append((name, model))
        return made

    def test_convert(self):
        ids = torch.randint(0, 99, (2, 12))
        for name, model in self.models():
            wanted = model(ids).logits.detach()
            twin = copy.deepcopy(model)
            self.assertIs(choir.torch.convert(twin), twin)
            layers = [module for module in twin.modules() if isinstance(module, choir.torch.MoE)]
            self.assertEqual([layer.router_name for layer in layers], ["topk"] * 2, name)
            torch.testing.assert_close(twin(ids).logits, wanted, rtol=1e-6, atol=1e-6)  # their softmax is float32
            twin = choir.torch.convert(copy.deepcopy(model), "expert_choice", capacity_factor=8.0, causal=True).train()
            twin(ids, labels=ids).loss.backward()
            for module in twin.modules():
                if isinstance(module, choir.torch.MoE):
                    self.assertGreater(float(module.experts.gate_up_proj.grad.abs().sum()), 0)
                    self.assertTrue(bool(module.routing.assignment.all()))  # room for all
        with self.assertRaisesRegex(choir.UnsupportedError, "no block"):
            choir.torch.convert(torch.nn.Linear(2, 2))

    def test_trainer(self):
        """transformers' own: the state moves once in each step of two micro-batches, and the loss falls."""
        models = self.models()
        if not models or misses("choir.torch.trainer_callback", "accelerate"):
            return
        from transformers import Trainer, TrainingArguments

        model = choir.torch.convert(models[1][1].float(), "expert_choice").train()
        ids = torch.arange(16).repeat(8, 1)
        given = [{"input_ids": row, "labels": row} for row in ids]
        words = dict(max_steps=20, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=0.01)
        quiet = dict(report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, logging_strategy="no")
        arguments = TrainingArguments(str(testing.directory() / "trainer"), **words, **quiet)
        before = float(model(ids, labels=ids).loss)
        choir.torch.update_routers(model)
        Trainer(model, arguments, train_dataset=given, callbacks=[choir.torch.trainer_callback()]).train()
        self.assertLess(float(model(ids, labels=ids).loss), before / 2)
        for module in model.modules():
            if isinstance(module, choir.torch.MoE):
                self.assertEqual(int(module.observed), 21)

    def test_lightning(self):
        """As with transformers' Trainer: a run leaves the same thresholds as a plain loop."""
        if misses("choir.torch.lightning_callback", "lightning"):
            return
        import lightning.pytorch as lightning

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.moe = choir.torch.ExpertChoice(16, 24, 8)

            def training_step(self, batch):
                return (self.moe(batch) - batch).square().mean() + self.moe.aux_loss

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        torch.manual_seed(2)
        module, batches = Module(), torch.randn(40, 32, 16)
        twin = copy.deepcopy(module)
        quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        trainer = lightning.Trainer(
            max_steps=20, accumulate_grad_batches=2, accelerator="cpu", callbacks=[choir.torch.lightning_callback()], **quiet
        )
        trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
        optimizer = twin.configure_optimizers()
        for pair in batches.view(20, 2, 32, 16):
            optimizer.zero_grad()
            (sum(twin.training_step(batch) for batch in pair) / 2).backward()
            choir.torch.update_routers(twin)
            optimizer.step()
        self.assertEqual(int(module.moe.observed), 20)
        torch.testing.assert_close(module.state_dict(), twin.state_dict())


if __name__ == "__main__":
    unittest.main()
