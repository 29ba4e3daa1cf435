#!/bin/sh
# bare.sh COMMAND...: runs COMMAND in a clone of the project's last commit inside a fresh minimal tree of Debian, as a
# new user's machine would, so that no package is missed that this machine happens to have. As root. SUITE names the
# Debian: bookworm (12, unless told otherwise), trixie (13). The tree is made by debootstrap in TMPDIR, takes its packages from
# where this machine's apt takes them, and is removed at the end (KEEP=1 keeps it). The status is the command's. Where no tree
# can be made it prints NOT TESTED and the reason, with status 77.
# CHOIR_LOGS=DIRECTORY: build/check of the tree is there. CHOIR_BUILD=DIRECTORY: where this machine has the same Debian, build/
# of the tree is there; a build may go on from it, since the clone has the path of the project.
set -u
[ $# -gt 0 ] || { echo "usage: tests/bare.sh COMMAND..." >&2; exit 2; }
cannot() {
  echo "NOT TESTED: $command in a bare Debian ($suite): $*"
  exit 77
}
command=$*
suite=${SUITE:-bookworm}
cd "$(dirname "$0")/.." || exit 1
[ "$(id -u)" = 0 ] || cannot "not root"
command -v apt-get >/dev/null || cannot "this machine has no apt"
git rev-parse -q --verify HEAD >/dev/null 2>&1 || cannot "this is no git clone"
unshare --mount true 2>/dev/null || cannot "mounts are not allowed here (unshare --mount)"
free=$(df -Pk "${TMPDIR:-/tmp}" | awk 'NR == 2 { print int($4 / 1048576) }')
[ "$free" -ge 8 ] || cannot "${TMPDIR:-/tmp} has $free GiB free, 8 are needed; TMPDIR names another place"

export tree; tree=$(mktemp -d "${TMPDIR:-/tmp}/choir-bare.XXXXXX") || cannot "no directory could be made in ${TMPDIR:-/tmp}"
chmod 755 "$tree" # apt fetches as a user of its own
log=$tree.log
# Mounts are in a namespace of their own, which ends with the command: nothing but the tree's own files is removed.
leave() {
  rm -f "$log"
  [ -z "${KEEP:-}" ] || { echo "kept: $tree" >&2; return; }
  rm -rf --one-file-system "$tree"
}
trap leave EXIT
trap 'exit 130' INT TERM HUP

if ! command -v debootstrap >/dev/null; then
  { apt-get -q update; apt-get -q -y --no-install-recommends install debootstrap; } >"$log" 2>&1 </dev/null ||
    cannot "debootstrap cannot be installed: $(tail -n 1 "$log")"
fi
# debootstrap fetches by wget, which does not read apt's settings.
proxy=
eval "$(apt-config shell proxy Acquire::http::Proxy)"
[ -z "$proxy" ] || export http_proxy="$proxy"
mirror=$(apt-get download --print-uris base-files 2>/dev/null | sed -n "s|^'\(.*\)/pool/.*|\1|p")
begin=$(date +%s)
debootstrap --variant=minbase --include=git,ca-certificates "$suite" "$tree" "${mirror:-http://deb.debian.org/debian}" \
  >"$log" 2>&1 </dev/null || cannot "debootstrap failed: $(tail -n 1 "$log")"
echo "A minimal Debian $(cat "$tree/etc/debian_version"), made in $(($(date +%s) - begin)) s"

rm -rf "$tree/etc/apt"
cp -a /etc/apt "$tree/etc/apt"
# In the sources the name of this machine's Debian becomes that of the other one.
here=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
[ -z "$here" ] || find "$tree/etc/apt" \( -name '*.list' -o -name '*.sources' \) -exec sed -i "s/\b$here\b/$suite/g" {} +
cp /etc/resolv.conf /etc/hosts "$tree/etc/"
cp -an /usr/share/keyrings/. "$tree/usr/share/keyrings/"
echo force-unsafe-io >"$tree/etc/dpkg/dpkg.cfg.d/unsafe-io" # the tree need not survive a loss of power
export project="$PWD" build="${CHOIR_BUILD:-}" logs="${CHOIR_LOGS:-}"
[ "$here" = "$suite" ] || build=
mkdir -p "$tree$project" ${build:+"$build/check"} ${logs:+"$logs"} && git clone -q . "$tree$project" || exit 1
mkdir -p "$tree$project/build/check"
# shellcheck disable=SC2016 # the inner shells expand
unshare --mount sh -c '
  mount -t proc proc "$tree/proc" && mount --rbind /dev "$tree/dev" && mount --rbind /sys "$tree/sys" || exit 1
  [ -z "$build" ] || mount --bind "$build" "$tree$project/build" || exit 1
  [ -z "$logs" ] || mount --bind "$logs" "$tree$project/build/check" || exit 1
  exec chroot "$tree" /usr/bin/env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    TERM="${TERM:-dumb}" LANG=C.UTF-8 ${CI:+CI="$CI"} ${http_proxy:+http_proxy="$http_proxy"} \
    project="$project" sh -c "cd \"\$project\" && exec \"\$@\"" sh "$@"' sh "$@" </dev/null
