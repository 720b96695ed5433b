// Decides which snapshots of one run are due, and keeps those that are under way: which is announced next,
// and what is still awaited of each.
//
// A snapshot of step k is the state that k updates have made. It has to be announced to every process before
// any job of a step from k - lead on is granted to it: then no process has made version k, or dropped an
// older version that belongs to the snapshot. So a snapshot takes no pause: jobs of other steps run on.
//
// No multiple of `every: N` steps is left out: where the disk is too slow, steps wait (hold). The lead is
// one step where each holder reads every version by itself until the last job that needs it; else as many
// steps as micro-batches may read old weights. A state that migrates comes to jobs of step k on its way to
// the update that makes version k, so that step may not wait for that snapshot. One snapshot is under way at
// a time, unless they are due closer together than lead and overlap; then as many are as that takes.
//
// Weights that are to be validated take the same way. Their snapshot is a checkpoint too where one falls on
// the step, else it passes: it goes when the validation is done. Validations are made one after the other,
// beside the training. No multiple is left out here either: the next snapshot that is to be validated waits
// until at most one validation is not done, and steps wait for it (hold). Behind the step at which a run is
// stopped before its end nothing is validated; a run that goes on there does it first.
//
// It sends nothing: run_checkpoints.h owns it, and sends the messages that its answers call for. Pure.
#ifndef WEFT_COORDINATOR_CORE_CHECKPOINTS_H_
#define WEFT_COORDINATOR_CORE_CHECKPOINTS_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/run_plan.h"
#include "proto/session/messages.h"
#include "schedules/sync/saving.h"

namespace weft {

class Checkpoints {
 public:
  Checkpoints(const RunPlan& plan, int members);

  // Notes that the run begins to make steps.
  void Begin(int64_t now);

  // Returns the step whose snapshot is to be announced now, if there is one; asked again after Announce.
  // `granted_end` and `reach` as in WorkQueue.
  std::optional<int32_t> Due(int64_t now, int32_t granted_end, int32_t reach);
  void Announce(int32_t step, int64_t now);
  // Returns the step from which on no job may be granted yet.
  int32_t hold() const;
  // Returns when Due should be asked though nothing happened; INT64_MAX for never.
  int64_t next_due() const;

  // Ends the run with a checkpoint of the step `least` or a later one: one that is under way, or the next
  // that can be announced. Returns its step, or that of the run's own end.
  int32_t Stop(int32_t granted_end, int32_t least = 0);
  std::optional<int32_t> stop_step() const { return stop_step_; }
  // Notes that snapshots up to this step are over: none of them is due again.
  void TakeUpSealed(int32_t step) { announced_ = std::max(announced_, std::min(step, end_step_ - 1)); }
  // Takes up a snapshot that was announced under a coordinator before. `asked` are the words with which its
  // sealing was asked for, if it was.
  void TakeUp(int32_t step, int64_t now, const SealCheckpoint* asked);
  // Notes that the run ends with the checkpoint of the step.
  void TakeUpStop(int32_t step);
  // Returns by how many steps a snapshot is announced before its own.
  int32_t lead() const { return lead_; }
  bool IsUnderWay(int32_t step) const { return Find(step) != nullptr; }

  // Returns, once all members have answered, the first failure; "" if there was none.
  std::optional<std::string> Saved(int member, int32_t step, const std::string& failure);
  // Return, of a snapshot under way, whether it is dropped once its weights have been validated, and whether
  // they are to be validated.
  bool Passes(int32_t step) const;
  bool Validates(int32_t step) const;
  // Returns when the snapshot of the step, which is under way, was announced.
  int64_t AnnouncedAt(int32_t step) const { return Find(step)->announced_ns; }
  // Notes that it is complete or dropped. Returns false if it was not under way.
  bool Sealed(int32_t step);

  // Adds weights that stay aside to be validated: those of the snapshot that was sealed, or those with
  // which the run goes on.
  void AddValidation(int32_t step) { validations_.push_back({step, false}); }
  bool ResumesWithValidation() const { return first_step_ > 0 && IsValidated(first_step_); }
  // Returns the validation that is to begin now, if there is one.
  std::optional<int32_t> BeginValidation();
  // Returns false if it has not begun.
  bool IsValidating(int32_t step) const;
  void Validated() { validations_.pop_front(); }
  bool validating() const { return !validations_.empty(); }
  int32_t oldest_validation() const { return validations_.front().step; }

  bool idle() const { return under_way_.empty(); }
  // The oldest that is under way, and the members that have not saved it; none if all have.
  int32_t oldest() const { return under_way_.front().step; }
  std::vector<int> Awaited() const;

 private:
  struct Snapshot {
    int32_t step = 0;
    int64_t announced_ns = 0;
    std::vector<bool> saved;  // by member
    std::string failure;
    bool checkpoint = true;              // else it passes
    bool sealing = false;                // all members have answered
    std::optional<bool> validates = {};  // as its sealing was asked for
  };
  struct Pending {
    int32_t step = 0;
    bool begun = false;
  };
  Snapshot* Find(int32_t step);
  const Snapshot* Find(int32_t step) const { return const_cast<Checkpoints*>(this)->Find(step); }
  bool IsCheckpoint(int32_t step, int64_t now) const;
  bool IsValidated(int32_t step) const;
  // Returns the next multiple that has not been announced; end_step_ for none.
  int32_t NextMultiple() const;

  const CheckpointRule rule_;
  const int32_t lead_;
  const int32_t overlap_;  // steps from k on of which jobs come before version k
  const int32_t first_step_, end_step_;
  const int members_;
  int32_t announced_;  // the newest step of a periodic one
  int64_t next_ns_ = INT64_MAX;
  std::optional<int32_t> stop_step_;
  std::vector<Snapshot> under_way_;  // ascending
  std::deque<Pending> validations_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_CHECKPOINTS_H_
