#!/usr/bin/env bash
# Runs all tests of a build tree: run.sh BUILD_DIR [JOBS]
#
# Daemons write their flight recorders into a folder of this run. It is removed at the end, unless a test failed.
set -euo pipefail

build=${1:?usage: run.sh BUILD_DIR [JOBS]}
TMPDIR=$("$(dirname "$0")/scratch.sh")
LOGS_DIRECTORY=$(mktemp -d "$TMPDIR/weft-flight.XXXXXX")
export TMPDIR LOGS_DIRECTORY

code=0
ctest --test-dir "$build" --output-on-failure -j "${2:-1}" || code=$?
if ((code == 0)); then
  rm -rf "$LOGS_DIRECTORY"
elif ! rmdir "$LOGS_DIRECTORY" 2>/dev/null; then
  echo "flight recorders of the daemons of this run: $LOGS_DIRECTORY"
fi
exit $code
