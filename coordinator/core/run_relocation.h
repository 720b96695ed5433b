// Lets a run go on with other processes, with any or with those that its ranks were ordered to (weft move),
// or under another schedule on the same ones.
//
// The attempt first stops where no work is lost: behind copies in memory, or else behind the next checkpoint
// that can be announced (docs/design/recovery.md). When it has stopped, the run begins again on the other
// processes. An attempt that has made no step has nothing to lose, and ends at once.
//
// Invariants: an order is taken only if the run goes on behind it without losing work; it holds until one of
// its processes is not there (run_placement.h). A stop for good is not replaced by one that relocates.
// Another schedule is taken only behind the checkpoint that the attempt stopped for it with; an attempt that
// ends otherwise before leaves the run its schedule.
//
// Run (run.h) owns it, and ends as it is told. Refers to the submission, the present attempt, the attempts,
// the progress and the info of that run. Not movable; pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_RELOCATION_H_
#define WEFT_COORDINATOR_CORE_RUN_RELOCATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/events.h"
#include "coordinator/core/present_attempt.h"
#include "coordinator/core/run_attempts.h"
#include "coordinator/core/run_failures.h"
#include "coordinator/core/run_placement.h"
#include "coordinator/core/run_progress.h"
#include "coordinator/core/run_submission.h"

namespace weft {

class RunRelocation {
 public:
  RunRelocation(const RunSubmission& submission, const PresentAttempt& present, RunAttempts& attempts,
                const RunProgress& progress, const RunInfo& info)
      : submission_(submission), present_(present), attempts_(attempts), progress_(progress), info_(info) {}
  RunRelocation(const RunRelocation&) = delete;
  RunRelocation& operator=(const RunRelocation&) = delete;

  const RunPlacement& placement() const { return placement_; }
  // Lets the run take any processes again: one of those that it was ordered to is not there.
  void Forget() { placement_.Forget(); }
  // Takes up the order of an attempt whose coordinator was started again. Requires that its processes are
  // back.
  void TakeUp(const AttemptRecord& attempt) {
    if (attempt.ordered) placement_.Keep(present_.members());
  }

  // Returns OK if the ranks can move now, else why not (runs.proto). `blaming`: a failure waits for its
  // cause.
  absl::Status Check(const std::vector<Rank>& ranks, bool blaming) const;

  // The following two return how the attempt ends, if it does so at once; nothing while it stops, or goes on.
  // Stops the attempt so that the run goes on with other processes: behind the next checkpoint, or behind
  // copies where it saves none. Requires that no failure waits for its cause.
  std::optional<RunEnding> Relocate(StepEffects& out, const std::string& reason);
  // Orders the ranks to a process, unless they are there, and stops the attempt behind copies, or as Relocate
  // does. Requires Check. FailedPrecondition if work would be lost.
  absl::StatusOr<std::optional<RunEnding>> Move(StepEffects& out, const std::vector<Rank>& ranks,
                                                SessionId to, const std::string& reason);

  // Stops the attempt behind the next checkpoint, so that the run goes on there under the other schedule,
  // with its ranks where they are. Does nothing where the run has begun again since, is stopping, lacks a
  // process, cannot stop, or where `blaming`.
  void Replan(StepEffects& out, ReplanRun& replan, bool blaming);
  // Returns the schedule that the attempt which is over has stopped for; none where it did not.
  std::optional<ReplanRun> TakeReplan();

  // Returns true if the run goes on with fewer processes than it was submitted with, and may take in others
  // without losing work: `interval_ns` have passed in this attempt for each time that it has begun again.
  bool MayExpand(int64_t now, int64_t interval_ns) const;

  // Returns how the attempt ends that was told to stop, for good or to relocate; nothing until it has
  // stopped.
  std::optional<RunEnding> Stopped();

 private:
  std::optional<int32_t> StepOfCopies() const;
  std::optional<RunEnding> Stop(StepEffects& out, std::optional<int32_t> step, const std::string& reason);
  RunEnding End(const std::string& reason);

  const RunSubmission& submission_;
  const PresentAttempt& present_;
  RunAttempts& attempts_;
  const RunProgress& progress_;
  const RunInfo& info_;
  RunPlacement placement_;
  std::optional<ReplanRun> replan_;  // that the attempt stops for
  bool stopped_ = false;             // the attempt has stopped as it was told to
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_RELOCATION_H_
