#!/usr/bin/env bash
# Builds a container image of Weft, with the LibTorch that its workers need.
#
#   deploy/image.sh BUILD [cpu|cuda] [TAG] [FLAG..]
#
# BUILD: a finished build, as build/release. cpu (the default): LibTorch's CPU half alone, about 0.7 GB. cuda: also its
# CUDA half with the libraries that it needs; the driver comes from the machine that runs the image. TAG: weft:VERSION,
# or weft:VERSION-cuda. FLAGs go to the builder: $WEFT_IMAGE_BUILDER, or the first of podman, buildah
# and docker that is there.
#
# LibTorch is the one in build/deps that BUILD was linked with, so the image computes the bits of the build. Files have
# the time of the last commit, and nothing of the machine goes in: the same build makes the same layers, where the
# builder takes --timestamp and the base is the same (podman and buildah; --build-arg BASE=debian@sha256:.. pins it).
set -euo pipefail
source_folder=$(cd "$(dirname "$0")/.." && pwd)
usage='usage: deploy/image.sh BUILD [cpu|cuda] [TAG] [FLAG..]'
build=$(realpath "${1:?$usage}")
device=${2:-cpu}
version=$("$build/bin/weft" --version | awk '{print $2}')
case $device in
  cpu) tag=${3:-weft:$version} ;;
  cuda) tag=${3:-weft:$version-cuda} ;;
  *) echo "$usage" >&2 && exit 64 ;;
esac
shift $(($# < 3 ? $# : 3))

say() { printf 'image: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

builder=${WEFT_IMAGE_BUILDER:-}
for program in podman buildah docker; do
  [[ -n "$builder" ]] || ! command -v $program >/dev/null || builder=$program
done
[[ -n "$builder" ]] || fail "podman, buildah or docker is needed; Debian has podman and buildah"
torch=$source_folder/build/deps/torch
[[ -e "$torch/lib/libtorch_cpu.so" ]] || fail "there is no LibTorch in $torch; deploy/setup.sh fetches it"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
context=$scratch/context
libraries=$context/libtorch/lib
mkdir -p "$libraries" "$context/libtorch/include/torch/headeronly"
cp "$torch/include/torch/headeronly/version.h" "$context/libtorch/include/torch/headeronly/"  # which version it is

# Copies what a library needs from outside of the system's folders, "NAME PATH" a line of ldd.
add_linked() {
  local library path
  while read -r library path; do
    [[ "$path" == /lib/* || "$path" == /usr/lib/* || -e "$libraries/$library" ]] ||
      install -m 644 "$(realpath "$path")" "$libraries/$library"
  done < <(ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}')
}

add() {
  install -m 644 "$torch/lib/$1" "$libraries/"
  add_linked "$torch/lib/$1"
}

add libtorch_cpu.so
if [[ $device == cuda ]]; then
  gpu=$build/lib/libweft_cuda.so
  [[ -e "$gpu" ]] || fail "there is no $gpu; this Weft was built without CUDA"
  # LibTorch loads libcaffe2_nvrtc.so by name when it makes a kernel.
  for library in libtorch.so libtorch_cuda.so libtorch_cuda_linalg.so libc10_cuda.so libcaffe2_nvrtc.so; do add $library; done
  add_linked "$gpu"
  # Some libraries load others of their own by name, from the folder that they are in.
  for loader in libcudnn.so.9 libnvrtc.so.13; do
    from=$(ldd "$torch"/lib/lib{torch_cuda,caffe2_nvrtc}.so "$gpu" | awk -v name=$loader '$1 == name && !seen++ {print $3}')
    [[ -n "$from" ]] || continue
    for library in "$(dirname "$(realpath "$from")")"/${loader%.so*}[_-]*.so.*; do
      [[ -e "$libraries/$(basename "$library")" ]] || install -m 644 "$(realpath "$library")" "$libraries/$(basename "$library")"
    done
  done
fi
find "$libraries" -type f -exec patchelf --set-rpath '$ORIGIN' {} +

"$source_folder/deploy/deb.sh" "$build" "$scratch"
mv "$scratch"/weft_*.deb "$context/weft.deb"
cp "$source_folder/deploy/container/Containerfile" "$context/Containerfile"

seconds=$(git -C "$source_folder" log -1 --format=%ct 2>/dev/null || echo 0)
command=("$builder" build)
[[ "$builder" == docker ]] || command+=(--timestamp "$seconds")
"${command[@]}" --tag "$tag" "$@" --file "$context/Containerfile" "$context"
say "$tag is built, by $builder; try: $builder run --rm $tag weft --version"
