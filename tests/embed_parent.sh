#!/bin/sh
# embed_parent.sh SOURCE: choir as a part of another project, by add_subdirectory and FetchContent: tests and install off,
# a program linked with it, and without MPI no source that needs it. Flags for a CPU that has all leave each variant of
# the SIMD code what it is. Without optimization, which takes a minute for the whole library.
set -eu
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for way in subdirectory fetch; do
  cmake -G Ninja -S "$source/tests/embed/parent" -B "$work/$way" -DWAY=$way -DCHOIR="$source" -DCMAKE_BUILD_TYPE=Debug \
    >"$work/$way.log" || { cat "$work/$way.log"; exit 1; }
  grep -q 'choir: tests OFF' "$work/$way.log"
done
cmake -G Ninja -S "$source/tests/embed/parent" -B "$work/unsaid" -DWAY=subdirectory -DCHOIR="$source" >"$work/unsaid.log"
ninja -C "$work/unsaid" -t commands route_static | grep -- '-c .*src/moe/route\.c$' | grep -q -- -O3 || {
  echo "a project without CMAKE_BUILD_TYPE gets choir without optimization" >&2
  exit 1
}
cmake -G Ninja -S "$source" -B "$work/own" -DCHOIR_TESTS=OFF >"$work/own.log"
ninja -C "$work/own" -t targets all | grep -q '^generated: ' || {
  echo "without tests there is no target 'generated', which CONTRIBUTING names" >&2
  exit 1
}
if ninja -C "$work/fetch" -t targets all | grep -E '^(.*/)?(install|test_[a-z]*|choir_man):.*choir'; then
  echo "tests or manual are built in a project that did not ask" >&2
  exit 1
fi
cmake -G Ninja -S "$source/tests/embed/parent" -B "$work/alone" -DWAY=subdirectory -DCHOIR="$source" -DCHOIR_MPI=OFF \
  -DCMAKE_BUILD_TYPE=Debug >"$work/alone.log"
if ninja -C "$work/alone" -t targets all | grep 'src/comm/mpi\.c'; then
  echo "a part of another project compiles src/comm/mpi.c with CHOIR_MPI=OFF" >&2
  exit 1
fi
if [ "$(uname -m)" = x86_64 ]; then
  CFLAGS=-march=sapphirerapids cmake -G Ninja -S "$source" -B "$work/march" -DCMAKE_BUILD_TYPE=Debug >"$work/march.log"
  for isa in generic avx2 avx512 avx512_bf16; do
    object=CMakeFiles/choir_simd_$isa.dir/src/cpu/simd/batch_invariant.c.o
    ninja -C "$work/march" "$object" >"$work/log" || { tail -n 30 "$work/log"; exit 1; }
    case $isa in avx512_bf16) name=pairs_$isa ;; *) name=product_$isa ;; esac
    nm "$work/march/$object" | grep -q "T ch_invariant_$name" || {
      echo "with -march=sapphirerapids variant $isa has no ch_invariant_$name" >&2
      exit 1
    }
  done
fi
ninja -C "$work/subdirectory" route_static >"$work/log" || { tail -n 30 "$work/log"; exit 1; }
"$work/subdirectory/route_static"
