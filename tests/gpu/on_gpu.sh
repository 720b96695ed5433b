#!/usr/bin/env bash
# On a machine with a GPU, in a folder that tests/gpu/pack.sh made:
#
#   on_gpu.sh tests [LOGS]       every test with the label gpu, each within its time; a line each, and what failed in LOGS/NAME.log
#   on_gpu.sh measure ARGS..     gpu/measure.py ARGS.., as --only training --models gpt2 --minutes 9 --out gpu.md
#
# LibTorch is that of WEFT_TORCH or of Python (bin/weft-worker). Exits with 1 if a test failed.
set -uo pipefail
root=$(cd "$(dirname "$0")" && pwd)
torch=${WEFT_TORCH:-$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')} || exit 78
[[ -e "$torch/lib/libtorch_cuda.so" ]] || { echo "on_gpu.sh: there is no LibTorch with CUDA in $torch; set WEFT_TORCH" >&2; exit 78; }
export WEFT_TORCH=$torch WEFT_BIN=$root/bin WEFT_SOURCE=$root UCX_LOG_LEVEL=${UCX_LOG_LEVEL:-error}

if [[ "${1:-}" == measure ]]; then
  shift
  exec python3 "$root/gpu/measure.py" "$root/bin" --bench "$root/bench/transport_bench" --perftest "$root/bin/ucx_perftest" "$@"
fi
[[ "${1:-}" == tests ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }

logs=${2:-$root/logs}
mkdir -p "$logs"
failed=0
# Those of most worth first, for whoever has little time.
while read -r seconds name variables; do
  began=$SECONDS
  env $variables LD_LIBRARY_PATH="$torch/lib:$torch/../nvidia/nccl/lib:$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    timeout -k 5 "$seconds" "$root/tests/$name" >"$logs/$name.log" 2>&1
  code=$?
  echo "$name: exit code $code after $((SECONDS - began)) s; $(grep -c '^\[       OK' "$logs/$name.log") cases passed," \
    "$(grep -c '^\[  FAILED.*ms)$' "$logs/$name.log") failed, $(grep -c '^\[  SKIPPED.*ms)$' "$logs/$name.log") skipped"
  ((code == 0)) || failed=1
done <<'TESTS'
120 gpu_device_test
180 transport_process_test
240 device_test WEFT_TEST_DEVICE=cuda
120 gpu_tolerance_test
120 transport_conformance_test
TESTS
exit $failed
