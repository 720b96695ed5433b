#!/usr/bin/env bash
# Builds the container image twice, compares the two, and trains in containers of it.
#
#   tests/deploy/image_test.sh BUILD
#
# The base image is made of Debian's packages by mmdebstrap, so no registry of images is needed. Exits with 77, and one
# line that says why, where this machine cannot do it.
set -euo pipefail
source_folder=$(cd "$(dirname "$0")/../.." && pwd)
build=$(realpath "$1")

skip() { echo "SKIPPED: no image was built: $*"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
((EUID == 0)) || skip "this test builds as root, without a user namespace"
command -v buildah >/dev/null && command -v mmdebstrap >/dev/null ||
  skip "buildah and mmdebstrap are needed (deploy/setup.sh test installs them)"

# The storage is this test's own, so no image of the machine is seen or changed. The driver vfs needs no overlay.
work=$(mktemp -d)
cat >"$work/storage.conf" <<CONF
[storage]
driver = "vfs"
runroot = "$work/run"
graphroot = "$work/images"
CONF
mkdir "$work/tmp"
export CONTAINERS_STORAGE_CONF=$work/storage.conf BUILDAH_ISOLATION=chroot TMPDIR=$work/tmp
started=()  # groups of processes
stop() {
  local group
  for group in "${started[@]}"; do kill -- "-$group" 2>/dev/null || true; done
  wait
  buildah rm --all >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap stop EXIT

mmdebstrap --quiet --variant=minbase bookworm "$work/base.tar" >"$work/log" 2>&1 ||
  skip "mmdebstrap fetched no Debian: $(tail -n 1 "$work/log")"
scratch=$(buildah from scratch 2>"$work/log") || skip "buildah makes no container: $(tail -n 1 "$work/log")"
buildah add --quiet "$scratch" "$work/base.tar" / >/dev/null
buildah commit --quiet "$scratch" localhost/base >/dev/null
rm "$work/base.tar"

image() {  # TAG
  WEFT_IMAGE_BUILDER=buildah "$source_folder/deploy/image.sh" "$build" cpu "$1" --pull-never --no-cache --network host \
    --build-arg BASE=localhost/base >"$work/log" 2>&1 || { cat "$work/log"; fail "deploy/image.sh"; }
}
layers() { buildah inspect --type image --format '{{.OCIv1.RootFS.DiffIDs}}' "$1"; }

echo "- builds, and again the same layers"
image localhost/weft:one
image localhost/weft:two
[[ "$(layers localhost/weft:one)" == "$(layers localhost/weft:two)" ]] ||
  fail "the layers differ: $(layers localhost/weft:one) and $(layers localhost/weft:two)"

echo "- trains in four containers, as a user without rights"
mkdir "$work/runs"
chmod 777 "$work/runs"
in_container() {  # NAME COMMAND..
  local container
  container=$(buildah from --pull-never --name "$1" localhost/weft:one)
  shift
  buildah run --user 10001:10001 --volume "$work/runs:/runs" "$container" -- "$@"
}
address=unix:/runs/coordinator.sock
set -m  # a job has a group of processes, of which a shell, buildah and the program are members
in_container coordinator weft-coordinator --listen $address --output-root /runs/out --roots /runs >"$work/coordinator" 2>&1 &
started+=($!)
for name in a b; do
  in_container worker-$name weft-worker --coordinator $address --name $name --roots /runs >"$work/worker-$name" 2>&1 &
  started+=($!)
done
set +m
in_container client timeout 180 sh -ec "
  [ \"\$(id -u)\" = 10001 ] || { echo 'not the user of the image'; exit 1; }
  cp -r /usr/share/weft/runs /runs/examples
  until [ -S /runs/coordinator.sock ]; do sleep 0.2; done
  weft submit /runs/examples/tiny.yaml --processes 2 --coordinator $address
" >"$work/client" 2>&1 || { cat "$work"/{coordinator,worker-a,worker-b,client}; fail "the run did not end well"; }
[[ -s "$work/runs/out/tiny-1/summary.json" ]] || { cat "$work/client"; fail "the run has left no summary"; }

echo "- refuses a GPU that is not there, in one sentence"
code=0
said=$(buildah run client -- weft-worker --device cuda --coordinator $address 2>&1) || code=$?
((code == 78)) || fail "exit code $code: $said"
echo "the image builds, is the same when it is built again, and trains"
