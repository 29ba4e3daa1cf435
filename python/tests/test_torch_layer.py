"""Laws of choir.torch's layers, for every router: types, sizes, transforms, compilation."""

import copy
import inspect
import io
import math
import pickle
import unittest
import unittest.mock

import choir
from torch_cases import ANY_ORDER, DEVICE, LAYERS, TorchTest, cannot_compile, cannot_generate_code, experts_of, lacks, torch

if torch:
    import torch.nn.functional as F
    import torch.utils.checkpoint


class Layers(TorchTest):
    def setUp(self):
        super().setUp()
        self.x = torch.randn(2, 32, 16, device=DEVICE)
        self.ids = torch.randint(0, 99, (2, 32), device=DEVICE)

    def layer(self, router, options, **more):
        return self.torch.MoE(16, 24, experts_of(router), router, **{"device": DEVICE, **options, **more})

    def first(self, n):
        return torch.randn(n, 16, device=DEVICE), self.ids.reshape(-1)[:n]

    def test_layer_is_its_formula(self):
        """Every expert by itself on what it took, in training and evaluation."""
        for router, options in self.each(LAYERS):
            layer = self.layer(router, {**options, "jitter": 0} if router == "switch_top1" else options)
            for training in (True, False):
                out = layer.train(training)(self.x, self.ids)
                gates, rows, wanted = layer.routing.gates, self.x.view(-1, 16), 0
                for i in range(gates.shape[1]):
                    read, written = (1, gates[:, i, None])[:: -1 if layer.experts.gate_on == "input" else 1]
                    wanted = wanted + written * (F.gelu(read * rows @ layer.w1[i]) @ layer.w2[i].t())
                torch.testing.assert_close(out.view(-1, 16), wanted, rtol=1e-4, atol=1e-5)
                self.assertGreater(int(layer.routing.load.sum()), 0)

    def test_widths_need_no_alignment(self):
        for router, options in self.each(LAYERS):
            layer = self.torch.MoE(6, 10, experts_of(router), router, activation="swiglu", device=DEVICE, **options)
            rows = self.x[..., :6].reshape(-1, 6)
            out, wanted = layer.eval()(rows, self.ids.view(-1)), 0
            for gate, w1, w2, w3 in zip(layer.routing.gates.t(), layer.w1, layer.w2, layer.w3):
                read, written = (1, gate[:, None])[:: -1 if layer.experts.gate_on == "input" else 1]
                wanted = wanted + written * (F.silu(read * rows @ w1) * (read * rows @ w3) @ w2.t())
            torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
            out.sum().backward()
            self.assertEqual(layer.w2.grad.shape, layer.w2.shape)

    def test_sequences_are_the_last_dimension_but_one(self):
        layer = self.layer("expert_choice", {"pool": "sequence"})
        out = layer(self.x.view(2, 4, 8, 16)).view(8, 8, 16)
        torch.testing.assert_close(out, layer(self.x.view(8, 8, 16)))

    def test_checkpointing_changes_nothing(self):
        """The second forward of a step chooses as the first did, and is not counted."""
        if lacks("activation checkpointing", "_C._current_graph_task_id"):
            return
        for router, options in self.each(LAYERS):
            plain = self.layer(router, options)
            twin = copy.deepcopy(plain)
            for step in range(3):
                x = torch.randn_like(self.x).requires_grad_()
                torch.manual_seed(step)
                plain(x, self.ids).square().sum().backward()
                torch.manual_seed(step)
                out = torch.utils.checkpoint.checkpoint(twin, x, self.ids, use_reentrant=False)
                out.square().sum().backward()
                for layer in (plain, twin):
                    self.torch.update_routers(layer)
            torch.testing.assert_close(twin.state_dict(), plain.state_dict())
            torch.testing.assert_close(twin.w1.grad, plain.w1.grad)

    def test_gradients_reach_every_weight(self):
        for router, options in self.each(LAYERS):
            layer = self.layer(router, options)
            self.assertEqual(float(layer.aux_loss), 0)
            (layer(self.x, self.ids).square().sum() + layer.aux_loss).backward()
            for name, weight in layer.named_parameters():
                self.assertGreater(float(weight.grad.abs().sum()), 0, name)

    def test_derivatives(self):
        """In float64, of the input and every weight; second ones too."""
        if lacks("derivatives of layers", "func.functional_call"):
            return
        for router, options in self.each(LAYERS):
            layer = self.layer(router, options, dtype=torch.float64).eval()
            weights, (x, ids) = dict(layer.named_parameters()), self.first(12)

            def run(x, *given):
                return torch.func.functional_call(layer, dict(zip(weights, given)), (x, ids))

            given = (x.double().requires_grad_(), *weights.values())
            for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
                self.assertTrue(check(run, given, fast_mode=True, nondet_tol=ANY_ORDER))

    def test_autocast_and_bf16(self):
        """Scores stay float32, and the choice is that of float32; thresholds do too."""
        for router, options in self.each(LAYERS):
            layer = self.layer(router, options).eval()
            wanted = layer(self.x, self.ids)
            with torch.autocast(DEVICE, torch.bfloat16):
                out = layer(self.x, self.ids)
            self.assertEqual(out.dtype, torch.bfloat16)
            torch.testing.assert_close(out.float(), wanted, rtol=0.05, atol=0.05)
            layer = self.layer(router, options).bfloat16()
            layer(self.x.bfloat16(), self.ids).float().square().sum().backward()
            self.assertEqual(layer.w1.grad.dtype, torch.bfloat16)
            self.assertEqual(layer.thresholds.dtype, torch.float32)

    def test_few_tokens_or_none(self):
        """As nn.Linear: an output for every token, and gradients of 0 where there is none."""
        for router, options in self.each(LAYERS):
            for training in (True, False):
                layer = self.layer(router, options).train(training)
                for n in (0, 1, 3):
                    x, ids = self.first(n)
                    out = layer(x[None], ids[None])
                    self.assertEqual(out.shape, (1, n, 16))
                    self.assertTrue(bool(torch.isfinite(out).all()))
                    out.sum().backward()
                    self.assertTrue(bool(torch.isfinite(layer.w1.grad).all()))
                first = layer(self.x, self.ids)
                (first.sum() + layer.aux_loss).backward()
                none = layer(self.x[:0], self.ids[:0])
                (none.sum() + layer.aux_loss).backward()  # must not reach the graph of the previous forward
                self.assertIsNone(layer.routing)

    def test_padding_takes_no_part(self):
        for router, options in self.each(LAYERS):
            layer = self.layer(router, options).eval()
            valid = torch.rand(2, 32, device=DEVICE) > 0.3
            out = layer(self.x, self.ids, valid)
            self.assertEqual(float(out[~valid].abs().sum().detach()), 0)
            other = torch.where(valid[..., None], self.x, math.nan)
            again = layer(other, self.ids, valid)
            torch.testing.assert_close(again, out)
            again.square().sum().backward()
            self.assertTrue(bool(torch.isfinite(layer.w1.grad).all()))
            with self.assertRaisesRegex(choir.ArgumentError, "one per token"):
                layer(self.x, self.ids, valid[:1])

    def test_state_dict_has_all(self):
        for router, options in self.each(LAYERS):
            layer = self.layer(router, options, causal=True)
            for _ in range(3):
                layer(self.x, self.ids)
                self.torch.update_routers(layer)
            file = io.BytesIO()
            torch.save(layer.state_dict(), file)
            file.seek(0)
            other, twin = self.layer(router, options, causal=True), copy.deepcopy(layer)
            other.load_state_dict(torch.load(file))
            wanted = layer.eval()(self.x, self.ids)
            for made in (other, twin):
                torch.testing.assert_close(made.eval()(self.x, self.ids), wanted)
            self.assertEqual(
                int(layer.observed) > 0,
                router not in ("topk", "switch_top1", "gshard_top2", "base", "hash", "random", "dense"),
            )

    def test_pickling(self):
        for router, options in self.each(LAYERS):
            layer = self.layer(router, options)
            layer(self.x, self.ids).sum().backward()  # leaves a graph
            made = pickle.loads(pickle.dumps(layer))
            torch.testing.assert_close(made.eval()(self.x, self.ids), layer.eval()(self.x, self.ids))

    def test_outputs_are_no_views(self):
        """FSDP2's hooks are on the output, and lost of a view that is changed in place."""
        for router, options in self.each(LAYERS):
            for x in (self.x, self.x[0]):
                self.assertFalse(self.layer(router, options)(x, self.ids[: x.dim() - 1].reshape(x.shape[:-1]))._is_view())

    def test_state_dicts_of_before_load(self):
        """All weights stood in the layer itself, and that of scores was `router` [d,e]."""
        for router in ("expert_choice", "kmeans"):
            layer = self.layer(router, {}, activation="swiglu")
            old = {name.replace("experts.", ""): tensor for name, tensor in layer.state_dict().items()}
            old["router"] = old.pop("gate.weight").t().clone()
            self.assertLessEqual({"w3", "router"}, set(old))
            other = torch.nn.Sequential(self.layer(router, {}, activation="swiglu"))
            other.load_state_dict({"0." + name: tensor for name, tensor in old.items()})
            torch.testing.assert_close(other(self.x), layer(self.x))
            self.assertTrue(torch.equal(other[0].gate.weight.t(), old["router"]))

    def test_gate_is_a_linear_layer(self):
        """Adapters and quantizers look for those, and put modules of their own in their places."""

        class Adapted(torch.nn.Module):
            def __init__(self, base):
                super().__init__()
                self.base, self.change = base, torch.nn.Linear(16, 8, bias=False, device=DEVICE)

            def forward(self, rows):
                return self.base(rows) + self.change(rows)

        layer = self.layer("expert_choice", {})
        twin = copy.deepcopy(layer)
        self.assertIsInstance(layer.gate, torch.nn.Linear)
        layer.gate = Adapted(layer.gate)
        with torch.no_grad():
            twin.gate.weight += layer.gate.change.weight
        torch.testing.assert_close(layer(self.x), twin(self.x), rtol=1e-4, atol=1e-5)
        layer(self.x).sum().backward()
        self.assertGreater(float(layer.gate.change.weight.grad.abs().sum()), 0)

    def test_causal_depends_on_no_other_token(self):
        for router, options in self.each(LAYERS):
            layer = self.layer(router, options, causal=True)
            if router in ("expert_choice", "capped_expert_choice", "global_topk"):
                fresh = copy.deepcopy(layer.state_dict())
                layer(self.x, self.ids)
                self.torch.update_routers(layer)
                layer.load_state_dict(fresh)  # takes away what that step set
                with self.assertRaisesRegex(RuntimeError, "no training step"):
                    layer.eval()(self.x, self.ids)
            for _ in range(3):
                layer.train()(self.x, self.ids)
                self.torch.update_routers(layer)
            layer.eval()
            one = layer(self.x[:1, :3], self.ids[:1, :3])
            torch.testing.assert_close(layer(self.x, self.ids)[:1, :3], one, rtol=1e-4, atol=1e-5)

    def test_thresholds_are_running_means(self):
        layer, kept = self.layer("expert_choice", {}), []
        for _ in range(4):
            layer(torch.randn_like(self.x))
            kept.append(layer.routing.cutoffs)
            self.torch.update_routers(layer)
        weights = [0.01 * 0.99 ** (3 - i) / (1 - 0.99**4) for i in range(4)]
        torch.testing.assert_close(layer.thresholds, sum(w * c for w, c in zip(weights, kept)))

    def test_centroids_are_means_at_first(self):
        layer = self.layer("kmeans", {})
        layer(self.x)
        self.torch.update_routers(layer)
        taken, rows = layer.routing.assignment, self.x.view(-1, 16)
        for i in range(8):
            if bool(taken[:, i].any()):
                torch.testing.assert_close(layer.gate.weight[i], rows[taken[:, i]].mean(0), rtol=1e-4, atol=1e-5)
        layer.gate.weight.zero_()
        layer.gate.weight[3:] = 1e3 * torch.ones(5, 16, device=DEVICE)  # nobody's
        layer(self.x)
        self.torch.update_routers(layer)
        for i in range(3, 8):
            self.assertLess(float((rows - layer.gate.weight[i]).square().sum(1).min()), 1e-6)
            for j in range(3, i):
                self.assertGreater(float((layer.gate.weight[i] - layer.gate.weight[j]).square().sum()), 1)

    def test_nothing_leaves_the_device(self):
        """A tensor without values cannot be asked for one. The solver on the CPU is an operator, and stands for itself."""
        if lacks("nothing leaves the device", "_subclasses.fake_tensor.FakeTensorMode", "library.custom_op"):
            return
        for router, options in self.each(LAYERS):
            with torch._subclasses.fake_tensor.FakeTensorMode():
                for training in (True, False):
                    layer = self.layer(router, options).train(training)
                    out = layer(
                        torch.randn(2, 32, 16, device=DEVICE), torch.zeros(2, 32, dtype=torch.long, device=DEVICE)
                    )
                    (out.sum() + layer.aux_loss).backward()
                    self.assertEqual(layer.w1.grad.shape, layer.w1.shape)

    def test_meta(self):
        for router, options in self.each(LAYERS):
            if router in ("capped_expert_choice", "global_topk", "base", "random") and lacks("meta", "library.custom_op"):
                continue
            layer = self.layer(router, options, device="meta")
            self.assertTrue(layer(self.x.to("meta"), self.ids.to("meta")).is_meta)
            layer = layer.to_empty(device=DEVICE)
            for buffer in layer.buffers():
                buffer.fill_(7)  # which may be there
            layer.reset_parameters()
            self.assertFalse(bool(layer.thresholds.any() | layer.observed.any()))
            layer.load_state_dict(self.layer(router, options).state_dict())
            layer(self.x, self.ids)

    def test_vmap_and_func_grad(self):
        if lacks("vmap and func.grad", "func.functional_call", "library.custom_op"):
            return
        for router, options in self.each(LAYERS):
            layer, xs, ids = self.layer(router, options), torch.randn(3, 20, 16, device=DEVICE), self.first(20)[1]
            weights = dict(layer.named_parameters())

            def loss(weights, x):
                return torch.func.functional_call(layer, weights, (x, ids)).square().sum()

            of_samples = torch.vmap(torch.func.grad(loss), in_dims=(None, 0), randomness="different")(weights, xs)
            self.assertEqual(of_samples["experts.w1"].shape, (3, *layer.w1.shape))
            layer.eval()
            of_samples = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, xs)
            for i in range(3):
                wanted = torch.autograd.grad(loss(weights, xs[i]), layer.w1)[0]
                torch.testing.assert_close(of_samples["experts.w1"][i], wanted, rtol=1e-4, atol=1e-5)
            out = torch.vmap(lambda x: layer(x, ids))(xs)
            torch.testing.assert_close(out, torch.stack([layer(x, ids) for x in xs]), rtol=1e-4, atol=1e-5)

    def test_causal_evaluation_computes_assigned_rows_only(self):
        """Without gradients; the same numbers."""
        for router, options in self.each(LAYERS):
            if router in ("expert_choice", "capped_expert_choice", "global_topk"):
                for dtype in (torch.float32, torch.float64):
                    layer = self.layer(router, options, causal=True, dtype=dtype)
                    layer(self.x.to(dtype))
                    self.torch.update_routers(layer)
                    wanted = layer.eval()(self.x.to(dtype))
                    with torch.no_grad():
                        torch.testing.assert_close(layer(self.x.to(dtype)), wanted)
                        layer.thresholds.fill_(9)
                        self.assertEqual(float(layer(self.x.to(dtype)).abs().sum()), 0)

    def test_launches(self):
        """Operations that compute, as a GPU launches each by itself: a plain layer has 10 forward and 19 backward. Masks,
        counts and zeros that nobody asked for are not among them."""
        if lacks("launches of a layer", "library.custom_op"):
            return
        from torch.utils._python_dispatch import TorchDispatchMode

        free = ("view", "t", "transpose", "slice", "select", "unsqueeze", "squeeze", "expand", "detach", "empty", "split")
        free = (*free, "_unsafe_view", "alias", "as_strided", "promote_types", "empty_like", "new_empty", "permute")

        class Launches(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                name = function.overloadpacket.__name__
                if name not in free:
                    self.names = [*getattr(self, "names", ()), name]
                return function(*args, **(kwargs or {}))

        of_all = not hasattr(torch.nn.functional, "grouped_mm")  # PyTorch 2.6 differentiates a slice of all
        for router, options, most in (
            ("expert_choice", {}, (20, 22)),
            ("expert_choice", {"activation": "swiglu"}, (22, 27)),
            ("expert_choice", {"pool": "sequence"}, (24, 22)),
            ("expert_choice", {"normalize_gates": True}, (29, 30 + of_all)),
            ("topk", {}, (24, 19)),
            ("bias_balanced", {}, (25, 19)),
        ):
            if of_all and router != "expert_choice":  # without grouped products either
                continue
            layer = self.layer(router, options)
            x = self.x.clone().requires_grad_()
            with Launches() as forward:
                out = layer(x)
            with Launches() as backward:
                out.backward(out.detach())
            for launches, limit in zip((forward, backward), most):
                self.assertLessEqual(len(launches.names), limit, launches.names)

    def test_any_number_of_tokens(self):
        layer = self.torch.ExpertChoice(16, 24, 8, cap=2, device=DEVICE)
        for n in (8, 66, 67, 90):
            layer(self.first(n)[0])
            load = layer.routing.load
            self.assertLessEqual(int(load.max() - load.min()), 1)
            self.assertLessEqual(int(layer.routing.assignment.sum(1).max()), 2)

    def test_without_grouped_products(self):
        """Of some releases tensors without values know those of bf16 alone."""
        if cannot_compile("products of some types"):
            return
        from choir.torch import products

        cases = [case for case in LAYERS if case[0] in ("gshard_top2", "switch_top1", "hash", "global_topk")]
        with unittest.mock.patch.object(products, "GROUPED", frozenset({torch.bfloat16})):
            self.compiled("aot_eager", cases)
            for router, options in self.each(cases):
                layer = self.layer(router, options, device="meta")
                self.assertTrue(layer(self.x.to("meta"), self.ids.to("meta")).is_meta)

    def test_export(self):
        if cannot_compile("torch.export"):
            return
        for router, options in self.each(LAYERS):
            layer = self.layer(router, options).eval()
            made = torch.export.export(layer, (self.x, self.ids)).module()
            torch.testing.assert_close(made(self.x, self.ids), layer(self.x, self.ids))
        layer, deferred = self.layer("expert_choice", {}).eval(), "prefer_deferred_runtime_asserts_over_guards"
        if deferred in inspect.signature(torch.export.export).parameters:  # a batch of 1 of any length
            length = ({1: torch.export.Dim("length", min=2, max=4096)},)
            made = torch.export.export(layer, (self.x[:1],), dynamic_shapes=length, **{deferred: True}).module()
            for x in (self.x[:1, :5], self.x[:1], self.x.view(1, 64, 16)):
                torch.testing.assert_close(made(x), layer(x))

    def compiled(self, backend, cases):
        for router, options in self.each(cases):
            torch._dynamo.reset()
            plain = self.layer(router, {**options, "jitter": 0} if router == "switch_top1" else options)
            twin = copy.deepcopy(plain)
            fast = torch.compile(twin, fullgraph=True, backend=backend)
            for training in (True, False):
                made = []
                for layer, run in ((plain, plain), (twin, fast)):
                    layer.train(training)
                    torch.manual_seed(2)
                    out = run(self.x, self.ids)
                    (out.square().sum() + layer.aux_loss).backward()
                    self.torch.update_routers(layer)
                    made.append([out, layer.w1.grad, *map(torch.clone, layer.buffers()), layer.routing.assignment])
                if router == "random" and training:
                    continue  # compiled draws are other ones
                for ours, theirs in zip(*made):
                    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
                twin.w1.grad = plain.w1.grad = None

    def test_compiles_without_graph_breaks(self):
        if not cannot_compile("torch.compile"):
            self.compiled("aot_eager", LAYERS)

    def test_compiled_code(self):
        """By PyTorch's own compiler, two of them; it takes a while."""
        if not cannot_generate_code("code by torch.compile"):
            self.compiled("inductor", [case for case in LAYERS if case[0] in ("expert_choice", "switch_top1")])

    def test_named_layers(self):
        for kind, given, router in (
            (self.torch.ExpertChoice, {}, "expert_choice"),
            (self.torch.ExpertChoice, {"cap": 2}, "capped_expert_choice"),
            (self.torch.TokenChoice, {"top_k": 1}, "switch_top1"),
            (self.torch.TokenChoice, {}, "gshard_top2"),
            (self.torch.TokenChoice, {"top_k": 5}, "topk"),
            (self.torch.TokenChoice, {"top_k": 3, "balance": "quantile"}, "quantile_balanced"),
            (self.torch.TokenChoice, {"top_k": 3, "balance": "bias"}, "bias_balanced"),
        ):
            layer = kind(16, 24, 8, device=DEVICE, **given)
            self.assertEqual(layer.router_name, router)
            self.assertIn(router, repr(layer))
            self.assertEqual(layer(self.x).shape, self.x.shape)
            if kind is self.torch.TokenChoice:
                self.assertEqual(layer.routing.per_token, given.get("top_k", 2))
        with self.assertRaisesRegex(choir.ArgumentError, "'aux', 'quantile' or 'bias'"):
            self.torch.TokenChoice(16, 24, 8, balance="loss")

    def test_refuses(self):
        layer = self.layer("expert_choice", {})
        for x, why in (
            (self.x.long(), "floating point"),
            (self.x.to(torch.complex64), "floating point"),
            (self.x.double(), "autocast"),
            (self.x[..., :5], "d_model, 16"),
            (self.x.to("meta"), r"\.to\(device\)"),
            (self.x.cpu().numpy(), "x is ndarray; it must be a torch.Tensor"),
            (self.x[0].to_sparse(), "x is a sparse_coo tensor; it must be dense"),
            (torch.nested.nested_tensor([self.x[0], self.x[1, :5]]), "x is a nested tensor; .*valid"),
        ):
            with self.assertRaisesRegex(choir.ArgumentError, why):
                layer(x)
        for sizes, why in (((0, 24, 8), "d_model is 0"), ((16, 0, 8), "d_hidden is 0"), ((16, 24, 0), "num_experts is 0; it must be")):
            with self.assertRaisesRegex(choir.ArgumentError, why):
                self.torch.ExpertChoice(*sizes)
        with self.assertRaisesRegex(choir.ArgumentError, "mask == 0"):
            layer(self.x, valid=torch.zeros(2, 32, device=DEVICE))
        with self.assertRaisesRegex(choir.ArgumentError, "token ids"):
            self.layer("hash", {})(self.x)
        with self.assertRaisesRegex(choir.ArgumentError, "needs sequence_length"):
            self.layer("expert_choice", {"pool": "position"})(self.x[0])
        large = self.layer("expert_choice", {"pool": "group", "group_size": 1 << 30})  # needs no memory for so many
        self.assertEqual(layer.eval()(self.x).shape, large.eval()(self.x).shape)
        with self.assertRaisesRegex(choir.UnsupportedError, "group"):
            self.layer("base", {}, group=object())
        for router, option in (("expert_choice", "threshold_after"), ("random", "consistency_weight")):
            made = self.layer(router, {option: 1})
            with self.assertRaisesRegex(choir.UnsupportedError, option):
                made(self.x, self.ids)
            made.eval()(self.x, self.ids)


if __name__ == "__main__":
    unittest.main()
