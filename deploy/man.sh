#!/usr/bin/env bash
# Makes the manual pages from the programs' own help: weft(1), one for each of its commands, as weft-submit(1), weft-coordinator(8)
# and weft-worker(8).
#
#   deploy/man.sh BUILD OUT   BUILD: a finished build, as build/release; OUT: a folder, as /usr/local/share/man
#
# help2man, of the Debian package of that name, writes the pages. They have no date, so that the same build gives the same pages.
set -euo pipefail
build=$(realpath "${1:?usage: deploy/man.sh BUILD OUT}")
out=${2:?usage: deploy/man.sh BUILD OUT}
command -v help2man >/dev/null || { echo "man: help2man is not here; on Debian: apt-get install help2man" >&2 && exit 69; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export LC_ALL=C.UTF-8
# Paths in the help that begin with the home folder are everybody's.
export HOME='~'
unset XDG_CONFIG_HOME

# page SECTION NAME COMMAND..: writes the page NAME(SECTION) from the help of the command.
page() {
  local section=$1 name=$2 help summary version
  shift 2
  help=$("$build/bin/$1" "${@:2}" --help)
  version=$("$build/bin/$1" --version | head -n 1)
  summary=$(head -n 1 <<<"$help" | sed 's/\.$//; s/^./\L&/')
  # help2man knows a flag's second name by the blank before it.
  sed 's/^\( *-[A-Za-z0-9]\),--/\1, --/' <<<"$help" >"$scratch/help"
  printf '#!/bin/sh\nexec cat "%s/help"\n' "$scratch" >"$scratch/$name"
  chmod +x "$scratch/$name"
  mkdir -p "$out/man$section"
  help2man --no-info --section="$section" --version-string="${version##* }" --name="$summary" "$scratch/$name" |
    sed '/^\.TH /s/ "[A-Z][a-z]* [0-9]*" / "" /' | gzip -9n >"$out/man$section/$name.$section.gz"
  chmod 644 "$out/man$section/$name.$section.gz"
}

page 1 weft weft
for command in $("$build/bin/weft" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p'); do
  page 1 "weft-$command" weft "$command"
done
page 8 weft-coordinator weft-coordinator
page 8 weft-worker weft-worker
