"""transformers' models with choir's layers: padding, saving, resuming, turning back, their balancing loss, their noise."""

import copy
import importlib
import json
import pickle
import re
import subprocess
import sys
import unittest
import warnings

import choir
import numpy as np
import testing
from test_torch_options import misses
from torch_cases import TorchTest, torch

MASK = [[0] * 5 + [1] * 7, [1] * 9 + [0] * 3, [1] * 12]  # padded on the left, on the right, not at all
SMALL = {"hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
SMALL |= {"num_key_value_heads": 2, "num_experts_per_tok": 3, "pad_token_id": None}
KINDS = {
    "Mixtral": {"num_local_experts": 8, "router_aux_loss_coef": 0.05},
    "Olmoe": {"num_experts": 8, "norm_topk_prob": False},
    "Qwen3Moe": {"num_experts": 8, "moe_intermediate_size": 24, "norm_topk_prob": True, "head_dim": 8},
}


class Converted(TorchTest):
    def setUp(self):
        super().setUp()
        if misses("choir.torch.convert", "transformers"):
            self.skipTest("transformers")
        import transformers

        if int(transformers.__version__.split(".")[0]) < 5:
            self.skipTest("transformers is older than 5")
        transformers.utils.logging.disable_progress_bar()
        self.transformers = transformers
        self.ids, self.mask = torch.randint(3, 99, (3, 12)), torch.tensor(MASK)

    def model(self, kind, **fields):
        torch.manual_seed(3)
        config = getattr(self.transformers, kind + "Config")(**{**SMALL, **KINDS[kind], **fields})
        model = getattr(self.transformers, kind + "ForCausalLM")(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(std=weight.shape[-1] ** -0.5)
        return model

    def converted(self, kind, *router, **options):
        return choir.torch.convert(self.model(kind), *router, **options)

    def layers(self, model):
        return [module for module in model.modules() if isinstance(module, choir.torch.MoE)]

    def real(self, model, ids, **more):
        """Logits of tokens that are no padding."""
        position = (self.mask.cumsum(1) - 1).clamp(min=0)
        return model(ids, attention_mask=self.mask, position_ids=position, **more).logits[self.mask.bool()]

    def test_padding_takes_no_part(self):
        """What stands under the mask changes no logits, takes no room, and teaches nothing."""
        other = torch.where(self.mask.bool(), self.ids, torch.randint(3, 99, self.ids.shape))
        for kind in KINDS:
            for router in (None, "gshard_top2", "expert_choice"):
                model = self.converted(kind, router)
                torch.testing.assert_close(self.real(model, other), self.real(model, self.ids))
                model.train()
                self.torch.stats(model)
                model(self.ids, attention_mask=self.mask)
                counted = [layer.tokens for layer in self.torch.stats(model).values()]
                self.assertEqual(counted, [int(self.mask.sum())] * 2)
                model(self.ids)  # a forward without a mask forgets the mask of the last one
                counted = [layer.tokens for layer in self.torch.stats(model).values()]
                self.assertEqual(counted, [36] * 2)
        torch.testing.assert_close(self.real(self.converted("Olmoe"), self.ids), self.real(self.model("Olmoe"), self.ids))

    def test_masks_of_four_dimensions(self):
        """As generation with a static cache makes them, and a dictionary of them."""
        model, causal = self.converted("Mixtral", "expert_choice"), torch.ones(12, 12).tril().bool()
        wanted = self.real(model, self.ids)
        whole = causal & (self.mask.bool()[:, None, None] & self.mask.bool()[:, None, :, None])
        position = (self.mask.cumsum(1) - 1).clamp(min=0)
        additive = torch.zeros(whole.shape).masked_fill(~whole, torch.finfo(torch.float32).min)
        for mask in (whole, additive):
            out = model(self.ids, attention_mask=mask, position_ids=position).logits[self.mask.bool()]
            torch.testing.assert_close(out, wanted)

    def test_generation_with_a_cache(self):
        for kind in ("Mixtral", "Qwen3Moe"):
            plain, model = self.model(kind), self.converted(kind)
            words = dict(attention_mask=self.mask[:1], max_new_tokens=5, do_sample=False)
            for more in ({}, {"cache_implementation": "static", "disable_compile": True}):
                message = model.generate(self.ids[:1], **words, **more)
                self.assertTrue(torch.equal(message, plain.generate(self.ids[:1], **words)))

    def test_generation_that_is_not_causal(self):
        """Is said once, at the first step with a cache, of routers that compare tokens; of others, without a cache and in
        training nothing is."""
        cases = [("expert_choice", {}, 1), ("expert_choice", {"causal": True}, 0), (None, {}, 0), (None, {"capacity_factor": 1.0}, 1)]
        cases += [("gshard_top2", {}, 1), ("gshard_top2", {"causal": True}, 0), ("bias_balanced", {}, 0), ("kmeans", {}, 0)]
        words = {"max_new_tokens": 4, "do_sample": False}
        for router, options, wanted in cases:
            model = self.converted("Qwen3Moe", router, **options).train()
            model(self.ids), self.torch.update_routers(model), model.eval()
            for uses_cache, count in ((False, 0), (True, wanted), (True, 0)):
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    model.generate(self.ids, attention_mask=self.mask, use_cache=uses_cache, **words)
                message = [str(w.message) for w in said if "causal=True" in str(w.message)]
                self.assertEqual(len(message), count, (router, options, uses_cache, message))

    def test_packed_sequences(self):
        """Two sequences in one row, told apart by positions, have the logits of rows of their own, padded or not, if no token
        competes or those of a sequence alone do."""
        parts = self.ids[:1, :5], self.ids[:1, 5:]
        position = torch.cat([torch.arange(part.shape[1]) for part in parts])[None]
        mask = torch.tensor([[1] * 5 + [0] * 2, [1] * 7])
        rows = torch.cat([torch.cat([parts[0], self.ids[1:2, :2]], 1), parts[1]])
        for kind in KINDS:
            for router, options in ((None, {}), ("expert_choice", {"pool": "sequence"})):
                model = self.converted(kind, router, **options)
                packed = model(self.ids[:1], position_ids=position, use_cache=False).logits[0]
                alone = torch.cat([model(part, use_cache=False).logits[0] for part in parts])
                torch.testing.assert_close(model(rows, attention_mask=mask, use_cache=False).logits[mask.bool()], alone)
                torch.testing.assert_close(packed, alone)

    def test_checkpointing_keeps_each_forward_its_mask(self):
        for router in (None, "expert_choice"):
            plain = self.converted("Qwen3Moe", router).train()
            twin = copy.deepcopy(plain)
            twin.gradient_checkpointing_enable()
            for model in (plain, twin):
                first = self.real(model, self.ids)
                (first.square().mean() + model(self.ids).logits.square().mean()).backward()
            for ours, theirs in zip(twin.parameters(), plain.parameters()):
                torch.testing.assert_close(ours.grad, theirs.grad)

    def test_padding_without_a_mask_warns(self):
        model = self.converted("Mixtral", "expert_choice", capacity_factor=1.0)
        model.config.pad_token_id = model.model.config.pad_token_id = 0
        ids = self.ids.masked_fill(self.mask == 0, 0)
        with self.assertLogs("transformers", "WARNING") as said:
            self.transformers.logging.enable_propagation()
            model(ids)
        self.assertIn("attention_mask", said.output[0])
        with self.assertWarnsRegex(UserWarning, "every token takes part"):
            importlib.import_module("choir.torch.convert")._valid_of(torch.ones(2, 3, 4), {})

    def test_saved_and_loaded(self):
        """By transformers' own save_pretrained; what routers keep comes back, and so do weights where transformers loads it."""
        for kind in KINDS:
            for router, options in (
                (None, {}),
                ("bias_balanced", {"top_k": 2, "bias_rate": 0.01}),
                ("expert_choice", {"capacity_factor": 1.5, "causal": True}),
                ("kmeans", {}),
            ):
                model = self.converted(kind, router, **options).train()
                model(self.ids, attention_mask=self.mask), self.torch.update_routers(model)
                folder = testing.directory() / f"saved-{kind}-{router}"
                model.eval().save_pretrained(folder)
                loaded = self.torch.from_pretrained(folder).eval()
                torch.testing.assert_close(self.real(loaded, self.ids), self.real(model, self.ids))
                torch.testing.assert_close(loaded.state_dict(), model.state_dict())
                self.assertEqual([layer.options.text for layer in self.layers(loaded)], [layer.options.text for layer in self.layers(model)])
                if router != "kmeans":
                    theirs, found = type(model).from_pretrained(folder, output_loading_info=True)
                    self.assertFalse(found["missing_keys"])
                    torch.testing.assert_close(theirs(self.ids).logits, self.model(kind)(self.ids).logits)
                    self.assertEqual(bool(found["unexpected_keys"]), router is not None)

    def test_a_plugin_that_changed(self):
        """A saved model names the version of its router; another one is said where it is loaded."""

        def define(version):
            @choir.router("first_two", looks="nowhere", choices=2, version=version)
            def first_two(scores, valid, capacity, training):
                return (np.arange(scores.shape[1])[None] < 2) & valid[:, None]

        define("v1")
        model, folder = self.converted("Olmoe", "first_two"), testing.directory() / "plugin"
        self.assertEqual(model.config.choir["router_version"], "v1")
        model.save_pretrained(folder)
        for version, count in (("v1", 0), ("v2", 1)):
            define(version)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                loaded = self.torch.from_pretrained(folder)
            message = [str(w.message) for w in said if "was version v1 when the model was saved, and is version v2" in str(w.message)]
            self.assertEqual(len(message), count)
        torch.testing.assert_close(loaded(self.ids).logits, model(self.ids).logits)

    def test_resumes_from_files(self):
        """load_state_dict of what is in a file, as Trainer has it, takes every name; its own state_dict too."""
        import safetensors.torch

        for kind in KINDS:
            model = self.converted(kind, "bias_balanced", bias_rate=0.01).train()
            model(self.ids), self.torch.update_routers(model)
            folder = testing.directory() / f"resumed-{kind}"
            model.save_pretrained(folder)
            filed = safetensors.torch.load_file(folder / "model.safetensors")
            for state in (filed, model.state_dict()):
                other = self.converted(kind, "bias_balanced", bias_rate=0.01)
                with torch.no_grad():
                    for weight in other.parameters():
                        weight.zero_()
                found = other.load_state_dict(dict(state), strict=False)
                self.assertFalse(found.missing_keys or found.unexpected_keys, found)
                torch.testing.assert_close(other.state_dict(), model.state_dict())

    def test_refuses_checkpoints_it_cannot_load(self):
        folder = testing.directory() / "plain-mixtral"
        self.model("Mixtral").save_pretrained(folder)
        with self.assertRaisesRegex(choir.ArgumentError, "entry 'choir' is None"):
            self.torch.from_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        for entry, why in (
            ({"version": 9, "router": None, "options": {}}, "'version': 9"),
            ({"version": 1, "router": "nobody", "options": {}}, "nobody"),
            ({"version": 1, "router": "bias_balanced", "options": {"cap": 3}}, "cap"),
            ({"version": 1, "router": "bias_balanced", "options": {}}, "no tensor .*thresholds"),
        ):
            (folder / "config.json").write_text(json.dumps({**config, "choir": entry}))
            with self.assertRaisesRegex(choir.Error, why):
                self.torch.from_pretrained(folder)
        (folder / "config.json").write_text(
            json.dumps({**config, "num_hidden_layers": 3, "choir": {"version": 1, "router": None, "options": {}}})
        )
        with self.assertRaisesRegex(choir.FormatError, "no weights for .*layers.2"):
            self.torch.from_pretrained(folder)

    def test_turned_back(self):
        for kind in KINDS:
            model = self.model(kind)
            twin = self.torch.convert(copy.deepcopy(model), "expert_choice")
            optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
            twin.train()(self.ids, labels=self.ids).loss.backward()
            optimizer.step()
            weights = {name: weight.detach().clone() for name, weight in twin.named_parameters()}
            self.assertIs(self.torch.revert(twin), twin)
            self.assertEqual([type(m) for m in twin.modules()], [type(m) for m in model.modules()])
            self.assertFalse(hasattr(twin.config, "choir") or twin.model._forward_pre_hooks)
            torch.testing.assert_close(dict(twin.named_parameters()), weights)
            model.load_state_dict(twin.state_dict())
            torch.testing.assert_close(twin.eval()(self.ids).logits, model(self.ids).logits)
            self.torch.convert(twin)
        with self.assertRaisesRegex(choir.UnsupportedError, "shared experts"):
            self.torch.revert(self.converted("Olmoe", "expert_choice", shared_experts=1))
        adapted = self.converted("Olmoe")
        adapted.model.layers[0].mlp.gate = torch.nn.Sequential(adapted.model.layers[0].mlp.gate)
        with self.assertRaisesRegex(choir.UnsupportedError, "Merge adapters first"):
            self.torch.revert(adapted)

    def test_their_balancing_loss(self):
        """output_router_logits gives what it gave; and the layers' own loss has the model's weight: of one layer the same."""
        for kind in KINDS:
            for before in (False, True):
                model = self.model(kind, num_hidden_layers=1)
                words = dict(attention_mask=self.mask, output_router_logits=True)
                wanted = model(self.ids, **words)
                if not before:  # their hooks come with the first forward
                    model = self.model(kind, num_hidden_layers=1)
                twin = self.torch.convert(model)
                out = twin(self.ids, **words)
                torch.testing.assert_close(out.aux_loss, wanted.aux_loss)
                self.assertEqual(len(out.router_logits), 1)
                ours = self.layers(twin)[0].aux_loss
                torch.testing.assert_close(ours, twin.config.router_aux_loss_coef * wanted.aux_loss)
        self.assertEqual(self.layers(self.converted("Mixtral", aux_loss_weight=0.5))[0].options.aux_loss_weight, 0.5)
        weights = [layer.options.aux_loss_weight for layer in self.layers(self.converted("Mixtral"))]
        self.assertEqual(weights, [0.05 * 3 / 2] * 2)

    def test_their_noise(self):
        """router_jitter_noise of Mixtral: in training the block reads noisy rows, the same as transformers' own."""
        plain = self.model("Mixtral", router_jitter_noise=0.3, experts_implementation="eager").train()
        twin = self.torch.convert(copy.deepcopy(plain))
        for training in (True, False):
            outs = []
            for model in (plain, twin):
                torch.manual_seed(5)
                outs.append(model.train(training)(self.ids).logits)
            torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)

    def test_forced_routes(self):
        """Those of an earlier forward, by a keyword of the model."""
        model = self.converted("Qwen3Moe", "topk", top_k=2)
        wanted = model(self.ids).logits
        taken = torch.stack([layer.routing.assignment.view(3, 12, 8) for layer in self.layers(model)])
        torch.testing.assert_close(model(self.ids, assignment=taken).logits, wanted)
        self.assertGreater(float((model(self.ids, assignment=taken.roll(1, -1)).logits - wanted).detach().abs().max()), 1e-3)
        torch.testing.assert_close(model(self.ids).logits, wanted)

    def record(self, model):
        """The model's routing record [B,T,layers,K], and its logits."""
        logits = model(self.ids).logits
        return self.torch.routed_experts(model).view(3, 12, -1, 2), logits

    def test_records_of_all_layers(self):
        """Engines record all layers of the model, dense ones too: their rows are left out, whatever they hold."""
        for dense in ([0], [1], [0, 2], []):
            model = self.model("Qwen3Moe", num_hidden_layers=3, mlp_only_layers=dense, num_experts_per_tok=2)
            record, wanted = self.record(self.torch.convert(model))
            moe = [layer for layer in range(3) if layer not in dense]
            self.assertEqual((record.shape, model.model.choir_layers), ((3, 12, 3, 2), (tuple(moe), 3)))
            self.assertTrue(bool((record[:, :, dense] == -1).all()))
            self.assertTrue(bool((record[:, :, moe] >= 0).all()))
            for filled in ([0, 0], [0, 1], [-1, -1]):  # vLLM's, anything, SGLang's
                given = record.clone()
                given[:, :, dense] = torch.tensor(filled, dtype=torch.int32)
                torch.testing.assert_close(model(self.ids, assignment=self.torch.recorded(given, 8)).logits, wanted)
            torch.testing.assert_close(model(self.ids, assignment=self.torch.recorded(record[:, :, moe], 8)).logits, wanted)
            for rows in (record[:, :, :1], record.repeat(1, 1, 2, 1)):
                if rows.shape[2] != len(moe):
                    with self.assertRaisesRegex(choir.ArgumentError, f"assignment has {rows.shape[2]} layers; it must have {len(moe)}, one per MoE"):
                        model(self.ids, assignment=self.torch.recorded(rows, 8))
            if dense == [0]:
                twin = copy.deepcopy(model)
                torch.testing.assert_close(twin(self.ids, assignment=self.torch.recorded(record, 8)).logits, wanted)
                self.assertFalse(hasattr(self.torch.revert(twin).model, "choir_layers"))

    def test_copies(self):
        model = self.converted("Mixtral")
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(self.real(twin, self.ids), self.real(model, self.ids))

    def test_trainer_resumes(self):
        if misses("Trainer", "accelerate"):
            return
        from transformers import Trainer, TrainingArguments

        given = [{"input_ids": row, "labels": row} for row in self.ids.repeat(4, 1)]
        states = []
        for stops in ((2, 4), (4,)):
            model = self.converted("Olmoe", "bias_balanced", bias_rate=0.01)
            for steps in stops:
                words = dict(max_steps=steps, per_device_train_batch_size=4, learning_rate=0.01, save_steps=2)
                quiet = dict(report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no", lr_scheduler_type="constant")
                at = testing.directory() / f"trainer-{len(stops)}"
                trainer = Trainer(
                    model, TrainingArguments(str(at), **words, **quiet), train_dataset=given, callbacks=[self.torch.trainer_callback()]
                )
                trainer.train(resume_from_checkpoint=steps > stops[0])
                states.append(model.state_dict()) if steps == 4 else None
                model = self.converted("Olmoe", "bias_balanced", bias_rate=0.01)
        torch.testing.assert_close(*states)

    def adapted(self, router, options, seed=1):
        import peft

        torch.manual_seed(seed)
        return peft.get_peft_model(self.converted("Mixtral", router, **options), peft.LoraConfig(r=4, target_modules=["q_proj"]))

    def test_adapters_lack_the_state(self):
        """PEFT saves adapters alone: it is said when it saves, and when an adapter is used without the state, which
        router_state has."""
        if misses("the state beside adapters", "peft"):
            return
        import peft

        for router, options in (("bias_balanced", {"bias_rate": 0.05}), ("quantile_balanced", {}), ("kmeans", {})):
            model, folder = self.adapted(router, options), testing.directory() / f"adapter-{router}"
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                model.save_pretrained(folder)  # nothing is learned yet
            self.assertEqual([w for w in said if "router_state" in str(w.message)], [])
            optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=0.01)
            for _ in range(3):
                model.train()(self.ids, labels=self.ids).loss.backward()
                self.torch.update_routers(model), optimizer.step(), optimizer.zero_grad()
            with self.assertWarnsRegex(UserWarning, "save choir.torch.router_state"):
                model.save_pretrained(folder)
            state = self.torch.router_state(model)
            self.assertEqual(set(state), set(self.torch.router_state(self.converted("Mixtral", router, **options))))
            loaded = peft.PeftModel.from_pretrained(self.converted("Mixtral", router, **options), folder).eval()
            with self.assertWarnsRegex(UserWarning, f"'{router}': weights were loaded without its state"):
                loaded(self.ids)
            self.torch.load_router_state(loaded, state)
            torch.testing.assert_close(loaded(self.ids).logits, model.eval()(self.ids).logits)

    def fitted(self, model, folder, steps, resume=None, **more):
        from transformers import Trainer, TrainingArguments

        given = [{"input_ids": row, "labels": row} for row in self.ids.repeat(4, 1)]
        words = dict(max_steps=steps, per_device_train_batch_size=4, learning_rate=0.01, save_steps=2, seed=7, **more)
        quiet = dict(report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no", lr_scheduler_type="constant")
        trainer = Trainer(
            model,
            TrainingArguments(str(testing.directory() / folder), **words, **quiet),
            train_dataset=given,
            eval_dataset=given[:4],
            callbacks=[self.torch.trainer_callback()],
        )
        trainer.train(resume_from_checkpoint=resume)
        return self.torch.router_state(model)

    def test_trainer_resumes_adapters(self):
        """In another folder, bit for bit; the best checkpoint brings its state; a checkpoint of before is said to have none."""
        if misses("Trainer with adapters", "accelerate") or misses("Trainer with adapters", "peft"):
            return
        for router, options in (("bias_balanced", {"bias_rate": 0.01}), ("expert_choice", {"causal": True}), ("kmeans", {})):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                straight = self.fitted(self.adapted(router, options), f"straight-{router}", 4)
                first = testing.directory() / f"straight-{router}" / "checkpoint-2"
                resumed = self.fitted(self.adapted(router, options), f"resumed-{router}", 4, str(first))
            self.assertEqual([str(w.message) for w in said if "router" in str(w.message)], [])
            torch.testing.assert_close(resumed, straight, rtol=0, atol=0)
            loaded = self.adapted(router, options)
            self.torch.load_router_state(loaded, first.parent / "checkpoint-4")
            torch.testing.assert_close(self.torch.router_state(loaded), straight, rtol=0, atol=0)
        best = self.fitted(
            self.adapted("bias_balanced", {"bias_rate": 0.01}), "best", 4, eval_strategy="steps", eval_steps=2,
            load_best_model_at_end=True, metric_for_best_model="loss", greater_is_better=True,
        )  # fmt: skip
        self.assertEqual([int(best[name]) for name in best if name.endswith("observed")], [2, 2])  # the loss falls
        file = first / "trainer_state.json"
        state = json.loads(file.read_text())
        del state["stateful_callbacks"]["UpdateRouters"]
        file.write_text(json.dumps(state))
        with self.assertWarnsRegex(UserWarning, "adapters without the routers' state"):
            self.fitted(self.adapted("kmeans", {}), "old", 4, str(first))
        with self.assertRaisesRegex(choir.FormatError, "has no routers' state"):
            self.torch.load_router_state(self.adapted("kmeans", {}), first)

    def test_offloaded_weights(self):
        """accelerate's hooks go with the weights, so that a model that is partly on disk is converted, saved and turned back;
        weights without values, and a gate that a router copies, are refused by name."""
        if misses("weights on disk", "accelerate"):
            return
        folder, model = testing.directory() / "offloaded", self.model("Mixtral")
        model.save_pretrained(folder)
        places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
        places |= {"model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
        words = {"device_map": places, "offload_folder": str(folder / "off")}
        for router, options in ((None, {}), ("expert_choice", {}), ("bias_balanced", {})):
            twin = self.torch.convert(type(model).from_pretrained(folder, **words).eval(), router, **options)
            self.assertTrue(twin.model.layers[1].mlp.experts.down_proj.is_meta)
            wanted = self.torch.convert(copy.deepcopy(model), router, **options)
            torch.testing.assert_close(twin(self.ids).logits, wanted(self.ids).logits)
            self.assertTrue(torch.equal(twin.generate(self.ids, max_new_tokens=3), wanted.generate(self.ids, max_new_tokens=3)))
            twin.save_pretrained(folder / "again")
            torch.testing.assert_close(self.torch.from_pretrained(folder / "again")(self.ids).logits, wanted(self.ids).logits)
            torch.testing.assert_close(self.torch.revert(twin)(self.ids).logits, model(self.ids).logits)
        off = type(model).from_pretrained(folder, **words)
        with self.assertRaisesRegex(choir.UnsupportedError, "model.layers.1.mlp.gate.weight is offloaded.*device_map"):
            self.torch.convert(off, "kmeans")
        with torch.device("meta"):
            empty = type(model)(model.config)
        with self.assertRaisesRegex(choir.UnsupportedError, "model.layers.0.mlp.gate.weight is on the meta device"):
            self.torch.convert(empty)

    def test_hooks_of_others(self):
        """On blocks and gates they go on, and their handles remove them; on experts it is said that they do not."""
        model, seen = self.model("Olmoe"), []
        block = model.model.layers[0].mlp
        handles = [
            block.register_forward_hook(lambda module, args, out: seen.append("block")),
            block.register_forward_pre_hook(lambda module, args, words: seen.append("before"), with_kwargs=True),
            block.gate.register_forward_hook(lambda *_: seen.append("gate")),
            block.register_full_backward_hook(lambda *_: seen.append("backward")),
        ]
        self.torch.convert(model)(self.ids, labels=self.ids).loss.backward()
        self.assertEqual(seen, ["before", "gate", "block", "backward"])
        for handle in handles[:2]:
            handle.remove()
        model(self.ids)
        self.assertEqual(seen[4:], ["gate"])
        self.torch.revert(model)(self.ids, labels=self.ids).loss.backward()
        self.assertEqual(seen[5:], ["gate", "backward"])
        block.experts.register_forward_hook(lambda *_: None)
        other = self.model("Olmoe")
        other.model.layers[1].mlp.experts.register_forward_pre_hook(lambda *_: None)
        with self.assertWarnsRegex(UserWarning, "model.layers.1.mlp.experts has hooks"):
            self.torch.convert(other)

    def test_the_example(self):
        """examples/finetune_moe.py: what it saves loads with the same loss, and choir imports what it turned back."""
        if misses("examples/finetune_moe.py", "peft"):
            return
        out, example = testing.directory() / "finetuned", testing.SOURCE / "examples" / "finetune_moe.py"
        words = [sys.executable, "-W", "ignore", example, out, "--steps", "20"]
        said = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=900)
        self.assertEqual(said.returncode, 0, said.stderr[-3000:])
        losses = dict(re.findall(r"(loss|fine-tuned|loaded|own) (\d+\.\d{4})", said.stdout))
        self.assertLess(float(losses["fine-tuned"]), float(losses["loss"]) - 0.1)
        self.assertEqual(losses["loaded"], losses["fine-tuned"])
        self.assertLess(abs(float(losses["own"]) - float(losses["loaded"])), 0.2)
        testing.program("import", out / "transformers", "--out", out / "checkpoint")


if __name__ == "__main__":
    with warnings.catch_warnings():
        unittest.main()
