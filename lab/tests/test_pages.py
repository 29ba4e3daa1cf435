"""The pages of claims are what the store of results gives."""

import csv
import io
import json
import pathlib
import re
import runpy
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "lab"))
try:
    import pages as page
    from choir.study import StudyError, recipe
    from choir.study.store import Store
except ImportError as error:
    raise unittest.SkipTest(str(error)) from error


def same_drawing(one, other):
    """Whether two SVGs differ in rounding alone, which depends on the machine's BLAS, and in names made of a checksum."""
    number = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
    one, other = (re.sub(r"\b[a-z][0-9a-f]{10}\b", "name", text) for text in (one, other))
    if number.sub("", one) != number.sub("", other):
        return False
    pairs = zip(number.findall(one), number.findall(other))
    return all(abs(float(a) - float(b)) < 1e-3 for a, b in pairs)


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = page.pages(ROOT)
        lines = [line for path in (ROOT / "lab/results").glob("*.jsonl") for line in path.read_text().splitlines()]
        cls.runs = [one for line in lines if (one := json.loads(line)["result"])["format"] == "choir-result"]

    def test_tables_are_those_of_the_script(self):
        import matplotlib

        for path, text in self.made.items():
            if path.suffix == ".svg" and not matplotlib.__version__.startswith("3.6."):
                print(f"\nNOT TESTED: {path.name}: Matplotlib {matplotlib.__version__} draws other bytes than Debian 12's")
                continue
            here = path.read_text(encoding="utf-8") if path.exists() else ""
            self.assertTrue(here == text or (path.suffix == ".svg" and same_drawing(here, text)),
                            f"{path} is not what the store gives: run 'python3 lab/pages.py'")  # fmt: skip

    def test_cost_of_thresholds(self):
        """From the lines themselves, by another way than the page's."""
        gaps = []
        for run in self.runs:
            router, final = run["config"]["model"]["router"], run["final"]
            if router["name"] == "expert_choice" and router["pool"] == "batch" and router["threshold_after"] == 0:
                if final["own"]["routing"] == "batch" and final["causal"]["routing"] == "threshold":
                    gaps.append(final["causal"]["loss"] - final["own"]["loss"])
        message = f"{len(gaps)} runs, {min(gaps):.4f} to {max(gaps):.4f} nats; "
        self.assertIn(message, self.made[ROOT / "docs" / "causality.md"])

    def test_numbers_of_other_pages(self):
        """Each "0.0038 (-0.0005 to 0.0081)" of a page is a row of all comparisons, or one with the other sign."""
        number = r"-?[0-9]+\.[0-9]{3,4}"
        pattern = re.compile(rf"({number}) \(({number}) to ({number})[);]")
        table = csv.DictReader(io.StringIO(self.made[ROOT / "lab" / "docs" / "results" / "comparisons.csv"]))
        known = {(row["mean"], row["low"], row["high"]) for row in table}
        minus = lambda text: text[1:] if text[0] == "-" else "-" + text  # noqa: E731
        for name in ("lab/docs/results", "docs/diffusion", "docs/moe", "docs/routers"):
            text = " ".join((ROOT / f"{name}.md").read_text().split())
            for mean, low, high in pattern.findall(text):
                message = f"{name}.md: {mean} ({low} to {high}) is no row of lab/docs/results/comparisons.csv"
                self.assertTrue({(mean, low, high), (minus(mean), minus(high), minus(low))} & known, message)

    def test_tables_of_runs_that_are_no_study(self):
        for name in ("alone", "causality/measure", "loads", "locality/measure"):
            script = runpy.run_path(str(ROOT / "lab" / f"{name}.py"))
            for path, made in (("PAGE", "page"), ("PLAN_PAGE", "plan_page")):
                if path in script:
                    text = script[path].read_text(encoding="utf-8")
                    self.assertEqual(text, script[made](text), f"run 'python3 lab/{name}.py report'")

    def test_claims_of_serving_rules(self):
        """By hand: a model, three seeds, of which the arrangement of batches decides."""
        script = runpy.run_path(str(ROOT / "lab" / "causality" / "measure.py"))
        shared = {"model": "m", "tokens": 1, "rate": 0.04}
        lines = [{**shared, "seed": seed, "loss": {"batch, mixed": 4.0, "batch, document": 4.1, "threshold": 4.001 + seed / 1e4}}
                 for seed in (1, 2, 3)]  # fmt: skip
        claim = {"text": "", "models": ["m"], "tokens": [1], "rule": "threshold", "batches": "mixed"}
        script["PLAN"]["claims"] = [
            {**claim, "within": 0.005}, {**claim, "above": 0.05}, {**claim, "batches": "document", "below": 0},
            {**claim, "within": 0.001}, {**claim, "models": ["m", "other"], "below": 0},
        ]  # fmt: skip
        found = list(script["claims"](lines))
        self.assertEqual([result for *_, result in found], ["confirmed", "refuted", "confirmed", "inconclusive", "planned"])
        self.assertAlmostEqual(found[0][1].mean, 0.0012)
        self.assertAlmostEqual(found[2][1].mean, -0.0988)

    def test_claims_of_locality(self):
        """By hand: an arm with more hits, whose curve costs more, and one that has no curve as long."""
        script = runpy.run_path(str(ROOT / "lab" / "locality" / "measure.py"))

        def line(arm, seed, hits, slope, end=0.4):
            curve = [{"among": M, "hits": hits + M * end, "loss": 4 + slope * M * end} for M in (0, 1)]
            return {"arm": arm, "seed": seed, "rate": 0.04, "tokens": 1024000, "hits": hits, "loss": 4.0, "curve": curve}

        lines = [line("EC", s, 0.5 + s / 1e3, 1) for s in (1, 2, 3)] + [line("hash", s, 0.5, 1, 0.1) for s in (1, 2, 3)]
        lines += [line("topk, bias", s, 0.4 + 2 * s / 1e3, 0.5 + s / 1e3) for s in (1, 2, 3)]
        claim = {"text": "", "arm": "EC", "rival": "topk, bias"}
        script["PLAN"]["claims"] = [
            {**claim, "value": "hits", "sign": 1}, {**claim, "value": "price", "sign": -1},
            {**claim, "value": "price", "sign": -1, "rival": "hash"}, {**claim, "value": "hits", "sign": 1, "rival": "switch"},
        ]  # fmt: skip
        found = list(script["claims"](lines))
        self.assertEqual([result for *_, result in found], ["confirmed", "refuted", "planned", "planned"])
        self.assertAlmostEqual(found[0][1].mean, 0.098)
        self.assertAlmostEqual(found[1][1].mean, 0.2 * (1 - 0.502))

    def test_p_is_corrected_over_primary_claims_alone(self):
        store, plan = Store(ROOT / "lab" / "results"), recipe.read(ROOT / "lab" / "claims.json")
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "claims.json"

        def found(*groups):
            path.write_text(json.dumps({**plan, "groups": groups}))
            return page.load(path, store)[1][0].findings[0]

        (few,) = [row for row in plan["groups"] if row["title"] == "10 M tokens at 0.04"]
        few = {**few, "arms": ["EC c=2", "top-2"]}
        one, other = ({**few, "primary": True, "title": title} for title in "ab")
        alone, two, beside = found(one), found(one, other), found(one, few)
        self.assertEqual(alone.p, two.p)
        self.assertGreater(two.corrected, alone.corrected)
        self.assertEqual((beside.corrected, beside.verdict), (alone.corrected, alone.verdict))
        with self.assertRaisesRegex(StudyError, "primary claims; 10 at most"):
            found(*({**one, "title": title} for title in "abcdef"))
        with self.assertRaisesRegex(StudyError, "arm 'EC', which recipe baselines does not have"):
            found({**few, "arms": ["EC"]})

    def test_marks(self):
        for of in ("lab/pages", "lab/other"):
            marked = f"a\n<!-- {of}: begin -->\nold\n<!-- {of}: end -->\nb\n"
            self.assertEqual(page.put(marked, "new\n", of=of), marked.replace("old", "new"))
        marked = marked.replace("lab/other", "lab/pages")
        named = marked.replace("pages: begin", "pages: x, begin") + marked
        self.assertEqual(page.put(named, "new\n", "x"), named.replace("old", "new", 1))
        with self.assertRaisesRegex(StudyError, "each once"):
            page.put("a", "new\n")


if __name__ == "__main__":
    unittest.main()
