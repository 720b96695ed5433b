#!/usr/bin/env bash
# Packs what a build has made as a Debian package.
#
#   deploy/deb.sh BUILD [OUT]    BUILD: a finished build, as build/release; OUT: the folder of the package (build)
set -euo pipefail
source_folder=$(cd "$(dirname "$0")/.." && pwd)
build=$(realpath "${1:?usage: deploy/deb.sh BUILD [OUT]}")
out=$(realpath "${2:-$source_folder/build}")

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/stage"
"$source_folder/deploy/install.sh" "$build" /usr "$scratch/stage"
version=$("$build/bin/weft" --version | awk '{print $2}')
glibc=$("$source_folder/deploy/newest_glibc.sh" "$scratch/stage/usr/lib/weft")
cd "$scratch"
STAGE=$scratch/stage VERSION=$version GLIBC=$glibc OUT=$out \
  cpack -G DEB --config "$source_folder/deploy/debian/cpack.cmake" >"$scratch/cpack.log" 2>&1 ||
  { cat "$scratch/cpack.log" >&2 && exit 1; }
package=$out/weft_${version}_amd64.deb
[[ -e "$package" ]] || { echo "deb: cpack made no $package" >&2 && exit 1; }
echo "deb: $package: $(($(stat -c %s "$package") / 1024)) KiB, needs glibc $glibc; install it with: apt install $package" >&2
