#!/bin/sh
# packages.sh SOURCE [DIRECTORY]: makes what a release consists of twice: in two folders, under two locales and umasks,
# one after the other. All files must be equal byte for byte, and the checkpoint of ten training steps. The Debian
# packages are tried in a bare tree. A tree with changes is taken as it is; DIRECTORY keeps the files.
set -eu
for tool in git dpkg-buildpackage; do
  command -v $tool >/dev/null || { echo "NOT TESTED: packages: $tool is not installed"; exit 77; }
done
source=$(cd "$1" && pwd)
git -C "$source" rev-parse HEAD >/dev/null 2>&1 || {
  echo "NOT TESTED: packages: the source is no git repository"
  exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
commit=$(git -C "$source" stash create)
commit=${commit:-$(git -C "$source" rev-parse HEAD)}

# try_packages DIRECTORY RUN: what they hold works in a bare tree.
try_packages() {
  root=$work/root
  rm -rf "$root"
  for deb in "$1"/*.deb; do dpkg-deb -x "$deb" "$root"; done
  library=$(dirname "$(find "$root" -name libchoir.so.1)")
  (cd "$source" && PATH="$root/usr/bin:$PATH" LD_LIBRARY_PATH="$library" PKG_CONFIG_PATH="$library/pkgconfig" \
    PYTHONPATH="$root/usr/lib/python3/dist-packages" PYTHONDONTWRITEBYTECODE=1 sh debian/tests/installed "$2")
}

make() { sh "$source/packaging/artifacts.sh" "$1" "$commit"; }
(umask 022 && export LC_ALL=C && make "$work/one")
mkdir "$work/elsewhere"
(umask 077 && export LC_ALL=de_DE.UTF-8 TMPDIR="$work/elsewhere" && make "$TMPDIR/two")
cmp "$work/one/SHA256SUMS" "$work/elsewhere/two/SHA256SUMS" || {
  diff "$work/one/SHA256SUMS" "$work/elsewhere/two/SHA256SUMS"
  exit 1
}
try_packages "$work/one" "$work/run-one"
try_packages "$work/elsewhere/two" "$work/elsewhere/run-two"
diff -r "$work/run-one/checkpoints" "$work/elsewhere/run-two/checkpoints"
share=$root/usr/share
sh "$source/tests/completion.sh" "$share/bash-completion/completions/choir" "$share/zsh/site-functions/_choir"
dpkg-deb -f "$work"/one/libchoir1_*.deb Depends | grep -q libjansson4 || {
  echo "libchoir1 does not say what it needs"
  exit 1
}
for wheel in "$work"/one/*manylinux*.whl; do
  for package in libarchive13 libgomp1 libsentencepiece0 librandom123-dev; do
    python3 -m zipfile -l "$wheel" | grep -q "/licenses/third_party/$package[^/]*/copyright " || {
      echo "$wheel does not contain the licence of $package"
      exit 1
    }
  done
done
cat "$work/one/SHA256SUMS"
[ $# = 1 ] || { rm "$work/one/build.log" && mkdir -p "$2" && cp "$work"/one/* "$2"; }
