#!/bin/sh
# arrows.sh ROOT: what the sources promise about themselves: dependencies point one way, files stay short, no fast-math.
cd "$1" || exit 1
failures=0
fail() {
  echo "$*" >&2
  failures=$((failures + 1))
}

# allow FOLDER MAY...: the folders whose headers FOLDER may include beside its own.
allow() {
  folder=$1
  shift
  [ -d "src/$folder" ] || return 0
  may=$(echo "$folder $*" | tr ' ' '|')
  found=$(grep -rnE '^ *# *include "[a-z]+/' "src/$folder" | grep -vE "include \"($may|choir)/")
  [ -z "$found" ] || fail "src/$folder may include ${*:-nothing} only:
$found"
}
allow base
allow op base
allow comm base
allow optim op base
allow cpu op base
allow data base
allow moe op comm base
allow model moe optim op comm base
allow api model moe op base
allow train api model moe optim data op comm base
allow infer api model moe data op comm base
allow bench train infer api model moe data op comm base
allow study train infer api model moe data op comm base
for folder in src/*/; do
  case $(basename "$folder") in
    base | op | comm | cpu | cuda | data | moe | optim | model | api | train | infer | bench | study) ;;
    *) fail "$folder: has no place in the order of folders (tests/arrows.sh)" ;;
  esac
done

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

[ $failures = 0 ]
