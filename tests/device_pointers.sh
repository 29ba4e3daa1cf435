#!/bin/sh
# device_pointers.sh ROOT BUILD: no code outside backends follows a pointer that is marked CH_DEV, or takes a host pointer for
# one. clang checks it: with CH_CHECK_DEVICE marked pointers are of a type of their own (src/base/memory.h).
command -v clang >/dev/null || exit 77
cd "$1" || exit 1
check() {
  # shellcheck disable=SC2046 # a word a flag
  clang -fsyntax-only -std=gnu17 -fopenmp -D_GNU_SOURCE -DCH_CHECK_DEVICE -Isrc -Itools -Iinclude -I"$2/include" $(pkg-config --cflags jansson) \
    -Wall -Werror "$1"
}

# A check that lets everything pass would be none.
plant=$(mktemp --suffix=.c) || exit 1
trap 'rm -f "$plant"' EXIT
for line in 'float plant(const ch_copy_args *a) { return a->x[3]; }' 'float *plant(const ch_copy_args *a) { return a->y; }' \
  'void plant(ch_copy_args *a, float *host) { a->y = host; }' 'void plant(const ch_copy_args *a) { memset(a->y, 0, 4); }'; do
  printf '#include <string.h>\n#include "op/op.h"\n%s\n' "$line" >"$plant"
  if check "$plant" "$2" 2>/dev/null; then
    echo "this must not pass: $line" >&2
    exit 1
  fi
done

failures=0
for file in $(find src tools -name '*.c' ! -path 'src/cpu/*' ! -path 'src/device/cuda*.c' ! -path 'src/data/*' ! -path src/comm/mpi.c); do
  check "$file" "$2" || failures=$((failures + 1))
done
[ $failures = 0 ]
