#!/bin/sh
# release.sh SOURCE: what ./release leaves behind in a tree whose checks and packages are made up: a tag, a commit and
# the files when all goes well; branch, tags and files as they were when the packages fail, the branch moves meanwhile,
# the tag is taken meanwhile, or somebody ends it. What is refused is refused before the checks, which take long.
set -eu
source=$(cd "$1" && pwd)
command -v git >/dev/null || { echo "NOT TESTED: release: git is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
export MAIN="$work/tree" GIT_CONFIG_GLOBAL=/dev/null

mkdir -p "$work/tree/cmake" "$work/tree/tests" "$work/tree/debian" "$work/tree/packaging"
cd "$work/tree"
cp "$source/release" .
cp "$source/cmake/setup.sh" cmake
echo 'project(choir VERSION 0.3.0)' >CMakeLists.txt
echo 'version: 0.3.0' >CITATION.cff
echo '## Not released yet' >CHANGELOG.md
echo 'choir (0.3.0)' >debian/changelog
echo ' (symver)CHOIR_1 0.3.0' >debian/libchoir1.symbols
echo 'import sys; sys.argv[1] == "--placeholders" and print("email, homepage")' >packaging/publisher.py
echo dist >.gitignore
printf '#!/bin/sh\necho checked >>"$MAIN/../checks"\n' >check
echo 'mkdir -p "$2" && echo file >"$2/file" && eval "$MEANWHILE"' >tests/packages.sh
chmod +x check
git init -q
git add .
git commit -qm first

state() { git log --format=%H HEAD -- && git tag && find dist -type f 2>/dev/null; }

# fails MEANWHILE [UNDO]: a release during which that happens; UNDO takes back what it did itself.
fails() {
  state >"$work/before" || true
  ! MEANWHILE=$1 sh -c 'echo $$ >../pid; exec ./release 0.4.0' >"$work/said" 2>&1 || { echo "$1: passes"; exit 1; }
  eval "${2:-:}"
  state >"$work/after" || true
  diff "$work/before" "$work/after" || { echo "$1: left what it made"; cat "$work/said"; exit 1; }
  [ -z "$(git status --porcelain)$(git worktree list | tail -n +2)" ] || { echo "$1: left changes"; exit 1; }
}
fails false
fails 'git -C "$MAIN" commit -q --allow-empty -m other' 'git reset -q --hard HEAD~'
fails 'git tag v0.4.0 HEAD~' 'git tag -d v0.4.0 >/dev/null'
fails 'kill -TERM "$(cat "$MAIN/../pid")"; sleep 1'

# refuses MESSAGE COMMAND...
refuses() {
  message=$1
  shift
  rm -f "$work/checks"
  ! MEANWHILE=true "$@" >"$work/said" 2>&1 || { echo "$*: passes"; exit 1; }
  grep -q "$message" "$work/said" && [ ! -e "$work/checks" ] || { echo "$*: is refused late, or with other words"; cat "$work/said"; exit 1; }
}
refuses usage ./release 00.6.0
refuses usage ./release 0.06.0
refuses 'git knows no name' env -u GIT_AUTHOR_EMAIL -u GIT_COMMITTER_EMAIL GIT_CONFIG_COUNT=1 \
  GIT_CONFIG_KEY_0=user.useConfigOnly GIT_CONFIG_VALUE_0=true ./release 0.4.0

# A second release of one version at the same time is refused, and leaves the files of the first.
MEANWHILE='MEANWHILE=true sh -c "cd \"$MAIN\" && ./release 0.4.0" >"$MAIN/../second" 2>&1 && exit 1; true' \
  ./release 0.4.0 >"$work/said" 2>&1 || { cat "$work/said" "$work/second"; exit 1; }
grep -q 'is there already' "$work/second" && grep -q 'CHOIR_1 0.4.0' debian/libchoir1.symbols || { cat "$work/second"; exit 1; }
grep -q 'set in packaging/publisher.toml: email, homepage' "$work/said" || { cat "$work/said"; exit 1; }
[ "$(git tag)" = v0.4.0 ] && [ "$(git rev-parse 'v0.4.0^{commit}')" = "$(git rev-parse HEAD)" ] && [ -f dist/0.4.0/file ] &&
  grep -q 'VERSION 0.4.0' CMakeLists.txt || { echo "a release that goes well leaves"; state; exit 1; }
