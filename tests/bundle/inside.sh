#!/bin/sh
# Runs within the empty root file system of bundle_test.sh. Uses a shell and the few tools that are there.
unset LD_LIBRARY_PATH WEFT_TORCH WEFT_DEVICE_PATH WEFT_BIN WEFT_SOURCE
export PATH=/bin:/usr/bin HOME=/tmp

fail() { echo "FAILED: $*"; [ ! -e /tmp/err ] || cat /tmp/err; exit 1; }

# expect CODE TEXT COMMAND..: how it ends, and what it says on standard error.
expect() {
  code=$1 text=$2
  shift 2
  "$@" >/tmp/outputs 2>/tmp/err
  got=$?
  [ "$got" = "$code" ] || fail "exit code $got instead of $code of: $*"
  grep -q -e "$text" /tmp/err || fail "no \"$text\" from: $*"
}

# value KEY FILE: a number of a summary.
value() { sed -n "s/^ *\"$1\": \([^,]*\),*$/\1/p" "$2"; }

for library in /lib/*/libabsl_* /lib/*/libgrpc* /usr/lib/*/libabsl_* /usr/lib/*/libgrpc*; do
  [ ! -e "$library" ] || fail "this is no bare system: it has $library"
done
mkdir -p "/tmp/a place" && cd "/tmp/a place" || exit 1
tar -xzf /tmp/bundle.tar.gz || fail "cannot unpack"
cd weft-* || exit 1
folder=$PWD

echo "- simulates without LibTorch"
./weft simulate 1f1b --stages 4 --microbatches 8 -o json >/tmp/simulated.json 2>/tmp/err || fail "weft simulate"
grep -q '"makespan":22.0' /tmp/simulated.json || fail "the makespan of 1f1b is not 22"
./weft-coordinator --version >/tmp/outputs 2>/tmp/err || fail "weft-coordinator --version"

echo "- says what is missing"
expect 78 "there is no LibTorch: set WEFT_TORCH" ./weft-worker --version
expect 78 "there is no LibTorch: set WEFT_TORCH" ./weft train runs/tiny.yaml --out /tmp/none
expect 78 "WEFT_TORCH is /nowhere, and there is no lib/libtorch_cpu.so" env WEFT_TORCH=/nowhere ./weft train runs/tiny.yaml --out /tmp/none
mkdir -p /tmp/site/torch/lib && : >/tmp/site/torch/lib/libtorch_cpu.so
printf "__all__ = []\n__version__ = '2.10.0+cpu'\n" >/tmp/site/torch/version.py
expect 78 "the LibTorch in /tmp/site/torch is version 2.10.0; this Weft was built with" env WEFT_TORCH=/tmp/site ./weft-worker --version
rm /tmp/site/torch/version.py
expect 78 "cannot tell which version the LibTorch in /tmp/site/torch is" env WEFT_TORCH=/tmp/site ./weft-worker --version
echo "2.10.1+cu130" >/tmp/site/torch/build-version
expect 78 "is version 2.10.1;" env WEFT_TORCH=/tmp/site/torch/lib ./weft-worker --version

echo "- trains in 2 processes, with the bits of the build"
WEFT_TORCH=/opt/libtorch ./weft train runs/tiny.yaml --processes 2 --out /tmp/out >/tmp/outputs 2>/tmp/err || fail "weft train"
[ "$(value processes /tmp/out/summary.json)" = 2 ] || fail "not 2 processes"
loss=$(value final_loss /tmp/out/summary.json)
[ -n "$loss" ] && [ "$loss" = "$(value final_loss /tmp/expected.json)" ] || fail "the loss is $loss, not $(value final_loss /tmp/expected.json)"

echo "- elsewhere, with LibTorch in its own folder, as one plain loop"
cd /tmp && mv "$folder" /tmp/moved && cd /tmp/moved || exit 1
ln -s /opt/libtorch torch
./weft train runs/tiny.yaml --reference --out /tmp/reference >/tmp/outputs 2>/tmp/err || fail "weft train --reference"
[ "$(value final_loss /tmp/reference/summary.json)" = "$loss" ] || fail "the reference's loss is not $loss"

echo "- asks for a driver before it asks for a GPU's libraries"
if [ ! -e lib/libweft_cuda.so ]; then
  echo "  (this bundle has no GPU library)"
fi
expect 78 "there is no NVIDIA driver on this machine" ./weft train runs/tiny.yaml --device cuda --out /tmp/none
expect 0 "device cpu, because there is no NVIDIA driver" ./weft train runs/tiny.yaml --device auto --out /tmp/auto

echo "- loads the GPU library with a LibTorch that lies as Python's packages do"
if [ -e /opt/driver/libcuda.so.1 ]; then
  # It is loaded, with all that it needs, when CUDA's own runtime has looked at the driver, which is one of the tests.
  expect 78 "cannot use the GPUs of this machine\|no NVIDIA driver in this process" \
    env WEFT_TORCH=/opt/site LD_LIBRARY_PATH=/opt/driver ./weft train runs/tiny.yaml --device cuda --out /tmp/none
else
  echo "  (not tried: the GPU library, or something that it needs, is not here)"
fi
