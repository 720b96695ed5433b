#include "coordinator/core/run_finish.h"

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr char kToldToStop[] = "the run was told to stop";

}  // namespace

std::optional<RunEnding> RunFinish::GoOn(StepEffects& out) {
  TellToFinish(out);
  if (!failures_.any() || !HasResults()) return std::nullopt;
  const std::string what =
      absl::StrCat("failed before the last checkpoint was complete: ", failures_.first().what);
  failures_.Clear();
  std::optional<RunEnding> ending;
  for (const RunMember& m : present_.members().all()) {
    if (m.failed && !ending.has_value()) ending = Without(out, *present_.members().Find(m.session), what);
  }
  return ending;
}

void RunFinish::TellToFinish(StepEffects& out) {
  RunCheckpoints* const checkpoints = present_.attempt()->checkpoints();
  if (info_->state != RunState::kFinishing) {
    info_->state = RunState::kFinishing;
    if (present_.attempt()->ends()) checkpoints->GiveUpValidations(kToldToStop);
    if (checkpoints != nullptr) checkpoints->AnnounceEnd(out);
    progress_.Announce(out);
  }
  deadlines_.Finish(out.now);
  if (checkpoints != nullptr && (checkpoints->saving() || checkpoints->validating())) return;
  for (const RunMember& m : present_.members().all()) out.Send(m.session, Finish{info_->id});
}

std::optional<RunEnding> RunFinish::GoOnWithoutValidations(StepEffects& out) {
  present_.attempt()->checkpoints()->GiveUpValidations(kToldToStop);
  return GoOn(out);
}

bool RunFinish::HasResults() const {
  if (info_->state != RunState::kFinishing) return false;
  const RunCheckpoints* const checkpoints = present_.attempt()->checkpoints();
  return checkpoints == nullptr || !checkpoints->saving();
}

std::optional<RunEnding> RunFinish::Ended() const {
  if (!present_.members().AllFinished()) return std::nullopt;
  return RunEnding{RunState::kFinished, ""};
}

std::optional<RunEnding> RunFinish::Take(StepEffects& out, SessionId from, Finished& m) {
  progress_.Take(out, from, m.ranks);
  present_.members().Find(from)->finished = true;
  return Ended();
}

std::optional<RunEnding> RunFinish::Without(StepEffects& out, RunMember& member, const std::string& what) {
  if (member.finished) return std::nullopt;
  member.finished = true;
  RunCheckpoints* const checkpoints = present_.attempt()->checkpoints();
  if (checkpoints != nullptr && checkpoints->validating()) {
    if (&member == &present_.members().first())
      checkpoints->GiveUpValidations(absl::StrCat(member.label, " ", what));
    TellToFinish(out);
  }
  progress_.Announce(out);
  return Ended();
}

}  // namespace weft
