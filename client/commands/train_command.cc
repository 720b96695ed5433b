#include "client/commands/train_command.h"

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/path_text.h"
#include "client/commands/auto_plan.h"
#include "client/files/absolute_path.h"
#include "client/files/run_file.h"
#include "client/files/schedule_file.h"
#include "client/training/local_training.h"
#include "client/training/reference_training.h"
#include "client/training/run_data.h"
#include "coordinator/record/idle_shares.h"
#include "coordinator/record/output_folder.h"
#include "coordinator/record/run_end.h"
#include "coordinator/record/run_entries.h"
#include "coordinator/record/train_results.h"
#include "run/model_layers.h"
#include "run/run_schedule.h"
#include "run/stage_cut.h"
#include "worker/shell/checkpoint/checkpoint_audit.h"
#include "worker/shell/checkpoint/checkpoint_folders.h"
#include "worker/shell/compute/initial_weights.h"
#include "worker/shell/compute/training_state.h"

namespace weft {
namespace {

void WarnOfWarmup(const std::string& file, const TrainSpec& train) {
  if (train.lr_schedule.warmup < train.steps || train.lr_schedule.warmup == 0) return;
  PrintMessage(absl::StrCat("warning: ", file, ": train.lr_schedule: the warm-up takes ",
                            train.lr_schedule.warmup, " steps and the run has ", train.steps,
                            ", so it does not reach the full rate"));
}

// Returns true if a rank has forwards of the first stage only.
bool HasRankOfFirstStageAlone(const Schedule& schedule) {
  std::vector<bool> first(schedule.ranks), other(schedule.ranks);
  for (int s = 0; s < schedule.stages; ++s) {
    for (int b = 0; b < schedule.microbatches; ++b) {
      const Rank rank = schedule.compute(Job::Compute(0, s, b, JobKind::kForward));
      (s == 0 ? first : other)[rank] = true;
    }
  }
  for (int r = 0; r < schedule.ranks; ++r) {
    if (first[r] && !other[r]) return true;
  }
  return false;
}

// Warns of a cut that gives a rank to a tied parameter, which leaves the rank little to do.
void WarnOfTiedStages(const std::string& file, const ScheduledRun& run) {
  const std::vector<LayerCount> layers = CountLayers(run.spec.model);
  const int tied = TiedLayers(layers);
  std::vector<int> cut = run.spec.layers_of_stage;
  if (run.spec.tied_stages > 0 || tied == 0 || cut[0] > tied || cut.size() < 2) return;
  if (!HasRankOfFirstStageAlone(run.schedule->scheme)) return;
  while (cut.size() > 1 && cut[0] <= tied) {
    cut[1] += cut[0];
    cut.erase(cut.begin());
  }
  PrintMessage(absl::StrCat("warning: ", file, ": stages: stage 0 is a tied parameter alone (",
                            layers[0].name, "), so its rank has little to do; with stages: [",
                            absl::StrJoin(cut, ", "), "] it shares the rank of the stage behind it"));
}

void WarnOfRun(const std::string& file, const ScheduledRun& run) {
  WarnOfWarmup(file, run.spec.train);
  WarnOfTiedStages(file, run);
}

// Takes weights that the flag names, in the place of the run file's.
absl::Status TakeWeights(const std::string& path, RunSpec* spec) {
  if (path.empty()) return absl::OkStatus();
  spec->weights = AbsolutePath(path);
  if (auto* exported = std::get_if<ExportedSpec>(&spec->model)) exported->initial = spec->weights;
  const absl::Status fits = CheckInitialWeights(*spec);
  return fits.ok() ? fits : absl::InvalidArgumentError(absl::StrCat("--", fits.message()));
}

absl::Status Resumed(const absl::Status& status) {
  return status.ok() ? status : absl::InvalidArgumentError(absl::StrCat("--resume: ", status.message()));
}

// Returns the checkpoint to go on from: the one that is named, or of a run's output the newest that is whole.
// Damaged ones that are newer are left out, and named.
absl::StatusOr<std::string> FindResumed(const std::string& folder) {
  const auto found = FindWholeCheckpoint(folder, /*least=*/1);
  if (!found.ok()) return found.status();
  for (const std::string& damage : found->left_out)
    PrintMessage(absl::StrCat("--resume leaves out: ", damage));
  if (!found->left_out.empty())
    PrintMessage(absl::StrCat("going on from ", found->folder, ", which is whole"));
  return found->folder;
}

// Reads the checkpoint that was named, against its checksums: damage is found before anything starts, and not
// by one of the workers.
absl::Status CheckNamed(const std::string& folder) {
  const CheckpointAudit audit = AuditCheckpoint({folder}, AuditDepth::kData);
  return audit.damages.empty() ? absl::OkStatus() : absl::DataLossError(audit.damages.front().message);
}

// A training as it was read, and what is left of its planning for the results.
struct TrainedRun {
  ScheduledRun run;
  std::optional<KeptPlan> planned;
  bool may_have_fewer_ranks = false;  // true for `auto`, of which a plan may leave processes without a rank
};

// A plan for the reader of the run file, null for none, and what of it stays with the results.
struct GivenPlan {
  nlohmann::json keys;
  std::optional<KeptPlan> kept;
  bool stands_for_none = false;  // true for the plain loop of a run whose schedule is still to be planned
};

absl::StatusOr<GivenPlan> ReadNamedPlan(const std::string& path) {
  auto kept = ReadKeptPlan(path);
  if (!kept.ok()) return kept.status();
  auto keys = ParsePlan(path, kept->plan);
  if (!keys.ok()) return keys.status();
  return GivenPlan{*std::move(keys), *std::move(kept)};
}

// Returns the plan that needs no planning: the one that was named, or that of the run to go on from; any one
// for the plain loop.
absl::StatusOr<GivenPlan> FindGivenPlan(const TrainOptions& options, bool is_auto) {
  if (!options.plan.empty()) return ReadNamedPlan(options.plan);
  if (!is_auto) return GivenPlan();
  if (options.resume.empty() && options.reference)
    return GivenPlan{PlanOnOneRank(), {}, /*stands_for_none=*/true};
  if (options.resume.empty()) return GivenPlan();
  auto keys = PlanOfCheckpoint(options.resume);
  if (!keys.ok()) return keys.status();
  return GivenPlan{*std::move(keys), {}};
}

// Reads the run file, and plans it where it asks for that. `ready` is asked before anything takes long.
absl::StatusOr<TrainedRun> ReadTraining(const TrainOptions& options,
                                        const std::function<absl::Status(const RunSpec&)>& ready) {
  const auto asked = ReadAutoSchedule(options.file);
  if (!asked.ok()) return asked.status();
  auto given = FindGivenPlan(options, asked->has_value());
  if (!given.ok()) return given.status();
  if (!given->keys.is_null() || !asked->has_value()) {
    auto run = ReadScheduledRun(options.file, RunFileData::kReadable,
                                given->keys.is_null() ? nullptr : &given->keys);
    if (!run.ok()) return run.status();
    // The budget is that of ranks that the plain loop does not have.
    if (given->stands_for_none) run->spec.memory = 0;
    if (absl::Status status = ready(run->spec); !status.ok()) return status;
    return TrainedRun{*std::move(run), std::move(given->kept), asked->has_value() && options.plan.empty()};
  }
  const nlohmann::json alone = PlanOnOneRank();
  RunFileData data = RunFileData::kReadable;
  auto plain = ReadRunFile(options.file, data, &alone);
  if (!plain.ok()) return plain.status();
  if (absl::Status status = ready(*plain); !status.ok()) return status;
  const int ranks = (*asked)->ranks > 0     ? (*asked)->ranks
                    : options.processes > 0 ? options.processes
                                            : CoresOfProcess();
  auto planned = PlanTraining(options.file, *plain, **asked, {ranks, std::min(ranks, options.processes)},
                              options.device);
  if (!planned.ok()) return planned.status();
  PrintMessage(absl::StrCat("schedule: auto chose ", planned->line));
  auto run = ReadScheduledRun(options.file, data, &planned->keys);
  if (!run.ok()) return run.status();
  return TrainedRun{*std::move(run), std::move(planned->kept), true};
}

ExitCode FailOnTraining(const absl::Status& status) {
  if (absl::IsCancelled(status)) {
    PrintMessage(status.message());
    return kExitInterrupted;
  }
  const bool sound = absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status);
  return Fail(sound ? kExitFailed : kExitBadConfiguration, status.message());
}

ExitCode FailOnFolder(const absl::Status& status) {
  return Fail(absl::IsResourceExhausted(status) ? kExitTryAgain : kExitBadConfiguration, status.message());
}

// Prepares this process for a training that it begins and ends.
void PrepareProcess() {
  // The reader of our output may leave; the workers must still be ended in order.
  signal(SIGPIPE, SIG_IGN);
  // gRPC's messages about connections that end at the end are noise here; a user who wants them can ask for
  // them.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
}

}  // namespace

