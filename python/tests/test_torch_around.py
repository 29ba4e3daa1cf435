"""What stands around a layer of choir.torch: batches without tokens, loss scalers, modules in the gate's place, adapters."""

import base64
import copy
import importlib.util
import io
import itertools
import re
import runpy
import subprocess
import sys
import unittest
import warnings

import choir
import numpy as np
import testing
from torch_cases import DEVICE, LAYERS, TorchTest, cannot_compile, experts_of, lacks, torch

if torch:
    from torch.nn.utils import parametrize


def found(name):
    return importlib.util.find_spec(name) is not None


class Around(TorchTest):
    def setUp(self):
        super().setUp()
        self.x = torch.randn(2, 32, 16, device=DEVICE)
        self.ids = torch.randint(0, 99, (2, 32), device=DEVICE)

    def layer(self, router, options=(), **more):
        torch.manual_seed(5)
        return self.torch.MoE(16, 24, experts_of(router), router, **{"device": DEVICE, **dict(options), **more})

    def test_an_empty_batch_counts_nothing(self):
        """In training and in evaluation, and it gives zeros to what stands before and to the weights."""
        for router, options in self.each(LAYERS):
            layer = self.layer(router, options)
            self.torch.stats(layer)
            layer(self.x, self.ids)
            sums = None if layer.sums is None else layer.sums.clone()
            tally = layer.tally.clone()
            for training in (True, False):
                x = self.x[:0].clone().requires_grad_()
                layer.train(training)(x, self.ids[:0]).sum().backward()
                self.assertEqual(x.grad.shape, x.shape)
                for weight in layer.parameters():
                    self.assertEqual(float(weight.grad.abs().sum()), 0)
            self.assertTrue(sums is None or torch.equal(layer.sums, sums))
            self.assertTrue(torch.equal(layer.tally, tally))

    def test_injected_losses_of_a_scaler(self):
        """Its scale is a tensor, which changes from step to step."""
        layer = self.layer("topk", aux_loss_weight=0.7, inject_aux_loss=1.0)
        for scale in (1.0, 65536.0):
            twin = copy.deepcopy(layer)
            twin.inject_aux_loss = 0.0
            layer.inject_aux_loss = torch.tensor(scale, device=DEVICE)
            layer.zero_grad()
            (layer(self.x.clone().requires_grad_()).square().mean() * scale).backward()
            ((twin(self.x).square().mean() + twin.aux_loss) * scale).backward()
            torch.testing.assert_close(layer.gate.weight.grad / scale, twin.gate.weight.grad / scale)

    def scaled_step(self, layer, scaler, optimizer):
        optimizer.zero_grad()
        loss = layer(self.x.clone().requires_grad_()).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer), scaler.update()

    def scalers(self, law):
        """A training's scaler and a hooked optimizer's maker; None where this PyTorch has none."""
        if lacks(law, "amp.GradScaler", "optim.Optimizer.register_step_pre_hook"):
            return None
        return lambda **more: torch.amp.GradScaler(DEVICE, init_scale=1024.0, **more)

    def test_a_scaler_is_asked_for_its_scale(self):
        """Given once, it gives aux_loss the gradient that adding it would, step for step, compiled too."""
        made = self.scalers("inject_aux_loss of a scaler")
        if made is None:
            return
        for compiled in (False, not cannot_compile("inject_aux_loss of a scaler")):
            scaler = made(growth_interval=1)
            layer = self.layer("topk", aux_loss_weight=0.7, inject_aux_loss=scaler)
            twin = copy.deepcopy(layer)
            self.assertIs(twin.inject_aux_loss, scaler)
            twin.inject_aux_loss = 0
            run = torch.compile(layer, backend="aot_eager") if compiled else layer
            for step in range(3):
                layer.zero_grad(), twin.zero_grad()
                scaler.scale(run(self.x.clone().requires_grad_()).square().mean()).backward()
                (twin(self.x).square().mean() + twin.aux_loss).backward()
                ours = layer.gate.weight.grad / (1024.0 * 2**step)
                torch.testing.assert_close(ours, twin.gate.weight.grad)
                scaler.update(1024.0 * 2 ** (step + 1))

    def test_says_that_a_scaler_is_not_known(self):
        """Where a number is injected and a scaler has a step, of whatever type the products are."""
        made = self.scalers("a warning of a scaler")
        if made is None:
            return
        cases = [(1.0, made(), 1, False), (1.0, made(enabled=False), 0, False), (made(), None, 0, False), (0, made(), 0, False)]
        if not cannot_compile("a warning of a scaler"):
            cases.append((1.0, made(), 1, True))
        for factor, scaler, count, compiled in cases:
            layer = self.layer("topk", inject_aux_loss=factor)
            run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                self.scaled_step(run, scaler or factor, torch.optim.SGD(layer.parameters(), lr=0.1))
            self.assertEqual(len([w for w in said if "inject_aux_loss = scaler" in str(w.message)]), count, factor)

    def test_a_step_that_a_scaler_skips(self):
        """Leaves no trace, whether its logits or its gradients alone are not finite, compiled too; steps have two forwards,
        and the scale grows."""
        made = self.scalers("a skipped step")
        if made is None:
            return
        compiles = not cannot_compile("a skipped step")
        for router, spoilt in itertools.product(("expert_choice", "bias_balanced", "kmeans"), ("logits", "gradients")):
            plain = self.layer(router)
            for layer, skipped in ((plain, ()), (twin := copy.deepcopy(plain), (1, 3, 4))):
                compiled = compiles and skipped and (router, spoilt) == ("expert_choice", "logits")
                run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
                optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
                optimizer.register_step_pre_hook(lambda *_, layer=layer: self.torch.update_routers(layer))
                scaler = made(growth_interval=1)
                for step in (0, *skipped[:1], 2, *skipped[1:], 5):
                    x = (self.x + step).clone()
                    if step in skipped and spoilt == "logits":
                        x[0, 0] = float("nan")
                    optimizer.zero_grad()
                    for half in (x, -x):
                        loss = run(half).square().mean() * (float("inf") if step in skipped else 1)
                        scaler.scale(loss).backward()
                    scaler.step(optimizer), scaler.update()
            torch.testing.assert_close(dict(twin.named_buffers()), dict(plain.named_buffers()))
            self.assertEqual(int(twin.observed), 3)
            torch.testing.assert_close(copy.deepcopy(twin)(self.x), twin(self.x))

    def test_first_steps_that_a_scaler_skips(self):
        """They leave no trace, too, one or several, of one forward or two; a scaler of other training is not taken for this
        one's."""
        made = self.scalers("a skipped first step")
        if made is None:
            return
        other, weight = made(growth_interval=1), torch.nn.Parameter(torch.ones(1, device=DEVICE))
        other.scale(weight.sum()).backward(), other.step(torch.optim.SGD([weight], lr=0.1)), other.update()
        for router, skips, halves in itertools.product(("expert_choice", "bias_balanced", "kmeans"), (0, 1, 2), (1, 2)):
            plain = self.layer(router)
            for layer, skipped in ((plain, 0), (twin := copy.deepcopy(plain), skips)):
                optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
                optimizer.register_step_pre_hook(lambda *_, layer=layer: self.torch.update_routers(layer))
                scaler = made()
                for step in range(-skipped, 3):
                    optimizer.zero_grad()
                    for half in (self.x + step, -self.x)[:halves]:
                        loss = layer(half).square().mean() * (float("inf") if step < 0 else 1)
                        scaler.scale(loss).backward()
                    scaler.step(optimizer), scaler.update()
            torch.testing.assert_close(dict(twin.named_buffers()), dict(plain.named_buffers()), rtol=0, atol=0)
            self.assertEqual(int(twin.observed), 3)
            if router == "expert_choice" and halves == 2 and not skips:  # every forward counts
                torch.testing.assert_close(self.first_means(halves), self.first_means(halves, made()))

    def first_means(self, halves, scaler=None):
        """Thresholds after a step."""
        layer = self.layer("expert_choice")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: self.torch.update_routers(layer))
        for half in (self.x, -self.x):
            loss = layer(half).square().mean()
            (scaler.scale(loss) if scaler else loss).backward()
        scaler.step(optimizer) if scaler else optimizer.step()
        return layer.thresholds

    def test_a_step_that_is_given_up(self):
        """This is what start_step is for: otherwise the next step moves nothing."""
        layer = self.layer("bias_balanced", bias_rate=0.1)
        spoilt = self.x.clone()
        spoilt[0, 0] = float("nan")
        layer(spoilt), layer(self.x)
        self.torch.update_routers(layer)
        self.assertEqual(int(layer.observed), 0)
        layer(spoilt)
        self.torch.start_step(torch.nn.Sequential(layer))
        layer(self.x)
        self.torch.update_routers(layer)
        self.assertEqual(int(layer.observed), 1)

    def test_another_module_as_gate(self):
        """As quantizers put one there: it reads the type of its own weight, and the layer can be moved and copied."""
        for dtype in (torch.float32, torch.bfloat16):
            layer = self.layer("topk", dtype=dtype)
            other = torch.nn.Linear(16, 8, bias=False, device=DEVICE, dtype=dtype)
            other.weight.data.copy_(layer.gate.weight.data)
            wanted = layer(self.x.to(dtype))
            layer.gate = other
            out = layer(self.x.to(dtype))
            if dtype == torch.float32:  # logits in bf16 may choose otherwise
                torch.testing.assert_close(out, wanted)
            layer(self.x.to(dtype)).sum().backward()
            twin = copy.deepcopy(layer).double()
            self.assertEqual(twin(self.x.double()).dtype, torch.float64)
            twin.load_state_dict(layer.state_dict())
            self.assertEqual(twin.thresholds.dtype, torch.float32)

    def quantized(self, dtype):
        """(name, layer) with gates of 8 bits that torchao and bitsandbytes make, and one of 4; those that are installed."""
        made = [("plain", self.torch.MoE(64, 24, 8, "bias_balanced", top_k=2, bias_rate=0.1, dtype=dtype, device=DEVICE))]
        if found("torchao"):
            quantization = importlib.import_module("torchao.quantization")
            for name in ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Float8WeightOnlyConfig"):
                made.append((name, copy.deepcopy(made[0][1])))
                quantization.quantize_(made[-1][1], getattr(quantization, name)())
        if found("bitsandbytes"):
            modules = importlib.import_module("bitsandbytes.nn")
            for name, more in (("Linear8bitLt", {"has_fp16_weights": False}), ("LinearNF4", {})):
                made.append((name, copy.deepcopy(made[0][1])))
                gate = getattr(modules, name)(64, 8, bias=False, **more)
                gate.weight.data = made[0][1].gate.weight.detach().clone()
                made[-1][1].gate = gate
                made[-1][1].to(DEVICE)  # which quantizes
        return made

    def test_quantized_gates(self):
        """They choose almost as before, whatever the layer's type, and stand in nobody's way."""
        ranks, lacking = importlib.import_module("choir.torch.ranks"), not (found("torchao") and found("bitsandbytes"))
        if lacking:
            print("\nNOT TESTED: choir.torch with quantized gates: torchao and bitsandbytes are not both installed")
        for dtype in (torch.float32, torch.bfloat16):
            x, layers = torch.randn(2, 32, 64, dtype=dtype, device=DEVICE), self.quantized(dtype)
            for name, layer in layers:
                given = x.clone().requires_grad_()
                out = layer(given)
                out.float().square().mean().backward()
                self.assertEqual((out.dtype, out.isfinite().all().item()), (dtype, True), name)
                self.assertGreater(float(given.grad.abs().sum()), 0, name)
                wanted = layer.routing.assignment if name == "plain" else wanted
                same = (layer.routing.assignment == wanted).float().mean()
                self.assertGreater(float(same), 0.85 if name == "LinearNF4" else 0.96, name)
                self.torch.update_routers(layer)
                self.assertEqual(int(layer.observed), 1, name)
                ranks._weights_of(layer)  # of several processes
                torch.testing.assert_close(copy.deepcopy(layer)(x), layer(x), msg=name)
                layer.state_dict(), repr(layer)

    def test_sums_that_stayed_on_another_device(self):
        """FSDP2 moves buffers and parameters only: the step begins anew, and the forward keeps its losses and routing."""
        layer = self.layer("bias_balanced", z_loss_weight=0.1)
        layer.sums = layer.sums.to("meta")
        layer(self.x)
        self.assertEqual((layer.sums.device, float(layer.sums[1])), (self.x.device, 1))
        self.assertTrue(layer.aux_loss.requires_grad and layer.routing is not None)

    def test_weights_by_parametrizations(self):
        class Half(torch.nn.Module):
            def forward(self, weight):
                return weight / 2

        for router in ("expert_choice", "topk"):
            for part, name in (("experts", "w1"), ("gate", "weight")):
                layer, halved = self.layer(router), self.layer(router)
                with torch.no_grad():
                    getattr(getattr(halved, part), name).div_(2)
                parametrize.register_parametrization(getattr(layer, part), name, Half())
                torch.testing.assert_close(layer(self.x), halved(self.x))
                layer(self.x).sum().backward()
                self.assertEqual(layer.double()(self.x.double()).dtype, torch.float64)
                parametrize.remove_parametrizations(getattr(layer, part), name)
                torch.testing.assert_close(layer(self.x.double()).float(), halved(self.x), rtol=1e-4, atol=1e-5)

    def test_one_read_of_a_weight_a_forward(self):
        """A parametrization that has a state, as spectral_norm, moves once."""
        layer, reads = self.layer("expert_choice"), []

        class Counted(torch.nn.Module):
            def forward(self, weight):
                reads.append(1)
                return weight

        parametrize.register_parametrization(layer.experts, "w1", Counted())
        reads.clear()
        layer(self.x)
        self.assertEqual(len(reads), 1)

    def test_every_module_resets_its_own(self):
        """As FSDP and loops over modules do behind to_empty: the same spread as by the layer's own."""
        for activation, shared in (("gelu", 0), ("swiglu", 1)):
            layer = self.torch.MoE(64, 96, 32, activation=activation, shared_experts=shared, device=DEVICE)
            wanted = {name: float(weight.detach().std()) for name, weight in layer.named_parameters()}
            for module in layer.modules():
                own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
                for tensor in own:
                    tensor.data.fill_(7)
                self.assertTrue(not own or hasattr(module, "reset_parameters"), type(module))
            for module in layer.modules():
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()
            for name, weight in layer.named_parameters():
                self.assertLess(abs(float(weight.detach().std()) / wanted[name] - 1), 0.1, name)
            self.assertFalse(bool(layer.thresholds.any()))

    def adapted(self, **where):
        import peft

        torch.manual_seed(3)
        base = torch.nn.Sequential()
        base.lin, base.moe = torch.nn.Linear(16, 16), self.layer("topk", activation="swiglu", device="cpu")
        return base, peft.get_peft_model(base, peft.LoraConfig(r=4, **where))

    def test_adapters(self):
        """PEFT's LoRA on the gate and on the experts: trained, moved, merged."""
        if not found("peft"):
            print("\nNOT TESTED: choir.torch under adapters: peft is not installed")
            return
        x = self.x.cpu()
        for where in (
            {"target_modules": ["lin", "gate"]},
            {"target_modules": [], "target_parameters": ["experts.w1", "experts.w2", "experts.w3"]},
            {"target_modules": ["gate"], "target_parameters": ["experts.w2"]},
            {"target_modules": ["lin"], "modules_to_save": ["gate"]},
        ):
            base, model = self.adapted(**where)
            before, weights = model(x).detach(), [p for p in model.parameters() if p.requires_grad]
            optimizer = torch.optim.AdamW(weights, lr=0.02)
            for _ in range(3):
                optimizer.zero_grad()
                ((model(x) - x).square().mean() + base.moe.aux_loss).backward()
                optimizer.step()
            self.assertGreater(float((model(x) - before).detach().abs().max()), 1e-3, where)
            model.to(torch.float64)
            wanted = model.eval()(x.double()).detach()
            merged = model.merge_and_unload()
            torch.testing.assert_close(merged(x.double()), wanted, msg=str(where))
            self.assertIsInstance(merged.moe.gate, torch.nn.Linear)
            self.assertEqual(merged.moe.w1.shape, (8, 16, 24))

    def test_recorded_routes(self):
        """Of [tokens,layers,K] numbers, those of the router give its outputs again, with live gates."""
        layers = [self.layer("topk", top_k=2), self.torch.MoE(16, 24, 8, "topk", top_k=2, device=DEVICE)]
        wanted = [layer(self.x) for layer in layers]
        routes = torch.stack([layer.routing.gates.topk(2).indices for layer in layers], 1)
        for given in (routes.to(torch.int32), routes.cpu().numpy(), routes.view(2, 32, 2, 2)):
            taken = self.torch.recorded(given, 8).to(DEVICE)
            self.assertEqual((taken.shape[0], taken.shape[-1], int(taken.sum())), (2, 8, 2 * 64 * 2))
            for layer, forced, out in zip(layers, taken, wanted):
                layer.zero_grad()
                torch.testing.assert_close(layer(self.x, assignment=forced), out)
                torch.testing.assert_close(layer(self.x, taken=forced), out, atol=0, rtol=0)  # the name until 0.5
                routing = layer.routing
                self.assertIs(routing.taken, routing.assignment)
                with self.assertRaisesRegex(choir.ArgumentError, "give assignment only"):
                    layer(self.x, assignment=forced, taken=forced)
                layer(self.x, assignment=forced).square().sum().backward()
                self.assertGreater(float(layer.gate.weight.grad.abs().sum()), 0)
        whole, file = self.torch.recorded(routes, 8), io.BytesIO()
        np.save(file, routes.cpu().numpy().astype(np.uint16))  # as vLLM's server, of more than 256 experts
        by_vllm = base64.b64encode(file.getvalue()).decode()
        by_sglang = base64.b64encode(routes.cpu().numpy().astype("<i4").tobytes()).decode()
        for given in (by_vllm, by_sglang, routes.cpu().numpy().astype(np.uint8)):
            self.assertTrue(torch.equal(self.torch.recorded(given, 8, shape=(2, 2)), whole.cpu()))
        for given, shape, why in ((by_sglang, None, "shape="), (by_sglang, (3, 7), "base64"), ("no base64", (2, 2), "base64")):
            with self.assertRaisesRegex(choir.ArgumentError, why):
                self.torch.recorded(given, 8, shape=shape)
        routes[3, 1] = -1  # no record: no expert
        self.assertEqual(int(self.torch.recorded(routes, 8)[1, 3].sum()), 0)
        for bad, why in (
            (routes + 7, "there are 8"),
            (routes.float(), "must be integers"),
            (routes[0], "must be integers"),
            (torch.tensor([[[1, 2], [3, 4]], [[1, 2], [7, 7]]]), "names expert 7 twice for token 1 in layer 1"),
            (torch.tensor([[[1, 2]], [[0, 0]]]), "names expert 0 twice for token 1 in layer 0; .*-1 where a token has no record"),
        ):
            with self.assertRaisesRegex(choir.ArgumentError, why):
                self.torch.recorded(bad, 8)
        routes = torch.tensor([[[0, 0], [0, 1]], [[0, 0], [2, 0]]])  # vLLM: layer 0 is dense
        self.assertEqual([int(layer.sum()) for layer in self.torch.recorded(routes, 8)], [0, 4])
        self.assertEqual(int(self.torch.recorded(routes[:, :, :1], 8)[0].sum()), 2)  # of one number 0 is expert 0

    def test_records_are_written(self):
        """What the last forward chose, the highest gate first, and -1 for what is not there; `recorded` reads it."""
        plain = torch.nn.Linear(16, 16, device=DEVICE)
        for routers in (("topk", "topk"), ("expert_choice", "topk")):
            layers = [self.layer(router, **({"top_k": 3} if router == "topk" else {})) for router in routers]
            model = torch.nn.Sequential(layers[0], plain, layers[1])
            model(self.x)
            record = self.torch.routed_experts(model)
            self.assertEqual((record.dtype, tuple(record.shape[:2])), (torch.int32, (64, 2)))
            for i, layer in enumerate(layers):
                routing, row = layer.routing, record[:, i].long()
                self.assertTrue(torch.equal(self.torch.recorded(record, 8)[i].to(DEVICE), routing.assignment))
                gates = routing.gates.gather(1, row.clamp(min=0)).masked_fill(row < 0, 0)
                self.assertTrue(bool((gates.diff(dim=1) <= 0).all()))
        layers[0](self.x[:1])
        with self.assertRaisesRegex(choir.ArgumentError, "routed .* tokens; a record has as many in each"):
            self.torch.routed_experts(model)

    def test_flops_are_counted(self):
        """By PyTorch's FlopCounterMode, forward and backward: routers that run as many rows have as many, and each of an
        expert's products is counted by its formula."""
        if lacks("counted FLOPs", "utils.flop_counter.FlopCounterMode", "nn.functional.grouped_mm"):
            return
        from torch.utils.flop_counter import FlopCounterMode

        n, d, h, e = 64, 16, 24, 8
        for activation, products in (("gelu", 2), ("swiglu", 3)):
            forward = 2 * n * d * e + 2 * 2 * n * products * d * h
            for router, options in (("expert_choice", {}), ("topk", {"top_k": 2}), ("bias_balanced", {"top_k": 2})):
                layer = self.layer(router, activation=activation, **options)
                x = self.x.clone().requires_grad_()
                with FlopCounterMode(display=False) as counter:
                    out = layer(x)
                    self.assertEqual(counter.get_total_flops(), forward, router)
                    out.sum().backward()
                self.assertEqual(counter.get_total_flops(), 3 * forward, router)

    def muon(self):
        return runpy.run_path(str(testing.SOURCE / "examples" / "muon.py"))

    def test_muon_of_experts(self):
        """examples/muon.py: a step on weights [experts,d,h] is PyTorch's Muon on each expert's matrix, stored transposed or not,
        and gates and embeddings have AdamW."""
        muon = self.muon()
        stored = torch.randn(4, 16, 24, device=DEVICE)
        weights = [torch.nn.Parameter(stored.clone()), torch.nn.Parameter(stored.mT.clone())]
        apart = [torch.nn.Parameter(stored[i].clone()) for i in range(4)]
        optimizer, theirs = muon["Muon"](weights, lr=0.02), None
        if not lacks("Muon on expert weights", "optim.Muon"):
            theirs = torch.optim.Muon(apart, lr=0.02, adjust_lr_fn="match_rms_adamw")
        for _ in range(3):
            gradient = torch.randn_like(stored) * torch.tensor([1, 9, 0.01, 1], device=DEVICE).view(-1, 1, 1)
            weights[0].grad, weights[1].grad = gradient.clone(), gradient.mT.clone()
            for i in range(4):
                apart[i].grad = gradient[i].clone()
            optimizer.step(), theirs.step() if theirs else None
        torch.testing.assert_close(weights[1].mT, weights[0], rtol=0, atol=1e-3)  # bf16
        self.assertGreater(float((weights[0] - stored).detach().abs().max()), 0.02)
        if theirs:
            torch.testing.assert_close(weights[0], torch.stack(apart), rtol=0, atol=1e-3)
        model = torch.nn.Sequential(torch.nn.Embedding(9, 16), self.layer("expert_choice").cpu(), torch.nn.Linear(16, 16))
        matrices, others = (optimizer.param_groups[0]["params"] for optimizer in muon["optimizers_of"](model, 0.02))
        moe = model[1]
        self.assertEqual([id(w) for w in matrices], [id(w) for w in (moe.w1, moe.w2, model[2].weight)])
        self.assertEqual([id(w) for w in others], [id(w) for w in (model[0].weight, moe.gate.weight, model[2].bias)])

    def test_muon_s_example(self):
        """Both optimizers learn the text: from 5.5 nats per byte to the entropy of its bytes."""
        if lacks("examples/muon.py", "nn.functional.scaled_dot_product_attention"):
            return
        testing.run()
        small = "--layers 2 --width 32 --context 32 --batch 8 --steps 60 --rate 0.01 --device cpu".split()
        words = [sys.executable, "-W", "ignore", testing.SOURCE / "examples" / "muon.py", testing.directory() / "book.txt", *small]
        output = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=600)
        self.assertEqual(output.returncode, 0, output.stderr[-2000:])
        losses = re.findall(r"^(\w+): .* held out (\d\.\d+)", output.stdout, re.M)
        self.assertEqual([name for name, _ in losses], ["AdamW", "Muon"])
        for name, loss in losses:
            self.assertLess(float(loss), 3.0, name)

    def test_state_after_a_refused_forward(self):
        layer = self.layer("bias_balanced")
        with self.assertRaisesRegex(choir.ArgumentError, "autocast"):
            layer(self.x.double())
        self.assertEqual(float(layer.sums.abs().sum()), 0)


if __name__ == "__main__":
    unittest.main()
