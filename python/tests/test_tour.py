"""The cells of examples/tour.ipynb run, in their order, and the last value of a cell can be shown."""

import ast
import json
import os
import tempfile
import unittest

import testing


class Tour(unittest.TestCase):
    def test_every_cell_runs(self):
        notebook = json.loads((testing.SOURCE / "examples" / "tour.ipynb").read_text(encoding="utf-8"))
        cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        self.assertTrue(all(cell.get("outputs", []) == [] for cell in notebook["cells"]))  # none is kept in the source
        names, shown, before = {}, [], os.getcwd()
        with tempfile.TemporaryDirectory() as at:
            os.chdir(at)
            try:
                for number, cell in enumerate(cells):
                    tree = ast.parse(cell, f"cell {number}")
                    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
                    exec(compile(tree, f"cell {number}", "exec"), names)
                    if last:
                        value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
                        shown += [value._repr_html_()] if hasattr(value, "_repr_html_") else []
            finally:
                os.chdir(before)
        self.assertIn("<iframe", "".join(shown))
        self.assertEqual(set(names["chosen"].load), {16})


if __name__ == "__main__":
    unittest.main()
