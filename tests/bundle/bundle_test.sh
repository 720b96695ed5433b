#!/usr/bin/env bash
# Packs the bundle and tries it in a root file system that has a shell, glibc and LibTorch's folder, and nothing else.
#
#   tests/bundle/bundle_test.sh BUILD [ROOT]   ROOT: an unpacked system to try it in instead, as debootstrap makes one
#
# Exits with 77, and one line that says why, where it may not mount or change its root.
set -euo pipefail
source_folder=$(cd "$(dirname "$0")/../.." && pwd)
build=$(realpath "$1")
system=${2:-}
deps=$(realpath "$source_folder/build/deps")

skip() { echo "SKIPPED: the bundle was not tried: $*"; exit 77; }

busybox=$(command -v busybox) || skip "there is no busybox (Debian: busybox-static)"
! ldd "$busybox" >/dev/null 2>&1 || skip "$busybox is not static (Debian: busybox-static)"
if unshare -m true 2>/dev/null; then
  isolated=(unshare -m)
elif unshare -Urm true 2>/dev/null; then
  isolated=(unshare -Urm)
else
  skip "this machine lets us make no mount namespace (root, or unprivileged user namespaces, can)"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "packing"
"$source_folder/deploy/bundle.sh" "$build" "$work"
archive=$(ls "$work"/weft-*.tar.gz)

# Train with the build's own programs, to compare with.
"$build/bin/weft" train "$source_folder/docs/runs/tiny.yaml" --processes 2 --out "$work/here" >/dev/null

# List the libraries of CUDA that the GPU library needs, as `pip install torch` would lay them out: NAME PATH a line. The list is
# empty if that library, or something that it needs, is not here.
gpu_libraries=
if [[ -e "$build/lib/libweft_cuda.so" && -e "$build/tests/devices/libdriver_serves.so" ]]; then
  linked=$(ldd "$build/lib/libweft_cuda.so")
  [[ "$linked" == *"not found"* ]] || gpu_libraries=$(awk '$2 == "=>" && $3 ~ /cuda/ && $3 !~ /torch\/lib/ {print $1, $3}' <<<"$linked")
fi
export gpu_libraries build

mkdir "$work/root"
export INSIDE=$source_folder/tests/bundle/inside.sh
export work archive busybox deps system
echo "trying it in ${system:-a root file system of busybox and glibc}"
"${isolated[@]}" bash -eu <<'OUTSIDE'
mount --make-rprivate /
if [[ -n "$system" ]]; then
  mount --rbind "$system" "$work/root"
else
  mount -t tmpfs none "$work/root"
  mkdir -p "$work/root"/{bin,lib64,lib/x86_64-linux-gnu,etc}
  cp "$busybox" "$work/root/bin/busybox"
  for applet in sh readlink tar gzip mkdir ls cat grep sed mv ln rm printf env; do ln -s busybox "$work/root/bin/$applet"; done
  for library in ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libdl.so.2 librt.so.1 libpthread.so.0 libutil.so.1 libresolv.so.2; do
    for folder in /lib64 /lib/x86_64-linux-gnu; do
      [[ ! -e $folder/$library ]] || cp -L "$folder/$library" "$work/root$folder/"
    done
  done
fi
for folder in opt/libtorch proc dev tmp; do mkdir -p "$work/root/$folder"; done
mount -t tmpfs none "$work/root/tmp"
mount --bind "$deps/torch" "$work/root/opt/libtorch"
if [[ -n "$gpu_libraries" ]]; then
  site=$work/root/opt/site
  mkdir -p "$site"/{torch,nvidia/nccl/lib,nvidia/cu13/lib} "$work/root/opt/driver"
  mount --bind "$deps/torch" "$site/torch"
  while read -r library path; do
    to=$site/nvidia/cu13/lib/$library
    [[ $library != libnccl* ]] || to=$site/nvidia/nccl/lib/$library
    : >"$to"
    mount --bind "$(realpath "$path")" "$to"
  done <<<"$gpu_libraries"
  cp "$build/tests/devices/libdriver_serves.so" "$work/root/opt/driver/libcuda.so.1"
fi
mount --rbind /proc "$work/root/proc"
mount --rbind /dev "$work/root/dev"
cp "$archive" "$work/root/tmp/bundle.tar.gz"
cp "$work/here/summary.json" "$work/root/tmp/expected.json"
cp "$INSIDE" "$work/root/tmp/inside.sh"
exec chroot "$work/root" /bin/sh /tmp/inside.sh
OUTSIDE
echo "the bundle runs"
