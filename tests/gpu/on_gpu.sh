#!/usr/bin/env bash
# On a machine with a GPU, in a folder that tests/gpu/pack.sh made:
#
#   on_gpu.sh tests [LOGS [NAME..]]   the tests with the label gpu, or those named, in shards of which as many run at once as there
#                                     are cores; a line a test, and all that its shards said in LOGS/NAME.SHARD.log
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
logs=$(realpath -m "${2:-$root/logs}")
shift $(($# < 2 ? $# : 2))
named=" $* "
mkdir -p "$logs"
rm -f "$logs"/*.log "$logs"/*.code
export root logs
export LIBRARIES="$torch/lib:$torch/../nvidia/nccl/lib:$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

# One shard: seconds, name, number of shards, its number, filter. `exported` is a script, all others are programs.
shard() {
  local log=$logs/$2.$4.log code program=("$root/tests/$2" --gtest_filter="$5")
  [[ "$2" != exported ]] || program=(python3 "$root/tests/exported/exported.py" "$root/bin" --device cuda)
  env WEFT_TEST_DEVICE=cuda GTEST_TOTAL_SHARDS="$3" GTEST_SHARD_INDEX="$4" LD_LIBRARY_PATH="$LIBRARIES" \
    timeout -k 5 "$1" "${program[@]}" </dev/null >"$log" 2>&1
  code=$?
  echo "$code" >"${log%.log}.code"
}
export -f shard

# Seconds of a shard, name, shards, filter: those of most worth first, in case time is short.
tests="
90 gpu_device_test 2 *
120 exported 1 *
300 device_test 9 *
90 transport_process_test 4 *cuda*
90 gpu_tolerance_test 4 *
240 device_conformance_test 8 OwnMemory*
240 device_precision_test 3 OwnMemory*
120 transport_conformance_test 4 *cuda*"
chosen=$(while read -r seconds name shards filter; do
  [[ -n "$name" && ("$named" == "  " || "$named" == *" $name "*) ]] || continue
  for ((i = 0; i < shards; ++i)); do echo "$seconds $name $shards $i $filter"; done
done <<<"$tests")
[[ -n "$chosen" ]] || { echo "on_gpu.sh: no such test:$named" >&2; exit 2; }
began=$SECONDS
xargs -P "$(nproc)" -L 1 bash -c 'shard "$@"' shard <<<"$chosen"

failed=0
while read -r name; do
  count() { cat "$logs/$name".*.log | grep -c "$1"; }
  codes=$(cat "$logs/$name".*.code | sort -un | tr '\n' ' ')
  echo "$name: exit codes $codes; $(count '^\[       OK\|: equal$') cases passed, $(count '^\[  FAILED.*ms)$\|: DIFFERENT$') failed, $(count '^\[  SKIPPED.*ms)$') skipped"
  [[ "$codes" == "0 " ]] || failed=1
done < <(awk '!seen[$2]++ {print $2}' <<<"$chosen")
echo "after $((SECONDS - began)) s"
exit $failed
