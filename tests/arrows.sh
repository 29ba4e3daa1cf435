#!/bin/sh
# arrows.sh ROOT BUILD: rules of the sources: dependencies between folders point one way, names, no fast-math.
cd "$1" || exit 1
export LC_ALL=C # sort and join agree
failures=0
fail() {
  echo "$*" >&2
  failures=$((failures + 1))
}

# Lists what object files define and ask for: lines of "FILE D|U SYMBOL", and of "ROOM D|U SYMBOL", where a room is a
# folder of src/, "tools/NAME", or "cli".
files=$(mktemp)
symbols=$(mktemp)
trap 'rm -f "$files" "$symbols"' EXIT
find "$2"/CMakeFiles/choir_*.dir -name '*.o' -exec nm -A -g {} + | sed -E 's/^[^:]*\.dir\/([^:]*)\.o:/\1 /' |
  awk '/^(src|tools|cli)\// { print $1, ($(NF - 1) == "U" ? "U" : "D"), $NF }' | sort -u >"$files.all"
cut -d' ' -f1 "$files.all" | uniq | while read -r file; do
  [ ! -f "$file" ] || echo "$file" # objects of files that are gone may still lie there
done | join - "$files.all" >"$files"
rm "$files.all"
sed -E 's/^src\/([a-z]+)\/[^ ]*/\1/; s/^(tools\/[a-z]+)\/[^ ]*/\1/; s/^cli\/[^ ]*/cli/' "$files" | sort -u >"$symbols"
for room in base tools/bench cli; do
  grep -q "^$room D " "$symbols" || fail "$2: no object files of $room"
done

# Names of the library begin with ch_ or choir_; C++ mangles its own, and has templates of its libraries.
found=$(awk '$1 != "cli" && $2 == "D" && $3 !~ /^(ch_|choir_|_Z|_ZT|DW\.ref\.|__)/ { print $1 ": " $3 }' "$symbols")
[ -z "$found" ] || fail "external names that begin with neither ch_ nor choir_:
$found"

# allow ROOM MAY...: the rooms whose headers ROOM may include beside its own and the public ones, and whose functions, public
# ones too, it may call. The list of backends (src/op/backend.c) names those that fill the table.
allow() {
  room=$1
  shift
  asked=$(awk -v room="$room" -v may=" $room $* " '
    $2 == "D" { home[$3] = $1 }
    $2 == "U" && $1 == room { asked[$3] }
    END { for (name in asked) if (name in home && !index(may, " " home[name] " ") &&
                                  !(room == "op" && name ~ /^ch_backend_[a-z]+$/)) print home[name] ": " name }
    ' "$symbols")
  [ -z "$asked" ] || fail "$room may ask ${*:-nobody} only:
$asked"
  case $room in
    cli | tools/*) folder=$room ;;
    *) folder=src/$room ;;
  esac
  may=$(echo "$room $*" | sed 's/tools\///g' | tr ' ' '|')
  found=$(grep -rnE '^ *# *include "[a-z]+/' "$folder" | grep -vE "include \"($may|choir)/")
  [ -z "$found" ] || fail "$folder may include ${*:-nothing} only:
$found"
  known="$known $room"
}
known=
allow base
allow file base
allow comm base
allow op comm base
allow config op comm base
allow optim config op comm base
allow cpu op base
allow device op comm base
allow data file base
allow dispatch op comm base
allow moe dispatch config op comm file base
allow model moe optim dispatch config op comm file base
allow handle data model moe dispatch config op comm file base
allow infer handle model moe data dispatch config op comm file base
allow train infer handle model moe optim data dispatch config op comm file base
allow task train infer handle model moe data dispatch config op comm file base
library="task train infer handle model moe dispatch optim data config op comm file base"
allow tools/npy file base
allow tools/bench $library
allow tools/plan train handle model moe optim dispatch config op comm file base
allow tools/probe handle model data file base
allow tools/pages tools/plan $library
allow tools/export train handle model moe data dispatch config op comm file base
tools=$(echo tools/*)
allow cli $tools $library
for folder in src/*/ tools/*/; do
  room=$(echo "$folder" | sed -E 's/^src\///; s/\/$//')
  case "$known " in
    *" $room "*) ;;
    *) fail "$folder: has no place in the order of rooms (tests/arrows.sh)" ;;
  esac
done
found=$(grep -rnE '^ *# *include "[a-z]+/' cli | grep -vE "include \"(choir|$(echo "$tools" | sed 's/tools\///g; y/ /|/'))/|\"(base/(text|buffer)|file/(dir|file|path_status|run_files)).h\"")
[ -z "$found" ] || fail "cli/ may include public headers, those of tools/, base/text.h, base/buffer.h, file/dir.h, file.h, path_status.h and run_files.h only:
$found"

# No circles of calls between files, but through the tables that register implementations by name: backends (CH_BACKENDS),
# routers (ROUTERS), cases of the bench (fixed_cases). The file of a table knows what it lists, which may call it back.
tables=$({
  sed -n '/^#define CH_BACKENDS(row)/s/row(\([a-z]*\))/ ch_backend_\1 /gp' src/op/backend.c
  sed -n '/^#define ROUTERS(row)/,/[^\\]$/s/row(\([a-z_0-9]*\))/ ch_router_\1 /gp' src/moe/router.c
  sed -n '/^static const ch_bench_case fixed_cases/,/^};/s/.*= \(ch_bench_[a-z_]*\).*/ \1 /p' tools/bench/cases.c
} | grep -oE ' ch_[a-z_0-9]+' | tr -d '\n')
case $tables in
  *ch_backend_cpu*ch_backend_cuda*ch_router_expert_choice*ch_router_base*ch_bench_moe*ch_bench_tokenize*) ;;
  *) fail "the tables of backends, routers and cases of the bench are not seen" ;;
