// Counts the attempts of one run, and says where the next one begins.
//
// A run that loses a process begins again, with the processes that are there, from the newest complete
// checkpoint that it has made, or from copies in memory (run_copies.h); before that, from where the run
// itself began. A checkpoint that proves damaged when an attempt reads it is forgotten: the next attempt
// begins at the one before. This does not count as a loss, because there are only so many checkpoints. Bits
// do not depend on it: the steps that are made again have the values that they had (docs/design/recovery.md).
//
// It also keeps the ranks' figures of the attempts that are over, because a worker counts from its assignment
// on. The time between an attempt's last report, or its assignment where there was none, and the next
// assignment is idle time with the cause `recovery`.
//
// Run (run.h) owns it. A value; pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_ATTEMPTS_H_
#define WEFT_COORDINATOR_CORE_RUN_ATTEMPTS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/records.h"
#include "proto/session/loss_count.h"
#include "proto/session/messages.h"

namespace weft {

class RunAttempts {
 public:
  // `allowed`: losses in a row that do not end the run (loss_count.h). `keep`: how many checkpoints stay on
  // the disk.
  RunAttempts(int32_t allowed, int32_t keep) : losses_(allowed), keep_(keep) {}

  // Notes that an attempt of so many ranks is assigned to processes.
  void Assigned(int64_t now, int ranks);
  // Notes the complete checkpoint of the step.
  void Checkpointed(int32_t step);

  // Takes up a run whose coordinator was started again, with its other figures. The restart does not count as
  // a loss.
  void Restore(const RunInfo& info, const RunFigures& figures);

  // Takes up the attempt under way among them, with the reports that have come of it.
  void TakeUp(const AttemptRecord& attempt);

  // Returns true if the run may begin again behind so many steps done in all, and counts that.
  bool MayRestart(int32_t steps_done);
  // Forgets the newest checkpoint if it is of that step: it is damaged. Returns true if the run begins again
  // with the one before, and counts that.
  bool FallBack(int32_t damaged_step);
  // Has the attempts from now on watch the steps before this one (Assign).
  void Watch(int32_t step) { watched_before_ = step; }
  int32_t watched_before() const { return watched_before_; }
  // Counts an attempt that begins for another reason than a loss.
  void Relocated() { ++restarts_; }
  // Keeps the report of a rank in the present attempt, which has the figures of the former ones.
  void Keep(RankReport report);
  // Ends the attempt.
  void End() { former_ = present_; }

  // Returns the number of attempts that ended so that another one may begin.
  int32_t restarts() const { return restarts_; }
  const LossCount& losses() const { return losses_; }
  int32_t allowed() const { return losses_.allowed(); }
  // Returns the step of the newest checkpoint that is complete and not known as damaged; -1 for none.
  int32_t checkpoint_step() const { return checkpoints_.empty() ? -1 : *checkpoints_.rbegin(); }
  // Returns the steps of the newest such checkpoints, ascending; so few that a record of them stays small.
  std::vector<int32_t> Checkpoints() const;

  // Returns the figures of the attempts before the present one, by rank.
  std::vector<RankReport> Former() const;
  // Returns the last report of each rank, by rank.
  std::vector<RankReport> Reports() const;
  // Adds the figures of the former attempts to the report of a rank in the present one.
  void AddFormer(RankReport* report) const;

 private:
  LossCount losses_;
  const int32_t keep_;
  int32_t restarts_ = 0, watched_before_ = 0;
  std::set<int32_t> checkpoints_;  // steps of the newest
  bool assigned_ = false;          // true once an attempt was
  int64_t first_assigned_ns_ = 0;
  std::map<Rank, RankReport> former_, present_;  // both with the figures of all attempts before
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_ATTEMPTS_H_
