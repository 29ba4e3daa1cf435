#!/bin/sh
# packages.sh SOURCE [DIRECTORY]: makes what a release consists of twice: in two folders, under two locales and umasks, one
# after the other. All files must be equal byte for byte, and the checkpoint of ten training steps. The Debian packages are
# tried in a bare tree. Of a tree with changes it takes the tree as it is; DIRECTORY keeps the files.
set -eu
for tool in git dpkg-buildpackage; do
  command -v $tool >/dev/null || { echo "NOT TESTED: packages: $tool is not installed"; exit 77; }
done
source=$(cd "$1" && pwd)
git -C "$source" rev-parse HEAD >/dev/null 2>&1 || { echo "NOT TESTED: packages: the source is no git repository"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
commit=$(git -C "$source" stash create)
commit=${commit:-$(git -C "$source" rev-parse HEAD)}

# try_packages DIRECTORY RUN: what they hold works in a bare tree.
try_packages() {
  root=$work/root
  rm -rf "$root"
  for deb in "$1"/*.deb; do dpkg-deb -x "$deb" "$root"; done
  library=$(dirname "$(find "$root" -name libchoir.so.0)")
  (cd "$source" && PATH="$root/usr/bin:$PATH" LD_LIBRARY_PATH="$library" PKG_CONFIG_PATH="$library/pkgconfig" \
    PYTHONPATH="$root/usr/lib/python3/dist-packages" PYTHONDONTWRITEBYTECODE=1 sh debian/tests/installed "$2")
}

# Objects that a cache has from the first time would prove nothing of the second.
(umask 022 && LC_ALL=C sh "$source/packaging/artifacts.sh" "$work/one" "$commit")
(umask 077 && mkdir -p "$work/elsewhere/two" &&
  LC_ALL=de_DE.UTF-8 TMPDIR="$work/elsewhere" CCACHE_DISABLE=1 sh "$source/packaging/artifacts.sh" "$work/elsewhere/two" "$commit")
cmp "$work/one/SHA256SUMS" "$work/elsewhere/two/SHA256SUMS" || {
  diff "$work/one/SHA256SUMS" "$work/elsewhere/two/SHA256SUMS"
  exit 1
}
try_packages "$work/one" "$work/run-one"
try_packages "$work/elsewhere/two" "$work/elsewhere/run-two"
diff -r "$work/run-one/checkpoints" "$work/elsewhere/run-two/checkpoints"
sh "$source/tests/completion.sh" "$root/usr/share/bash-completion/completions/choir" "$root/usr/share/zsh/site-functions/_choir"
dpkg-deb -f "$work"/one/libchoir0_*.deb Depends | grep -q libjansson4 || { echo "libchoir0 does not say what it needs"; exit 1; }
cat "$work/one/SHA256SUMS"
[ $# = 1 ] || { rm "$work/one/build.log" && mkdir -p "$2" && cp "$work"/one/* "$2"; }
