"""pure_wheel.py DIRECTORY: makes in DIRECTORY the wheel of choir without its C library (py3-none-any), which has choir.torch for any
system. Needs Python 3.11 and nothing else: no CMake, compiler or network. SOURCE_DATE_EPOCH is the time of its files."""

import base64
import hashlib
import os
import pathlib
import re
import sys
import time
import tomllib
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
DATA = {  # by its place in the package: what modules read
    "share/choir/configs": "configs/*.json",
    "vectors": "vectors/topk.safetensors vectors/expert_choice.safetensors",
}


def metadata(project, version):
    """METADATA, of pyproject.toml."""
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {version}", f"Summary: {project['description']}"]
    lines += [f"Keywords: {','.join(project['keywords'])}"]
    lines += [f"Author-email: {one['name']} <{one['email']}>" if "email" in one else f"Author: {one['name']}" for one in project["authors"]]
    lines += [f"License-Expression: {project['license']}"]
    lines += [f"License-File: {name}" for name in project["license-files"]]
    lines += [f"Classifier: {classifier}" for classifier in project["classifiers"]]
    lines += [f"Project-URL: {label}, {url}" for label, url in project["urls"].items()]
    lines += [f"Requires-Python: {project['requires-python']}"]
    lines += [f"Requires-Dist: {one}" for one in project["dependencies"]]
    for extra, needs in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *(f'Requires-Dist: {one}; extra == "{extra}"' for one in needs)]
    lines += ["Description-Content-Type: text/markdown", "", (SOURCE / project["readme"]).read_text(encoding="utf-8")]
    return "\n".join(lines)


def files(project, version):
    """What the wheel contains, by its path there."""
    about = f"{project['name'].replace('-', '_')}-{version}.dist-info"
    package = SOURCE / "python" / "choir"
    found = {f"choir/{path.relative_to(package).as_posix()}": path.read_bytes() for path in package.rglob("*")
             if path.is_file() and "__pycache__" not in path.parts and path.suffix in (".py", ".typed", ".json")}
    for place, patterns in DATA.items():
        for path in (path for pattern in patterns.split() for path in SOURCE.glob(pattern)):
            found[f"choir/{place}/{path.name}"] = path.read_bytes()
    for name in project["license-files"]:
        found[f"{about}/licenses/{name}"] = (SOURCE / name).read_bytes()
    scripts = "".join(f"{name} = {target}\n" for name, target in project["scripts"].items())
    found[f"{about}/entry_points.txt"] = f"[console_scripts]\n{scripts}".encode()
    found[f"{about}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: choir\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    found[f"{about}/METADATA"] = metadata(project, version).encode()
    return about, found


def record(about, found):
    rows = []
    for name in sorted(found):
        digest = base64.urlsafe_b64encode(hashlib.sha256(found[name]).digest()).decode().rstrip("=")
        rows.append(f"{name},sha256={digest},{len(found[name])}")
    return "\n".join([*rows, f"{about}/RECORD,,", ""]).encode()


def main(directory):
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search(r"project\(choir VERSION ([0-9.]+)", (SOURCE / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
    about, found = files(project, version)
    found[f"{about}/RECORD"] = record(about, found)
    made = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", 315532800)))[:6]
    out = pathlib.Path(directory) / f"{about.removesuffix('.dist-info')}-py3-none-any.whl"
    out.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out, "w") as wheel:
        for name in sorted(found, key=lambda name: (name.startswith(about), name)):
            entry = zipfile.ZipInfo(name, made)
            entry.external_attr, entry.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(entry, found[name])
    print(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
