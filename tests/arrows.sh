#!/bin/sh
# arrows.sh ROOT: what the sources promise about themselves: dependencies point one way, files stay short, no fast-math.
cd "$1" || exit 1
failures=0
fail() {
  echo "$*" >&2
  failures=$((failures + 1))
}

# What object files define and ask for: lines of "FOLDER D|U SYMBOL".
symbols=$(mktemp)
trap 'rm -f "$symbols"' EXIT
find "$2"/CMakeFiles/choir_objects.dir/src "$2"/CMakeFiles/choir_simd_*.dir/src -name '*.o' 2>/dev/null | xargs nm -A -g |
  sed -E 's/^[^:]*\.dir\/src\/([a-z]+)\/[^:]*:/\1 /' | awk '{ print $1, ($(NF - 1) == "U" ? "U" : "D"), $NF }' | sort -u >"$symbols"
[ -s "$symbols" ] || fail "$2: no object files"

# Names of the library begin with ch_ or choir_; C++ mangles its own, and has templates of its libraries.
found=$(awk '$2 == "D" && $3 !~ /^(ch_|choir_|_Z|_ZT|DW\.ref\.|__)/ { print $1 ": " $3 }' "$symbols")
[ -z "$found" ] || fail "external names that begin with neither ch_ nor choir_:
$found"

# allow FOLDER MAY...: the folders whose headers FOLDER may include beside its own, and whose functions it may call.
# Public functions are open to all; the list of backends (src/op/backend.c) names those that fill the table.
allow() {
  folder=$1
  shift
  asked=$(awk -v folder="$folder" -v may=" $folder $* " '
    $2 == "D" { home[$3] = $1 }
    $2 == "U" && $1 == folder { asked[$3] }
    END { for (name in asked) if (name in home && !index(may, " " home[name] " ") && name !~ /^(ch_backend_|choir_)/) print home[name] ": " name }
    ' "$symbols")
  [ -z "$asked" ] || fail "src/$folder may ask ${*:-nobody} only:
$asked"
  [ -d "src/$folder" ] || return 0
  may=$(echo "$folder $*" | tr ' ' '|')
  found=$(grep -rnE '^ *# *include "[a-z]+/' "src/$folder" | grep -vE "include \"($may|choir)/")
  [ -z "$found" ] || fail "src/$folder may include ${*:-nothing} only:
$found"
}
allow base
allow comm base
allow op comm base
allow optim op comm base
allow cpu op base
allow device op base
allow data base
allow moe op comm base
allow model moe optim op comm base
allow api model moe op comm base
allow train api model moe optim data op comm base
allow infer api model moe data op comm base
allow task train infer api model moe data op comm base
allow bench train infer api model moe data op comm base
allow plan train api model moe optim op comm base
allow study task plan train infer api model moe data op comm base
for folder in src/*/; do
  case $(basename "$folder") in
    base | op | comm | cpu | device | data | moe | optim | model | api | train | infer | task | bench | plan | study) ;;
    *) fail "$folder: has no place in the order of folders (tests/arrows.sh)" ;;
  esac
done

# No circles between files: FILE.c and FILE.h as one, "a b" where a includes a header of b.
circles=$(grep -rE '^ *# *include "[a-z_/0-9]+\.h"' src --include='*.[ch]' --include='*.cc' |
  sed -E 's/^src\/([^.:]*)\.[a-z]+: *# *include "([^"]*)\.h".*/\1 \2/' | awk '$1 != $2' |
  tsort 2>&1 >/dev/null | sed 's/^tsort: *//')
[ -z "$circles" ] || fail "files that include each other:
$circles"

found=$(grep -nE '^ *# *include "' cli/*.[ch] | grep -vE 'include "(choir/|cli\.h)')
[ -z "$found" ] || fail "cli/ may include public headers only:
$found"
found=$(grep -nE '^ *# *include "' include/choir/* | grep -v 'include "choir/')
[ -z "$found" ] || fail "public headers may include public headers only:
$found"

for file in $(find src cli include tests bench fuzz -name '*.[ch]' -o -name '*.cc' 2>/dev/null); do
  lines=$(wc -l <"$file")
  [ "$lines" -le 400 ] || fail "$file: $lines lines; 400 at most"
done

found=$(grep -nE -e '-(Ofast|ffast-math|ffinite-math-only|funsafe-math-optimizations|march=native)' CMakeLists.txt cmake/* tests/CMakeLists.txt |
  grep -vE ':[0-9]+: *#')
[ -z "$found" ] || fail "flags that let NaN pass or tie the binary to one machine:
$found"

# But for arena.c, where a wrong plan would otherwise write over other memory.
found=$(grep -rnE '\b(abort|exit|printf|puts|perror) *\(' src --include='*.c' --include='*.cc' --exclude=arena.c |
  grep -vE '^[^:]+:[0-9]+: *(/\*|\*)')
[ -z "$found" ] || fail "the library neither exits nor prints:
$found"

# Statement by statement: a host's decimal comma must reach no file (src/base/format.h). Studies are the program's alone.
found=$(find src tools -name '*.c' ! -path src/base/format.c ! -name 'study_*' -exec awk -v RS=';' '
  /(^|[^a-z_])v?(sn|f|d|s)?printf *\((.*%[-+0 #]*[0-9*]*(\.[0-9*]*)?l?[aefgAEFG]|[^"]*format)/ ||
  /(^|[^a-z_])(strto(d|f|ld)|atof|setlocale) *\(/ { print FILENAME ": " $0 }' {} + 2>/dev/null)
[ -z "$found" ] || fail "numbers become text, and text numbers, by ch_format, ch_print and ch_number only:
$found"
# How many threads there are has been asked for (base/threads.h): what OpenMP takes by itself has not been.
found=$(find src tools -name '*.[ch]' -exec awk '/pragma omp parallel/ {
  line = $0
  while (line ~ /\\$/ && (getline more) > 0) line = line more
  if (line !~ /num_threads/) print FILENAME ": " line }' {} + 2>/dev/null)
[ -z "$found" ] || fail "parallel regions without num_threads:
$found"
found=$(grep -n 'setlocale *(' cli/*.c)
[ -z "$found" ] || fail "the program speaks the language of C:
$found"

[ $failures = 0 ]
