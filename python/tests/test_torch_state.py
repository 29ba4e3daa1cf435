"""What routers keep, thresholds, prices and centroids, moves once a step: by all of its forwards, each counted once."""

import copy
import unittest
import warnings

import choir
import testing
from torch_cases import DEVICE, LAYERS, TorchTest, experts_of, lacks, torch

if torch:
    import torch.utils.checkpoint

KEPT = tuple(
    case for case in LAYERS if case[0] not in ("topk", "switch_top1", "gshard_top2", "base", "hash", "random", "dense")
)


class State(TorchTest):
    def setUp(self):
        super().setUp()
        self.xs = torch.randn(4, 2, 32, 16, device=DEVICE)

    def layer(self, router, options, **more):
        torch.manual_seed(5)
        options = {**options, **({"bias_rate": 0.05} if router == "bias_balanced" else {})}
        return self.torch.MoE(16, 24, experts_of(router), router, **{"device": DEVICE, **options, **more})

    def step(self, layer, xs, run=None):
        layer.zero_grad()
        sum((run or layer)(x).square().sum() for x in xs).backward()
        self.torch.update_routers(layer)
        return layer

    def test_state_is_of_all_forwards_of_a_step(self):
        for router, options in self.each(KEPT):
            layer = self.layer(router, options)
            before, seen = copy.deepcopy(layer), []
            for x in self.xs:
                layer(x)
                seen.append(layer.routing)
            for name, buffer in layer.named_buffers():  # nothing moves before
                self.assertTrue(torch.equal(buffer, before.get_buffer(name)))
            self.torch.update_routers(layer)
            self.assertEqual(int(layer.observed), 1)
            if router == "bias_balanced":
                demand = sum(routing.demand for routing in seen)
                wanted = 0.05 * torch.sign(demand * 8 - demand.sum()).float()
            elif router == "kmeans":
                rows, taken = self.xs.reshape(-1, 16), torch.cat([routing.assignment for routing in seen])
                for i in range(8):
                    if bool(taken[:, i].any()):
                        torch.testing.assert_close(layer.gate.weight[i], rows[taken[:, i]].mean(0))
                continue
            else:
                wanted = torch.stack([routing.cutoffs for routing in seen]).mean(0)
            torch.testing.assert_close(layer.thresholds, wanted)
            kept = copy.deepcopy(layer.state_dict())
            self.torch.update_routers(layer)  # no forward, no move
            torch.testing.assert_close(layer.state_dict(), kept, rtol=0, atol=0)

    def test_a_step_that_is_not_finite_leaves_no_trace(self):
        for router, options in self.each(KEPT):
            for bad in (float("nan"), float("inf")):
                plain = self.layer(router, options)
                twin = copy.deepcopy(plain)
                spoilt = self.xs[2].clone()
                spoilt[0, 3, 5] = bad
                for layer in (plain, twin):
                    self.step(layer, self.xs[:2])
                with torch.no_grad():
                    twin(self.xs[3]), twin(spoilt)
                self.torch.update_routers(twin)
                for layer in (plain, twin):
                    self.step(layer, self.xs[2:])
                torch.testing.assert_close(twin.state_dict(), plain.state_dict(), rtol=0, atol=0)
                torch.testing.assert_close(twin.sums, plain.sums, rtol=0, atol=0)

    def checkpointed(self, runs, forwards, compiled=False):
        """Gradients and state of steps under activation checkpointing are those of steps without."""
        if lacks("activation checkpointing", "_C._current_graph_task_id"):
            return
        for router, options in self.each(KEPT):
            plain = self.layer(router, options)
            twin = copy.deepcopy(plain)
            if compiled:
                torch._dynamo.reset()
            inner = torch.compile(twin, backend="aot_eager") if compiled else twin

            def again(x):
                return torch.utils.checkpoint.checkpoint(lambda y: runs(inner, y), x, use_reentrant=False)

            for begin in range(0, 4, forwards):
                xs = [x.clone().requires_grad_() for x in self.xs[begin : begin + forwards]]
                self.step(plain, xs, lambda x: runs(plain, x))
                self.step(twin, xs, again)
                for ours, theirs in zip(twin.parameters(), plain.parameters()):
                    torch.testing.assert_close(ours.grad, theirs.grad)
            torch.testing.assert_close(twin.state_dict(), plain.state_dict())

    def test_two_forwards_before_a_backward(self):
        self.checkpointed(lambda layer, x: layer(x), 2)

    def test_a_layer_that_is_used_twice(self):
        self.checkpointed(lambda layer, x: layer(layer(x)), 1)

    def test_compiled_and_checkpointed(self):
        if not lacks("torch.compile", "compile", "library.custom_op"):
            self.checkpointed(lambda layer, x: layer(x), 2, compiled=True)

    def test_copies_have_the_thresholds(self):
        """Averages, buffers filled in place, and a module called with another's tensors."""
        layer = self.step(self.layer("expert_choice", {}, causal=True), self.xs[:1])
        state, wanted = dict(layer.state_dict()), layer.eval()(self.xs[1])
        average = torch.optim.swa_utils.AveragedModel(self.layer("expert_choice", {}, causal=True), use_buffers=True)
        average.update_parameters(layer)
        torch.testing.assert_close(average.eval()(self.xs[1]), wanted)
        filled = self.layer("expert_choice", {}, causal=True).eval()
        with torch.no_grad():
            for name, tensor in filled.state_dict().items():
                tensor.copy_(state[name])
        torch.testing.assert_close(filled(self.xs[1]), wanted)
        if not lacks("modules called with other tensors", "func.functional_call"):
            fresh = self.layer("expert_choice", {}, causal=True).eval()
            torch.testing.assert_close(torch.func.functional_call(fresh, state, (self.xs[1],)), wanted)

    def test_state_by_itself(self):
        """router_state is all that a step moves outside of gradients, under the same names in any wrapper; the state of other
        routers or sizes is refused, and a partial state_dict says at the next forward that the state is missing."""
        for router, options in self.each(KEPT):
            model = torch.nn.Sequential(torch.nn.Identity(), self.step(self.layer(router, options), self.xs[:2]))
            state = self.torch.router_state(torch.nn.DataParallel(model) if DEVICE == "cpu" else model)
            self.assertEqual(set(state), {"1.thresholds", "1.observed"} | ({"1.gate.weight"} if router == "kmeans" else set()))
            fresh = torch.nn.Sequential(torch.nn.Identity(), self.layer(router, options))
            weights = {name: weight for name, weight in model.named_parameters()}
            fresh.load_state_dict(weights, strict=False)
            with self.assertWarnsRegex(UserWarning, "loaded without its state"):
                fresh(self.xs[2])
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                fresh(self.xs[2])
                self.torch.load_router_state(fresh, state)
                fresh(self.xs[2])
            self.assertEqual([str(w.message) for w in said], [])
            torch.testing.assert_close(fresh.state_dict(), model.state_dict(), rtol=0, atol=0)
            before = state["1.thresholds"].clone()
            self.step(model[1], self.xs)
            self.assertTrue(torch.equal(state["1.thresholds"], before))  # a copy
            for wrong, why in (
                ({**state, "2.thresholds": before}, "the model has no .*2.thresholds"),
                ({"1.observed": state["1.observed"]}, "the state has no"),
                ({**state, "1.thresholds": before[:3]}, "1.thresholds has shape .3,., and .8,. in the model"),
                (testing.directory(), "trainer_state.json: is no state"),
            ):
                with self.assertRaisesRegex(choir.Error, why):
                    self.torch.load_router_state(fresh, wrong)
        causal = self.layer("expert_choice", {}, causal=True)
        causal.load_state_dict(dict(causal.named_parameters()), strict=False)
        with self.assertRaisesRegex(RuntimeError, "load_router_state"):
            causal.eval()(self.xs[0])
        self.assertEqual(self.torch.router_state(self.layer("topk", {})), {})

    def test_state_is_float32(self):
        """In modules of other types too, where a mean in bf16 would stand still."""
        for router, options in self.each(KEPT):
            for made in (
                self.layer(router, options).bfloat16(),
                self.layer(router, options, dtype=torch.bfloat16),
                self.layer(router, options).double().half(),
            ):
                self.assertEqual(made.thresholds.dtype, torch.float32)
                self.assertEqual(made.gate.weight.dtype == torch.float32, router == "kmeans")

    def test_warns_of_a_state_without_updates(self):
        layer = self.layer("bias_balanced", {})
        layer._since_update = 998
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            layer(self.xs[0]), layer(self.xs[0]), layer(self.xs[0])
        self.assertEqual(len([w for w in said if "update_routers" in str(w.message)]), 1)
        with self.assertRaisesRegex(RuntimeError, "update_routers"):
            self.layer("expert_choice", {}, causal=True).eval()(self.xs[0])


if __name__ == "__main__":
    unittest.main()
