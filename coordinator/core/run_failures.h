// Decides what a failure does to a run: whether the run begins again, ends, or waits to learn the cause.
//
// A process reports a failure, or is lost. A report waits `blame_ns` for the loss of another process that
// explains it (first_failure.h); meanwhile the run grants nothing. A lost process ends the attempt, and the
// run begins again as often as it may (run_attempts.h), unless a job ends each process that takes it
// (suspect_jobs.h). Two failures wait for nothing. A checkpoint, or a copy, that proves damaged is forgotten,
// and the run begins with what there is besides. A step with a number that is not finite is made once more.
//
// Invariants: a step is made again for its numbers at most once, and none before one that was.
//
// Run (run.h) owns it, for all of its attempts, and ends as it is told. Refers to the attempts, the
// beginnings and the info of that run. Not movable; pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_FAILURES_H_
#define WEFT_COORDINATOR_CORE_RUN_FAILURES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/core_options.h"
#include "coordinator/core/first_failure.h"
#include "coordinator/core/restart_cause.h"
#include "coordinator/core/run_attempts.h"
#include "coordinator/core/run_beginnings.h"
#include "coordinator/core/run_members.h"
#include "coordinator/core/step_effects.h"
#include "coordinator/core/suspect_jobs.h"

namespace weft {

// The way in which a run, or its attempt, is to end.
struct RunEnding {
  RunState state = RunState::kFailed;  // kWaiting: the run begins again
  std::string reason;
  std::optional<RestartCause> cause = {};  // cause for which the run begins again; none if it does not
  bool quarantined = false;                // true if a job of it is to end no other process
};

class RunFailures {
 public:
  RunFailures(const CoreOptions& options, RunAttempts& attempts, RunBeginnings& beginnings, RunInfo* info)
      : options_(options), attempts_(attempts), beginnings_(beginnings), info_(info) {}
  RunFailures(const RunFailures&) = delete;
  RunFailures& operator=(const RunFailures&) = delete;

  // Takes what a member reports, unless an earlier failure waits for its cause. Returns how the attempt ends;
  // nothing while the cause is sought.
  std::optional<RunEnding> Report(StepEffects& out, const RunMember& member, const Failed& m);
  // Takes the loss of a member with these jobs in hand, which explains a failure that was reported before.
  RunEnding Lose(const RunMember& member, const std::string& reason, const std::string& wrote,
                 const std::vector<Job>& in_hand);
  // Counts an attempt that ends for a lost process or data link. Returns how: the run begins again, or fails
  // if it may not.
  RunEnding EndAttempt(const std::string& reason, RestartCause cause);
  // Notes that the job was done: it is not what ends processes.
  void Done(const Job& job) { suspects_.Done(job); }
  // Forgets the failure of an attempt that is over.
  void Clear() { first_ = {}; }

  // Returns true while a failure waits for its cause.
  bool any() const { return first_.any(); }
  const FirstFailure& first() const { return first_; }

 private:
  bool MakesOnceMore(int32_t step);

  const CoreOptions& options_;
  RunAttempts& attempts_;
  RunBeginnings& beginnings_;
  RunInfo* const info_;
  FirstFailure first_;
  SuspectJobs suspects_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_FAILURES_H_
