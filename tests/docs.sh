#!/bin/sh
# docs.sh SOURCE: the form of the pages: line width, links and files that exist, names that the code has.
cd "$1" || exit 1
failures=0
fail() {
  echo "$*" >&2
  failures=$((failures + 1))
}

pages="README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md docs/*.md lab/README.md lab/docs/*.md"

# Tables have one line a row. Characters count, not bytes.
for page in $pages; do
  long=$(LC_ALL=C.UTF-8 grep -nE '^.{121,}$' "$page" | grep -vE '^[0-9]+: *\|')
  [ -z "$long" ] || fail "$page: more than 120 characters:
$long"
done

# Rows of a table have as many cells as its head: a bar in a cell is \|.
# shellcheck disable=SC2086 # several
broken=$(awk '!/^\|/ { head = 0; next }
  { gsub(/\\\|/, ""); cells = gsub(/\|/, "|") }
  !head { head = cells }
  cells != head { print FILENAME ":" FNR }' $pages)
[ -z "$broken" ] || fail "rows of tables with more or fewer cells than the head:
$broken"

# [text](target): relative to the page.
for page in $pages; do
  for target in $(grep -oE '\]\([^)#]+' "$page" | sed 's/^](//' | grep -v '^https*:'); do
    [ -e "$(dirname "$page")/$target" ] || fail "$page: no such file: $target"
  done
done

# [text](target#heading): as GitHub spells headings.
for page in $pages; do
  for link in $(grep -oE '\]\([^):]*#[^)]+' "$page" | sed 's/^](//'); do
    target=${link%%#*}
    sed -n 's/^##* //p' "$([ -z "$target" ] && echo "$page" || echo "$(dirname "$page")/$target")" | tr '[:upper:] ' '[:lower:]-' |
      tr -cd 'a-z0-9_\n-' | grep -qxF "${link#*#}" || fail "$page: no such heading: $link"
  done
done

for page in docs/*.md; do
  name=${page#docs/}
  [ "$name" = README.md ] || grep -qF "]($name)" docs/README.md || fail "docs/README.md does not list $name"
done

# `src/moe/router.c`, `tests/support/naive_*.h`: relative to the tree. NAME stands for any.
for page in $pages; do
  for file in $(grep -oE '`(src|cli|tests|include|docs|lab|fuzz|configs|studies|tasks|cmake|python|examples|debian|packaging)/[A-Za-z0-9_./*-]*' "$page" | tr -d '`'); do
    case $file in *NAME*) continue ;; esac
    # shellcheck disable=SC2086 # patterns too
    ls -d $file >/dev/null 2>&1 || fail "$page: no such file: $file"
  done
done

# `choir_route`, `CH_OPS`: names of the code that it still has.
names=$(mktemp)
trap 'rm -f "$names"' EXIT
grep -rohIE '\b(choir|ch|CHOIR|CH)_[A-Za-z0-9_]+' src tools include cli tests lab cmake python CMakeLists.txt | sort -u >"$names"
# shellcheck disable=SC2086 # several
gone=$(grep -ohE '`[^`]+`' $pages | grep -oE '\b(choir|ch|CHOIR|CH)_[A-Za-z0-9_]+' | grep -v NAME | sort -u | comm -23 - "$names")
[ -z "$gone" ] || fail "names that the code does not have:
$gone"

# CMakeLists.txt has the version; these say the same.
version=$(sed -n 's/^project(choir VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
grep -qx "version: $version" CITATION.cff || fail "CITATION.cff has another version than CMakeLists.txt: $version"
head -n 1 debian/changelog | grep -qF "choir ($version) " || fail "debian/changelog has another version than CMakeLists.txt: $version"

[ $failures = 0 ]
