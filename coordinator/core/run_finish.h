// Finishes a run whose jobs are all done, so that nothing of its results is missing when it ends.
//
// last checkpoint saved --> validations done --> Finish to every process --> last figures from every process
//
// A loss or a failure before the checkpoint is complete ends the attempt, as at any time. From then on the
// run has its results: a process that is lost, or has failed, takes away its last figures, and the
// validations if they are its own, but not the run (HasResults, Without). So does one whose reported failure
// still waits for its cause when the checkpoint is complete.
//
// Invariants: Finish goes out only while no checkpoint and no validation is under way. The run has finished
// when each process has reported its last figures, is lost, or has failed.
//
// Run (run.h) owns it, and ends as it is told. Refers to the present attempt, the progress, the failures, the
// deadlines and the info of that run. Not movable; pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_FINISH_H_
#define WEFT_COORDINATOR_CORE_RUN_FINISH_H_

#include <optional>
#include <string>

#include "coordinator/core/present_attempt.h"
#include "coordinator/core/run_deadlines.h"
#include "coordinator/core/run_failures.h"
#include "coordinator/core/run_progress.h"
#include "coordinator/core/step_effects.h"

namespace weft {

class RunFinish {
 public:
  RunFinish(PresentAttempt& present, RunProgress& progress, RunFailures& failures, RunDeadlines& deadlines,
            RunInfo* info)
      : present_(present), progress_(progress), failures_(failures), deadlines_(deadlines), info_(info) {}
  RunFinish(const RunFinish&) = delete;
  RunFinish& operator=(const RunFinish&) = delete;

  // The following return how the run ends, if it does.

  // Begins, or goes on after a checkpoint or validation: tells the processes to finish once none is under
  // way. Requires an attempt whose jobs are all done.
  std::optional<RunEnding> GoOn(StepEffects& out);
  // Goes on without the validations that are not done: the run was told to stop, and nobody waits for them.
  std::optional<RunEnding> GoOnWithoutValidations(StepEffects& out);
  // Takes the last figures of a process.
  std::optional<RunEnding> Take(StepEffects& out, SessionId from, Finished& m);
  // Notes that there will be none: the process "was lost: ..", or "failed: ..". Requires HasResults,
  // unless it has done its part.
  std::optional<RunEnding> Without(StepEffects& out, RunMember& member, const std::string& what);

  // Returns true if all steps are made and their checkpoint, if there is to be one, is complete.
  bool HasResults() const;

 private:
  void TellToFinish(StepEffects& out);
  std::optional<RunEnding> Ended() const;

  PresentAttempt& present_;
  RunProgress& progress_;
  RunFailures& failures_;
  RunDeadlines& deadlines_;
  RunInfo* const info_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_FINISH_H_
