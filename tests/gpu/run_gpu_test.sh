#!/bin/sh
# Runs a test that needs a GPU, or says in one line that it was skipped (77, which CTest shows as such).
if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
  echo "SKIPPED, NOT RUN: $(basename "$1") needs an NVIDIA GPU, and this machine has none"
  exit 77
fi
exec "$@"
