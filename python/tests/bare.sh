#!/bin/sh
# bare.sh WHEEL [RELEASE [PACKAGE...]]: installs a wheel (python/wheel.sh) in a fresh tree of a Debian release (trixie) that
# has Python and nothing of what choir is built with, and runs the package's tests there; with packages from PyPI besides
# (torch). As root; makes the tree with debootstrap in TMPDIR.
set -eu
[ $# -ge 1 ] || { echo "usage: python/tests/bare.sh WHEEL [RELEASE [PACKAGE...]]" >&2; exit 2; }
wheel=$(realpath "$1") release=${2:-trixie}
shift; [ $# = 0 ] || shift
source=$(realpath "$(dirname "$0")/../..")
tree=$(mktemp -d)
leave() {
  umount -l "$tree/proc" "$tree/dev" 2>/dev/null || :
  rm -rf --one-file-system "$tree"
}
trap leave EXIT
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$release" "$tree" >"$tree.log" 2>&1 ||
  { tail -n 5 "$tree.log" >&2; exit 1; }
mount -t proc proc "$tree/proc"
mount --rbind /dev "$tree/dev"
mount --make-rslave "$tree/dev"
# How this machine reaches PyPI.
cp /etc/resolv.conf /etc/hosts "$tree/etc/"
cp /etc/pip.conf "$tree/etc/" 2>/dev/null || :
cp -L /etc/ssl/certs/ca-certificates.crt "$tree/etc/ssl/certs/"
mkdir -p "$tree/src/python" "$tree/src/tests"
cp -r "$source/examples" "$tree/src/"
cp -r "$source/python/tests" "$tree/src/python/"
cp "$source/tests/libchoir.abi" "$tree/src/tests/"
cp "$wheel" "$tree/src/"
chroot "$tree" env -i PATH=/usr/bin:/bin HOME=/root LANG=C.UTF-8 sh -euc '
  python3 -m venv /venv
  /venv/bin/pip -q install /src/*.whl "$@"
  if find / -xdev -name "libarchive*" -o -name "libicu*" -o -name "libmpi*" -o -name "libsentencepiece.so*" | grep .; then
    echo "this tree is not bare"
    exit 1
  fi
  cd /src/python/tests
  /venv/bin/choir --version
  CHOIR_PROGRAM=$(echo /venv/lib/python3*/site-packages/choir/bin/choir) /venv/bin/python -m unittest
' sh "$@"
