#!/bin/sh
# abi.sh SOURCE BUILD [--update]: what programs were built against is still there. The public headers, as types and
# functions, are compared with tests/libchoir.abi; the library with the headers. --update writes the description anew:
# after abidiff has been read, and nothing in it breaks a program (docs/embedding.md).
set -eu
source=$1 build=$2 update=${3:-}
command -v abidiff >/dev/null || {
  echo "NOT TESTED: abidiff (Debian: abigail-tools) is not installed"
  exit 77
}
[ "$(uname -m)" = x86_64 ] || {
  echo "NOT TESTED: tests/libchoir.abi describes x86_64"
  exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# interface HEADERS OUTPUT: every declared function with an empty body: a library whose debug information is the
# interface, and nothing else, described in OUTPUT.abi.
interface() {
  flags="-I$1 -I$build/include"
  {
    echo '#include "choir/choir.h"'
    # shellcheck disable=SC2086 # flags are words
    echo '#include "choir/choir.h"' | ${CC:-cc} -E -P $flags - | tr '\n' ' ' | tr ';' '\n' |
      sed -n 's/^.*__attribute__((visibility("default"))) *\(.*)\) *$/\1 { __builtin_trap(); }/p'
  } >"$2.c"
  # shellcheck disable=SC2086
  ${CC:-cc} -g -shared -fPIC -w $flags -Wl,--version-script="$source/cmake/choir.map" -Wl,-soname,libchoir.so.1 \
    -ffile-prefix-map="$work/=" "$2.c" -o "$2.so" # no names of a passing directory in what is stored
  abidw --no-corpus-path --no-comp-dir-path --no-show-locs --type-id-style hash --out-file "$2.abi" "$2.so"
}

exported() { nm -D --defined-only "$1" | awk '$2 == "T" { print $NF }' | sort; }

interface "$source/include" "$work/now"
exported "$work/now.so" >"$work/declared"
exported "$build/libchoir.so" >"$work/defined"
[ "$(wc -l <"$work/declared")" -gt 100 ] || { echo "the headers could not be read" >&2; exit 1; }
diff "$work/declared" "$work/defined" || {
  echo "< declared in include/choir, > exported by libchoir.so: they must be the same" >&2
  exit 1
}

[ "$update" != --update ] || cp "$work/now.abi" "$source/tests/libchoir.abi"
abidiff "$source/tests/libchoir.abi" "$work/now.abi" || {
  echo "the interface is not that of tests/libchoir.abi; where no program that was built before breaks by it (a new" \
    "function, a field in the place of reserved ones), run: sh tests/abi.sh . BUILD --update" >&2
  exit 1
}

# planted WHAT SED-SCRIPT: the check sees a header that was changed so.
planted() {
  rm -rf "$work/planted"
  cp -r "$source/include" "$work/planted"
  sed -i "$2" "$work"/planted/choir/*.h
  interface "$work/planted" "$work/other"
  ! abidiff "$source/tests/libchoir.abi" "$work/other.abi" >"$work/log" || { echo "not seen: $1" >&2; exit 1; }
  echo "seen: $1"
}
planted "a function that is gone" '/choir_model_moe_layers(/d'
planted "a struct that grew" '/choir_eval_result;/i int more;'
planted "a field that moved" 's/int is_logits; /double is_logits; /'
