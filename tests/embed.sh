#!/bin/sh
# embed.sh SOURCE BUILD: installs into a new prefix and builds a small program on it in every way that a user may choose.
set -eu
source=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
DESTDIR='' cmake --install "$build" --prefix "$prefix" >"$work/install.log"
library=$(dirname "$(find "$prefix" -name libchoir.a)")
export PKG_CONFIG_PATH="$library/pkgconfig" LD_LIBRARY_PATH="$library"
program=$source/tests/embed/route.c

echo "pkg-config, shared"
# shellcheck disable=SC2046 # flags are words
${CC:-cc} -Wall -Werror "$program" $(pkg-config --cflags --libs choir) -o "$work/shared"
"$work/shared"

echo "the program in docs/embedding.md"
sed -n '/^    #include <choir/,/^    }$/s/^    //p' "$source/docs/embedding.md" >"$work/page.c"
# shellcheck disable=SC2046
${CC:-cc} -Wall -Wextra -Werror "$work/page.c" $(pkg-config --cflags --libs choir) -o "$work/example"
"$work/example" >/dev/null

echo "examples/layer.c by the two commands in it, shared and static"
cd "$source"
# shellcheck disable=SC2016 # the shell that runs the commands expands
sed -n 's/^ \*     cc \(.*\) -o layer.*/${CC:-cc} -Wall -Wextra -Werror \1/p' examples/layer.c >"$work/commands"
while read -r command; do
  sh -c "$command -o $work/layer"
  "$work/layer" >"$work/said"
  awk '{ errors[NR] = $NF } END { exit !(NR == 4 && errors[4] > 0 && errors[4] < errors[1] / 2) }' "$work/said" ||
    { cat "$work/said"; exit 1; }
  ldd "$work/layer" | grep -c 'libchoir\.so' || :
done <"$work/commands" >"$work/linked"
[ "$(paste -sd' ' "$work/linked")" = "1 0" ] || { echo "these link libchoir.so:"; cat "$work/linked"; exit 1; }

echo "find_package(choir)"
cmake -S "$source/tests/embed" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" >"$work/cmake.log"
cmake --build "$work/cmake" >>"$work/cmake.log"
"$work/cmake/route_shared"
env -u LD_LIBRARY_PATH "$work/cmake/route_static"

echo "C++17"
for header in "$prefix"/include/choir/*.h; do
  echo "#include <choir/$(basename "$header")>" >"$work/one.cc"
  ${CXX:-c++} -std=c++17 -Wall -Wextra -pedantic -Werror -fsyntax-only "-I$prefix/include" "$work/one.cc"
done
# shellcheck disable=SC2046
${CXX:-c++} -std=c++17 -Wall -Wextra -pedantic -Werror "$source/tests/embed/defaults.cc" \
  $(pkg-config --cflags --libs choir) -o "$work/defaults"
"$work/defaults"

echo "hidden symbols"
if nm -D --defined-only "$library/libchoir.so" | awk '{ print $NF }' | grep -vE '^(choir_.*@@)?CHOIR_1$'; then
  echo "the shared library must export choir_* only" >&2
  exit 1
fi

echo "installed program and manual"
"$prefix/bin/choir" --version
test -s "$(find "$prefix" -name choir-train.1)"

echo "installed studies"
env -u CHOIR_PYTHON -u PYTHONPATH -u CHOIR_LIBRARY -u LD_LIBRARY_PATH PATH=/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 \
  "$prefix/bin/choir" study list >"$work/studies" 2>&1 || grep -q 'lacks .*: apt-get install' "$work/studies" || { cat "$work/studies"; exit 1; }
