// Counts the attempts of one run, and says where the next one begins.
//
// A run that loses a process begins again, with the processes that are there, from the newest complete
// checkpoint that it has made; before that, from where the run itself began. A checkpoint that proves damaged
// when an attempt reads it is forgotten: the next attempt begins at the one before. That is no loss, because
// there are only so many checkpoints. Bits do not depend on it: the
// steps that are made again have the values that they had (docs/design/recovery.md).
//
// A loss in whose attempt a step has ended that no attempt before had made counts as the first; so a job that
// kills each process that runs it ends the run, and a machine that fails now and then does not.
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

#include "proto/session/messages.h"

namespace weft {

class RunAttempts {
 public:
  // `allowed`: losses in a row, without a new step between them, that do not end the run. `keep`: how many
  // checkpoints stay on the disk.
  RunAttempts(int32_t allowed, int32_t keep) : allowed_(allowed), keep_(keep) {}

  // Notes that an attempt of so many ranks is assigned to processes.
  void Assigned(int64_t now, int ranks);
  // Notes the complete checkpoint of the step.
  void Checkpointed(int32_t step);

  // Returns true if the run may begin again behind so many steps done in all, and counts that.
  bool MayRestart(int32_t steps_done);
  // Forgets the newest checkpoint if it is of that step: it is damaged. Returns true if the run begins again
  // with the one before, and counts that.
  bool FallBack(int32_t damaged_step);
  // Ends the attempt, whose last reports these are.
  void End(const std::map<Rank, RankReport>& reports);

  // Returns the number of attempts that ended with a loss, or with a damaged checkpoint.
  int32_t restarts() const { return restarts_; }
  // Returns the losses since the last new step; at most `allowed`, except when MayRestart said no.
  int32_t losses() const { return losses_; }
  int32_t allowed() const { return allowed_; }
  // Returns the step of the newest checkpoint that is complete and not known as damaged; -1 for none.
  int32_t checkpoint_step() const { return checkpoints_.empty() ? -1 : *checkpoints_.rbegin(); }

  // Adds the figures of the former attempts to the report of a rank in the present one.
  void AddFormer(RankReport* report) const;

 private:
  const int32_t allowed_, keep_;
  int32_t restarts_ = 0, losses_ = 0;
  int32_t furthest_ = -1;          // steps done at the last loss
  std::set<int32_t> checkpoints_;  // steps of the newest
  int64_t first_assigned_ns_ = 0;
  std::map<Rank, RankReport> former_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_ATTEMPTS_H_
