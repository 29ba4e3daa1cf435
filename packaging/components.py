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

from publisher import publisher

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
STATIC = ("libarchive13", "libarchive13t64")  # the one that is installed


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
    """{package: version} of the Debian packages of which a wheel contains libraries: packaging/notices.py wrote the list."""
    with zipfile.ZipFile(wheel) as file:
        name = next(name for name in file.namelist() if name.endswith("/licenses/third_party/LIST"))
        rows = file.read(name).decode().rpartition("LICENCE\n")[2].splitlines()
    return {row.split()[0]: row.split()[1] for row in rows}


def installed(names):
    return {name: output("dpkg-query", "-W", "-f", "${Version}", name) for name in names}


def identifier(text):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", text)


def component(package, version):
    return {
        "SPDXID": identifier(f"{package}-{version}"),
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
        "supplier": f"Organization: {publisher()['name']}",
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
    """{package: version} of the Debian packages that a file of the release contains, and of those that it needs."""
    if path.suffix == ".deb":
        return installed(COMPILED_IN if path.name.startswith(("choir_", "libchoir")) else ()), installed(depends(path))
    if path.name.endswith("-none-any.whl"):
        return {}, installed({"python3-numpy"})
    if path.suffix == ".whl":
        return copied(path), installed({"python3-cffi", "python3-numpy"})
    return {}, {}


def main(version, directory):
    products = sorted(path for path in pathlib.Path(directory).iterdir() if path.suffix in (".gz", ".deb", ".whl"))
    parts, relations = set(), []
    for path in products:
        relations.append(("SPDXRef-DOCUMENT", "DESCRIBES", path.name))
        for kind, packages in zip(("CONTAINS", "DEPENDS_ON"), made_of(path)):
            parts |= set(packages.items())
            relations += [(identifier(path.name), kind, f"{name}-{packages[name]}") for name in sorted(packages)]
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    packages = [product(version, path) for path in products] + [component(*part) for part in sorted(parts)]
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
