// Ends a run with a checkpoint, as it was told to (weft cancel --save), also where a process is lost
// meanwhile.
//
// The attempt under way stops behind the next checkpoint that can be announced (run_attempt.h). If it ends
// before that is complete, or if none is under way, the run begins again as at any time, and the next attempt
// stops behind a checkpoint that has each step that was reported. A run that ends without that checkpoint
// says so, and says which one is the newest.
//
// Invariants: an order holds until the run ends. RunInfo::stop_step is set from the order on, so that a
// coordinator that is started again knows of it; only while the run awaits the processes of an attempt it is
// set when they are back.
//
// Run (run.h) owns it. Refers to the submission, the present attempt and the info of that run. Not movable;
// pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_STOP_H_
#define WEFT_COORDINATOR_CORE_RUN_STOP_H_

#include <string>

#include "coordinator/core/present_attempt.h"
#include "coordinator/core/run_submission.h"

namespace weft {

class RunStop {
 public:
  // Takes up an order that is in the info, as of a former coordinator.
  RunStop(const RunSubmission& submission, const PresentAttempt& present, RunInfo* info)
      : submission_(submission),
        present_(present),
        info_(info),
        reason_(info->stop_step >= 0 ? info->reason : "") {}
  RunStop(const RunStop&) = delete;
  RunStop& operator=(const RunStop&) = delete;

  // Orders the run to end with a checkpoint. Returns false if there is nothing to save, or no place for it.
  bool Order(const std::string& reason);
  bool ordered() const { return !reason_.empty(); }
  // Returns the reason of the order; "" without one.
  const std::string& reason() const { return reason_; }
  // Has the attempt stop, which has begun to run, if that was ordered.
  void Begin();

  // Returns why the run waits, behind the order.
  std::string Explain(const std::string& why) const;
  // Returns why the run ends in that state, and, of an order that was not carried out, what was saved.
  std::string Conclude(RunState state, std::string reason) const;

 private:
  const RunSubmission& submission_;
  const PresentAttempt& present_;
  RunInfo* const info_;
  std::string reason_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_STOP_H_
