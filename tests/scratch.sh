#!/usr/bin/env bash
# Prints the folder in which the tests put their files: a file system in memory, where there is one with room. Tests wait for
# the disk many hundred times, because a checkpoint is synchronized before it counts as saved.
#
# TMPDIR decides if it is set. Otherwise it is /dev/shm if that is a memory file system with 4 GiB free in it and 8 GiB in
# the machine, and lets programs in it run; else /tmp.
set -euo pipefail

folder=/dev/shm
fits() {
  [[ "$(stat -fc %T "$folder" 2>/dev/null)" == tmpfs && -w "$folder" ]] || return 1
  (($(df -Pk "$folder" | awk 'NR == 2 {print $4}') >= 4 * 1024 * 1024)) || return 1
  (($(awk '$1 == "MemAvailable:" {print $2}' /proc/meminfo) >= 8 * 1024 * 1024)) || return 1
  local probe
  probe=$(mktemp "$folder/weft.XXXXXX")
  printf '#!/bin/sh\n' >"$probe"
  chmod u+x "$probe"
  local runs=0
  "$probe" 2>/dev/null || runs=1
  rm -f "$probe"
  return $runs
}

if [[ -n "${TMPDIR:-}" ]]; then
  echo "$TMPDIR"
elif fits; then
  echo "$folder"
else
  echo /tmp
fi
