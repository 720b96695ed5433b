#!/bin/bash
# Runs each fuzzer on its seeds and what it found before: run.sh BUILD_DIR [SECONDS] [FUZZER..]
#
# JOBS fuzzers (default 1) run at a time. The inputs that a fuzzer finds useful stay in BUILD_DIR/fuzz/corpus, and the next
# run begins with them. With SEED=N nothing is kept, so that each fuzzer tries the same inputs every time, as far as it
# comes in its seconds. An input that fails is left in BUILD_DIR/fuzz/found, and the exit code is 1: mend the defect, and
# add the input, or what it stands for, to a test.
set -u
build=$(realpath "$1") seconds=${2:-60}
shift; [ $# -gt 0 ] && shift
sources=$(dirname "$(realpath "$0")")
fuzzers=(run_file run_spec frame wire)
[ $# -eq 0 ] || fuzzers=("$@")
# Abseil, protobuf and yaml-cpp are not built with AddressSanitizer, which then misjudges containers of both.
export ASAN_OPTIONS=detect_container_overflow=0:detect_leaks=1
export UBSAN_OPTIONS=print_stacktrace=1
mkdir -p "$build/fuzz/found"
"$build/fuzz/fuzz_seeds" "$build/fuzz/seeds" || exit 1

run_fuzzer() {  # NAME
  local name=$1 folder seeds=() dictionary=() log=$build/fuzz/$1.log
  local corpus=$build/fuzz/corpus/$name
  [ -z "${SEED:-}" ] || { corpus=$build/fuzz/seeded/$name; rm -rf "$corpus"; }
  mkdir -p "$corpus"
  for folder in "$build/fuzz/seeds/$name" "$sources/corpus/$name"; do [ -d "$folder" ] && seeds+=("$folder"); done
  [ -f "$sources/$name.dict" ] && dictionary=("-dict=$sources/$name.dict")
  if "$build/fuzz/${name}_fuzz" "$corpus" "${seeds[@]}" "${dictionary[@]}" \
      -max_total_time="$seconds" -max_len=8192 -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
      -seed="${SEED:-0}" -artifact_prefix="$build/fuzz/found/$name-" >"$log" 2>&1; then
    echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s, none fails"
  else
    echo "$name: an input fails; it is in $build/fuzz/found" >&2
    grep -E -A12 'ERROR|runtime error|SUMMARY|Requirement' "$log" | head -60 >&2
    return 1
  fi
}

failed=0
for ((i = 0; i < ${#fuzzers[@]} + ${JOBS:-1}; ++i)); do
  # A fuzzer starts when the one that started JOBS before it has ended.
  ((i < ${JOBS:-1})) || wait "${running[i - ${JOBS:-1}]}" || failed=1
  ((i >= ${#fuzzers[@]})) || { run_fuzzer "${fuzzers[i]}" & running[i]=$!; }
done
exit $failed
