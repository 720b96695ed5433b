#!/usr/bin/env bash
# Packs what a build has made as Debian packages: weft, the programs, and weft-dev, what clients are written with.
#
#   deploy/deb.sh BUILD [OUT]    BUILD: a finished build, as build/release; OUT: the folder of the packages (build)
set -euo pipefail
source_folder=$(cd "$(dirname "$0")/.." && pwd)
build=$(realpath "${1:?usage: deploy/deb.sh BUILD [OUT]}")
out=$(realpath "${2:-$source_folder/build}")
command -v dpkg-shlibdeps >/dev/null || { echo "deb: dpkg-shlibdeps is not here; deploy/setup.sh installs it" >&2 && exit 1; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/weft" "$scratch/weft-dev"
"$source_folder/deploy/install.sh" "$build" /usr "$scratch/weft"
DESTDIR=$scratch/weft-dev cmake --install "$build" --component development --prefix /usr --strip >/dev/null
version=$("$build/bin/weft" --version | awk '{print $2}')
glibc=$("$source_folder/deploy/newest_glibc.sh" "$scratch/weft/usr/lib/weft")
cd "$scratch"

pack() {  # NAME CONFIGURATION
  STAGE=$scratch/$1 VERSION=$version GLIBC=$glibc OUT=$out \
    cpack -G DEB --config "$source_folder/deploy/debian/$2" >"$scratch/cpack.log" 2>&1 ||
    { cat "$scratch/cpack.log" >&2 && exit 1; }
  local package=$out/$1_${version}_amd64.deb
  [[ -e "$package" ]] || { echo "deb: cpack made no $package" >&2 && exit 1; }
  echo "deb: $package: $(($(stat -c %s "$package") / 1024)) KiB, needs $(dpkg-deb -f "$package" Depends); install it with: apt install $package" >&2
}
pack weft cpack.cmake
pack weft-dev development.cmake
