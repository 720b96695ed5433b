#!/bin/sh
# run_test.sh REPORTS PROGRAM [ARGUMENT..]: runs a test of a sanitized build.
#
# Sanitizers write to files in the folder REPORTS (log_path in the test's environment), also those of the
# programs that the test starts, whose exit codes and outputs it may not look at. Any report fails the test.
set -u
reports=$1
shift
rm -rf "$reports"
mkdir -p "$reports"
"$@"
code=$?
for report in "$reports"/*; do
  [ -s "$report" ] || continue
  echo "---- $report"
  cat "$report"
  code=1
done
exit $code
