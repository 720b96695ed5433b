#include "coordinator/core/run_finish.h"

#include "absl/strings/str_cat.h"

namespace weft {

void RunFinish::GoOn(StepEffects& out) {
  RunCheckpoints* const checkpoints = present_.attempt()->checkpoints();
  if (info_->state != RunState::kFinishing) {
    info_->state = RunState::kFinishing;
    if (checkpoints != nullptr) checkpoints->AnnounceEnd(out);
    progress_.Announce(out);
  }
  deadlines_.Finish(out.now);
  if (checkpoints != nullptr && (checkpoints->saving() || checkpoints->validating())) return;
  for (const RunMember& m : present_.members().all()) out.Send(m.session, Finish{info_->id});
}

void RunFinish::GoOnWithoutValidations(StepEffects& out, const std::string& cause) {
  present_.attempt()->checkpoints()->GiveUpValidations(cause);
  GoOn(out);
}

bool RunFinish::HasResults() const {
  if (info_->state != RunState::kFinishing) return false;
  const RunCheckpoints* const checkpoints = present_.attempt()->checkpoints();
  return checkpoints == nullptr || !checkpoints->saving();
}

bool RunFinish::Take(StepEffects& out, SessionId from, Finished& m) {
  progress_.Take(out, from, m.ranks);
  present_.members().Find(from)->finished = true;
  return present_.members().AllFinished();
}

bool RunFinish::Without(StepEffects& out, RunMember& member, const std::string& reason) {
  member.finished = true;
  RunCheckpoints* const checkpoints = present_.attempt()->checkpoints();
  if (checkpoints != nullptr && checkpoints->validating()) {
    if (&member == &present_.members().at(0))
      checkpoints->GiveUpValidations(absl::StrCat(member.label, " was lost: ", reason));
    GoOn(out);
  }
  progress_.Announce(out);
  return present_.members().AllFinished();
}

}  // namespace weft
