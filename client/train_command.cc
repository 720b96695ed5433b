#include "client/train_command.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/local_training.h"
#include "client/reference_training.h"
#include "client/run_file.h"
#include "client/train_results.h"
#include "proto/run/run_schedule.h"
#include "worker/shell/compute/training_state.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

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

std::string Absolute(const std::string& path) { return fs::absolute(path).lexically_normal().string(); }

// Which of the file's steps the run makes, and that it can.
absl::Status ChooseSteps(const TrainOptions& options, RunSpec* spec) {
  spec->until = options.until;
  if (!options.resume.empty()) {
    const auto step = ResumeStep(Absolute(options.resume));
    if (!step.ok()) return absl::InvalidArgumentError(absl::StrCat("--resume: ", step.status().message()));
    spec->resume = {Absolute(options.resume), *step};
  }
  // What is wrong is said of `until` or `resume`, as the flags are called.
  const absl::Status valid = ParseRunSpec(ToJson(*spec)).status();
  if (!valid.ok()) return absl::InvalidArgumentError(absl::StrCat("--", valid.message()));
  if (options.resume.empty()) return absl::OkStatus();
  const absl::Status fits = CheckResume(*spec);
  return fits.ok() ? fits : absl::InvalidArgumentError(absl::StrCat("--resume: ", fits.message()));
}

}  // namespace

ExitCode RunTrain(const TrainOptions& options) {
  auto spec = ReadRunFile(options.file);
  if (!spec.ok()) return Fail(kExitBadConfiguration, spec.status().message());
  const absl::Status steps = ChooseSteps(options, &*spec);
  if (!steps.ok()) return Fail(kExitBadConfiguration, steps.message());
  const auto ranks = Ranks(*spec);
  if (!ranks.ok()) return Fail(kExitBadConfiguration, ranks.status().message());
  if (options.processes > *ranks) {
    return Fail(kExitUsage, absl::StrCat("--processes ", options.processes, " is more than the ", *ranks,
                                         " ranks of the schedule ", ToText(spec->schedule)));
  }
  if (const absl::Status device = options.device.Check(); !device.ok()) {
    return Fail(kExitBadConfiguration, device.message());
  }
  LocalTrainingOptions local;
  local.spec = *spec;
  local.processes = options.processes > 0 ? options.processes : std::min(*ranks, Cores());
  local.shown = options.out.empty() ? absl::StrCat("out/", spec->name) : options.out;
  local.out = Absolute(local.shown);
  local.metrics = options.metrics;
  local.device = options.device;
  absl::Status prepared = KeepCheckpoint(local.out, &local.spec.resume);
  if (local.spec.resume.checkpoint != spec->resume.checkpoint)
    PrintMessage(
        absl::StrCat("going on from ", local.spec.resume.checkpoint, ", as it is called from now on"));
  if (prepared.ok()) prepared = PrepareFolder(local.out);
  if (!prepared.ok()) return Fail(kExitBadConfiguration, prepared.message());
  // The reader of our output may leave; the workers must still be ended in order.
  signal(SIGPIPE, SIG_IGN);
  // What gRPC says of connections that end at the end is noise here; a user who wants it can ask for it.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  return options.reference ? TrainReference(local) : TrainLocally(local);
}

}  // namespace weft
