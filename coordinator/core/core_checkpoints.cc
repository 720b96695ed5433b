// Checkpoints in the coordinator's core: announced with the grants, sealed when all processes have saved
// their parts, validated by one of them, and how a run ends with them.
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/coordinator_core.h"

namespace weft {

// Announces snapshots that are due. Returns true if more may be granted now.
bool CoordinatorCore::AnnounceSnapshots(Run& run) {
  if (run.checkpoints == nullptr) return false;
  const int32_t held = run.queue->hold();
  while (const std::optional<int32_t> step =
             run.checkpoints->Due(now_, run.queue->granted_end(), run.queue->reach())) {
    Announce(run, *step);
  }
  run.queue->SetHold(run.checkpoints->hold());
  const bool moved = run.checkpoints->hold() != held;
  run.all_may_grant |= moved;
  return moved;
}

void CoordinatorCore::Announce(Run& run, int32_t step) {
  run.checkpoints->Announce(step, now_);
  for (const RunMember& m : run.members) Send(m.session, TakeSnapshot{run.info.id, step});
}

// Asks the process of the first rank to seal.
void CoordinatorCore::Seal(Run& run, int32_t step, bool drop) {
  const bool validates = !drop && run.checkpoints->Validates(step);
  Send(run.members[0].session, SealCheckpoint{run.info.id, step, run.plan->checkpoint.keep, drop, validates,
                                              run.checkpoints->Passes(step)});
}

// By the same process, which has them, one after the other.
void CoordinatorCore::BeginValidation(Run& run) {
  if (const std::optional<int32_t> step = run.checkpoints->BeginValidation())
    Send(run.members[0].session, Validate{run.info.id, *step});
}

void CoordinatorCore::TellNotValidated(Run& run, int32_t step, const std::string& cause) {
  run.info.validation_failure = absl::StrCat("the weights after step ", step, " were not validated: ", cause);
  ++run.info.failed_validations;
}

void CoordinatorCore::SaveAndCancel(Run& run, const std::string& reason) {
  const bool has_steps =
      run.info.state >= RunState::kRunning && run.queue->steps_done() > run.plan->first_step;
  if (!has_steps || run.checkpoints == nullptr || run.blaming())
    return EndRun(run, RunState::kCancelled, reason);
  if (run.info.state != RunState::kRunning) {
    // It ends by itself, with its last checkpoint. Nobody waits for more.
    if (run.checkpoints->validating())
      TellNotValidated(run, run.checkpoints->oldest_validation(), "the run was told to stop");
    run.checkpoints->EndValidations();
    return BeginFinishing(run);
  }
  run.info.stop_step = run.checkpoints->Stop(run.queue->granted_end());
  run.info.reason = reason;
  Changed(run);
}

// Ends a stopped run, once also the jobs of its steps that the checkpoint did not need have ended, so that
// each of its steps is reported.
void CoordinatorCore::EndStopped(Run& run) {
  if (!run.stop_sealed || run.queue->steps_done() < run.info.stop_step) return Changed(run);
  EndRun(run, RunState::kCancelled, std::string(run.info.reason));
}

// Begins to finish a run whose jobs are all done: first the checkpoint, then the end.
void CoordinatorCore::BeginFinishing(Run& run) {
  if (run.info.state != RunState::kFinishing) {
    run.info.state = RunState::kFinishing;
    if (run.checkpoints != nullptr) Announce(run, run.plan->steps);
    Changed(run);
  }
  run.deadline = now_ + options_.finishing_ns;
  if (run.checkpoints != nullptr && (!run.checkpoints->idle() || run.checkpoints->validating())) return;
  for (const RunMember& m : run.members) Send(m.session, Finish{run.info.id});
}

void CoordinatorCore::OnMessage(Worker& worker, SnapshotSaved& m) {
  Run* run = ServedRun(worker, m.run);
  if (run == nullptr || run->checkpoints == nullptr || run->info.state < RunState::kRunning) return;
  const std::string failure =
      m.failure.empty() ? "" : absl::StrCat(worker.Label(), " could not save it: ", m.failure);
  const auto outcome = run->checkpoints->Saved(run->NumberOf(worker.session), m.step, failure);
  run->deadline =
      now_ + (run->info.state == RunState::kRunning ? options_.progress_ns : options_.finishing_ns);
  if (!outcome.has_value()) return;
  if (!outcome->empty()) run->save_failure = *outcome;
  Seal(*run, m.step, /*drop=*/!outcome->empty());
}

void CoordinatorCore::OnMessage(Worker& worker, CheckpointSealed& m) {
  Run* run = ServedRun(worker, m.run);
  if (run == nullptr || run->checkpoints == nullptr || run->info.state < RunState::kRunning) return;
  const bool passes = run->checkpoints->Passes(m.step), validates = run->checkpoints->Validates(m.step);
  if (run->NumberOf(worker.session) != 0 || !run->checkpoints->Sealed(m.step)) {
    ++probe_.fenced;
    return;
  }
  RunInfo& info = run->info;
  const bool failed = !m.failure.empty();
  if (failed) {
    std::string cause = std::exchange(run->save_failure, "");
    if (cause.empty()) cause = absl::StrCat(worker.Label(), " could not complete it: ", m.failure);
    if (validates) TellNotValidated(*run, m.step, cause);
    if (!passes) {
      info.checkpoint_failure = absl::StrCat("the checkpoint of step ", m.step, " was not saved: ", cause);
      ++info.failed_checkpoints;
    }
  } else {
    if (!passes) info.checkpoint_step = std::max(info.checkpoint_step, m.step);
    if (validates) run->checkpoints->AddValidation(m.step);
    BeginValidation(*run);
  }
  if (run->checkpoints->stop_step() == m.step && info.state == RunState::kRunning) {
    if (failed) absl::StrAppend(&info.reason, "; ", info.checkpoint_failure);
    run->stop_sealed = true;
    EndStopped(*run);
    return;
  }
  if (failed && (m.step == 0 || m.step == run->plan->steps))
    return Fail(*run, std::string(info.checkpoint_failure));
  Changed(*run);
  if (info.state == RunState::kFinishing) BeginFinishing(*run);
}

// What it says on the way only shows that it gets on.
void CoordinatorCore::OnMessage(Worker& worker, Validation& m) {
  Run* run = ServedRun(worker, m.run);
  if (run == nullptr || run->checkpoints == nullptr || run->info.state < RunState::kRunning) return;
  if (run->NumberOf(worker.session) != 0 || !run->checkpoints->IsValidating(m.step)) {
    ++probe_.fenced;
    return;
  }
  const bool running = run->info.state == RunState::kRunning;
  run->deadline = now_ + (running ? options_.progress_ns : options_.finishing_ns);
  if (!m.done()) return;
  run->checkpoints->Validated();
  if (m.failure.empty()) {
    run->info.validation = m;
    effects_.validations.push_back(std::move(m));
  } else {
    TellNotValidated(*run, m.step, absl::StrCat(worker.Label(), ": ", m.failure));
  }
  BeginValidation(*run);
  Changed(*run);
  if (!running) BeginFinishing(*run);
}

}  // namespace weft
