"""The pages of claims are what the store of results gives."""

import copy
import json
import pathlib
import tempfile
import unittest

try:
    from choir.study import StudyError, page, recipe
    from choir.study.store import Store
except ImportError as error:
    raise unittest.SkipTest(str(error)) from error

ROOT = pathlib.Path(__file__).parents[2]


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = page.pages(ROOT)

    def test_they_are_what_the_script_gives(self):
        for path, text in self.made.items():
            self.assertTrue(path.exists() and path.read_text(encoding="utf-8") == text,
                            f"{path} is not what the store gives: run 'choir study claims {ROOT}'")  # fmt: skip

    def test_every_run_is_shown(self):
        text = self.made[ROOT / "docs" / "results" / "table.md"]
        seeds = 0
        for line in text.splitlines():
            if line.count("|") == 8 and line.split("|")[3].strip()[:1].isdigit():
                first, *last = line.split("|")[7].strip().split(" to ")
                seeds += int(last[0]) - int(first) + 1 if last else 1
        runs = [p for p in (ROOT / "lab/results").glob("*.json") if not p.name.startswith(("tuned-", "texts-"))]
        self.assertEqual(seeds, len(runs))

    def test_p_is_corrected_over_the_page(self):
        store = Store(ROOT / "lab" / "results")
        plan = recipe.read(ROOT / "lab" / "claims.json")
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "claims.json"
        found = []
        for groups in (plan["groups"][1:2], plan["groups"][1:3]):
            path.write_text(json.dumps({**copy.deepcopy(plan), "groups": groups, "summary": []}))
            found.append(page.load(path, store)[1][0].findings[0])
        self.assertEqual(found[0].p, found[1].p)
        self.assertGreater(found[1].corrected, found[0].corrected)
        without = {**plan["groups"][1], "without": ["Nobody claims this."]}
        path.write_text(json.dumps({**plan, "groups": [without]}))
        with self.assertRaisesRegex(StudyError, "Nobody claims this."):
            page.load(path, store)
        only = {**plan["groups"][1], "arms": ["EC c=2", "top-2"]}
        path.write_text(json.dumps({**plan, "groups": [only], "summary": []}))
        study = page.load(path, store)[1][0].study
        self.assertEqual([arm.name for arm in study.arms], ["EC c=2", "top-2"])
        self.assertEqual({claim.get("rival", "top-2") for claim in study.recipe["claims"]}, {"top-2"})
        path.write_text(json.dumps({**plan, "groups": [{**only, "arms": ["EC"]}]}))
        with self.assertRaisesRegex(StudyError, "arm 'EC', which recipe baselines does not have"):
            page.load(path, store)

    def test_marks(self):
        marked = f"a\n{page.BEGIN}\nold\n{page.END}\nb\n"
        self.assertEqual(page.put(marked, "new\n"), f"a\n{page.BEGIN}\nnew\n{page.END}\nb\n")
        with self.assertRaisesRegex(StudyError, "each once"):
            page.put("a", "new\n")


if __name__ == "__main__":
    unittest.main()
