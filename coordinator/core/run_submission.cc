#include "coordinator/core/run_submission.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/submission_hash.h"

namespace weft {

RunSubmission::RunSubmission(SubmitRun& submitted)
    : request_(submitted.request),
      body_hash_(BodyHash(submitted.spec, submitted.processes, submitted.output)),
      plan_(std::move(submitted.plan)),
      spec_(std::move(submitted.spec)),
      output_(submitted.folder.path.empty() ? submitted.output : submitted.folder.live),
      run_id_(std::move(submitted.run_id)) {
  DropOutputOfNone();
}

RunSubmission::RunSubmission(RestoreRun& restored)
    : request_(std::move(restored.stored.submission.request)),
      body_hash_(BodyHash(restored.stored.submission.spec, restored.stored.submission.processes,
                          restored.stored.submission.output)),
      plan_(std::move(restored.plan)),
      spec_(restored.spec.empty() ? std::move(restored.stored.submission.spec) : std::move(restored.spec)),
      schedule_(restored.stored.attempt.schedule),
      left_links_(restored.stored.under_way() ? restored.stored.attempt.left_links : ""),
      output_(std::move(restored.stored.submission.folder.live)),
      run_id_(std::move(restored.stored.submission.run_id)) {
  DropOutputOfNone();
}

void RunSubmission::DropOutputOfNone() {
  if (plan_ != nullptr && plan_->checkpoint.none) output_.clear();
}

std::shared_ptr<const RunPlan> RunSubmission::PlanFrom(int32_t step, ReductionMode reduction) const {
  std::shared_ptr<const RunPlan> plan = step == plan_->first_step ? plan_ : weft::PlanFrom(*plan_, step);
  return reduction == ReductionMode::kFast ? plan->fast : plan;
}

std::string RunSubmission::SpecFrom(int32_t step, bool with_copies) const {
  if (step == plan_->first_step) return spec_;
  return plan_->resumed_spec(with_copies ? "" : absl::StrCat(output_, "/checkpoint-", step), step);
}

void RunSubmission::Replan(ReplanRun&& replan) {
  plan_ = std::move(replan.plan);
  spec_ = std::move(replan.spec);
  schedule_ = std::move(replan.schedule);
  left_links_ = std::move(replan.left_links);
}

void RunSubmission::End() {
  plan_.reset();
  std::string().swap(spec_);
}

RunInfo NewRunInfo(uint64_t id, int32_t processes, int64_t now, const SubmitRun& submission) {
  RunInfo info;
  info.id = id;
  info.run_id = submission.run_id;
  info.name = submission.plan->name;
  info.schedule = submission.plan->schedule;
  info.ranks = submission.plan->ranks();
  info.processes = processes;
  info.steps = submission.plan->steps;
  info.submitted_ns = now;
  info.output = submission.folder.path.empty() ? submission.output : submission.folder.path;
  info.file = submission.file;
  info.terms = submission.terms;
  return info;
}

}  // namespace weft
