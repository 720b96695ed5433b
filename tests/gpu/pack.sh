#!/usr/bin/env bash
# Packs what a machine with a GPU needs to run the tests with the label gpu and the measurements: one that has a driver, Python
# and LibTorch, and nothing of the build.
#
#   tests/gpu/pack.sh BUILD [OUT]   makes OUT/weft-gpu.tar.gz (OUT: build) of a finished build, as build/release
#
# There: tar -xzf weft-gpu.tar.gz && weft-gpu/on_gpu.sh (tests/gpu/on_gpu.sh says what it takes).
set -euo pipefail
source_folder=$(cd "$(dirname "$0")/../.." && pwd)
build=$(realpath "${1:?usage: tests/gpu/pack.sh BUILD [OUT]}")
out=$(realpath "${2:-$source_folder/build}")
programs=(tests/device_test tests/device_conformance_test tests/device_precision_test tests/transport_conformance_test tests/transport_process_test tests/transport_peer tests/libweft_testgpu.so
  bench/transport_bench tests/gpu_device_test)
for test in "$build"/tests/gpu_*_test; do
  # In the list already, so that its absence is noticed.
  [[ $(basename "$test") == gpu_device_test ]] || programs+=("tests/$(basename "$test")")
done

fail() { echo "pack: $*" >&2; exit 1; }
for program in "${programs[@]}" lib/libweft_cuda.so; do
  [[ -e "$build/$program" ]] || fail "there is no $build/$program; build first, where nvcc is (cmake --build $build --target all transport_bench)"
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$source_folder/deploy/bundle.sh" "$build" "$scratch"
rm "$scratch"/weft-*.tar.gz
mv "$scratch"/weft-* "$scratch/weft-gpu"
folder=$scratch/weft-gpu
mkdir -p "$folder/tests" "$folder/bench"

# Adds libraries as the bundle does: CUDA's and LibTorch's are there already, and glibc's are the machine's.
add_linked() {
  local library path
  while read -r library path; do
    [[ ! "$library" =~ ^(ld-linux-x86-64|lib(c|m|dl|rt|pthread))\.so && "$path" != */torch/lib/* && "$path" != *cuda* ]] || continue
    [[ -e "$folder/lib/$library" ]] || install -m 644 "$(realpath "$path")" "$folder/lib/$library"
  done < <(ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}')
}
for program in "${programs[@]}"; do
  install -m 755 "$build/$program" "$folder/$program"
  add_linked "$build/$program"
done

# The peer of transfers, with its part for GPUs.
ucx=$(ldd "$build/bin/weft-worker" | awk '$1 ~ /^libucs\.so/ {print $3}')
perftest=$(dirname "$ucx")/../bin/ucx_perftest
packed=("$folder/tests" "$folder/bench")
if [[ -e "$perftest" ]]; then
  packed+=("$folder/bin/ucx_perftest")
  install -m 755 "$perftest" "$folder/bin/ucx_perftest"
  add_linked "$perftest"
  for module in "$(dirname "$ucx")"/ucx/libucx_perftest_cuda.so.0; do
    [[ ! -e "$module" ]] || install -m 644 "$(realpath "$module")" "$folder/lib/ucx/$(basename "$module")"
  done
fi

find "${packed[@]}" -type f -exec strip --strip-unneeded {} +
find "${packed[@]}" -type f -exec patchelf --set-rpath '$ORIGIN/../lib' {} +
find "$folder"/lib -maxdepth 1 -type f -exec patchelf --set-rpath '$ORIGIN' {} +
find "$folder"/lib/ucx -type f -exec patchelf --set-rpath '$ORIGIN:$ORIGIN/..' {} +
mkdir -p "$folder/gpu"
install -m 755 "$source_folder"/tests/gpu/*.py "$folder/gpu/"
install -m 755 "$source_folder/tests/gpu/on_gpu.sh" "$folder/"
# Exported models, and the script that trains them.
mkdir -p "$folder/tests/exported"
cp -r "$source_folder"/tests/exported/*.py "$source_folder/tests/exported/models" "$folder/tests/exported/"
install -m 644 "$source_folder"/tests/{bits,markdown,standing_workers}.py "$folder/tests/"

mkdir -p "$out"
tar -C "$scratch" --owner=0 --group=0 --sort=name -czf "$out/weft-gpu.tar.gz" weft-gpu
echo "pack: $out/weft-gpu.tar.gz: $(($(stat -c %s "$out/weft-gpu.tar.gz") / 1024)) KiB packed" >&2
