#!/bin/sh
# sysroot.sh DIRECTORY [PACKAGE...]: makes in DIRECTORY what a cross compiler and qemu need to build choir for arm64 and to run
# it: Debian's arm64 packages of choir's libraries, further PACKAGEs, all that these depend on, and toolchain.cmake. apt
# fetches them from where it fetches this machine's packages. Nothing is installed, and no root is needed.
# DIRECTORY stays as it is if it was made for these packages, or for more. Needs g++-aarch64-linux-gnu.
set -eu
[ $# -gt 0 ] || { echo "usage: packaging/sysroot.sh DIRECTORY [PACKAGE...]" >&2; exit 2; }
mkdir -p "$1"
root=$(cd "$1" && pwd)
shift
set -- libc6-dev libgomp1 libjansson-dev libarchive-dev zlib1g-dev libxxhash-dev libsentencepiece-dev librandom123-dev \
  libpcre2-dev libutf8proc-dev libbz2-dev liblzma-dev libzstd-dev "$@"
made=$(cat "$root/packages" 2>/dev/null) missing=
for package; do
  case " $made " in *" $package "*) ;; *) missing=1 ;; esac
done
[ -n "$missing" ] || exit 0
for tool in apt-get aarch64-linux-gnu-g++; do
  command -v $tool >/dev/null || { echo "NOT TESTED: arm64: $tool is not installed"; exit 77; }
done

# Lists, cache and status are apt's for this directory alone.
apt=$root/var/apt info=$root/var/lib/dpkg/info
mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$info"
: >"$root/var/lib/dpkg/status"
cat >"$apt/conf" <<C
APT::Architecture "arm64";
APT::Architectures "arm64";
Dir::State "$apt";
Dir::State::status "/dev/null";
Dir::State::lists "$apt/lists";
Dir::Cache "$apt";
C
export APT_CONFIG="$apt/conf"
{ apt-get -q update && apt-get -q -y --no-install-recommends --download-only install "$@"; } >"$apt/log" 2>&1 </dev/null ||
  { tail -n 5 "$apt/log" >&2; exit 1; }
for deb in "$apt"/archives/*.deb; do
  dpkg-deb -x "$deb" "$root"
  # As dpkg records an installed package: `dpkg-query --admindir` knows its version and its files.
  dpkg-deb --fsys-tarfile "$deb" | tar -t | sed 's|^\.||; s|/$||; s|^$|/.|' >"$info/$(dpkg-deb -f "$deb" Package).list"
  { dpkg-deb -f "$deb" && printf 'Status: install ok installed\n\n'; } >>"$root/var/lib/dpkg/status"
done
rm -rf "$apt"
# Links to absolute paths lead into the directory.
find "$root" -type l -lname '/*' | while read -r link; do ln -snf "$root$(readlink "$link")" "$link"; done
libraries=$root/usr/lib/aarch64-linux-gnu
cat >"$root/toolchain.cmake" <<C
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_SYSROOT $root)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L $root)
set(ENV{PKG_CONFIG_LIBDIR} $libraries/pkgconfig:$root/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} $root)
C
echo "$*" >"$root/packages"
