"""choir.conformance: published routers pass, and routers that are wrong in one way have that fault named."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest

import numpy as np

from choir.conformance import cases, check, diagnose, rules

try:
    import torch
except ImportError:
    torch = None


def softmax(x, axis):
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def top(scores, k, valid, higher=False):
    """[n,k] indices, best first, and the mask of valid tokens."""
    index = np.argsort(-(scores[:, ::-1] if higher else scores), 1, kind="stable")[:, :k]
    index = scores.shape[1] - 1 - index if higher else index
    mask = np.zeros(scores.shape, bool)
    np.put_along_axis(mask, index, True, 1)
    return index, mask & valid[:, None]


def share(gates, axis=1):
    return gates / np.maximum(gates.sum(axis, keepdims=True), 1e-9)


def balance(scores, k, valid, mask):
    """experts * sum(share of assignments * mean score), divided by k."""
    return scores.shape[1] * float((mask[valid].mean(0) / k * scores[valid].mean(0)).sum())


# ---- token choice


def olmoe(scores, k, valid):
    _, mask = top(scores, k, valid)
    return mask, scores * mask, balance(scores, k, valid, mask)


def olmoe_of_transformers(scores, k, valid):
    mask, gates, loss = olmoe(scores, k, valid)
    return mask, gates, loss * k


def mixtral(scores, k, valid):
    mask, gates, loss = olmoe(scores, k, valid)
    return mask, share(gates), loss * k


def mixtral_logits(logits, k, valid):
    _, mask = top(logits, k, valid)
    return mask, np.where(mask, softmax(np.where(mask | ~valid[:, None], logits, -np.inf), 1), 0)


def filled(scores, k, valid, factor, order, higher=False):
    """Capacity: order says the sequence of (token, rank)."""
    n, e = scores.shape
    index, _ = top(scores, k, valid, higher)
    room = int(np.ceil(factor * k * valid.sum() / e))
    mask = np.zeros(scores.shape, bool)
    pairs = [(t, r) for t in range(n) for r in range(k) if valid[t]]
    for t, r in sorted(pairs, key=lambda p: order(*p, scores[p[0], index[p[0], p[1]]], scores[p[0]].max())):
        mask[t, index[t, r]] = mask[:, index[t, r]].sum() < room
    return mask, top(scores, k, valid, higher)[1]


def by_index(t, r, score, best):
    return r, t


def gshard(scores, k, valid, factor=1.0, order=by_index, counted=1, scale=1.0):
    mask, asked = filled(scores, 2, valid, factor, order)
    first = top(scores, counted, valid)[1]
    return mask, share(scores * asked) * mask, scale * balance(scores, counted, valid, first)


def switch(scores, k, valid, factor=1.25, order=by_index):
    mask, asked = filled(scores, 1, valid, factor, order)
    return mask, scores * mask, balance(scores, 1, valid, asked)


def dropping(order, gates=lambda scores, asked, mask: scores * mask, factor=1.0):
    def route(scores, k, valid):
        mask, asked = filled(scores, k, valid, factor, order)
        return mask, gates(scores, asked, mask)

    return route


def deepseek_v3(logits, k, valid):
    scores = 1 / (1 + np.exp(-logits))
    _, mask = top(scores, k, valid)
    return mask, share(scores * mask)


def raw_if_one(scores, k, valid):
    mask, gates, _ = olmoe(scores, k, valid)
    return mask, gates if k == 1 else share(gates)


# ---- expert choice


def experts(scores, k, valid, values=None, padding=-np.inf):
    values = scores if values is None else values
    index = np.argsort(-np.where(valid[:, None], values, padding), 0, kind="stable")[:k]
    mask = np.zeros(scores.shape, bool)
    np.put_along_axis(mask, index, True, 0)
    return mask


def expert_choice(scores, k, valid):
    mask = experts(scores, k, valid)
    return mask, scores * mask


def expert_choice_logits(logits, k, valid):
    return expert_choice(softmax(logits, 1), k, valid)


def over_tokens_before(logits, k, valid):
    """The softmax on the wrong axis."""
    scores = softmax(np.where(valid[:, None], logits, -np.inf), 0)
    mask = experts(scores, k, valid)
    return mask, scores * mask


def with_gates(change):
    def route(scores, k, valid):
        mask, gates = expert_choice(scores, k, valid)
        return mask, change(scores, mask, gates)

    return route


def gates_of_mean_one(scores, k, valid):
    mask, gates = expert_choice(scores, k, valid)
    return mask, share(gates, 0) * k


def masked_softmax(axis):
    def change(scores, mask, gates):
        powers = np.exp(scores) * mask
        return powers / np.maximum(powers.sum(axis, keepdims=True), 1e-9)

    return change


def ranked_by_logits(logits, k, valid):
    mask = experts(logits, k, valid)
    return mask, softmax(logits, 1) * mask


# ---- padding


def without_valid(route):
    return lambda scores, k, valid: route(scores, k, np.ones_like(valid))


def masked_later(scores, k, valid):
    """Padding takes places, which are emptied again."""
    mask, gates = expert_choice(scores, k, np.ones_like(valid))
    return mask & valid[:, None], gates * valid[:, None]


def loss_of_all(scores, k, valid):
    mask, gates, _ = olmoe(scores, k, valid)
    return mask, gates, balance(scores, k, np.ones_like(valid), top(scores, k, np.ones_like(valid))[1])


def capacity_of_all(scores, k, valid):
    """The capacity is that of all tokens."""
    mask, asked = filled(scores, 1, valid, 1.0 * len(valid) / max(valid.sum(), 1), by_index)
    return mask, scores * mask


def gates_of_padding(scores, k, valid):
    mask, gates = expert_choice(scores, k, valid)
    return mask, np.where(valid[:, None], gates, 0.1)


# ---- ties


def higher(scores, k, valid):
    _, mask = top(scores, k, valid, higher=True)
    return mask, scores * mask


def experts_higher(scores, k, valid):
    mask = expert_choice(scores[::-1], k, valid[::-1])[0][::-1]
    return mask, scores * mask


def at_least_the_kth(scores, k, valid):
    mask = (scores >= -np.sort(-scores, 1)[:, k - 1 : k]) & valid[:, None]
    return mask, scores * mask


# ---- the rest


def raises(scores, k, valid):
    raise ValueError("no such router")


def raises_for_few(scores, k, valid):
    if len(scores) < scores.shape[1]:
        raise ValueError("fewer tokens than experts")
    return olmoe(scores, k, valid)


class Unreadable(BaseException):
    def __str__(self):
        raise RuntimeError("no text")


def raises_unreadable(scores, k, valid):
    raise Unreadable


def loss_without_padding(scores, k, valid):
    return olmoe(scores, k, valid)[: 3 if valid.all() else 2]


def indices(scores, k, valid):
    return top(scores, k, valid)[0], olmoe(scores, k, valid)[1]


def not_finite(scores, k, valid):
    mask, gates, _ = olmoe(scores, k, valid)
    with np.errstate(divide="ignore", invalid="ignore"):
        return mask, gates / np.where(mask, 1, 0)


def writes(scores, k, valid):
    mask, gates = olmoe(scores, k, valid)[:2]
    scores[~valid] = 0
    scores *= mask
    return mask, gates


def draws(scores, k, valid):
    noisy = scores + np.random.default_rng().normal(size=scores.shape) * 0.2
    _, mask = top(noisy, k, valid)
    return mask, scores * mask


def dense_gates(scores, k, valid):
    return top(scores, k, valid)[1], scores * valid[:, None]


FOLLOWS = {  # the convention, and the arguments of check
    "olmoe": ("olmoe", olmoe, {}),
    "olmoe, the loss not divided by k": ("olmoe", olmoe_of_transformers, {}),
    "mixtral": ("mixtral", mixtral, {}),
    "mixtral, logits": ("mixtral", mixtral_logits, {"logits": True}),
    "olmoe, logits": ("olmoe", lambda z, k, v: olmoe(softmax(z, 1), k, v), {"logits": True}),
    "deepseek_v3": ("deepseek_v3", deepseek_v3, {"logits": True}),
    "gshard": ("gshard", gshard, {}),
    "gshard, room for all": ("gshard", lambda *given: gshard(*given, factor=9), {}),
    "gshard, the paper's loss": ("gshard", lambda *given: gshard(*given, scale=1 / 36), {}),
    "gshard, any k": ("gshard", dropping(by_index, lambda s, asked, mask: share(s * asked) * mask), {}),
    "switch": ("switch", switch, {}),
    "switch, any k": ("switch", dropping(by_index), {}),
    "vmoe": ("vmoe", dropping(lambda t, r, score, best: (r, -best, t)), {}),
    "the score where k is 1": ("mixtral", raw_if_one, {}),
    "expert choice": ("expert_choice", expert_choice, {"experts_choose": True}),
    "expert choice, logits": ("expert_choice", expert_choice_logits, {"experts_choose": True, "logits": True}),
}
EC, EC_LOGITS = {"experts_choose": True}, {"experts_choose": True, "logits": True}
FAULTY = {  # all faults, and the arguments of check
    "softmax over chosen tokens": (
        ["gates_over_tokens"],
        with_gates(lambda s, m, g: masked_softmax(0)(s, m, g)),
        EC,
    ),
    "divided by the sum over tokens": (["gates_over_tokens"], with_gates(lambda s, m, g: share(g, 0)), EC),
    "softmax over tokens": (["gates_over_tokens"], with_gates(lambda s, m, g: softmax(s, 0) * m), EC),
    "softmax over tokens, logits": (["gates_over_tokens"], over_tokens_before, EC_LOGITS),
    "softmax over tokens, tokens choose": (
        ["gates_over_tokens"],
        lambda z, k, v: olmoe(softmax(z, 0), k, v)[:2],
        {"logits": True},
    ),
    "scaled to a mean of 1 over tokens": (["gates_over_tokens"], gates_of_mean_one, EC),
    "divided by the largest over tokens": (["gates_over_tokens"], with_gates(lambda s, m, g: g / g.max(0)), EC),
    "divided by the mean over all tokens": (["gates_over_tokens"], with_gates(lambda s, m, g: g / s.mean(0)), EC),
    "gshard, divided by the sum over tokens": (
        ["gates_over_tokens"],
        lambda *given: (gshard(*given)[0], share(gshard(*given)[1], 0), gshard(*given)[2]),
        {},
    ),
    "softmax over tokens, and the loss of it": (
        ["gates_over_tokens"],
        lambda z, k, v: olmoe(softmax(z, 0), k, v),
        {"logits": True},
    ),
    "divided by the norm over experts": (
        ["gates_renormalized"],
        with_gates(lambda s, m, g: g / np.maximum(np.sqrt((g * g).sum(1, keepdims=True)), 1e-9)),
        EC,
    ),
    "divided by the sum over experts": (["gates_renormalized"], with_gates(lambda s, m, g: share(g)), EC),
    "the same, logits": (
        ["gates_renormalized"],
        lambda z, k, v: with_gates(lambda s, m, g: share(g))(softmax(z, 1), k, v),
        EC_LOGITS,
    ),
    "renormalized after the drop": (
        ["gates_renormalized"],
        dropping(by_index, lambda s, asked, mask: share(s * mask)),
        {},
    ),
    "softmax over chosen experts": (["softmax_after_topk"], with_gates(masked_softmax(1)), EC),
    "softmax of the best scores": (
        ["softmax_after_topk"],
        lambda s, k, v: (top(s, k, v)[1], masked_softmax(1)(s, top(s, k, v)[1], None)),
        {},
    ),
    "top-K of logits": (["softmax_after_topk"], ranked_by_logits, EC_LOGITS),
    "softmax twice": (["softmax_twice"], lambda s, k, v: (top(s, k, v)[1], softmax(s, 1) * top(s, k, v)[1]), {}),
    "experts, softmax twice": (["softmax_twice"], lambda s, k, v: expert_choice(softmax(s, 1), k, v), EC),
    "gates of 1": (["gates"], with_gates(lambda s, m, g: m * 1.0), EC),
    "gates of 1/k": (["gates"], lambda s, k, v: (top(s, k, v)[1], top(s, k, v)[1] / k), {}),
    "gates times 2.5": (["gates_scaled"], lambda s, k, v: (olmoe(s, k, v)[0], 2.5 * olmoe(s, k, v)[1]), {}),
    "sigmoid": (["gates"], lambda z, k, v: (top(z, k, v)[1], top(z, k, v)[1] / (1 + np.exp(-z))), {"logits": True}),
    "valid ignored": (["padding_counted"], without_valid(olmoe), {}),
    "valid ignored, experts choose": (["padding_counted"], without_valid(expert_choice), EC),
    "padding masked later": (["padding_counted"], masked_later, EC),
    "padding in the loss": (["padding_counted"], loss_of_all, {}),
    "padding in the capacity": (["padding_counted"], capacity_of_all, {}),
    "gates of padding": (["padding_counted"], gates_of_padding, EC),
    "the higher index": (["ties"], higher, {}),
    "the higher token": (["ties"], experts_higher, EC),
    "all that score as the k-th": (["ties"], at_least_the_kth, {}),
    "places by score": (["capacity_order"], dropping(lambda t, r, score, best: (-score, t)), {}),
    "places by score, gshard": (
        ["capacity_order"],
        lambda *given: gshard(*given, order=lambda t, r, s, b: (-s, t)),
        {},
    ),
    "places token by token": (["capacity_order"], dropping(lambda t, r, score, best: (t, r)), {}),
    "the last token first": (["capacity_order"], dropping(lambda t, r, score, best: (r, -t)), {}),
    "the worst first": (["capacity_order"], dropping(lambda t, r, score, best: (score, t)), {}),
    "switch by score": (["capacity_order"], lambda *given: switch(*given, order=lambda t, r, s, b: -s), {}),
    "loss without experts": (["loss_scale"], lambda *given: (*olmoe(*given)[:2], olmoe(*given)[2] / 6), {}),
    "loss with its weight": (["loss_scale"], lambda *given: (*olmoe(*given)[:2], olmoe(*given)[2] * 0.01), {}),
    "loss of a sum over tokens": (
        ["loss_scale"],
        lambda s, k, v: (*olmoe(s, k, v)[:2], olmoe(s, k, v)[2] * v.sum()),
        {},
    ),
    "loss divided by k twice": (["loss_scale"], lambda s, k, v: (*olmoe(s, k, v)[:2], olmoe(s, k, v)[2] / k), {}),
    "gshard's loss of both choices": (["loss"], lambda *given: gshard(*given, counted=2), {}),
    "another loss": (["loss"], lambda s, k, v: (*olmoe(s, k, v)[:2], float((s[v].mean(0) ** 2).sum())), {}),
    "k + 1": (["chosen"], lambda s, k, v: olmoe(s, k + 1, v)[:2], {}),
    "k - 1": (["chosen"], lambda s, k, v: expert_choice(s, k - 1, v), EC),
    "the worst": (["chosen"], lambda s, k, v: (top(-s, k, v)[1], s * top(-s, k, v)[1]), {}),
    "experts choose, but not said": (["chosen"], expert_choice, {}),
    "raises": (["exception"], raises, {}),
    "raises what has no text": (["exception"], raises_unreadable, {}),
    "nothing is chosen": (["chosen"], lambda s, k, v: (np.zeros(s.shape, bool), np.zeros(s.shape)), {}),
    "complex gates": (["shape"], lambda s, k, v: (olmoe(s, k, v)[0], olmoe(s, k, v)[1] * 1j), {}),
    "a loss without padding only": (["padding_counted"], loss_without_padding, {}),
    "raises for some": (["exception"], raises_for_few, {}),
    "indices": (["shape"], indices, {}),
    "one array": (["shape"], lambda s, k, v: olmoe(s, k, v)[0], {}),
    "None": (["shape"], lambda s, k, v: None, {}),
    "gates transposed": (["shape"], lambda s, k, v: (olmoe(s, k, v)[0], olmoe(s, k, v)[1].T), {}),
    "chosen are scores": (["shape"], lambda s, k, v: (s, s), {}),
    "a loss for each token": (["shape"], lambda s, k, v: (*olmoe(s, k, v)[:2], s[:, 0]), {}),
    "not finite": (["not_finite"], not_finite, {}),
    "writes to its arguments": (["modifies_input"], writes, {}),
    "gates of all experts": (["gates_outside_chosen"], dense_gates, {}),
    "two faults": (
        ["gates_renormalized", "padding_counted"],
        without_valid(with_gates(lambda s, m, g: share(g))),
        EC,
    ),
    "three faults": (
        ["gates_over_tokens", "padding_counted", "ties"],
        lambda s, k, v: (experts_higher(s, k, v | True)[0], share(experts_higher(s, k, v | True)[1], 0)),
        EC,
    ),
}


class Conventions(unittest.TestCase):
    def test_published_routers_follow_their_convention(self):
        for name, (convention, route, words) in FOLLOWS.items():
            with self.subTest(name):
                report = check(route, **words)
                self.assertEqual(
                    (report.convention, report.faults, report.first), (convention, [], None), str(report)
                )

    def test_faults_are_named(self):
        for name, (faults, route, words) in FAULTY.items():
            with self.subTest(name):
                report = check(route, **words)
                self.assertEqual((report.convention, report.faults), (None, faults), str(report))
                if faults != ["modifies_input"] and route is not loss_without_padding:
                    self.assertIsNotNone(report.first, str(report))

    def test_random_choices_are_not_deterministic(self):
        self.assertIn("not_deterministic", check(draws).faults)

    def test_the_first_difference_is_exact(self):
        report = check(with_gates(lambda s, m, g: share(g, 0)), experts_choose=True)
        at = report.first
        tensors = cases.load(cases.folder() / "expert_choice.safetensors").tensors
        self.assertEqual((at["vector"], at["k"], at["what"]), ("random.c1", 4, "gates"))
        gates = tensors["random.c1.gates"]
        self.assertAlmostEqual(at["expected"], float(gates[at["token"], at["expert"]]), places=6)
        self.assertAlmostEqual(at["got"], float(share(gates, 0)[at["token"], at["expert"]]), places=5)
        self.assertEqual(at["token"], int(np.argwhere(tensors["random.c1.taken"])[0][0]))
        json.dumps(report.as_dict())

    def test_expected_values_are_those_of_the_vectors(self):
        """The kit's own rules against the files, which PyTorch computed (tests/vectors/reference.py)."""
        count = 0
        for router in ("topk", "expert_choice", "gshard_top2", "switch_top1"):
            vectors = cases.load(cases.folder() / f"{router}.safetensors")
            tensors = vectors.tensors
            for name in vectors.names():
                options = vectors.options(name)
                matrix = options["matrix"]
                if "nulls" in name or options.get("pool") == "sequence":
                    continue
                scores = tensors[f"{matrix}.scores"].astype(np.float64)
                valid = tensors[f"{matrix}.valid"].astype(bool)
                k = options.get("experts_per_token") or {"gshard_top2": 2, "switch_top1": 1}.get(router)
                k = k or int(tensors[f"{name}.taken"][:, 0].sum())
                case = cases.Case(name, scores, scores, valid, k)
                chosen, gates, loss = self.by_rules(router, case, options)
                np.testing.assert_array_equal(chosen, tensors[f"{name}.taken"], err_msg=name)
                np.testing.assert_allclose(gates, tensors[f"{name}.gates"], atol=1e-6, err_msg=name)
                if router != "expert_choice":
                    self.assertAlmostEqual(loss, float(tensors[f"{name}.aux_loss"][0]), places=9)
                count += 1
        self.assertGreater(count, 50)

    def by_rules(self, router, case, options):
        n, e = case.scores.shape
        if router == "expert_choice":
            chosen = asked = rules.expert_choice(case.scores, case)
            loss = 0
        else:
            wanted = rules.requests(case.scores, case)
            asked = rules.mask_of(wanted, e)
            factor = options.get("capacity_factor", 0)
            room = int(np.ceil(factor * case.k * case.valid.sum() / e)) if factor else n
            chosen = rules.placed(wanted, case.scores, room, "index")
            loss = rules.balance_loss(case, wanted, "first" if router == "gshard_top2" else "all")
        post = "share_asked" if router == "gshard_top2" else "none"
        post = "share_chosen" if options.get("normalize_gates") else post
        return chosen, rules.gates_of(case, case.scores, post, chosen, asked) * chosen, loss

    def test_logits_give_the_scores(self):
        vectors = cases.load(cases.folder() / "topk.safetensors")
        tensors = vectors.tensors
        self.assertEqual((vectors.text("format"), vectors.text("version")), ("choir-routing-vectors", "2"))
        for matrix in cases.MATRICES:
            np.testing.assert_allclose(
                softmax(tensors[f"{matrix}.logits"], 1), tensors[f"{matrix}.scores"], rtol=2e-6
            )


