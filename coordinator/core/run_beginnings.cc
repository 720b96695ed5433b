#include "coordinator/core/run_beginnings.h"

#include "absl/strings/str_cat.h"

namespace weft {

RunBeginnings::Beginning RunBeginnings::WithCheckpoint(const RunPlan& plan) const {
  if (plan.resumed_spec == nullptr) return {plan.first_step, std::nullopt};
  return {std::max(attempts_.checkpoint_step(), plan.first_step), std::nullopt};
}

RunBeginnings::Beginning RunBeginnings::Next(const RunPlan& plan, bool saves,
                                             const std::set<SessionId>* processes,
                                             std::optional<ReductionMode> reduction) const {
  Beginning saved = WithCheckpoint(plan);
  if (plan.resumed_spec == nullptr) return saved;
  std::optional<RunCopies::Beginning> kept =
      copies_.Newest(NewestToSkipTo(plan, saves, info_->steps_done), processes);
  const bool same_bits = kept.has_value() && reduction.value_or(kept->reduction) == kept->reduction;
  if (!same_bits || kept->step <= saved.step) return saved;
  const int32_t step = kept->step;
  return {step, std::move(kept)};
}

// Each step is reported, the initial weights are saved, and each multiple is validated, before an attempt
// begins behind it: it does none of that again.
int32_t RunBeginnings::NewestToSkipTo(const RunPlan& plan, bool saves, int32_t steps_done) const {
  const bool saves_first = saves && plan.first_step == 0;
  if (saves_first && attempts_.checkpoint_step() < 0) return plan.first_step;
  const int32_t every = saves ? plan.checkpoint.validate_every : 0;
  if (every == 0) return steps_done;
  const int32_t least = std::max({validated_step_ + 1, plan.first_step, 1});
  const int32_t next = (least + every - 1) / every * every;  // the next to be validated
  return std::min(steps_done, next - 1);
}

bool RunBeginnings::ForgetDamaged(int32_t step) {
  if (step != present_.step) return false;
  if (present_.copies.has_value()) {
    copies_.Forget(step);
    attempts_.Relocated();
    return true;
  }
  if (!attempts_.FallBack(step)) return false;
  info_->checkpoint_step = attempts_.checkpoint_step();
  return true;
}

void RunBeginnings::Tell(const RunPlan& plan, const Beginning& beginning, std::string cause) {
  if (!cause.empty()) cause_ = std::move(cause);
  const char* const where = beginning.step > plan.first_step
                                ? "; the run goes on from its checkpoint of step "
                                : "; the run begins again with step ";
  info_->restart_step = beginning.step;
  info_->restart_reason = beginning.copies.has_value()
                              ? absl::StrCat(cause_, "; the run goes on from the copies of step ",
                                             beginning.step, " that its processes keep")
                              : absl::StrCat(cause_, where, beginning.step);
  info_->reason = info_->restart_reason;
}

}  // namespace weft
