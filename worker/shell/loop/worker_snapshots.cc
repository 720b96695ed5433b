// WorkerLoop: what it writes of the run into checkpoints, and validates.
#include <utility>

#include "worker/shell/loop/worker_loop.h"

namespace weft {

absl::Status WorkerLoop::SaveRank(Slot* slot, const SaveTask& task) {
  for (const int stage : task.stages) {
    if (absl::Status status = slot->compute->Save(stage, task.folder); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// By the ranks' own threads, which have nothing else to do any more.
void WorkerLoop::Save(int step) {
  saving_step_ = step;
  task_status_ = absl::OkStatus();
  pending_tasks_ = static_cast<int>(core_.ranks().size());
  for (const Rank rank : core_.ranks()) {
    Slot* slot = SlotOf(rank);
    SaveTask task;
    if (folders_ != nullptr) task = {slot->saved_stages, folders_->Partial(step)};
    Give(slot, std::move(task));
  }
}

void WorkerLoop::AllSaved(int64_t now) {
  core_.OnSnapshotSaved(saving_step_, std::string(task_status_.message()), &effects_);
  Apply(now, nullptr);
}

void WorkerLoop::Seal(const SealEffect& seal) {
  snapshots_.Seal(core_.run_id(), seal.step, [seal, folders = folders_]() -> absl::Status {
    if (folders == nullptr) return absl::FailedPreconditionError("the run has no output folder");
    if (!seal.drop && seal.passing) return folders->KeepAside(seal.step);
    if (!seal.drop) return folders->Seal(seal.step, seal.keep, seal.validate);
    folders->Drop(seal.step);
    return absl::AbortedError("it was dropped");
  });
}

void WorkerLoop::Validate(int step) {
  validator_.Begin(core_.run_id(), step,
                   [&device = device_, spec = spec_, folders = folders_,
                    step](const EvaluationProgress& on_progress) -> absl::StatusOr<Evaluation> {
                     if (folders == nullptr)
                       return absl::FailedPreconditionError("the run has no output folder");
                     absl::StatusOr<Evaluation> result =
                         device.Validate(*spec, folders->KeptAside(step), on_progress);
                     folders->DropKeptAside(step);
                     return result;
                   });
}

// On the validator's thread.
void WorkerLoop::TellValidation(const Validation& validation) {
  MutexLock lock(mu_);
  if (stop_ || validation.run != core_.run_id()) return;
  core_.OnValidation(validation, &effects_);
  Apply(MonotonicNow(), nullptr);
}

// On the writer's thread.
void WorkerLoop::SnapshotDone(const SnapshotWriter::Done& done) {
  MutexLock lock(mu_);
  if (stop_ || done.run != core_.run_id()) return;
  if (done.sealed) {
    core_.OnSealed(done.step, done.failure, &effects_);
  } else {
    core_.OnSnapshotSaved(done.step, done.failure, &effects_);
  }
  Apply(MonotonicNow(), nullptr);
}

}  // namespace weft
