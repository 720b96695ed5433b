#include "client/slurm/slurm_script.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace weft {
namespace {

constexpr char kBody[] = R"(
set -euo pipefail
umask 077
# What belongs to the service, not to the results: certificates and logs.
service=$out.slurm
mkdir -p "$service"
weft certs init "$service/certs" >"$service/certs.log"
# Without a pipe into head: it leaves after one line, and scontrol, with many hosts to name, then fails of SIGPIPE.
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${hosts%%$'\n'*}
log=$service/coordinator-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}.log
: >"$log"  # it is read below, maybe before the background process has opened it

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
  weft-coordinator --listen 0.0.0.0:0 --log-format text --tls "$service/certs/coordinator" 2>"$log" &
coordinator=$!
workers=
trap 'kill $coordinator $workers 2>/dev/null || true; wait' EXIT
port=
for _ in $(seq 600); do
  port=$(sed -n '/listening on .*:[0-9][0-9]*$/{s/.*://p;q}' "$log")
  [[ -n $port ]] && break
  kill -0 $coordinator 2>/dev/null || { cat "$log" >&2; exit 1; }
  sleep 0.2
done
[[ -n $port ]] || { echo "the coordinator does not listen; see $log" >&2; exit 1; }
export WEFT_COORDINATOR=$head:$port WEFT_TLS=$service/certs/admin

# shellcheck disable=SC2016
srun --overlap --nodes="$nodes" --ntasks-per-node="$tasks_per_node" bash -c \
  'exec env WEFT_TLS="$0" weft-worker --name "w$SLURM_PROCID" "$@"' "$service/certs/worker" \
  --coordinator "$WEFT_COORDINATOR" "${worker_flags[@]}" &
workers=$!

# A job that was ended, or that lost its coordinator, goes on from the newest checkpoint.
from=(--overwrite)
if weft checkpoint ls "$out" >/dev/null 2>&1; then from=(--resume "$out"); fi
run=$(weft submit "$run_file" --processes $((nodes * tasks_per_node)) --out "$out" --detach "${from[@]}")
ended_by_slurm=
trap 'ended_by_slurm=1; weft cancel "$run" --save --reason "Slurm ends the job" >/dev/null || true' TERM
weft wait "$run" &
waiting=$!
code=0
while kill -0 $waiting 2>/dev/null; do
  # The signal of Slurm ends this wait, not the run.
  wait $waiting && code=0 || code=$?
done
if [[ -n $ended_by_slurm && $code -ne 0 ]]; then
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
exit $code
)";

}  // namespace

std::string ShellWord(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string SlurmScript(const SlurmJob& job) {
  std::string script = "#!/usr/bin/env bash\n";
  const auto option = [&](const std::string& text) { absl::StrAppend(&script, "#SBATCH ", text, "\n"); };
  option(absl::StrCat("--job-name=", job.name));
  option(absl::StrCat("--nodes=", job.nodes));
  option(absl::StrCat("--ntasks-per-node=", job.tasks_per_node));
  if (job.gpus) option("--gpus-per-task=1");
  option(absl::StrCat("--signal=B:TERM@", job.grace_seconds));
  option("--requeue");
  option("--open-mode=append");
  for (const std::string& further : job.sbatch) option(further);
  absl::StrAppend(&script, "\nrun_file=", ShellWord(job.run_file), "\nout=", ShellWord(job.out),
                  "\nnodes=", job.nodes, "\ntasks_per_node=", job.tasks_per_node, "\nworker_flags=(",
                  job.gpus ? "--device cuda" : "", ")\n", kBody);
  return script;
}

}  // namespace weft
