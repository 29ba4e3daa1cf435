"""notices.py WHEEL DIRECTORY [SYSROOT]: copies a wheel into DIRECTORY and adds the licences of the libraries in it. The
libraries are those of Debian packages, installed here or in SYSROOT (packaging/sysroot.sh); each package's copyright file is
copied, and the licence texts that the file refers to. METADATA names them all."""

import pathlib
import re
import subprocess
import sys
import zipfile

from components import COMPILED_IN, LICENCES, STATIC
from pure_wheel import record

COMMON = pathlib.Path("/usr/share/common-licenses")
HEAD = """This wheel contains libraries of these Debian packages. PACKAGE/copyright has the licence of each, common-licenses the texts
that these files refer to. The sources are at https://snapshot.debian.org/package/SOURCE/VERSION/.

PACKAGE VERSION SOURCE VERSION: LICENCE
"""


class Debian:
    """The packages of this machine, or of a sysroot."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.query = ["dpkg-query", f"--admindir={self.root / 'var/lib/dpkg'}"]

    def output(self, *words):
        return subprocess.run([*self.query, *words], capture_output=True, text=True, check=False).stdout

    def owner(self, library):
        """The package of a shared library, of which LICENCES knows the licence: by its file name without the hash."""
        stem, version = re.fullmatch(r"(.+?)-[0-9a-f]{8}(\.so.*)", library).groups()
        owners = {line.split(":")[0] for line in self.output("-S", f"*/{stem}{version}*").splitlines()} & set(LICENCES)
        if not owners:
            sys.exit(f"packaging/notices.py: {library}: components.LICENCES has no package of Debian that contains {stem}{version}")
        return owners.pop()

    def versions(self, package):
        return self.output("-W", "-f", "${Version} ${source:Package} ${source:Version}", package)

    def notice(self, package):
        return (self.root / "usr/share/doc" / package / "copyright").read_bytes()


def packages(names, debian):
    """The packages with a library in the wheel, as a shared library or compiled in."""
    shared = {debian.owner(name.rpartition("/")[2]) for name in names if ".libs/" in name and not name.endswith("/")}
    static = {name for name in (*COMPILED_IN, *STATIC) if debian.versions(name)}
    return sorted(shared | static)


def notices(contained, debian):
    """The files of the folder licenses/third_party, by their path in it."""
    found = {f"{package}/copyright": debian.notice(package) for package in contained}
    texts = b"".join(found.values()).decode(errors="replace")
    for name in re.findall(r"/usr/share/common-licenses/([\w.+-]*\w)", texts):
        found[f"common-licenses/{name}"] = (COMMON / name).read_bytes()
    rows = "".join(f"{package} {debian.versions(package)}: {LICENCES[package]}\n" for package in contained)
    return {**found, "LIST": (HEAD + rows).encode()}


def metadata(text, contained, paths):
    """METADATA with the licences of what the wheel contains."""
    licences = sorted({part for package in contained for part in LICENCES[package].split(" AND ")} - {"Apache-2.0"})
    text = text.replace("License-Expression: Apache-2.0\n", f"License-Expression: {' AND '.join(['Apache-2.0', *licences])}\n", 1)
    files = "".join(f"License-File: {path}\n" for path in paths)
    return text.replace("License-File: LICENSE\n", f"License-File: LICENSE\n{files}", 1)


def main(wheel, directory, sysroot="/"):
    debian, wheel = Debian(sysroot), pathlib.Path(wheel)
    with zipfile.ZipFile(wheel) as source:
        entries = source.infolist()
        found = {entry.filename: source.read(entry) for entry in entries}
    about = next(name for name in found if name.endswith(".dist-info/METADATA")).rpartition("/")[0]
    contained = packages(found, debian)
    more = notices(contained, debian)
    time = next(entry.date_time for entry in entries if entry.filename == f"{about}/METADATA")
    for path in sorted(more):
        entry = zipfile.ZipInfo(f"{about}/licenses/third_party/{path}", time)
        entry.external_attr = 0o100644 << 16
        entries.append(entry)
        found[entry.filename] = more[path]
    names = [f"third_party/{path}" for path in sorted(more)]
    found[f"{about}/METADATA"] = metadata(found[f"{about}/METADATA"].decode(), contained, names).encode()
    del found[f"{about}/RECORD"]
    found[f"{about}/RECORD"] = record(about, {name: data for name, data in found.items() if not name.endswith("/")})
    with zipfile.ZipFile(pathlib.Path(directory) / wheel.name, "w") as out:
        for entry in sorted(entries, key=lambda entry: entry.filename == f"{about}/RECORD"):
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, found[entry.filename])


if __name__ == "__main__":
    main(*sys.argv[1:])