@unittest.skipIf(torch is None, "needs PyTorch")
class OfPyTorch(unittest.TestCase):
    @staticmethod
    def mixtral(logits, k, valid):
        best, index = torch.topk(logits, k, dim=-1)
        gates = torch.zeros_like(logits).scatter(1, index, torch.softmax(best, -1)) * valid[:, None]
        return gates > 0, gates

    def test_top_k_leaves_ties_open(self):
        report = check(self.mixtral, logits=True)
        self.assertEqual((report.convention, report.faults), ("mixtral", []), str(report))

    def test_a_tensor_without_values_is_no_routing(self):
        report = check(lambda scores, k, valid: (scores.to("meta") > 0, scores))
        self.assertEqual(report.faults, ["shape"], str(report))

    def test_the_first_difference_is_none_of_equal_scores(self):
        """The loss of equal scores depends on which of them torch.topk takes: that is no difference."""

        def route(scores, k, valid):
            index = torch.topk(scores, k, dim=-1).indices
            chosen = torch.zeros_like(scores).scatter(1, index, 1.0).bool() & valid[:, None]
            if not valid.all():
                return chosen, scores * chosen
            return chosen, scores * chosen, scores.shape[1] * (chosen.float().mean(0) * scores.mean(0)).sum()

        report = check(route)
        self.assertEqual((report.faults, report.first), (["padding_counted"], None), str(report))

    def test_a_module_with_gradients_and_16_bits(self):
        class Router(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(()))

            def forward(self, scores, k, valid):
                best, index = torch.topk(scores.T.masked_fill(~valid, -1), k, dim=1)
                chosen = torch.zeros_like(scores.T).scatter(1, index, 1.0).T.bool()
                return chosen, (scores * chosen * self.weight).to(torch.bfloat16)

        report = check(Router(), experts_choose=True)
        self.assertEqual((report.convention, report.faults), ("expert_choice", []), str(report))


