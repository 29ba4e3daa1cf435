"""imports.py ROOT PACKAGE: lines "module module" of what each module of a Python package imports of it, wherever in the file."""

import ast
import pathlib
import sys


def names(root, package):
    files = sorted((root / package).rglob("*.py"))
    return {".".join(f.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): f for f in files}


def targets(node, inside):
    """Names that an import statement in a module of package `inside` may mean: each with what stands behind it, and without."""
    if isinstance(node, ast.Import):
        return [(each.name, each.name) for each in node.names]
    around = inside.split(".")[: len(inside.split(".")) + 1 - node.level] if node.level else []
    base = ".".join([*around, *([node.module] if node.module else [])])
    return [(f"{base}.{each.name}", base) for each in node.names]


def main(root, package):
    files = names(root, package)
    for module, file in files.items():
        inside = module if file.stem == "__init__" else module.rpartition(".")[0]
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for whole, base in targets(node, inside):
                    found = whole if whole in files else base
                    if found in files and found != module:
                        print(module, found)


main(pathlib.Path(sys.argv[1]), sys.argv[2])
