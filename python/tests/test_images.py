"""The study of image diffusion: its page is what the stored runs give, its runner asks for what the plan says; and
examples/images.py draws a picture alone as in any batch."""

import importlib.util
import json
import re
import struct
import sys
import tempfile
import unittest
import unittest.mock
import zlib
from pathlib import Path

import testing

try:
    import torch
except ImportError:
    torch = None

LAB = testing.SOURCE / "lab" / "images"


def module(path):
    sys.path[:0] = [str(path.parent), str(testing.SOURCE / "examples")]
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    del sys.path[:2]
    return made


class Study(unittest.TestCase):
    def setUp(self):
        try:
            self.report = module(LAB / "report.py")
        except ImportError as error:
            self.skipTest(str(error))

    def test_the_page_shows_the_runs(self):
        runs = self.report.Runs()
        text = self.report.PAGE.read_text(encoding="utf-8")
        again = f"run 'python3 {LAB.relative_to(testing.SOURCE)}/report.py'"
        self.assertEqual(text, self.report.page(text, runs), again)
        self.assertEqual(self.report.FIGURE.read_text(), self.report.figure(runs), again)
        runs.table[0, 0] += 0.01
        self.assertNotEqual(text, self.report.page(text, runs))

    def test_one_rule_for_a_yes_and_a_no(self):
        estimate, less = self.report.of_values([0.002, 0.0021, 0.0022]), {"text": "", "arm": "a", "rival": "b"}
        for claim, expected in ((less, "confirmed"), ({**less, "equal": True}, "refuted")):
            plan = {**self.report.PLAN, "claims": [claim]}
            runs = unittest.mock.Mock(claim=lambda claim: estimate, plain=lambda claim: estimate)
            with unittest.mock.patch.object(self.report, "PLAN", plan):
                self.assertIn(f"| {expected} |", "\n".join(self.report.claims_table(runs)))

    def test_results_are_of_the_plan(self):
        plan, lines = self.report.PLAN, (LAB / "results.jsonl").read_text().splitlines()
        for line in map(json.loads, lines):
            self.assertIn(line["arm"], plan["arms"])
            self.assertIn(line["steps"], {stage.get("steps", plan["steps"]) for stage in plan["stages"]})
            self.assertEqual(len(line["own"]["loss"]), 8)
        self.assertEqual(len(self.report.stored()), len(lines), "a run is stored twice")