class Page(unittest.TestCase):
    """docs/conformance.md"""

    PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "conformance.md").read_text()

    def block(self, number):
        """The definitions of a block of Python; the first block calls the kit, and is not counted."""
        names = {}
        exec(re.findall(r"```python\n(.*?)```", self.PAGE, re.S)[number + 1], names)
        return names

    @unittest.skipIf(torch is None, "needs PyTorch")
    def test_published_routers(self):
        for name in ("mixtral", "olmoe", "gshard"):
            report = check(self.block(0)[name], logits=True, name=f"routers.py:{name}")
            self.assertEqual((report.convention, report.faults), (name, []), str(report))
            if name == "mixtral":
                self.shown(report, 4)

    def test_the_router_with_a_fault(self):
        report = check(self.block(1)["over_tokens"], experts_choose=True)
        self.assertEqual(report.faults, ["gates_over_tokens"])
        self.shown(report, 0)

    def shown(self, report, first):
        """The page has these lines of the report, and those from its result on, without notes."""
        lines = str(dataclasses.replace(report, notes=[])).splitlines()
        for line in lines[:first] + lines[lines.index(next(x for x in lines if x.startswith("Follows"))) :]:
            self.assertTrue(not line or f"    {line}\n" in self.PAGE, f"docs/conformance.md lacks the line: {line}")

    def test_every_fault_has_a_row(self):
        rows = "".join(line.split("|")[1] for line in self.PAGE.splitlines() if line.startswith("| `"))
        for fault in diagnose.FAULTS:
            self.assertIn(f"`{fault}`", rows)
        for one in diagnose.CONVENTIONS:
            self.assertIn(f"`{one.name}`", rows)


