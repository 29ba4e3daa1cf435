#!/bin/sh
# packages.sh BUILD: makes the Debian packages, unpacks them into a bare tree, and tries what they hold there.
set -eu
build=$1
for tool in dpkg-deb dpkg-shlibdeps cpack; do
  command -v $tool >/dev/null || {
    echo "NOT TESTED: Debian packages: $tool is not installed"
    exit 77
  }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
cpack --config "$build/CPackConfig.cmake" -B "$work/made" >"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }
for name in choir libchoir0 libchoir-dev python3-choir; do
  deb=$(echo "$work/made/${name}"_*.deb)
  [ -f "$deb" ] || { echo "no package $name"; exit 1; }
  dpkg-deb -x "$deb" "$root"
  echo "$name: $(dpkg-deb -f "$deb" Version), $(dpkg-deb -c "$deb" | grep -vc '/$') files, needs $(dpkg-deb -f "$deb" Depends)"
done
dpkg-deb -f "$work"/made/libchoir0_*.deb Depends | grep -q libjansson4 || { echo "libchoir0 does not say what it needs"; exit 1; }

"$root/usr/bin/choir" --version
"$root/usr/bin/choir" info "$root/usr/share/choir/configs/nano.json" >/dev/null
test -s "$root/usr/share/man/man1/choir-train.1"
sh "$(dirname "$0")/completion.sh" "$root/usr/share/bash-completion/completions/choir" "$root/usr/share/zsh/site-functions/_choir"
library=$(dirname "$(find "$root" -name libchoir.so.0)")
# shellcheck disable=SC2046
${CC:-cc} "$(dirname "$0")/embed/route.c" $(PKG_CONFIG_PATH="$library/pkgconfig" pkg-config --cflags --libs choir) -o "$work/route"
LD_LIBRARY_PATH="$library" "$work/route"
if /usr/bin/python3 -c 'import cffi, numpy' 2>/dev/null; then
  LD_LIBRARY_PATH="$library" PYTHONPATH="$root/usr/lib/python3/dist-packages" PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -c \
    'import choir; print("python3", choir.__version__, choir.route([[.9, .1], [.2, .8]], capacity_factor=1).indices)'
fi
