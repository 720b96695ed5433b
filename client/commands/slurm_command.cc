#include "client/commands/slurm_command.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/files/absolute_path.h"
#include "client/files/run_file.h"
#include "client/slurm/slurm_script.h"

namespace weft {

ExitCode RunSlurm(const SlurmOptions& options) {
  const auto run = ReadScheduledRun(options.file, RunFileData::kElsewhere, nullptr);
  if (!run.ok()) return Fail(kExitBadConfiguration, run.status().message());
  for (const std::string& option : options.sbatch) {
    if (!absl::StartsWith(option, "-") || absl::StrContains(option, '\n'))
      return Fail(kExitUsage,
                  absl::StrCat("--sbatch takes an option of sbatch, as --sbatch=--time=12:00:00, and not \"",
                               option.substr(0, 64), "\""));
  }
  SlurmJob job;
  job.name = run->spec.name;
  job.run_file = AbsolutePath(options.file);
  job.out = AbsolutePath(options.out.empty() ? absl::StrCat("out/", run->spec.name) : options.out);
  job.nodes = options.nodes;
  if (run->schedule == nullptr) {
    return Fail(kExitBadConfiguration, absl::StrCat(options.file, " names no schedule; weft plan makes one"));
  }
  const int ranks = run->schedule->scheme.ranks;
  job.tasks_per_node =
      options.tasks_per_node > 0 ? options.tasks_per_node : (ranks + job.nodes - 1) / job.nodes;
  if (job.nodes * job.tasks_per_node > ranks) {
    return Fail(kExitUsage, absl::StrCat(run->spec.name, " has ", ranks, ranks == 1 ? " rank" : " ranks",
                                         ", and ", job.nodes, " nodes with ", job.tasks_per_node,
                                         " tasks each are more: some would do nothing"));
  }
  job.gpus = options.gpus;
  job.grace_seconds = options.grace;
  job.sbatch = options.sbatch;
  return PrintData(SlurmScript(job));
}

}  // namespace weft
