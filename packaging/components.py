"""components.py VERSION DIRECTORY: what a release is made of, as SPDX 2.3 (JSON). DIRECTORY has the
release's files; versions are those of the Debian packages of this machine, which built them. SOURCE_DATE_EPOCH says when."""

import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid
import zipfile

GCC = "GPL-3.0-or-later WITH GCC-exception-3.1"
# Debian packages with the licence of the library in them.
LICENCES = {
    "libarchive13": "BSD-2-Clause",
    "libarchive13t64": "BSD-2-Clause",  # this and the next names of such libraries are those of Debian 13
    "libbz2-1.0": "bzip2-1.0.6",
    "libc6": "LGPL-2.1-or-later",
    "libgcc-s1": GCC,
    "libgomp1": GCC,
    "libjansson4": "MIT",
    "liblzma5": "LicenseRef-public-domain",
    "libopenmpi3": "BSD-3-Clause",
    "libopenmpi40": "BSD-3-Clause",
    "libpcre2-8-0": "BSD-3-Clause",
    "librandom123-dev": "BSD-3-Clause",
    "libsentencepiece0": "Apache-2.0 AND BSD-3-Clause AND MIT",
    "libstdc++6": GCC,
    "libutf8proc2": "MIT AND Unicode-DFS-2015",
    "libutf8proc3": "MIT AND Unicode-DFS-2015",
    "libxxhash0": "BSD-2-Clause",
    "libzstd1": "BSD-3-Clause",
    "python3-cffi": "MIT",
    "python3-numpy": "BSD-3-Clause",
    "zlib1g": "Zlib",
}
# No Depends names these: a header, and the wheel's archive, which is static.
COMPILED_IN = {"librandom123-dev"}
WHEEL_STATIC = ("libarchive13", "libarchive13t64")  # the one that is installed


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def licence(package):
    if package not in LICENCES:
        sys.exit(f"packaging/components.py: LICENCES does not know the licence of {package}, which a release needs")
    return LICENCES[package]


def depends(deb):
    """The packages that a .deb needs, without choir's own, the interpreter and those of headers."""
    names = {re.split(r"[ (:|]", one.strip())[0] for one in output("dpkg-deb", "-f", deb, "Depends").split(",")}
    return {name for name in names if not re.search("choir|^python3$|-dev$", name)}


def copied(wheel):
    """The packages of which a wheel has shared libraries in it: choir_moe.libs/libjansson-5d41402a.so.4.14.0."""
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".libs/lib" in name]
    found = set()
    for stem in {re.split(r"-[0-9a-f]{8}\.so", name)[0].split("/")[-1] for name in names}:
        owners = {line.split(":")[0] for line in output("dpkg", "-S", f"*/{stem}.so*").splitlines()}
        if not owners & set(LICENCES):
            sys.exit(f"packaging/components.py: LICENCES does not know whose {stem} in {wheel} is")
        found |= owners & set(LICENCES)
    return found


def identifier(text):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", text)


def component(package):
    version = output("dpkg-query", "-W", "-f", "${Version}", package)
    return {
        "SPDXID": identifier(package),
        "name": package,
        "versionInfo": version,
        "supplier": "Organization: Debian",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": licence(package),
        "licenseDeclared": licence(package),
        "copyrightText": "NOASSERTION",
    }


def product(version, path):
    return {
        "SPDXID": identifier(path.name),
        "name": path.name,
        "versionInfo": version,
        "supplier": "Organization: The choir authors",
        "packageFileName": path.name,
        "primaryPackagePurpose": "SOURCE" if path.suffix == ".gz" else "INSTALL",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "checksums": [{"algorithm": "SHA256", "checksumValue": hashlib.sha256(path.read_bytes()).hexdigest()}],
        "licenseConcluded": "Apache-2.0",
        "licenseDeclared": "Apache-2.0",
        "copyrightText": "NOASSERTION",
    }


def made_of(path):
    """The Debian packages that a file of the release has in it, and those that it needs."""
    if path.suffix == ".deb":
        return COMPILED_IN if path.name.startswith(("choir_", "libchoir")) else set(), depends(path)
    if path.suffix == ".whl":
        if path.name.endswith("-none-any.whl"):
            return set(), {"python3-numpy"}
        static = {name for name in WHEEL_STATIC if subprocess.run(["dpkg", "-s", name], capture_output=True).returncode == 0}
        return copied(path) | COMPILED_IN | static, {"python3-cffi", "python3-numpy"}
    return set(), set()


def main(version, directory):
    products = sorted(path for path in pathlib.Path(directory).iterdir() if path.suffix in (".gz", ".deb", ".whl"))
    names, relations = set(), []
    for path in products:
        has, needs = made_of(path)
        names |= has | needs
        relations.append(("SPDXRef-DOCUMENT", "DESCRIBES", path.name))
        relations += [(identifier(path.name), "CONTAINS", name) for name in sorted(has)]
        relations += [(identifier(path.name), "DEPENDS_ON", name) for name in sorted(needs)]
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    packages = [product(version, path) for path in products] + [component(name) for name in sorted(names)]
    unique = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(packages, sort_keys=True))
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"choir-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/choir-{version}-{unique}",
        "creationInfo": {
            "created": datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: packaging/components.py"],
        },
        "packages": packages,
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": identifier(other)}
            for one, kind, other in relations
        ],
        "hasExtractedLicensingInfos": [
            {
                "licenseId": "LicenseRef-public-domain",
                "name": "Public domain",
                "extractedText": "liblzma is in the public domain: its COPYING and Debian's liblzma5 say so.",
            }
        ],
    }
    json.dump(document, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
