"""choir.torch.route against libchoir's: the same selection bit for bit, ties included; gates and gradients within rounding."""

import unittest

import numpy as np

import choir
import choir.routing
from choir._routers import find
from torch_cases import ANY_ORDER, CASES, DEVICE, TorchTest, cannot_compile, experts_of, lacks, planted, torch

N, T = 200, 20


def host(tensor):
    return None if tensor is None else tensor.detach().float().cpu().numpy()


def array(tensor):
    return tensor.cpu().numpy()


class Routers(TorchTest):
    def setUp(self):
        super().setUp()
        self.route = self.torch.route
        self.ids = torch.randint(0, 1000, (N,), device=DEVICE)
        self.valid = torch.rand(N, device=DEVICE) > 0.2

    def asked(self, valid, take=lambda tensor: tensor):
        """Arguments of a routing; `take` makes arrays of tensors."""
        return dict(tokens=take(self.ids), valid=None if valid is None else take(valid), sequence_length=T)

    def both(self, scores, router, options, valid=None, training=False):
        """libchoir's routing, and choir.torch's, of the same scores."""
        theirs = choir.route(host(scores), router, training=training, **self.asked(valid, array), **options)
        return theirs, self.route(scores, router, training=training, **self.asked(valid), **options)

    def same(self, theirs, ours):
        taken = np.zeros(ours.taken.shape, bool)
        taken[theirs.token, theirs.expert] = True
        np.testing.assert_array_equal(array(ours.taken), taken)
        np.testing.assert_array_equal(array(ours.demand), theirs.demand)
        self.assertEqual(int(ours.dropped), theirs.dropped)
        self.assertEqual(theirs.cutoffs is None, ours.cutoffs is None)

    def test_compiles(self):
        if cannot_compile("torch.compile of route"):
            return
        for router, options in self.each([CASES[0], CASES[2], CASES[6], CASES[12], CASES[18]]):
            torch._dynamo.reset()

            def run(logits, router=router, options=options):
                made = choir.torch.route(logits, router, logits=True, sequence_length=15, **options)
                return made.gates, made.taken, made.aux_loss

            compiled = torch.compile(run, fullgraph=True, backend="eager")
            for logits in (torch.randn(60, 8, device=DEVICE), torch.randn(90, 8, device=DEVICE)):
                for ours, theirs in zip(compiled(logits), run(logits)):
                    self.assertTrue(torch.equal(ours, theirs))

    def test_selections_are_libchoir_s(self):
        """Bit for bit, in each type, in training and evaluation, with padding and without; cut-offs and prices as well."""
        for router, options in self.each():
            for dtype in (torch.float32, torch.bfloat16, torch.float64):
                scores = planted(N, experts_of(router), dtype)
                for training in (False,) if router == "random" else (False, True):
                    if router == "quantile_balanced" and training and dtype == torch.float64:
                        continue  # libchoir's prices are rounded to float32, and ties with them
                    for valid in (None, self.valid):
                        theirs, ours = self.both(scores, router, options, valid, training)
                        self.same(theirs, ours)
                        self.assertEqual(ours.gates.dtype, dtype)
                        rounding = {torch.bfloat16: 2**-8, torch.float64: 1e-7}.get(dtype, 1e-7)
                        np.testing.assert_allclose(host(ours.gates), theirs.gates, rtol=rounding, atol=rounding / 8)
                        sums = max(rounding, 4e-7)  # of 200 tokens, added in another order
                        np.testing.assert_allclose(host(ours.aux_loss), theirs.aux_loss, rtol=sums)
                        if ours.cutoffs is not None:
                            np.testing.assert_array_equal(host(ours.cutoffs), theirs.cutoffs)

    def test_without_ties_too(self):
        for router, options in self.each():
            scores = torch.softmax(torch.randn(N, experts_of(router), device=DEVICE), 1)
            self.same(*self.both(scores, router, options, training=router != "random"))

    def test_thresholds_are_libchoir_s(self):
        for router, options in self.each():
            if router not in ("expert_choice", "capped_expert_choice", "global_topk"):
                given, zeros = planted(N, experts_of(router)), torch.zeros(8, device=DEVICE)
                with self.assertRaises(
                    NotImplementedError if router.endswith("_balanced") else choir.ArgumentError
                ):
                    self.route(given, router, tokens=self.ids, thresholds=zeros, **options)
                    raise NotImplementedError
                continue
            scores = planted(N, 8)
            thresholds = scores[3] + 1 / 64
            gates = choir.route(
                host(scores), router, thresholds=host(thresholds), valid=array(self.valid), **options
            ).gates
            ours = self.route(scores, router, valid=self.valid, thresholds=thresholds, **options)
            np.testing.assert_array_equal(array(ours.taken), gates != 0)

    def test_sizes_that_do_not_divide(self):
        """Room is rounded up, and a pool of padding has no cut-off."""
        padding = self.valid.clone()
        padding[:T] = False
        for router, options, valid in (
            ("expert_choice", {"pool": "sequence"}, padding),
            ("switch_top1", {"capacity_factor": 0.79, "jitter": 0}, None),
        ):
            theirs, ours = self.both(planted(N, 8), router, options, valid)
            self.same(theirs, ours)
            if ours.cutoffs is not None:
                np.testing.assert_array_equal(host(ours.cutoffs), theirs.cutoffs)

    def test_a_second_expert_that_is_as_good_is_always_drawn(self):
        even = torch.full((N, 2), 0.5, device=DEVICE)
        made = self.route(even, "gshard_top2", training=True, random_second=True)
        self.assertEqual(array(made.demand).tolist(), [N, N])

    def test_nan_is_the_worst(self):
        scores = planted(N, 8)
        scores[5] = float("nan")
        for router, options in (("expert_choice", {}), ("global_topk", {})):
            self.assertFalse(bool(self.route(scores, router, **options).taken[5].any()))

    def test_gates_and_gradients_are_those_of_float64(self):
        """By random cotangents; in float32 also libchoir's own backward."""
        for router, options in self.each():
            e = experts_of(router)
            logits = torch.randn(N, e, device=DEVICE).bfloat16()
            cotangent = torch.randn(N, e, device=DEVICE).bfloat16()
            made = {}
            for dtype in (torch.float64, torch.float32, torch.bfloat16):
                given = logits.to(dtype).requires_grad_()
                routing = self.route(given, router, logits=True, **self.asked(self.valid), **options)
                loss = (routing.gates * cotangent).sum() + 0.3 * routing.aux_loss
                loss = loss + options.get("z_loss_weight", 0) * routing.z_loss
                if loss.requires_grad:
                    loss.backward()
                made[dtype] = routing.gates.detach().double(), (
                    given.new_zeros(N, e) if given.grad is None else given.grad
                )
            for dtype, bound in ((torch.float32, 1e-6), (torch.bfloat16, 2**-7)):
                for ours, exact in zip(made[dtype], made[torch.float64]):
                    torch.testing.assert_close(ours.double(), exact.double(), rtol=bound, atol=bound)
            asked = {"logits": True, **self.asked(self.valid, array), **options}
            theirs = choir.route_backward(host(logits), host(cotangent), router, aux_weight=0.3, **asked)
            np.testing.assert_allclose(host(made[torch.float32][1]), theirs, rtol=1e-4, atol=1e-6)

    def test_first_and_second_derivatives(self):
        cases = [case for case in CASES if case[0] not in ("hash", "random", "dense", "kmeans")]
        for router, options in self.each(cases):
            logits = torch.randn(24, 8, dtype=torch.float64, device=DEVICE, requires_grad=True)

            def made(given):
                routing = self.route(given, router, logits=True, sequence_length=3, **options)
                return routing.gates, routing.aux_loss, routing.z_loss

            if lacks("second derivatives", "func.grad"):
                self.assertTrue(torch.autograd.gradcheck(made, logits, nondet_tol=ANY_ORDER))
                continue
            for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
                self.assertTrue(check(made, logits, fast_mode=True, nondet_tol=ANY_ORDER))

    def test_any_layout(self):
        scores = planted(N, 8)
        for router, options in self.each(CASES[:-1]):
            plain = self.route(scores, router, tokens=self.ids, sequence_length=T, **options)
            strided = torch.stack([scores, scores + 1], 2).transpose(0, 1).contiguous().transpose(0, 1)[:, :, 0]
            other = self.route(strided, router, tokens=self.ids, sequence_length=T, **options)
            self.assertTrue(torch.equal(plain.taken, other.taken))
            torch.testing.assert_close(plain.gates, other.gates)

    def test_every_router_is_here(self):
        from choir.torch.routers import CHOOSE

        native = [name for name in choir.routers() if not find(name).plugin]  # plug-ins choose on the host
        self.assertEqual(sorted(CHOOSE), sorted(native))
        self.assertLess(set(CHOOSE), {router for router, _ in CASES})

    def test_refuses(self):
        scores = planted(N, 8)
        for given in (scores.long(), scores > 0, scores.to(torch.complex64)):
            with self.assertRaisesRegex(choir.ArgumentError, "floating point"):
                self.route(given)
        with self.assertRaisesRegex(choir.ArgumentError, "tokens, experts"):
            self.route(scores[0])
        for router in choir.routers():
            with self.assertRaisesRegex(choir.ArgumentError, "at least 1"):
                self.route(scores[:0], router)
        with self.assertRaisesRegex(choir.ArgumentError, "one per token"):
            self.route(scores, valid=self.valid[:3])
        with self.assertRaisesRegex(choir.ArgumentError, "token ids"):
            self.route(scores, "hash")
        for router in ("hash", "switch_top1"):
            with self.assertRaisesRegex(choir.ArgumentError, "must be integers"):
                self.route(scores, router, tokens=torch.rand(N, device=DEVICE))
        with self.assertRaisesRegex(choir.ArgumentError, "negative"):
            self.route(scores, pool="sequence", sequence_length=-1)
        for thresholds in (scores[0, :1], scores[:, :1], scores[0, :3], scores[0].to("meta")):
            with self.assertRaisesRegex(choir.ArgumentError, "one per expert"):
                self.route(scores, thresholds=thresholds)
        for options in ({"capacity": 2}, {"capacity_factor": 9}, {"cap": 3}):
            with self.assertRaises(choir.ArgumentError):
                self.route(scores, **options)

    def test_balancing_stays_on_the_device(self):
        """Its operations, on tensors without values."""
        if lacks("solvers on tensors without values", "_subclasses.fake_tensor.FakeTensorMode"):
            return
        from choir.torch import solvers

        with torch._subclasses.fake_tensor.FakeTensorMode():
            scores = torch.rand(N, 8)
            solvers.balance(scores, torch.rand(N) > 0.5, torch.zeros(8), 2)


if __name__ == "__main__":
    unittest.main()
