#!/usr/bin/env bash
# Prints the newest interfaces of glibc that any program or library below the folders uses, as 2.36: newest_glibc.sh FOLDER..
# Files that are neither are passed over.
set -euo pipefail
{ find "$@" -type f -exec objdump -T {} + 2>/dev/null || true; } |
  grep -o 'GLIBC_2\.[0-9]*' | sort -V | tail -n 1 | cut -d_ -f2
