// WorkerCore: what this process does for checkpoints and validations.
#include <utility>

#include "worker/core/worker_run.h"

namespace weft {

// Adds the stages, or slices of them, that the process has in the snapshot, and returns their number; -1 if
// one of their updates has begun.
int WorkerCore::AddPieces(int step) {
  Run& run = *run_;
  if (step - 1 < run.progress.first_step() || step >= run.steps || run.snapshots.count(step) != 0) return -1;
  int pieces = 0;
  for (int i = 0; i < run.progress.jobs().size(); ++i) {
    const JobId id = MakeJobId(step - 1, i);
    const Job job = run.JobOf(id);
    if (job.kind != JobKind::kUpdate || !run.IsLocal(run.RankAt(id)) || !run.IsSaved(job)) continue;
    if ((run.FlagsOf(id) & (kQueued | kDone)) != 0) return -1;
    ++pieces;
  }
  return pieces;
}

void WorkerCore::OnTakeSnapshot(const TakeSnapshot& take, WorkerEffects* out) {
  if (!run_ || take.run != run_->assignment.run || run_->failed) return;
  Run& run = *run_;
  if (take.step == run.steps) {
    out->push_back(SaveEffect{take.step});
    return;
  }
  const int pieces = AddPieces(take.step);
  if (pieces < 0) return OnSnapshotSaved(take.step, "it was announced too late", out);
  if (pieces == 0) return OnSnapshotSaved(take.step, "", out);
  run.snapshots[take.step] = pieces;
  if (run.graph.route() == nullptr) run.versions->AddSnapshot(take.step);
  out->push_back(SnapshotEffect{take.step, pieces});
}

void WorkerCore::OnSnapshotSaved(int step, const std::string& failure, WorkerEffects* out) {
  if (!run_ || run_->failed) return;
  out->push_back(SendEffect{SnapshotSaved{run_->assignment.run, step, failure}});
}

void WorkerCore::OnSealed(int step, const std::string& failure, WorkerEffects* out) {
  if (!run_ || run_->failed) return;
  out->push_back(SendEffect{CheckpointSealed{run_->assignment.run, step, failure}});
}

void WorkerCore::OnValidation(Validation validation, WorkerEffects* out) {
  if (!run_ || run_->failed) return;
  out->push_back(SendEffect{std::move(validation)});
}

}  // namespace weft
