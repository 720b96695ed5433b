// Finishes a run whose jobs are all done, so that nothing of its results is missing when it ends.
//
// last checkpoint saved --> validations done --> Finish to every process --> last figures from every process
//
// A loss before the checkpoint is complete ends the attempt, as at any time. From then on the run has its
// results: a process that is lost takes away its last figures, and the validations if they are its own, but
// not the run (HasResults, Without).
//
// Invariants: Finish goes out only while no checkpoint and no validation is under way. The run has finished
// when each process has reported its last figures, or is lost.
//
// Run (run.h) owns it, and ends with it. Refers to the present attempt, the progress, the deadlines and the
// info of that run. Not movable; pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_FINISH_H_
#define WEFT_COORDINATOR_CORE_RUN_FINISH_H_

#include <string>

#include "coordinator/core/present_attempt.h"
#include "coordinator/core/run_deadlines.h"
#include "coordinator/core/run_progress.h"
#include "coordinator/core/step_effects.h"

namespace weft {

class RunFinish {
 public:
  RunFinish(PresentAttempt& present, RunProgress& progress, RunDeadlines& deadlines, RunInfo* info)
      : present_(present), progress_(progress), deadlines_(deadlines), info_(info) {}
  RunFinish(const RunFinish&) = delete;
  RunFinish& operator=(const RunFinish&) = delete;

  // Begins, or goes on after a checkpoint or validation: tells the processes to finish once none is under
  // way. Requires an attempt whose jobs are all done.
  void GoOn(StepEffects& out);
  // Goes on without the validations that are not done, because nobody waits for them.
  void GoOnWithoutValidations(StepEffects& out, const std::string& cause);
  // Returns true if all steps are made and their checkpoint, if there is to be one, is complete.
  bool HasResults() const;

  // Take the last figures of a process, or that there will be none: it is lost. Return true if the run has
  // finished. The second requires HasResults.
  bool Take(StepEffects& out, SessionId from, Finished& m);
  bool Without(StepEffects& out, RunMember& member, const std::string& reason);

 private:
  PresentAttempt& present_;
  RunProgress& progress_;
  RunDeadlines& deadlines_;
  RunInfo* const info_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_FINISH_H_
