# Read by ./demo and ./check: installs what is missing from Debian's packages, builds.

BUILD_PACKAGES="build-essential cmake ninja-build pkg-config
  libjansson-dev libarchive-dev zlib1g-dev libxxhash-dev libsentencepiece-dev librandom123-dev
  libpcre2-dev libutf8proc-dev"
CHECK_PACKAGES="libcmocka-dev xz-utils libopenmpi-dev openmpi-bin clang clang-format abigail-tools
  locales zstd python3 python3-cffi python3-numpy python3-scipy python3-statsmodels python3-matplotlib python3-jsonschema
  python3-torch nodejs"
LONG_PACKAGES="libclang-rt-dev libomp-dev llvm clang-tidy mkdocs doxygen g++-aarch64-linux-gnu libc6-dev-arm64-cross
  qemu-user-static"
PACKAGING_PACKAGES="debhelper dh-python file lintian libbz2-dev liblzma-dev libzstd-dev python3-venv"

say() { printf '%s\n' "$@"; }
stop() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# as_root COMMAND...: directly, or with sudo; without a terminal sudo must not ask.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif [ -t 0 ]; then
    sudo "$@"
  else
    sudo -n "$@"
  fi
}

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# install_packages LOG PACKAGE...: asks apt only for those that are missing.
install_packages() {
  log=$1 missing=
  shift
  if ! command -v dpkg-query >/dev/null; then
    say "This is not Debian: going on with the libraries that are there ($*)."
    return
  fi
  for package; do
    is_installed "$package" || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
    stop "not root and no sudo here; please have these installed: apt-get install$missing"
  say "Installing$missing"
  # shellcheck disable=SC2086 # one word a package
  { as_root apt-get -q update && as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install \
    $missing; } >"$log" 2>&1 </dev/null ||
    { tail -n 5 "$log" >&2; stop "the packages could not be installed; please have these installed: apt-get install$missing"; }
}

# sign_of_life NAME LOG PROCESS: how far it is, by the last [N/M] of ninja or N/M of ctest; on a terminal in one line, else a
# line a minute.
sign_of_life() {
  tick=0
  while sleep 1 && kill -0 "$3" 2>/dev/null; do
    tick=$((tick + 1))
    far=$(tail -n 200 "$2" 2>/dev/null | grep -oE '^( *[0-9]+/[0-9]+ Test|\[[0-9]+/[0-9]+\])' | tail -n 1 | tr -d '[]Test ')
    if [ -t 1 ]; then
      printf '  ...   %-10s %s   \r' "$1" "$far"
    elif [ $((tick % 60)) = 0 ]; then
      printf '  ...   %-10s %s\n' "$1" "$far"
    fi
  done
}

cpus() { nproc 2>/dev/null || echo 1; }

# build DIRECTORY OPTION...: configures and builds all, or ${target}.
build() {
  directory=$1
  shift
  cmake -S . -B "$directory" -G Ninja "$@" && cmake --build "$directory" --target "${target:-all}"
}
