#include "coordinator/core/run_restore.h"

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

void SetLastStep(const RestoreRun& restored, RunInfo* info) {
  if (restored.stored.steps.empty()) return;
  const StepDone& last = restored.stored.steps.back();
  info->steps_done = last.step + 1;
  info->loss = last.loss;
  info->has_loss = last.has_loss;
}

bool IsValidated(const RunPlan& plan, const RunFigures& figures) {
  return plan.checkpoint.validate_every == 0 || figures.validated >= plan.steps;
}

}  // namespace

void NoteUnvalidatedEnd(const RunPlan& plan, RunInfo* info) {
  const bool validated = info->validation.has_value() && info->validation->step >= plan.steps;
  if (plan.checkpoint.validate_every == 0 || validated) return;
  info->validation_failure = absl::StrCat("the weights after step ", plan.steps,
                                          " were not validated: the coordinator was started again");
  ++info->failed_validations;
}

RestoredState TakeUp(const RestoreRun& restored, const RunSubmission& submission, RunInfo* info) {
  SetLastStep(restored, info);
  info->reports.clear();
  info->members.clear();
  info->member_of_rank.clear();
  const bool has_begun = info->state >= RunState::kPreparing || info->started_ns != 0 || info->restarts > 0 ||
                         restored.stored.figures.epoch != 0;
  const bool finishes = info->state == RunState::kFinishing;
  const RunFigures& figures = restored.stored.figures;
  const bool under_way = restored.stored.under_way();
  info->state = RunState::kWaiting;
  if (!submission.has_plan()) return {has_begun, RunEnding{RunState::kFailed, restored.failure}};
  if (info->stop_step >= 0) {
    const std::string stopped = absl::StrCat(info->reason, "; the coordinator was started again");
    return {has_begun, RunEnding{RunState::kCancelled, stopped}, under_way};
  }
  const RunPlan& plan = submission.plan();
  const bool saved = submission.output().empty() ? finishes : info->checkpoint_step >= plan.steps;
  // The processes' last figures are lost, where nothing else is awaited.
  if (info->steps_done >= plan.steps && saved)
    return {has_begun, RunEnding{RunState::kFinished, ""}, under_way && !IsValidated(plan, figures)};
  info->reason = "the coordinator was started again";
  return {has_begun, std::nullopt, under_way};
}

}  // namespace weft
