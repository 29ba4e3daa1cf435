#!/bin/sh
# arm64.sh BUILD [CTEST ARGUMENTS]: cross-compiles choir for arm64 into BUILD and runs tests there under qemu, by default
# those that compute and read. On Debian 12, and as root where packages are missing: they are installed, those of arm64
# beside the machine's own. In a bare tree (debootstrap, chroot) they disturb nothing. No test of ctest: qemu is slow.
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
build=$1
shift
foreign='libgomp1 libjansson-dev libarchive-dev zlib1g-dev libxxhash-dev libsentencepiece-dev libpcre2-dev
  libutf8proc-dev libcmocka-dev'
packages="cmake ninja-build pkg-config crossbuild-essential-arm64 qemu-user-static librandom123-dev"
for name in $foreign; do packages="$packages $name:arm64"; done
# shellcheck disable=SC2086
if ! dpkg --print-foreign-architectures | grep -qx arm64 || ! dpkg -s $packages >/dev/null 2>&1; then
  [ "$(id -u)" = 0 ] || { echo "NOT TESTED: arm64: packages are missing; run as root, or install: $packages"; exit 77; }
  dpkg --add-architecture arm64
  apt-get update -q
  apt-get install -y -q --no-install-recommends $packages
fi

export PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  -DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static -DCHOIR_MPI=OFF -DCHOIR_WERROR=ON
ninja -C "$build"

# Tests start the program by its name, as the kernel does not without binfmt_misc: a script of that name starts it.
if [ "$(head -c 2 "$build/choir")" != '#!' ]; then
  mv "$build/choir" "$build/choir.arm64"
  printf '#!/bin/sh\nexec qemu-aarch64-static "%s/choir.arm64" "$@"\n' "$(cd "$build" && pwd)" >"$build/choir"
  chmod +x "$build/choir"
fi
"$build/choir" --version
# Limits of memory are no matter of qemu's (test_available_memory, test_layout), nor is a speed (test_peak), and it starts no
# program by its path (test_graphs); verbs and studies at work take it too long.
[ $# -gt 0 ] || set -- -R '^(test|grad)_' -LE slow -E 'test_(assign$|available|layout|peak|graphs|cli|run|rank|resume|refus|outp|pipes|full|stress|docs|limits)'
# What tests/support/stand_in.h would set by starting the test again, which qemu does not do.
LD_LIBRARY_PATH=$(cd "$build" && pwd)/tests/fake_cuda GOMP_SPINCOUNT=1000 ctest --test-dir "$build" --output-on-failure --timeout 600 "$@"
