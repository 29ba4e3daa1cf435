#!/bin/sh
# artifacts.sh DIRECTORY [COMMIT]: makes in DIRECTORY what a release consists of: source, Debian packages, wheels (for this
# machine, for arm64, and without the C library), list of components (SPDX), checksums. A commit (HEAD unless told) gives
# the same bytes wherever, whenever and however this runs.
set -eu
[ $# -ge 1 ] || { echo "usage: packaging/artifacts.sh DIRECTORY [COMMIT]" >&2; exit 2; }
cd "$(dirname "$0")/.."
. cmake/setup.sh
umask 022
mkdir -p "$1"
out=$(cd "$1" && pwd) commit=$(git rev-parse "${2:-HEAD}")
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC
export CCACHE_DISABLE=1 # its objects tell of the folder that they were first compiled in
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2086 # one word a package
install_packages "$work/packages.log" $BUILD_PACKAGES $PACKAGING_PACKAGES libopenmpi-dev python3-cffi python3-numpy \
  g++-aarch64-linux-gnu

version=$(git show "$commit:CMakeLists.txt" | sed -n 's/^project(choir VERSION \([0-9.]*\).*/\1/p')
name=choir-$version
git -c tar.umask=0022 archive --prefix="$name/" "$commit" | gzip -9n >"$out/$name.tar.gz"
tar -xzf "$out/$name.tar.gz" -C "$work"
(
  cd "$work/$name"
  DEB_BUILD_OPTIONS="noautodbgsym parallel=$(cpus)" dpkg-buildpackage -us -uc
) >"$out/build.log" 2>&1 ||
  { tail -n 20 "$out/build.log"; stop "the Debian packages could not be built: $out/build.log"; }
cp "$work"/*.deb "$out"
(cd "$work/$name" && sh python/wheel.sh "$out") >>"$out/build.log" 2>&1 ||
  { tail -n 20 "$out/build.log"; stop "the wheel could not be built: $out/build.log"; }
(cd "$work/$name" && TARGET=aarch64-linux-gnu sh python/wheel.sh "$out") >>"$out/build.log" 2>&1 ||
  { tail -n 20 "$out/build.log"; stop "the wheel of arm64 could not be built: $out/build.log"; }
(cd "$work/$name" && /usr/bin/python3 packaging/pure_wheel.py "$out") >>"$out/build.log" 2>&1 ||
  { tail -n 20 "$out/build.log"; stop "the wheel without the C library could not be built: $out/build.log"; }
/usr/bin/python3 packaging/components.py "$version" "$out" >"$out/$name.spdx.json"
(cd "$out" && sha256sum -- *.tar.gz *.deb *.whl *.json >SHA256SUMS)
lintian --pedantic --fail-on error,warning,pedantic "$work"/choir_*.changes
