"""Where the package finds its library, its program and its headers, and which library it refuses."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import choir
import testing

MODULES = testing.SOURCE / "python" / "choir"
# As the finder of an editable install makes the package: modules in the source, what was compiled elsewhere.
EDITABLE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "choir", sys.argv[1] + "/__init__.py", submodule_search_locations=sys.argv[1:3])
sys.modules["choir"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from choir import _headers, pages
print(_headers.beside("libchoir.so"), pages.program(), len(module.routers()))
"""


def python(*words, **environment):
    kept = {
        k: v for k, v in os.environ.items() if k not in ("CHOIR_LIBRARY", "CHOIR_PROGRAM", "PYTHONPATH")
    }
    return subprocess.run(
        [sys.executable, *map(str, words)], env={**kept, **environment}, capture_output=True, text=True, check=False
    )


class Install(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.at = pathlib.Path(made.name)

    def test_an_editable_install_finds_the_library(self):
        compiled = self.at / "site-packages" / "choir"
        (compiled / "bin").mkdir(parents=True)
        (compiled / "libchoir.so").symlink_to(os.environ["CHOIR_LIBRARY"])
        (compiled / "bin" / "choir").symlink_to(os.environ["CHOIR_PROGRAM"])
        done = python("-c", EDITABLE, MODULES, compiled)
        self.assertEqual(done.stdout.split()[:2], [str(compiled / "libchoir.so"), str(compiled / "bin" / "choir")], done)

    def test_a_library_of_another_version_is_refused(self):
        source = self.at / "choir-9"
        (source / "python").mkdir(parents=True)
        (source / "python" / "choir").symlink_to(MODULES)
        (source / "include").symlink_to(testing.SOURCE / "include")
        for version, fits in (("9.8.7", False), (choir.__version__, True)):
            (source / "CMakeLists.txt").write_text(f"project(choir VERSION {version} LANGUAGES C CXX\n")
            done = python(
                "-c", "import choir; choir.Model", PYTHONPATH=str(source / "python"), CHOIR_LIBRARY=os.environ["CHOIR_LIBRARY"]
            )
            self.assertEqual(done.returncode == 0, fits, done)
            if not fits:
                self.assertIn(f"is of version {choir.__version__}, and this Python package of 9.8.7", done.stderr)

    def test_an_older_build_is_named(self):
        source = self.at / "choir"
        (source / "python").mkdir(parents=True)
        (source / "python" / "choir").symlink_to(MODULES)
        (source / "CMakeLists.txt").write_text(f"project(choir VERSION {choir.__version__} LANGUAGES C CXX\n")
        shutil.copytree(testing.SOURCE / "include", source / "include")
        with open(source / "include" / "choir" / "tokenizer.h", "a") as header:
            header.write("CHOIR_API int choir_of_tomorrow(void);\n")
        done = python("-c", "import choir; choir.Model", PYTHONPATH=str(source / "python"), CHOIR_LIBRARY=os.environ["CHOIR_LIBRARY"])
        self.assertIn("has no choir_of_tomorrow, which this Python package needs: it was built from an older", done.stderr)


if __name__ == "__main__":
    unittest.main()
