// Keeps what a run was submitted with, and makes of it the plan and the specification of each attempt.
//
// An attempt that goes on behind the run's first step has another plan, without the steps that are made, and
// another specification, which names the checkpoint. Only another schedule changes what is kept here; what
// tells a repeated submission stays even then, and when a run that has ended drops the large parts.
//
// Run (run.h) owns it. A value; pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_SUBMISSION_H_
#define WEFT_COORDINATOR_CORE_RUN_SUBMISSION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "coordinator/core/events.h"
#include "coordinator/core/run_plan.h"

namespace weft {

class RunSubmission {
 public:
  // Take the parts of a new run, or of one that is stored.
  explicit RunSubmission(SubmitRun& submitted);
  explicit RunSubmission(RestoreRun& restored);

  const std::string& request() const { return request_; }
  uint64_t body_hash() const { return body_hash_; }
  const std::string& run_id() const { return run_id_; }
  // Returns the place where the run saves checkpoints until it has ended; "" if it saves none.
  const std::string& output() const { return output_; }
  // Returns true if the run has a plan: it has not ended, and can go on.
  bool has_plan() const { return plan_ != nullptr; }
  // Returns the plan of the whole run. Requires has_plan().
  const RunPlan& plan() const { return *plan_; }
  const std::shared_ptr<const RunPlan>& shared_plan() const { return plan_; }

  // Return the plan and the specification of an attempt that begins with the step: with a checkpoint, or with
  // copies of it that processes keep. Require has_plan().
  std::shared_ptr<const RunPlan> PlanFrom(int32_t step, ReductionMode reduction) const;
  std::string SpecFrom(int32_t step, bool with_copies) const;

  // Takes another schedule in the place of the run's.
  void Replan(ReplanRun&& replan);
  // Forgets the links that the run has left: its ranks will be elsewhere.
  void ForgetLinks() { left_links_.clear(); }
  // Returns the JSON of the schedule that took the place of the submitted one; "" for none.
  const std::string& schedule() const { return schedule_; }
  // Returns the slow links that the run has left, as AttemptRecord has them.
  const std::string& left_links() const { return left_links_; }

  // Drops what only a run needs that has not ended.
  void End();

 private:
  void DropOutputOfNone();

  std::string request_;
  uint64_t body_hash_;  // hash of the submission, to tell a repeated request from another one
  std::shared_ptr<const RunPlan> plan_;
  std::string spec_;
  std::string schedule_;    // JSON, where it is not the submitted one
  std::string left_links_;  // of that schedule
  std::string output_;
  std::string run_id_;
};

// Returns the info of a run that has just been submitted.
RunInfo NewRunInfo(uint64_t id, int32_t processes, int64_t now, const SubmitRun& submission);

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_SUBMISSION_H_
