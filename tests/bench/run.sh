#!/usr/bin/env bash
# Runs every benchmark of a build tree and prints its figures: run.sh BUILD_DIR
set -euo pipefail
build=${1:?usage: run.sh BUILD_DIR}
here=$(dirname "$0")
for program in "$build"/bench/*; do
  [[ -x $program && ! -d $program ]] || continue
  echo "== $(basename "$program")"
  "$program"
done
echo "== step_time.py"
python3 "$here/step_time.py" "$build/bin"
