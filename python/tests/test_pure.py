"""choir.torch without libchoir: the layer tests with NumPy and PyTorch alone, on systems that are not Linux, and what the rest of
choir says there."""

import base64
import hashlib
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

import testing

try:
    import tomllib
except ImportError:
    tomllib = None
try:
    import torch
except ImportError:
    torch = None

# Modules that are not there: cffi, SciPy and what is POSIX's. PyTorch and NumPy are imported before, since they need some.
HIDDEN = """
import importlib.abc, os, sys
import numpy, torch
class Hidden(importlib.abc.MetaPathFinder):
    names = {"cffi", "_cffi_backend", "scipy", "fcntl", "resource", "termios", "pwd"}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
for name in [name for name in sys.modules if name.partition(".")[0] in Hidden.names]:
    del sys.modules[name]
sys.meta_path.insert(0, Hidden())
"""
NOT_POSIX = """
for name in ("fork", "register_at_fork", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "RTLD_DEEPBIND", "RTLD_NOW", "geteuid"):
    if hasattr(os, name):
        delattr(os, name)
"""
TOUR = """
import choir, choir.torch
assert "choir._native" not in sys.modules, "import choir.torch asks for libchoir"
x, ids = torch.randn(4, 16, 32), torch.arange(64).view(4, 16)
for router in choir.routers():
    layer = choir.torch.MoE(32, 48, 1 if router == "dense" else 8, router)
    (layer(x, ids).sum() + layer.aux_loss).backward()
    choir.torch.update_routers(layer)
    layer.eval()(x, ids)
choir.load_plugin(sys.argv[1])
assert choir.torch.MoE(32, 48, 8, "mine")(x).shape == x.shape
sizes = dict(layers=2, d_model=32, d_hidden=48, heads=2, experts=8, vocab_size=100)
config = choir.Config(**sizes, **{"train.sequence_length": 16, "train.batch_sequences": 4, "router.name": "topk"})
assert choir.torch.Transformer(config).loss(ids).isfinite()
assert choir.Config("nano")["model.layers"] > 0
assert choir.__version__ == sys.argv[2], choir.__version__
for needs in (lambda: choir.Model, lambda: choir.route, lambda: choir.train, lambda: choir.load_plugin("some.so"),
              lambda: choir.torch.Transformer(config).to_choir(), lambda: choir.data.build, lambda: choir.Tokenizer):
    try:
        needs()
        raise SystemExit("was not refused")
    except choir.LibraryError as error:
        print(error)
"""
PLUGIN = """
import choir, numpy as np
@choir.router("mine", looks="nowhere", choices=1)
def mine(scores, valid, capacity, training):
    return (scores == scores.max(1, keepdims=True)) & valid[:, None]
"""


class Source(unittest.TestCase):
    def test_no_file_is_excluded(self):
        """Patterns of the source distribution and of .gitignore match no file of the repository."""
        git = ["git", "-C", testing.SOURCE, "ls-files", "--cached", "--ignored"]
        if not (testing.SOURCE / ".git").exists() or tomllib is None:
            self.skipTest("git, or Python 3.11")
        patterns = tomllib.loads((testing.SOURCE / "pyproject.toml").read_text())["tool"]["scikit-build"]["sdist"]["exclude"]
        for more in (["--exclude-from", testing.SOURCE / ".gitignore"], *(["--exclude", pattern] for pattern in patterns)):
            found = subprocess.run([*git, *more], check=True, capture_output=True, text=True).stdout
            self.assertEqual(found, "", more)


