#!/bin/sh
# arm64.sh SOURCE BUILD [CTEST ARGUMENTS]: cross-compiles choir for arm64 into BUILD and runs test programs in C there under
# qemu: unless ctest's arguments say otherwise, all but those that mostly run the program. Without these it also makes the wheel of arm64 and uses it in
# Debian's arm64 Python. Takes about an hour. Debian's arm64 packages come to BUILD/sysroot; nothing is installed.
set -eu
source=$(cd "$1" && pwd)
mkdir -p "$2"
build=$(cd "$2" && pwd) root=$(cd "$2" && pwd)/sysroot
shift 2
binfmt=/usr/lib/binfmt.d/qemu-aarch64.conf # of qemu-user-static
[ -e $binfmt ] || { echo "NOT TESTED: arm64: qemu-user-static is not installed"; exit 77; }
sh "$source/packaging/sysroot.sh" "$root" libcmocka-dev python3-numpy python3-cffi
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$root/toolchain.cmake" -DCHOIR_MPI=OFF -DCHOIR_WERROR=ON
ninja -C "$build"

# emulated COMMAND...: where the kernel starts arm64 programs with qemu, by their paths too: in a user namespace (Linux
# 6.7 or later) if this machine does not do so anyway.
export QEMU_LD_PREFIX="$root"
emulated() {
  if "$build/choir" --version >/dev/null 2>&1; then
    "$@"
  else
    # shellcheck disable=SC2016 # the inner shell expands
    unshare --user --map-root-user --mount sh -c 'mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc || exit 77
      cat "$0" >/proc/sys/fs/binfmt_misc/register && exec "$@"' $binfmt "$@"
  fi
}
emulated "$build/choir" --version || { echo "NOT TESTED: arm64: this kernel does not start arm64 programs with qemu"; exit 77; }

export CHOIR_TEST_EMULATED=1 # speeds and limits of memory are not those of a CPU
wheel=$([ $# -gt 0 ] || echo 1)
[ -z "$wheel" ] ||
  set -- -R '^(test|grad)_' -LE slow -E 'test_(assign$|cli|run|rank|resume|refus|outp|pipes|full|stress|docs|limits)'
emulated ctest --test-dir "$build" --output-on-failure "$@"
[ -n "$wheel" ] || exit 0
SYSROOT=$root TARGET=aarch64-linux-gnu sh "$source/python/wheel.sh" "$build/wheel"
rm -rf "$build/site"
python3 -m zipfile -e "$build"/wheel/choir_moe-*aarch64.whl "$build/site"
cd "$build/site"
export LD_LIBRARY_PATH="$root/usr/lib/aarch64-linux-gnu/blas:$root/usr/lib/aarch64-linux-gnu/lapack" # as Debian links them
PYTHONPATH="$build/site:$root/usr/lib/python3/dist-packages" emulated "$root/usr/bin/python3" -c 'import choir, platform
assert platform.machine() == "aarch64", platform.machine()
print("arm64 python3", choir.__version__, choir.route([[.9, .1], [.2, .8]], capacity_factor=1).indices)'