esac
calls=$(awk -v tables="$tables " '
  $2 == "D" { home[$3] = $1 }
  $2 == "U" { asks[$1 " " $3] }
  END {
    for (ask in asks) {
      split(ask, part, " ")
      to = home[part[2]]
      if (to && to != part[1] && !index(tables, " " part[2] " ")) print part[1], to
    }
  }' "$files" | sort -u | tsort 2>&1 >/dev/null | sed 's/^tsort: *//')
[ -z "$calls" ] || fail "files that call each other:
$calls"

# No circles between files: FILE.c and FILE.h as one, "a b" where a includes a header of b.
circles=$(grep -rE '^ *# *include "[a-z_/0-9]+\.h"' src tools --include='*.[ch]' --include='*.cc' |
  sed -E 's/^(src|tools)\/([^.:]*)\.[a-z]+: *# *include "([^"]*)\.h".*/\2 \3/' | awk '$1 != $2' |
  tsort 2>&1 >/dev/null | sed 's/^tsort: *//')
[ -z "$circles" ] || fail "files that include each other:
$circles"

# Nor between modules of the Python package; an import within a function hides none.
python_circles() {
  python3 tests/imports.py "$1" "$2" >"$symbols" && tsort <"$symbols" 2>&1 >/dev/null | sed 's/^tsort: *//'
}
if command -v python3 >/dev/null; then
  circles=$(python_circles python choir) || fail "python/choir: imports cannot be read"
  [ -z "$circles" ] || fail "modules of Python that import each other:
$circles"
  grep -q '^choir.torch.layer choir.torch.state$' "$symbols" || fail "python/choir: no imports are seen"
  planted=$(mktemp -d)
  mkdir "$planted/p"
  printf 'def f():\n    from .b import (\n        g,\n    )\n' >"$planted/p/a.py"
  printf 'from . import a\n' >"$planted/p/b.py"
  [ -n "$(python_circles "$planted" p)" ] || fail "a planted circle of imports is not seen"
  rm -r "$planted"
else
  echo "NOT TESTED: circles of Python's imports: python3 is not installed"
fi

found=$(grep -nE '^ *# *include "' include/choir/* routers/* | grep -v 'include "choir/')
[ -z "$found" ] || fail "public headers and routers/ may include public headers only:
$found"

# A name leads to one place: a function's name is defined in three files at most (they are verb and noun), a type's in one.
# Definitions begin at the beginning of a line, as clang-format has them; kernels of devices have names of their own.
named=$(find src tools cli include -name '*.[ch]' ! -name '*.cl.h' -o -name '*.cc' | sort)
# shellcheck disable=SC2086 # several
found=$(awk '
  /^[A-Za-z]/ && /[a-z0-9_]+\(/ && !/;$/ && !/^(typedef|return|else)/ {
    match($0, /[A-Za-z0-9_]+\(/)
    name = substr($0, RSTART, RLENGTH - 1)
    if (name ~ /^[a-z]/ && name != "defined" && !seen[FILENAME, name]++) print name, FILENAME
  }' $named | awk '{ count[$1]++; where[$1] = where[$1] " " $2 } END { for (n in count) if (count[n] > 3) print n ":" where[n] }')
[ -z "$found" ] || fail "functions whose name stands in more than three files (name the noun, too):
$found"
# shellcheck disable=SC2086 # several
found=$(awk '
  function note(name) { if (!seen[FILENAME, name]++) print name, FILENAME }
  { sub(/ __attribute__.*/, ";") }
  /^typedef (struct|union|enum) [a-z0-9_]+ [a-z0-9_]+;/ { next }
  /^(typedef )?(struct|union|enum) [a-zA-Z0-9_]+ \{/ { note($1 == "typedef" ? $3 : $2) }
  /^(typedef|static|struct|union|enum)/ { type = $1 == "typedef" }
  type && /^} [a-zA-Z0-9_]+;/ { sub(/;.*/, "", $2); note($2) }
  /^typedef [^({]*;/ { sub(/;.*/, ""); note($NF) }
  /^typedef [^;{(]*\(\*/ { sub(/^[^*]*\(\*/, ""); sub(/\).*/, ""); note($1); next }
  /^typedef [^;{*]*[a-z0-9_]\(/ { sub(/\(.*/, ""); note($NF) }
  ' $named | awk '{ count[$1]++; where[$1] = where[$1] " " $2 } END { for (n in count) if (count[n] > 1) print n ":" where[n] }')
[ -z "$found" ] || fail "types that are defined in several files:
$found"

found=$(grep -nE -e '-(Ofast|ffast-math|ffinite-math-only|funsafe-math-optimizations|march=native)' CMakeLists.txt cmake/* tests/CMakeLists.txt |
  grep -vE ':[0-9]+: *#')
[ -z "$found" ] || fail "flags that let NaN pass or tie the binary to one machine:
$found"

# The library and the tools neither print nor end the process. Two assertions do: an arena that is smaller than its plan
# (memory.c), because to go on would overwrite other memory, and a message that is shorter than both sides know (mpi.c), as
# MPI itself does for a longer one. Pages write to files that they opened (tools/pages/page.c).
printing() {
  grep -rnE '\b(_?exit|abort|quick_exit|MPI_Abort|v?printf|v?fprintf|puts|putchar|fputs|fputc|putc|perror|vwarnx?|warnx?|errx?) *\(' \
    "$@" --include='*.[ch]' --include='*.cc' | grep -vE '^[^:]+:[0-9]+: *(/\*|\*|//)|:.*__attribute__\(\(format' |
    grep -vE '^tools/pages/page.c:' |
    grep -vE '^src/comm/mpi.c:[0-9]+: *(fprintf\(stderr,$|MPI_Abort\(world, 1\);)' |
    grep -vE '^src/comm/mpi_any\.[ch]:[0-9]+:int MPI_Abort\(MPI_Comm comm, int code\)' | # the function by that name
    grep -vE '^src/base/memory.c:[0-9]+: *(fprintf\(stderr, "choir: arena |abort\(\);)'
}
found=$(printing src tools)
[ -z "$found" ] || fail "library and tools neither exit nor print:
$found"
[ "$(cat src/base/memory.c src/comm/mpi.c | grep -cE 'abort\(\);|MPI_Abort\(|fprintf\(')" = 4 ] ||
  fail "memory.c and mpi.c: more than one assertion each prints or ends the process"
# The rule sees what it forbids.
planted=$(mktemp -d)
printf '  %s;\n' 'fprintf(stderr, "x")' 'abort()' 'exit(1)' 'puts("x")' >"$planted/planted.c"
[ "$(printing "$planted" | wc -l)" = 4 ] || fail "a planted fprintf, abort, exit or puts is not seen"
rm -r "$planted"

# reallocarray checks what it multiplies.
found=$(grep -rnE '\b(malloc|realloc) *\([^;]*\* *(sizeof|\()' src routers tools cli --include='*.c')
[ -z "$found" ] || fail "products of sizes are for reallocarray and calloc:
$found"

# Numbers that do not fit are undefined there; strtol says so.
found=$(grep -rnE '\bato(i|l|ll|f) *\(' src routers tools cli --include='*.c' --include='*.cc')
[ -z "$found" ] || fail "text becomes an integer by strtol, strtoll or strtoull:
$found"

# Threads that a host did not start: OpenMP's, which ch_threads_check has been asked for, and these.
found=$(grep -rlE 'pthread_create|thrd_create|std::thread' src routers tools cli |
  grep -vxE 'src/base/threads.c|src/comm/watch.c|src/data/(pipeline|tokenizer_train).c')
[ -z "$found" ] || fail "starts threads, and is not among those that may (tests/arrows.sh):
$found"
found=$(grep -rlE 'pragma omp parallel|[^_a-z]omp_[a-z_]+\(' src tools cli |
  grep -vE '^src/cpu/|^src/moe/assign/|^src/moe/routers/kmeans.c$|^src/base/(threads|machine).c$|^src/model/param.c$|^tools/bench/')
[ -z "$found" ] || fail "asks OpenMP, and is not among those that may (tests/arrows.sh):
$found"

# Text of files reaches a terminal by cli_shown, cli_put_text and the printers of messages.
found=$(grep -nE '\b(puts|fputs|fwrite) *\( *[^"" ]' cli/*.c | grep -vE '^cli/(say|help|manual)\.c:')
[ -z "$found" ] || fail "text that is not the program's own goes out by cli_put_text or cli_shown:
$found"

# Statement by statement: a host's decimal comma must reach no file (src/base/format.h). Studies are the program's alone.
found=$(find src tools -name '*.c' ! -path src/base/format.c -exec awk -v RS=';' '
  /(^|[^a-z_])v?(sn|f|d|s)?printf *\((.*%[-+0 #]*[0-9*]*(\.[0-9*]*)?l?[aefgAEFG]|[^"]*format)/ ||
  /(^|[^a-z_])(strto(d|f|ld)|atof|setlocale) *\(/ { print FILENAME ": " $0 }' {} + 2>/dev/null)
[ -z "$found" ] || fail "numbers become text, and text numbers, by ch_format and ch_number only:
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
