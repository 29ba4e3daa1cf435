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

# names SOURCE HEADERS: by their names functions say what they do (docs/embedding.md), and options begin with their size.
# Who reads a handle and fills what the last argument points to is a `get` or an `at`, or has a verb.
names() {
  awk -F'[(]' '
    function wrong(why) { print why ": " $0; bad = 1 }
    { fills = /[ *]\*[a-z]+\) \{/ && !/const [a-z0-9_]+ \*[a-z]+\) \{/ || /, size_t size\) \{/ }
    /^ *(const )?choir_[a-z_]+ choir_/ { wrong("returns a struct") }
    $1 ~ /_get(_|$)/ && !(fills && /^ *int /) { wrong("get fills, and returns a code") }
    /\(const choir_/ && fills && !/void \*context\)/ && $1 !~ /_(get(_[a-z_]+)?|at|copy|create|encode|decode|route|backward|bytes)$/ {
      wrong("fills, and is no get") }
    END { exit bad }' "$1" &&
    awk '/^typedef struct choir_[a-z_]*_options \{/ { getline; if (!/size_t size;/) { print FILENAME ": no size first"; exit 1 } }' \
    "$2"/choir/*.h
}

exported() { nm -D --defined-only "$1" | awk '$2 == "T" { print $NF }' | sort; }

interface "$source/include" "$work/now"
names "$work/now.c" "$source/include" >&2
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

# planted CHECK WHAT SED-SCRIPT: the check sees a header that was changed so.
planted() {
  rm -rf "$work/planted"
  cp -r "$source/include" "$work/planted"
  sed -i "$3" "$work"/planted/choir/*.h
  interface "$work/planted" "$work/other"
  ! "$1" >"$work/log" || { echo "not seen: $2" >&2; exit 1; }
  echo "seen: $2"
}
other_interface() { abidiff "$source/tests/libchoir.abi" "$work/other.abi"; }
other_names() { names "$work/other.c" "$work/planted"; }
planted other_interface "a function that is gone" '/choir_model_moe_layer_count(/d'
planted other_interface "a struct that grew" '/choir_eval_result;/i int more;'
planted other_interface "a field that moved" 's/int is_logits; /double is_logits; /'
planted other_names "a noun that fills" 's/choir_layer_get_route_stats/choir_layer_route_stats/'
planted other_names "a get that returns" 's/choir_model_config(/choir_model_get_config(/'
planted other_names "options without size" '/^typedef struct choir_fill_options/{n;d}'
