#!/usr/bin/env bash
# On a machine with a GPU, in a folder that tests/gpu/pack.sh made:
#
#   on_gpu.sh tests [LOGS [NAME..]]   the tests with the label gpu, or those named, each within its time; a line each, and all that
#                                     it said in LOGS/NAME.log
#   on_gpu.sh measure ARGS..          gpu/measure.py ARGS.., as --only training --models gpt2 --minutes 9 --out gpu.md
#
# LibTorch is that of WEFT_TORCH or of Python (bin/weft-worker). Exits with 1 if a test failed.
set -uo pipefail
[[ "${1:-}" == tests || "${1:-}" == measure ]] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
root=$(cd "$(dirname "$0")" && pwd)
torch=${WEFT_TORCH:-$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null)}
[[ -e "$torch/lib/libtorch_cuda.so" ]] ||
  { echo "on_gpu.sh: there is no LibTorch with CUDA in \"$torch\"; set WEFT_TORCH, or install it for python3" >&2; exit 78; }
export WEFT_TORCH=$torch WEFT_BIN=$root/bin WEFT_SOURCE=$root UCX_LOG_LEVEL=${UCX_LOG_LEVEL:-error}

if [[ "$1" == measure ]]; then
  shift
  arguments=("$root/bin" --bench "$root/bench/transport_bench")
  [[ ! -e "$root/bin/ucx_perftest" ]] || arguments+=(--perftest "$root/bin/ucx_perftest")
  exec python3 "$root/gpu/measure.py" "${arguments[@]}" "$@"
fi
logs=${2:-$root/logs}
shift $(($# < 2 ? $# : 2))
named=" $* "
mkdir -p "$logs"
failed=0
# Seconds, name, variables: those of most worth first, for whoever has little time.
tests=$(
  echo 120 gpu_device_test
  echo 180 transport_process_test
  echo 540 device_test WEFT_TEST_DEVICE=cuda
  for test in "$root"/tests/gpu_*_test; do [[ $test == *gpu_device_test ]] || echo 120 "$(basename "$test")" WEFT_TEST_DEVICE=cuda; done
  echo 240 device_conformance_test WEFT_TEST_DEVICE=cuda
  echo 120 device_precision_test WEFT_TEST_DEVICE=cuda
  echo 120 transport_conformance_test
)
while read -r seconds name variables; do
  [[ $# == 0 || "$named" == *" $name "* ]] || continue
  began=$SECONDS
  env $variables LD_LIBRARY_PATH="$torch/lib:$torch/../nvidia/nccl/lib:$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    timeout -k 5 "$seconds" "$root/tests/$name" </dev/null >"$logs/$name.log" 2>&1
  code=$?
  echo "$name: exit code $code after $((SECONDS - began)) s; $(grep -c '^\[       OK' "$logs/$name.log") cases passed," \
    "$(grep -c '^\[  FAILED.*ms)$' "$logs/$name.log") failed, $(grep -c '^\[  SKIPPED.*ms)$' "$logs/$name.log") skipped"
  ((code == 0)) || failed=1
done <<<"$tests"
exit $failed