absl::Status ChooseSteps(const TrainOptions& options, ScheduledRun* run) {
  RunSpec* spec = &run->spec;
  spec->until = options.until;
  if (!options.resume.empty()) {
    const auto checkpoint = FindResumed(AbsolutePath(options.resume));
    if (!checkpoint.ok()) return Resumed(checkpoint.status());
    const auto step = ResumeStep(*checkpoint);
    if (!step.ok()) return Resumed(step.status());
    spec->resume = {*checkpoint, *step};
  }
  // The message is about `until` or `resume`, which are the names of the flags.
  const absl::Status valid = CheckSteps(*spec);
  if (!valid.ok()) {
    const std::string message = absl::StrCat("--", valid.message());
    return spec->until > spec->train.steps ? absl::OutOfRangeError(message)
                                           : absl::InvalidArgumentError(message);
  }
  if (options.resume.empty()) return absl::OkStatus();
  const absl::Status fits = CheckResume(*run);
  const bool named = spec->resume.checkpoint == AbsolutePath(options.resume);
  return Resumed(fits.ok() && named ? CheckNamed(spec->resume.checkpoint) : fits);
}

absl::Status CheckProcesses(int processes, const ScheduledRun& run) {
  const int ranks = run.schedule->scheme.ranks;
  if (processes <= ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--processes ", processes, " is more than the ", ranks,
                                                 " ranks of the schedule ", ToText(run.spec.schedule)));
}

