#include "client/commands/train_command.h"

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/files/run_file.h"
#include "client/training/local_training.h"
#include "client/training/reference_training.h"
#include "client/training/run_data.h"
#include "coordinator/record/idle_shares.h"
#include "coordinator/record/output_folder.h"
#include "coordinator/record/run_end.h"
#include "coordinator/record/train_results.h"
#include "run/run_schedule.h"
#include "worker/shell/checkpoint/checkpoint_folders.h"
#include "worker/shell/compute/training_state.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string Absolute(const std::string& path) { return fs::absolute(path).lexically_normal().string(); }

void WarnOfWarmup(const std::string& file, const TrainSpec& train) {
  if (train.lr_schedule.warmup < train.steps || train.lr_schedule.warmup == 0) return;
  PrintMessage(absl::StrCat("warning: ", file, ": train.lr_schedule: the warm-up takes ",
                            train.lr_schedule.warmup, " steps and the run has ", train.steps,
                            ", so it does not reach the full rate"));
}

// Reads the whole checkpoint that the run goes on from, against its checksums: damage is found before
// anything starts, and not by one of the workers.
absl::Status CheckResumedFiles(const ScheduledRun& run) {
  if (run.spec.resume.checkpoint.empty()) return absl::OkStatus();
  const std::vector<StateRule> rules = StateRulesOf(run);
  for (int stage = 0; stage < run.spec.stages(); ++stage) {
    const absl::Status read = SavedStage::Read(run.spec, rules[stage], stage).status();
    if (!read.ok()) return absl::InvalidArgumentError(absl::StrCat("--resume: ", read.message()));
  }
  return absl::OkStatus();
}

ExitCode FailOnFolder(const absl::Status& status) {
  return Fail(absl::IsResourceExhausted(status) ? kExitTryAgain : kExitBadConfiguration, status.message());
}

}  // namespace

absl::Status ChooseSteps(const TrainOptions& options, ScheduledRun* run) {
  RunSpec* spec = &run->spec;
  spec->until = options.until;
  if (!options.resume.empty()) {
    const auto checkpoint = FindCheckpoint(Absolute(options.resume), /*least=*/1);
    if (!checkpoint.ok())
      return absl::InvalidArgumentError(absl::StrCat("--resume: ", checkpoint.status().message()));
    const auto step = ResumeStep(*checkpoint);
    if (!step.ok()) return absl::InvalidArgumentError(absl::StrCat("--resume: ", step.status().message()));
    spec->resume = {*checkpoint, *step};
  }
  // The message is about `until` or `resume`, which are the names of the flags.
  const absl::Status valid = CheckSteps(*spec);
  if (!valid.ok()) return absl::InvalidArgumentError(absl::StrCat("--", valid.message()));
  if (options.resume.empty()) return absl::OkStatus();
  const absl::Status fits = CheckResume(*run);
  return fits.ok() ? fits : absl::InvalidArgumentError(absl::StrCat("--resume: ", fits.message()));
}

ExitCode RunTrain(const TrainOptions& options) {
  auto run = ReadScheduledRun(options.file);
  if (!run.ok()) return Fail(kExitBadConfiguration, run.status().message());
  RunSpec* const spec = &run->spec;
  spec->record_hashes = spec->record_hashes || options.record_hashes;
  const std::string shown = options.out.empty() ? absl::StrCat("out/", spec->name) : options.out;
  const FormerWork former = FormerWorkFor(options.resume, Absolute(shown), options.overwrite);
  // This check comes before the data are read, which may take a while.
  if (const absl::Status free = OutputFolder::CheckFree(Absolute(shown), shown, former); !free.ok())
    return FailOnFolder(free);
  if (const absl::Status data = CheckRunData(options.file, *spec); !data.ok())
    return Fail(kExitBadConfiguration, data.message());
  WarnOfWarmup(options.file, spec->train);
  auto output = OutputFolder::Open(Absolute(shown), shown, former);
  if (!output.ok()) return FailOnFolder(output.status());
  const absl::Status steps = ChooseSteps(options, &*run);
  if (!steps.ok()) return Fail(kExitBadConfiguration, steps.message());
  if (const absl::Status whole = CheckResumedFiles(*run); !whole.ok())
    return Fail(kExitBadConfiguration, whole.message());
  const int ranks = run->schedule->scheme.ranks;
  if (options.processes > ranks) {
    return Fail(kExitUsage, absl::StrCat("--processes ", options.processes, " is more than the ", ranks,
                                         " ranks of the schedule ", ToText(spec->schedule)));
  }
  if (const absl::Status device = options.device.Check(); !device.ok()) {
    return Fail(kExitBadConfiguration, device.message());
  }
  LocalTrainingOptions local;
  local.run = *run;
  local.file = options.file;
  local.processes = options.processes > 0 ? options.processes : std::min(ranks, CoresOfProcess());
  local.spares = options.spares;
  local.output = output->get();
  local.metrics = options.metrics;
  local.device = options.device;
  local.reference = options.reference;
  absl::Status prepared =
      (*output)->replaces() ? absl::OkStatus() : KeepCheckpoint((*output)->path(), &local.run.spec.resume);
  if (local.run.spec.resume.checkpoint != spec->resume.checkpoint)
    PrintMessage(
        absl::StrCat("going on from ", local.run.spec.resume.checkpoint, ", as it is called from now on"));
  if (prepared.ok()) prepared = CheckCheckpointNames((*output)->live());
  if (prepared.ok()) prepared = (*output)->Begin(RecordOf(local.run.spec, local.file, "running"));
  if (!prepared.ok()) return Fail(kExitBadConfiguration, prepared.message());
  // The reader of our output may leave; the workers must still be ended in order.
  signal(SIGPIPE, SIG_IGN);
  // gRPC's messages about connections that end at the end are noise here; a user who wants them can ask for
  // them.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  return options.reference ? TrainReference(local) : TrainLocally(local);
}

}  // namespace weft
