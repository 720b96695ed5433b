#!/bin/sh
# Makes a precompiled header anew: precompile_header.sh COMPILER_LAUNCHER.. COMPILER .. -o FILE.gch ..
#
# Removes the old one first. CMake includes the header into its own compilation (-include). Where the old .gch is still there, ccache's
# preprocessor takes it in place of the header, so a header that changed looks the same to ccache, and the old .gch comes back.
last=
for word; do
  case $last$word in -o*.gch) rm -f -- "$word" ;; esac
  last=$word
done
exec "$@"