namespace {

// Chooses the steps of a run that writes into the folder. Where it goes on in it, checkpoints that lack only
// their names get them first; and a replacement that was killed takes its place, but only once the run has
// accepted one of its checkpoints.
absl::Status ChooseStepsIn(const TrainOptions& options, OutputFolder* output, ScheduledRun* run) {
  if (!output->continues()) return ChooseSteps(options, run);
  SweepPartialCheckpoints(output->path());
  SweepPartialCheckpoints(absl::StrCat(output->path(), "/", kReplacement));
  const std::string replacement = output->KilledReplacement();
  if (replacement.empty()) return ChooseSteps(options, run);
  TrainOptions from = options;
  std::error_code error;
  if (fs::equivalent(AbsolutePath(options.resume), output->path(), error)) from.resume = replacement;
  const std::string found =
      absl::StrCat(output->shown(), "/", kReplacement, " holds ", DescribeWork(replacement),
                   ", which was to replace the run in ", output->shown(), " and was killed");
  if (absl::Status steps = ChooseSteps(from, run); !steps.ok()) {
    return absl::Status(steps.code(),
                        absl::StrCat(steps.message(), "; ", found,
                                     ": give a run file that goes on from it, or move it to another place"));
  }
  PrintMessage(absl::StrCat(found, "; it takes its place now, and the run goes on from it"));
  return output->PlaceReplacement(&run->spec.resume.checkpoint);
}

}  // namespace

ExitCode RunTrain(const TrainOptions& options) {
  std::string shown;
  FormerWork former;
  ExitCode refused = kExitOk;
  // All refusals come before the data are read and before layers are measured.
  const auto ready = [&](const RunSpec& read) {
    shown = options.out.empty() ? absl::StrCat("out/", read.name) : options.out;
    if (absl::Status text = CheckPathText(shown); !text.ok()) return text;
    former = FormerWorkFor(options.resume, AbsolutePath(shown), options.overwrite);
    if (absl::Status free = OutputFolder::CheckFree(AbsolutePath(shown), shown, former); !free.ok()) {
      refused = FailOnFolder(free);
      return free;
    }
    return CheckRunData(options.file, read);
  };
  auto training = ReadTraining(options, ready);
  if (refused != kExitOk) return refused;
  if (!training.ok()) return FailOnTraining(training.status());
  ScheduledRun* const run = &training->run;
  RunSpec* const spec = &run->spec;
  spec->record_hashes = spec->record_hashes || options.record_hashes;
  if (const absl::Status weights = TakeWeights(options.weights, spec); !weights.ok())
    return Fail(kExitBadConfiguration, weights.message());
  WarnOfRun(options.file, *run);
  auto output = OutputFolder::Open(AbsolutePath(shown), shown, former);
  if (!output.ok()) return FailOnFolder(output.status());
  if (const absl::Status steps = ChooseStepsIn(options, output->get(), run); !steps.ok())
    return Fail(absl::IsOutOfRange(steps) ? kExitUsage : kExitBadConfiguration, steps.message());
  const int ranks = run->schedule->scheme.ranks;
  const absl::Status few = CheckProcesses(options.processes, *run);
  if (!few.ok() && !training->may_have_fewer_ranks) return Fail(kExitUsage, few.message());
  if (const absl::Status device = options.device.Check(); !device.ok()) {
    return Fail(kExitBadConfiguration, device.message());
  }
  LocalTrainingOptions local;
  local.run = *run;
  local.file = options.file;
  local.processes = std::min(ranks, options.processes > 0 ? options.processes : CoresOfProcess());
  local.spares = options.spares;
  local.output = output->get();
  local.metrics = options.metrics;
  local.device = options.device;
  local.reference = options.reference;
  local.json = options.json;
  absl::Status prepared =
      (*output)->replaces() ? absl::OkStatus() : KeepCheckpoint((*output)->path(), &local.run.spec.resume);
  if (local.run.spec.resume.checkpoint != spec->resume.checkpoint)
    PrintMessage(
        absl::StrCat("going on from ", local.run.spec.resume.checkpoint, ", as it is called from now on"));
  if (prepared.ok()) prepared = CheckCheckpointNames((*output)->live());
  if (prepared.ok()) prepared = (*output)->Begin(RecordOf(local.run.spec, local.file, "running"));
  if (prepared.ok() && training->planned.has_value())
    prepared = WriteKeptPlan(*training->planned, (*output)->live());
  if (!prepared.ok()) return Fail(kExitBadConfiguration, prepared.message());
  (*output)->KeepReserve();
  PrepareProcess();
  return options.reference ? TrainReference(local) : TrainLocally(local);
}

}  // namespace weft
