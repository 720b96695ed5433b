#include "coordinator/shell/restored_runs.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/shell/spec_planner.h"

namespace weft {
namespace {

// Returns the specification of the run's last attempt, which may have another schedule than was submitted.
std::string SpecOf(const StoredRun& run) {
  const std::string& schedule = run.attempt.schedule;
  return schedule.empty() ? run.submission.spec : WithSchedule(run.submission.spec, schedule);
}

absl::StatusOr<std::shared_ptr<const RunPlan>> PlanAgain(const Planner& planner, const std::string& spec) {
  absl::StatusOr<UnplannedRun> run = planner(spec);
  if (!run.ok()) return run.status();
  return run->plan();
}

// Returns true if the folder of a run that has ended gets nothing more: it is complete, or was removed, or is
// another run's. After any other failure the store keeps the steps, and the next start tries again.
bool IsOver(const absl::Status& taken) {
  return absl::IsAlreadyExists(taken) || absl::IsNotFound(taken) || absl::IsFailedPrecondition(taken);
}

// Takes up the output folder of a run that has ended, to write what is missing there. Returns true if the
// folder has then nothing more to get.
bool HasAllInFolder(const StoredRun& run, const Planner& planner, RunRecords* folders) {
  const auto plan = PlanAgain(planner, SpecOf(run));
  if (plan.ok()) return IsOver(folders->Restore(run, **plan));
  const RunInfo& info = run.figures.info;
  const absl::Status ended = folders->EndUnplanned(run, info.state, info.reason);
  return ended.ok() || IsOver(ended);
}

std::string CannotGoOn(const absl::Status& status) {
  return absl::StrCat("the coordinator was started again and cannot go on with it: ", status.message());
}

// Plans a run that goes on, or says why it cannot. The folder of a run that cannot be planned says so too.
// Unavailable if its folder cannot be taken up for a cause that may pass.
absl::Status TakeUp(const Planner& planner, RunRecords* folders, RestoreRun* run) {
  if (!run->stored.attempt.schedule.empty()) run->spec = SpecOf(run->stored);
  auto plan = PlanAgain(planner, SpecOf(run->stored));
  if (!plan.ok()) {
    run->failure = CannotGoOn(plan.status());
    const absl::Status ended = folders->EndUnplanned(run->stored, RunState::kFailed, run->failure);
    return absl::IsUnavailable(ended) ? ended : absl::OkStatus();
  }
  const absl::Status taken = folders->Restore(run->stored, **plan);
  if (absl::IsUnavailable(taken)) return taken;
  if (taken.ok()) {
    run->plan = *std::move(plan);
  } else {
    run->failure = CannotGoOn(taken);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RestoredRuns> RestoreRuns(StoredState&& stored, const Planner& planner, RunRecords* folders,
                                         const std::function<void(size_t taken, size_t runs)>& progress) {
  RestoredRuns restored;
  restored.records.epoch = stored.epoch + 1;
  for (auto& [id, run] : stored.runs) {
    progress(restored.runs.size(), stored.runs.size());
    RestoreRun& restore = restored.runs.emplace_back(RestoreRun{std::move(run)});
    if (!IsFinal(restore.stored.figures.info.state)) {
      if (absl::Status taken = TakeUp(planner, folders, &restore); !taken.ok()) {
        return absl::UnavailableError(
            absl::StrCat("run ", id, " cannot be taken up now: ", taken.message(),
                         "; the store has all runs as they were, so start the coordinator again then"));
      }
      restored.live += restore.plan == nullptr ? 0 : 1;
    } else if (!restore.stored.written && HasAllInFolder(restore.stored, planner, folders)) {
      restored.records.written.push_back(id);
    }
    // The folders have had them; the last says how far the run has come.
    auto& steps = restore.stored.steps;
    if (steps.size() > 1) steps.erase(steps.begin(), steps.end() - 1);
    steps.shrink_to_fit();
    restore.stored.validations = {};
  }
  return restored;
}

}  // namespace weft
