#!/bin/sh
# guard.sh SOURCE BUILD: lab/guard counts one small case, counts it again the same, and sees when it got worse.
set -eu
command -v valgrind >/dev/null && command -v python3 >/dev/null || {
  echo "NOT TESTED: lab/guard: valgrind or python3 is not installed"
  exit 77
}
file=$(mktemp)
trap 'rm -f "$file" "$file.worse"' EXIT
rm "$file"
guard() { python3 "$1/lab/guard" --build "$2" --counts --case select --accepted "$3"; }

guard "$1" "$2" "$file"
python3 "$1/lab/guard" --build "$2" --counts --case select --accept --accepted "$file"
guard "$1" "$2" "$file" | grep -q ' ok$'

echo "a case that takes more than it did"
sed 's/\("select.*": \)\([0-9]\)\([0-9]*\)[0-9]/\1\2\3/' "$file" >"$file.worse"
status=0
guard "$1" "$2" "$file.worse" || status=$?
[ $status = 1 ]