class Plan(unittest.TestCase):
    def test_a_rate_is_chosen_inside(self):
        plan = module(LAB / "plan.py")
        kept, asked = {}, []
        while missing := [key for key in plan.wanted(kept) if key not in kept and key[:2] == ("clothes", "dense")]:
            asked.append(missing[0][2:])
            kept[missing[0]] = {"own": {"loss": [abs(missing[0][2] - 0.03)] * 8}}
        tried = (*plan.PLAN["rates"], 0.032, 0.064)
        self.assertEqual(asked, [*((rate, 1, 500, 64) for rate in tried), *((0.032, seed, 500, 64) for seed in (2, 3, 4)),
                                 *((0.008, seed, 2000, 64) for seed in (1, 2, 3)),
                                 *((0.004, seed, 500, 64) for seed in (2, 3, 4)),
                                 *((rate, 1, 500, 32) for rate in tried),
                                 *((0.032, seed, 500, 32) for seed in (2, 3))])  # fmt: skip


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Example(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(1)
        cls.images = module(testing.SOURCE / "examples" / "images.py")
        cls.pictures = torch.randint(0, 256, (40, 28, 28), dtype=torch.uint8)
        cls.pictures[:, :8] = 0
        cls.labels = torch.arange(40) % 10
        with unittest.mock.patch("time.monotonic", side_effect=[*range(14)]):  # a second a step
            cls.model = cls.images.train(
                cls.images.DiT(cls.images.mixture), cls.pictures, cls.labels, 0.2, batch=16
            )

    def test_a_picture_is_drawn_alone_as_in_a_batch(self):
        x, t, y = torch.randn(6, 28, 28), torch.linspace(0.1, 0.9, 6), torch.arange(6)
        with torch.no_grad():
            both, alone = self.model(x, t, y), self.model(x[4:5], t[4:5], y[4:5])
            torch.testing.assert_close(both[4:5], alone, rtol=1e-4, atol=1e-5)
            for layer in self.images.mixtures(self.model):
                layer.causal = False
            self.assertFalse(
                torch.allclose(self.model(x, t, y)[4:5], self.model(x[4:5], t[4:5], y[4:5]), atol=1e-4)
            )
            for layer in self.images.mixtures(self.model):
                layer.causal = True

    def test_a_patch_has_an_expert_on_average(self):
        x = self.pictures.float() / 127.5 - 1
        counts = torch.stack(
            [self.images.experts_of(self.model, x, self.labels, t) for t in (0.1, 0.3, 0.5, 0.7, 0.9)]
        )
        self.assertEqual(counts.shape, (5, 40, 7, 7))
        self.assertLess(abs(counts.mean().item() - 1), 0.25)

    def test_pictures(self):
        drawn = self.images.sample(self.model, torch.arange(10), steps=2)
        self.assertTrue(torch.isfinite(drawn).all())
        looked = self.images.where_experts_look(self.model, self.pictures, self.labels)
        data = self.images.png(looked)
        width, height = struct.unpack(">II", data[16:24])
        self.assertEqual((height, width, 3), tuple(looked.shape))
        packed = data[data.index(b"IDAT") + 4 : data.index(b"IEND") - 8]
        self.assertEqual(len(zlib.decompress(packed)), height * (1 + 3 * width))

    def test_a_page_names_experts(self):
        page = self.images.page_of_experts(self.model, self.pictures, self.labels, torch.zeros(56, 56, 3))
        titles = re.findall(r'title="MoE layer 1: ([0-9, ]+|none); MoE layer 2: ([0-9, ]+|none)"', page)
        self.assertEqual(len(titles), 4 * 10 * 49)
        self.assertGreater(len(set(titles)), 10)
        self.assertEqual(page.count("data:image/png;base64,"), 4 * 10 + 1)
        taken = [sum(len(second.split(",")) for _, second in titles if second != "none"), len(titles)]
        self.assertLess(abs(taken[0] / taken[1] - 1), 0.5)

    def test_runs_of_a_seed_are_pairs(self):
        run = module(LAB / "run.py")
        dense, choice, bias = (run.make(arm, 1).state_dict() for arm in ("dense", "ec-batch", "bias"))
        shared = dense.keys() & choice.keys()
        self.assertTrue({"blocks.1.attn.qkv.weight", "blocks.0.mlp.0.weight"} <= shared)
        self.assertTrue(all(torch.equal(dense[name], choice[name]) for name in shared))
        self.assertTrue(all(torch.equal(choice[name], bias[name]) for name in choice))
        self.assertFalse(
            torch.equal(dense["blocks.0.mlp.0.weight"], run.make("dense", 2).state_dict()["blocks.0.mlp.0.weight"])
        )
        given = [run.batch_of(self.pictures, self.labels, 1, 7, arm) for arm in ("dense", "ec-batch", "ec-noise")]
        self.assertTrue(all(torch.equal(one, other) for one, other in zip(*given[:2])))
        order = given[0][2].argsort()
        self.assertTrue(all(torch.equal(one[order], other) for one, other in zip(given[0], given[2])))

    def test_frechet_distance(self):
        frechet = module(LAB / "frechet.py")
        mean, half = torch.zeros(5).double(), torch.randn(5, 5).double()
        one = mean, half @ half.t()
        self.assertAlmostEqual(frechet.distance(one, one), 0, places=9)
        self.assertAlmostEqual(frechet.distance(one, (mean + 2, one[1])), 20, places=9)
        self.assertAlmostEqual(frechet.distance(one, (mean, 4 * one[1])), one[1].trace().item(), places=9)

    def test_files_of_others_stay(self):
        """A file or a link in the place of a picture, and a folder that cannot be made, are refused before training."""
        with tempfile.TemporaryDirectory() as folder:
            at = Path(folder)
            (at / "mine").write_text("mine")
            for name in self.images.PAGES:
                for make in (lambda path: path.write_text("mine"), lambda path: path.symlink_to(at / "mine")):
                    make(at / name)
                    with self.assertRaisesRegex(SystemExit, f"{name}: exists already"):
                        self.images.check_new(at)
                    with self.assertRaises(FileExistsError):
                        self.images.write(at / name, b"other")
                    self.assertEqual((at / name).read_text(), "mine")
                    (at / name).unlink()
            self.images.check_new(at)
            for wrong, message in ((at / "mine", "cannot be written"), (at / "mine" / "inside", "cannot be written")):
                with self.assertRaisesRegex(SystemExit, message):
                    self.images.check_new(wrong)
            (at / "link").symlink_to(folder)
            with self.assertRaisesRegex(SystemExit, "symbolic link"):
                self.images.check_new(at / "link")
            (at / "data").mkdir()
            with self.assertRaisesRegex(SystemExit, "data is there, without"):
                with unittest.mock.patch.object(Path, "is_file", return_value=False):
                    self.images.fetch(at / "data")
        for text in ("nan", "-1", "0", "inf"):
            with self.assertRaisesRegex(Exception, "must be a number of minutes above 0"):
                self.images.minutes(text)

    def test_another_file_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in self.images.FILES:
                (Path(folder) / name).write_bytes(b"")
            with self.assertRaisesRegex(SystemExit, "SHA-256"):
                self.images.load(self.images.fetch(Path(folder)), "train")


if __name__ == "__main__":
    unittest.main()
