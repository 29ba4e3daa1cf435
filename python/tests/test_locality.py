"""Locality of routing: by hand, and the numbers of `choir stats` against NumPy on the routing that its page records."""

import json
import pathlib
import re
import tempfile
import unittest

import numpy as np
import testing

import choir


def page_data(page):
    text = pathlib.Path(page).read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id=data>(.*?)</script>', text, re.S).group(1))


def recorded(data, layer, tokens, length):
    """[N,T,e] bool and valid [N,T] of a layer's routes."""
    e, windows = data["inspection"]["experts"], -(-tokens // length)
    rows, valid = np.zeros((windows * length, e), bool), np.arange(windows * length) < tokens
    for t, route in enumerate(data["routes"][layer][:tokens]):
        rows[t, route[::2]] = True
    return rows.reshape(windows, length, e), valid.reshape(windows, length)


class Locality(unittest.TestCase):
    def assert_close(self, got, wanted, where=""):
        if isinstance(wanted, dict):
            self.assertEqual(got.keys(), wanted.keys(), where)
            for key in wanted:
                self.assert_close(got[key], wanted[key], f"{where}.{key}")
        elif wanted is None:
            self.assertIsNone(got, where)
        else:
            self.assertAlmostEqual(got, wanted, 5, where)

    def test_by_hand(self):
        used = np.zeros((1, 4, 8), bool)
        for t, experts in enumerate(([0], [0, 1], [2], [0])):
            used[0, t, experts] = True
        found = choir.locality(used)
        self.assertEqual(found["reuse"], 1 / 4)
        self.assertEqual(found["lru"], {"1": 1 / 5, "2": 1 / 5, "4": 2 / 5})
        self.assertEqual(found["srp"]["1"], {"16": None, "64": None, "256": None})

    def test_loads_stay_when_tokens_are_shuffled(self):
        used = np.random.default_rng(1).random((6, 64, 16)) < 0.2
        found = choir.locality(used, np.arange(64) < np.array([64, 64, 64, 64, 64, 10])[:, None])
        self.assertIsNotNone(found["shuffled"]["reuse"])
        alone = np.zeros((4, 32, 8), bool)
        alone[..., 3] = True
        self.assertEqual(choir.locality(alone)["shuffled"]["lru"]["1"], 1 - 4 / 128)
        with self.assertRaisesRegex(choir.ArgumentError, r"assigned is float64 of shape \(2, 3\)"):
            choir.locality(np.zeros((2, 3)))

    def test_stats_equal_numpy_on_the_recorded_routing(self):
        with tempfile.TemporaryDirectory() as folder:
            text, page = pathlib.Path(folder) / "text.txt", pathlib.Path(folder) / "page.html"
            text.write_text("kalo miten surape rindo. " * 60, encoding="utf-8")
            testing.program("inspect", testing.run(), "--text", text, "--out", page, "--routing", "threshold", "--length", 48)
            data = page_data(page)
            tokens, length = data["inspection"]["tokens"], data["inspection"]["sequence_length"]
            for layer, shown in enumerate(data["inspection"]["layers"]):
                found = choir.locality(*recorded(data, layer, tokens, length))
                for key in ("reuse", "lru", "srp", "working_set"):
                    self.assert_close(shown["locality"][key], found[key], key)
                self.check_profile(shown["profile"], *recorded(data, layer, tokens, length))

    def check_profile(self, profile, used, valid):
        both, later = (used[:, 1:] & used[:, :-1]).sum((0, 1)), used[:, 1:].sum((0, 1))
        uses = used.sum((0, 1))
        self.assertEqual(len(uses), len(profile["frequency"]))
        for i, count in enumerate(uses.tolist()):
            self.assertAlmostEqual(profile["frequency"][i], count / valid.sum(), 5)
            self.assert_close(profile["reuse"][i], both[i] / later[i] if later[i] else None)
        self.assertEqual({str(max(1, len(uses) // share)) for share in (8, 4, 2)}, set(profile["pins"]))
        for size, pins in profile["pins"].items():
            self.assertEqual(pins["experts"], np.argsort(-uses, kind="stable")[: int(size)].tolist())
            self.assertAlmostEqual(pins["hits"], uses[pins["experts"]].sum() / uses.sum(), 5)


class InPyTorch(unittest.TestCase):
    def test_layers(self):
        try:
            import torch
        except ImportError:
            self.skipTest("PyTorch is not installed")
        import choir.torch

        torch.manual_seed(0)
        model = torch.nn.Sequential(choir.torch.ExpertChoice(16, 24, 8, capacity_factor=2))
        model(torch.randn(4, 32, 16)).sum().backward()
        choir.torch.update_routers(model)
        with self.assertRaisesRegex(choir.ArgumentError, "layer '0' routed by batch"):
            choir.torch.locality(model, 32)
        model[0].causal = True
        model.eval()(torch.randn(2, 32, 16))
        found = choir.torch.locality(model, 32)["0"]
        self.assertEqual(found, choir.locality(model[0].routing.assignment.view(2, 32, 8).numpy()))
        with self.assertRaisesRegex(choir.ArgumentError, "length is 7"):
            choir.torch.locality(model, 7)


if __name__ == "__main__":
    unittest.main()