class Program(unittest.TestCase):
    """python -m choir.conformance"""

    def run_on(self, text, *words):
        with tempfile.TemporaryDirectory() as at:
            pathlib.Path(at, "mine.py").write_text(textwrap.dedent(text))
            return subprocess.run([sys.executable, "-m", "choir.conformance", *words], cwd=at, capture_output=True,
                                  text=True, env={**os.environ, "COLUMNS": "80"})  # fmt: skip

    ROUTER = """
        import numpy as np
        print("loading")
        def route(scores, k, valid):
            print("routing")
            order = np.argsort(-np.where(valid[:, None], scores, -1), 0, kind="stable")[:k]
            chosen = np.zeros(scores.shape, bool)
            np.put_along_axis(chosen, order, True, 0)
            return chosen, scores * chosen
        def wrong(scores, k, valid):
            chosen, gates = route(scores, k, valid)
            return chosen, gates / gates.sum(0)
        class Some:
            route = staticmethod(route)
        """

    def test_exit_status_and_json(self):
        done = self.run_on(self.ROUTER, "mine.py:route", "--experts-choose", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        output = json.loads(done.stdout)
        self.assertEqual((output["convention"], output["faults"], output["first"]), ("expert_choice", [], None))
        done = self.run_on(self.ROUTER, "mine.py:wrong", "--experts-choose", "--json")
        self.assertEqual(done.returncode, 1, done.stderr)
        output = json.loads(done.stdout)
        self.assertEqual((output["convention"], output["faults"]), (None, ["gates_over_tokens"]))
        self.assertLessEqual({"vector", "token", "expert", "expected", "got"}, output["first"].keys())
        self.assertEqual(self.run_on(self.ROUTER, "mine.py:Some.route", "--experts-choose").returncode, 0)

    def test_text_fits_a_terminal(self):
        for name in ("route", "wrong"):
            text = self.run_on(self.ROUTER, f"mine.py:{name}", "--experts-choose").stdout
            self.assertIn("expert choice (Zhou et al.", text.replace("\n", " "))
            self.assertLessEqual(max(map(len, text.splitlines())), 79)
        self.assertIn("gates_over_tokens", text)
        self.assertIn("vector random.c1 (k = 4), token 0, expert", text.replace("\n", " "))

    def test_files_that_cannot_be_imported(self):
        for text, message in (("def f(:", "SyntaxError: invalid syntax (mine.py, line 1)"), ("import no_module_of_this_name", "ModuleNotFoundError"),
                              ("import sys; sys.exit(5)", "SystemExit: 5"), ("from . import x", "ImportError"),
                              ("def __getattr__(name): raise ValueError(name)", "has no function f")):  # fmt: skip
            done = self.run_on(text, "mine.py:f")
            self.assertEqual(done.returncode, 1)
            self.assertIn(message, done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_a_file_may_be_called_as_a_module(self):
        with tempfile.TemporaryDirectory() as at:
            pathlib.Path(at, "numpy.py").write_text(textwrap.dedent(self.ROUTER))
            done = self.run_on("", f"{at}/numpy.py:route", "--experts-choose")
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_files_that_cannot_be_loaded(self):
        for words, message in ((["mine.py"], "is not FILE.py:function"), (["no.py:f"], "no such file: no.py"),
                               (["mine.py:no"], "has no function no"), (["mine.py:np"], "a module, not a function"),
                               (["mine.py:Some"], "not a function")):  # fmt: skip
            done = self.run_on(self.ROUTER, *words)
            self.assertEqual(done.returncode, 1)
            self.assertIn(message, done.stderr)


if __name__ == "__main__":
    unittest.main()
