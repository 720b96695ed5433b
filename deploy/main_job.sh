#!/usr/bin/env bash
# The main job: unpacks the text, trains docs/runs/shakespeare.yaml on four worker processes, and shows a few
# lines that the model writes.
#
#   deploy/main_job.sh BIN [FLAGS]    BIN is the weft program; further flags go to `weft train`
set -euo pipefail
cd "$(dirname "$0")/.."

weft=${1:?usage: deploy/main_job.sh BIN [FLAGS]}
shift
text=build/data/text.txt
packed=docs/data/tinyshakespeare.txt.gz

say() { printf 'main job: %s\n' "$*" >&2; }

if [[ ! -x $weft ]]; then
  say "there is no program $weft; run make build first"
  exit 1
fi
if [[ ! -s $text ]]; then
  mkdir -p "$(dirname "$text")"
  # Aside and renamed, so that an interrupted copy is never taken for the text.
  gzip -dc "$packed" >"$text.part"
  mv "$text.part" "$text"
fi
# The folder is of this job alone, so a repeated one may replace what an earlier one left.
"$weft" train docs/runs/shakespeare.yaml --processes 4 --overwrite --out out/shakespeare "$@"

# Plays have speakers; other texts have not.
prompt=$'\n'
if grep -q '^ROMEO:' "$text"; then prompt=ROMEO:; fi
say "what the model writes (weft generate out/shakespeare --prompt ..)"
"$weft" generate out/shakespeare --prompt "$prompt" --tokens 240