@unittest.skipIf(torch is None or tomllib is None, "PyTorch, or Python 3.11")
class Pure(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = tempfile.TemporaryDirectory()
        cls.addClassCleanup(made.cleanup)
        cls.at = pathlib.Path(made.name)
        cls.site = cls.at / "site"
        builder = testing.SOURCE / "packaging" / "pure_wheel.py"
        done = subprocess.run([sys.executable, builder, cls.at], check=True, capture_output=True, text=True)
        cls.wheel = pathlib.Path(done.stdout.strip())
        with zipfile.ZipFile(cls.wheel) as wheel:
            wheel.extractall(cls.site)
        (cls.at / "own.py").write_text(PLUGIN)

    def python(self, program, *words):
        """A program in an interpreter that has NumPy and PyTorch, and the installed package instead of the source."""
        lost = ("CHOIR_LIBRARY", "CHOIR_PROGRAM", "PYTHONPATH")
        kept = {name: value for name, value in os.environ.items() if name not in lost}
        kept.update(PYTHONPATH=str(self.site), PYTHONDONTWRITEBYTECODE="1")
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, words)], env=kept, cwd=self.at, capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_the_wheel(self):
        """Its records are right, it is the same whenever it is made, and no module of the package is lacking."""
        self.assertRegex(self.wheel.name, r"^choir_moe-[\d.]+-py3-none-any\.whl$")
        with zipfile.ZipFile(self.wheel) as wheel:
            names = wheel.namelist()
            record = wheel.read(next(name for name in names if name.endswith("/RECORD"))).decode().split()
            message = {row.split(",")[0]: row.split(",")[1] for row in record}
            self.assertEqual(sorted(message), sorted(names))
            for name in names:
                digest = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).decode().rstrip("=")
                self.assertIn(message[name], (f"sha256={digest}", ""))
        package = testing.SOURCE / "python" / "choir"
        modules = {f"choir/{path.relative_to(package).as_posix()}" for path in package.rglob("*.py")}
        self.assertEqual(modules - set(names), set())
        before = self.wheel.read_bytes()
        subprocess.run([sys.executable, testing.SOURCE / "packaging" / "pure_wheel.py", self.at], check=True, capture_output=True)
        self.assertEqual(self.wheel.read_bytes(), before)

    def test_a_tour(self):
        for system in ("", NOT_POSIX, NOT_POSIX + "sys.platform, platform_of = 'win32', 'Windows AMD64'\n"
                       "import platform; platform.system, platform.machine = (lambda: 'Windows'), (lambda: 'AMD64')\n"):
            output = self.python(HIDDEN + system + TOUR, self.at / "own.py", testing.choir.__version__).splitlines()
            self.assertEqual([line.partition(" needs ")[0] for line in output if " needs " in line],
                             ["choir.Model", "choir.route", "choir.train", "some.so, a plug-in in C,", "choir.Model", "choir.data", "choir.Tokenizer"])
            where = "Windows AMD64" if "Windows" in system else "Linux"
            self.assertTrue(all(where in line and "libchoir" in line for line in output if " needs " in line), output)

    def test_the_command(self):
        """`python -m choir` takes the program of a Debian package, and says what is lacking where there is none."""
        program = HIDDEN + "import runpy; sys.argv = ['choir', '--version']; runpy.run_module('choir', run_name='__main__')"
        for folder, found in ((pathlib.Path(os.environ["CHOIR_PROGRAM"]).parent, True), (self.at, False)):
            path = f"os.environ['PATH'] = {os.fspath(folder)!r}\n"
            if found:
                self.assertIn(testing.choir.__version__, self.python(program.replace("import runpy", path + "import runpy")))
            else:
                with self.assertRaisesRegex(AssertionError, "the program is not installed"):
                    self.python(program.replace("import runpy", path + "import runpy"))

    def test_layers(self):
        """The tests of layers, which are those of an installation with libchoir."""
        program = HIDDEN + "sys.path.append(sys.argv.pop(1))\nimport unittest\nunittest.main(None, argv=sys.argv)"
        for file in ("test_torch_layer", "test_torch_state"):
            output = self.python(program, testing.SOURCE / "python" / "tests", file)
            self.assertRegex(output, r"Ran \d\d? tests")
            self.assertEqual(re.findall(r"skipped=\d+", output), [])

    def test_pickles_cross(self):
        """A layer's options and a config that were pickled without libchoir serve with it, and the other way round."""
        import choir.torch

        (self.at / "there").write_bytes(pickle.dumps((choir.torch.MoE(8, 8, 4, "topk", top_k=2), choir.Config(layers=3))))
        self.python(HIDDEN + """
import pickle, choir.torch
layer, config = pickle.load(open("there", "rb"))
layer(torch.randn(4, 8))
assert config["layers"] == 3
pickle.dump((choir.torch.MoE(8, 8, 4, "random"), choir.Config(layers=4)), open("back", "wb"))
""")
        layer, config = pickle.loads((self.at / "back").read_bytes())
        layer(torch.randn(4, 8), torch.arange(4))
        self.assertEqual((config["layers"], type(config)), (4, choir.Config))


if torch is None:
    print("NOT TESTED: choir.torch without libchoir: PyTorch is not installed")
if __name__ == "__main__":
    unittest.main()
