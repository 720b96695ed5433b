// Keeps account of a run's progress, and has it announced and stored.
//
// The watchers of a run get its RunInfo with each change (Announce). The store gets the same, with the
// figures that a restarted coordinator needs (records.h). This class knows the rest of these figures: when
// the first job began, how long the recovery under way takes (recovery_clock.h), and what each process
// reports, to which it adds the attempts that are over (run_attempts.h).
//
// Invariants: what is announced is also stored, in the same Step. The start of the first job only ever gets
// earlier. The times of a recovery are counted once, with the first new step behind it.
//
// Run (run.h) owns it, and tells it of each phase. Refers to the attempts, the present attempt and the info
// of that run. Not movable; pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_PROGRESS_H_
#define WEFT_COORDINATOR_CORE_RUN_PROGRESS_H_

#include <cstdint>
#include <vector>

#include "coordinator/core/present_attempt.h"
#include "coordinator/core/recovery_clock.h"
#include "coordinator/core/run_attempts.h"
#include "coordinator/core/step_effects.h"

namespace weft {

class RunProgress {
 public:
  // `first_start_ns`: start of its first job, if a former coordinator has stored one.
  RunProgress(RunAttempts& attempts, const PresentAttempt& present, RunInfo* info,
              int64_t first_start_ns = INT64_MAX)
      : attempts_(attempts), present_(present), info_(info), first_start_ns_(first_start_ns) {}
  RunProgress(const RunProgress&) = delete;
  RunProgress& operator=(const RunProgress&) = delete;

  // Reports the run's state, and has it stored.
  void Announce(StepEffects& out) const;
  // Has the run's figures stored, of which nobody needs to hear now.
  void Keep(StepEffects& out) const { out.Keep(Figures()); }
  // Returns the info with the ranks' reports so far.
  RunInfo InfoWithReports() const;

  // Note the phases of an attempt: that the one before is over, that one is assigned, and that it runs.
  void Lost(int64_t now) { recovery_.Lost(now); }
  void Assigned(int64_t now) { recovery_.Assigned(now); }
  void Running(StepEffects& out);
  // Notes that the jobs, at least one, are done.
  void JobsDone(int64_t now, const std::vector<Completion>& jobs);
  // Takes the number of steps done, if it has grown, and ends a recovery under way with that.
  void StepsDone(StepEffects& out, int32_t steps_done);
  // Takes the reports of a process: adds the figures of former attempts, hands them on, and keeps those of
  // its own ranks.
  void Take(StepEffects& out, SessionId from, std::vector<RankReport>& reports);

 private:
  RunFigures Figures() const;

  RunAttempts& attempts_;
  const PresentAttempt& present_;
  RunInfo* const info_;
  RecoveryClock recovery_;
  int64_t first_start_ns_;  // INT64_MAX before the first job
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_PROGRESS_H_
