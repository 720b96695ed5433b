#!/usr/bin/env bash
# Runs all tests of a build tree: run.sh BUILD_DIR [JOBS]
#
# Half as many tests again as JOBS run at a time: tests wait for part of their time, as for leases, silent links or the test
# device, and no processor is idle meanwhile.
#
# Daemons write their flight recorders into a folder of this run. It is removed at the end, unless a test failed.
set -euo pipefail

build=${1:?usage: run.sh BUILD_DIR [JOBS]}
TMPDIR=$("$(dirname "$0")/scratch.sh")
LOGS_DIRECTORY=$(mktemp -d "$TMPDIR/weft-flight.XXXXXX")
export TMPDIR LOGS_DIRECTORY

jobs=${2:-1}
code=0
ctest --test-dir "$build" --output-on-failure -j "$((jobs + jobs / 2))" || code=$?
if ((code == 0)); then
  rm -rf "$LOGS_DIRECTORY"
elif ! rmdir "$LOGS_DIRECTORY" 2>/dev/null; then
  echo "flight recorders of the daemons of this run: $LOGS_DIRECTORY"
fi
exit $code
