#include "coordinator/core/run_failures.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {

std::optional<RunEnding> RunFailures::Report(StepEffects& out, const RunMember& member, const Failed& m) {
  if (any()) return std::nullopt;
  std::string failed = absl::StrCat(member.label, " failed: ", m.reason);
  if (beginnings_.ForgetDamaged(m.damaged_checkpoint))
    return RunEnding{RunState::kWaiting, failed, RestartCause::kDamagedCheckpoint};
  if (m.non_finite_step >= 0) {
    ++info_->non_finite_steps;
    ++out.counts.non_finite_steps;
    if (MakesOnceMore(m.non_finite_step)) {
      attempts_.Relocated();
      return RunEnding{RunState::kWaiting,
                       absl::StrCat(failed, "; no stage keeps the step's update, and it is made once more"),
                       RestartCause::kNonFinite};
    }
    if (info_->non_finite_step == m.non_finite_step) absl::StrAppend(&failed, "; the step was made twice");
  }
  first_ = {std::move(failed), member.session, m.link_to >= 0, out.now + options_.blame_ns};
  return std::nullopt;
}

// Returns true if a step whose numbers are not finite is made again, and notes that.
bool RunFailures::MakesOnceMore(int32_t step) {
  if (attempts_.allowed() == 0 || step <= info_->non_finite_step) return false;
  info_->non_finite_step = step;
  return true;
}

RunEnding RunFailures::Lose(const RunMember& member, const std::string& reason, const std::string& wrote,
                            const std::vector<Job>& in_hand) {
  const std::string lost = first_.ExplainedBy(member, reason);
  suspects_.Lost({member.label, reason, wrote}, in_hand);
  attempts_.Watch(suspects_.watched_before());
  if (attempts_.allowed() > 0 && suspects_.Poisoned(options_.poison_losses))
    return {RunState::kFailed, suspects_.Describe(), {}, /*quarantined=*/true};
  return EndAttempt(lost, RestartCause::kProcessLost);
}

RunEnding RunFailures::EndAttempt(const std::string& reason, RestartCause cause) {
  if (attempts_.allowed() == 0) return {RunState::kFailed, reason};
  if (attempts_.MayRestart(info_->steps_done)) return {RunState::kWaiting, reason, cause};
  const int32_t times = attempts_.allowed();
  return {RunState::kFailed,
          absl::StrCat(reason, "; before, the run began again ", times, times == 1 ? " time" : " times",
                       " in a row, without a new step between (restarts: ", times, " in the run file)")};
}

}  // namespace weft
