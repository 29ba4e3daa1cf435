"""What packages of choir say: the licences of other people's libraries in them, and who publishes them; and the pictures
of the site."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import testing

ABOUT = "choir_moe-1.2.3.dist-info"
METADATA = "Metadata-Version: 2.4\nName: choir-moe\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\n\nText\n"


def files_of(package):
    done = subprocess.run(["dpkg-query", "-L", package], capture_output=True, text=True, check=False)
    return [pathlib.Path(line) for line in done.stdout.splitlines()]


@unittest.skipUnless(shutil.which("dpkg-query") and files_of("libjansson4") and files_of("libgomp1"), "Debian's libraries")
class Notices(unittest.TestCase):
    """packaging/notices.py, on a wheel as auditwheel makes it."""

    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.at = pathlib.Path(made.name)
        (self.at / "out").mkdir()

    def wheel(self, *libraries):
        path = self.at / "choir_moe-1.2.3-py3-none-manylinux_2_34_x86_64.whl"
        with zipfile.ZipFile(path, "w") as file:
            for name in libraries:
                file.writestr(f"choir_moe.libs/{name}", "library")
            for name, text in (("METADATA", METADATA), ("licenses/LICENSE", "choir's"), ("RECORD", "")):
                file.writestr(f"{ABOUT}/{name}", text)
        return subprocess.run(
            [sys.executable, testing.SOURCE / "packaging" / "notices.py", path, self.at / "out"], capture_output=True, text=True
        )

    def test_every_library_brings_its_licence(self):
        owners = ("libjansson4", "libgomp1")
        paths = [next(path for path in files_of(owner) if re.search(r"\.so\.\d+\.\d", path.name)) for owner in owners]
        done = self.wheel(*(re.sub(r"\.so", "-0123abcd.so", path.name, count=1) for path in paths))
        self.assertEqual(done.returncode, 0, done.stderr)
        with zipfile.ZipFile(next((self.at / "out").iterdir())) as file:
            found = {name: file.read(name) for name in file.namelist()}
        third = f"{ABOUT}/licenses/third_party/"
        for owner in owners:
            self.assertEqual(found[f"{third}{owner}/copyright"], pathlib.Path(f"/usr/share/doc/{owner}/copyright").read_bytes())
            self.assertRegex(found[f"{third}LIST"].decode(), rf"(?m)^{owner} \d\S* \S+ \d\S*: \S")
        # What libgomp's notice refers to.
        self.assertIn(b"GNU GENERAL PUBLIC LICENSE", found[f"{third}common-licenses/GPL-3"])
        message = found[f"{ABOUT}/METADATA"].decode()
        self.assertIn("License-Expression: Apache-2.0 AND ", message)
        self.assertIn("GPL-3.0-or-later WITH GCC-exception-3.1", message)
        licences = {f"License-File: {name.partition('/licenses/')[2]}" for name in found if "/licenses/" in name}
        self.assertEqual(licences - set(message.splitlines()), set())
        self.assertTrue(message.endswith("\n\nText\n"))
        recorded = {row.split(",")[0] for row in found[f"{ABOUT}/RECORD"].decode().splitlines()}
        self.assertEqual(recorded, set(found))

    def test_a_library_of_unknown_licence_is_refused(self):
        done = self.wheel("libnobody-0123abcd.so.1")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("libnobody-0123abcd.so.1: components.LICENCES has no package of Debian that contains libnobody.so.1", done.stderr)


@unittest.skipIf(sys.version_info < (3, 11), "Python 3.11")
class Publisher(unittest.TestCase):
    """packaging/publisher.toml, in this source and in a copy of which it is changed."""

    def publisher(self, at, *words):
        return subprocess.run([sys.executable, at / "packaging" / "publisher.py", *words], capture_output=True, text=True)

    def test_files_have_the_publishers_data(self):
        done = self.publisher(testing.SOURCE, "--check")
        self.assertEqual((done.stdout, done.returncode), ("", 0))

    def test_a_change_reaches_every_file(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        at = pathlib.Path(made.name)
        files = ("pyproject.toml", "debian/control", "debian/changelog", "debian/copyright", "CITATION.cff")
        readme = re.search('readme = "(.*)"', (testing.SOURCE / "pyproject.toml").read_text())[1]
        needs = ("CMakeLists.txt", "LICENSE", readme, *files)
        for name in (*needs, *(f"packaging/{file}" for file in ("publisher.py", "publisher.toml", "pure_wheel.py"))):
            (at / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(testing.SOURCE / name, at / name)
        (at / "packaging" / "publisher.toml").write_text(
            'name = "Anna"\nemail = "anna@choir.test"\nhomepage = "https://choir.test"\ndocumentation = ""\n'
            'source = "https://choir.test/git"\nissues = "https://example.org/bugs"\n'
        )
        done = self.publisher(at, "--check")
        self.assertEqual((re.findall(r": (\S+) differs", done.stdout), done.returncode), (list(files), 1))
        self.assertEqual(self.publisher(at, "--placeholders").stdout, "documentation, issues\n")
        self.assertEqual(self.publisher(at).returncode, 0)
        self.assertEqual(self.publisher(at, "--check").returncode, 0)
        for file, line in (
            ("debian/control", "Maintainer: Anna <anna@choir.test>"),
            ("debian/control", "Homepage: https://choir.test"),
            ("debian/copyright", "Source: https://choir.test/git"),
            ("CITATION.cff", "repository-code: https://choir.test/git"),
        ):
            self.assertIn(f"\n{line}\n", (at / file).read_text())
        # The page on PyPI.
        done = subprocess.run([sys.executable, at / "packaging" / "pure_wheel.py", at], check=True, capture_output=True, text=True)
        with zipfile.ZipFile(done.stdout.strip()) as wheel:
            message = wheel.read(next(name for name in wheel.namelist() if name.endswith("/METADATA"))).decode().splitlines()
        for line in ("Author-email: Anna <anna@choir.test>", "Project-URL: Homepage, https://choir.test", "Project-URL: Source, https://choir.test/git"):
            self.assertIn(line, message)
        self.assertFalse(any("example.org" in line for line in message))

class Site(unittest.TestCase):
    def test_pictures_are_copied_and_shown(self):
        """docs/site.py copies pictures from docs/ and from its folders; links lead to the copies."""
        spec = importlib.util.spec_from_file_location("site_of_docs", testing.SOURCE / "docs" / "site.py")
        site = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(site)
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        at, staged = pathlib.Path(made.name) / "tree", pathlib.Path(made.name)
        for name in ("docs", "include", "python/choir"):
            shutil.copytree(testing.SOURCE / name, at / name)
        for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
            shutil.copy(testing.SOURCE / name, at)
        pictures = ("one.png", "two.svg", "results/three.svg", "results/gpu/four.png")
        for name in pictures:
            (at / "docs" / name).write_bytes(name.encode())
        with open(at / "docs" / "moe.md", "a", encoding="utf-8") as page:
            page.write("".join(f"\n![A picture]({name})\n" for name in pictures))
        site.ROOT = at
        site.stage(staged, os.environ["CHOIR_PROGRAM"])
        text = (staged / "docs" / "moe.md").read_text(encoding="utf-8")
        for name in pictures:
            self.assertEqual((staged / "docs" / name).read_bytes(), name.encode())
            self.assertIn(f"![A picture]({name})", text)


if __name__ == "__main__":
    unittest.main()
