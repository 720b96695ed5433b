#include "client/train_command.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "client/local_training.h"
#include "client/reference_training.h"
#include "client/run_file.h"
#include "client/train_results.h"
#include "proto/run/run_schedule.h"

namespace weft {
namespace {

// Those that this process may use.
int Cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

absl::StatusOr<int> Ranks(const RunSpec& spec) {
  const auto schedule = ScheduleOf(spec);
  if (!schedule.ok()) return schedule.status();
  return schedule->ranks;
}

}  // namespace

ExitCode RunTrain(const TrainOptions& options) {
  const auto spec = ReadRunFile(options.file);
  if (!spec.ok()) return Fail(kExitBadConfiguration, spec.status().message());
  const auto ranks = Ranks(*spec);
  if (!ranks.ok()) return Fail(kExitBadConfiguration, ranks.status().message());
  if (options.processes > *ranks) {
    return Fail(kExitUsage, absl::StrCat("--processes ", options.processes, " is more than the ", *ranks,
                                         " ranks of the schedule ", ToText(spec->schedule)));
  }
  LocalTrainingOptions local;
  local.spec = *spec;
  local.processes = options.processes > 0 ? options.processes : std::min(*ranks, Cores());
  local.shown = options.out.empty() ? absl::StrCat("out/", spec->name) : options.out;
  local.out = std::filesystem::absolute(local.shown).lexically_normal().string();
  local.metrics = options.metrics;
  const absl::Status prepared = PrepareFolder(local.out);
  if (!prepared.ok()) return Fail(kExitBadConfiguration, prepared.message());
  // The reader of our output may leave; the workers must still be ended in order.
  signal(SIGPIPE, SIG_IGN);
  // What gRPC says of connections that end at the end is noise here; a user who wants it can ask for it.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  return options.reference ? TrainReference(local) : TrainLocally(local);
}

}  // namespace weft
