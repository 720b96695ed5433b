// Carries the checkpoints and validations of one run through: each is announced to all processes with the
// grants, sealed by the process of the first rank when all have saved their parts, and then perhaps validated
// there.
//
// announced --all SnapshotSaved--> sealing --CheckpointSealed--> complete | dropped
//                                                  \--to be validated--> pending --Validate--> validating -->
//                                                  done
//
// Checkpoints (checkpoints.h) decides when and of which steps; this class sends what that calls for, takes
// the answers, and writes their outcome into the run's RunInfo. Run (run.h) owns it, decides when the run
// begins, stops and ends, and does what an outcome calls for.
//
// Invariants: SealCheckpoint and Validate go to the process of the first rank only, wherever ranks were
// moved, and their answers count only from it; snapshots are sealed one after the other, in the order of
// their steps; an answer about a snapshot or validation that is not under way is counted as fenced and
// changes nothing; a checkpoint is sealed when every step before it has been reported, so that a run that
// goes on from it leaves no step out; a failed checkpoint is reported in RunInfo once. Refers to the plan,
// the members and the info of the run that owns it. Pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_CHECKPOINTS_H_
#define WEFT_COORDINATOR_CORE_RUN_CHECKPOINTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "coordinator/core/checkpoints.h"
#include "coordinator/core/run_members.h"
#include "coordinator/core/step_effects.h"
#include "coordinator/core/work_queue.h"

namespace weft {

// Holds what processes were asked for under a coordinator before, in the same attempt.
struct AskedBefore {
  int32_t sealed = -1, validated = -1;         // the newest steps whose snapshot, whose validation is over
  std::map<int32_t, std::set<int>> snapshots;  // by step: members to whom one was announced
  std::map<int32_t, SealCheckpoint> seals;     // by step: to the first rank's process
  std::set<int32_t> validations;               // steps whose weights that process keeps
};

class RunCheckpoints {
 public:
  RunCheckpoints(const RunPlan& plan, const RunMembers& members, RunInfo* info);

  // Begins with the run's first grants: seals the initial weights, which processes have written to be
  // prepared, and validates the weights with which a run goes on.
  void Begin(StepEffects& out);
  // Goes on, in place of Begin, with what a coordinator before has begun. Requests that are made once more
  // are answered once more.
  void GoOn(StepEffects& out, const AskedBefore& asked);
  // Announces snapshots that are due, and holds the queue before the next, and before the step `hold`.
  // Returns true if more may be granted now.
  bool AnnounceDue(StepEffects& out, WorkQueue* queue, int32_t hold);
  // Announces the snapshot of the run's end, unless it was.
  void AnnounceEnd(StepEffects& out);

  // Chooses the checkpoint with which the run is to end, of the step `least` or a later one, and returns its
  // step.
  int32_t Stop(int32_t granted_end, int32_t least);
  std::optional<int32_t> stop_step() const { return checkpoints_.stop_step(); }
  // Returns true once the checkpoint with which the run is to end is complete, or was dropped.
  bool stop_sealed() const { return stop_sealed_; }
  // Notes that the run was told to stop with the checkpoint of the step.
  void TakeUpStop(int32_t step);
  // Return the newest steps of the attempt whose snapshot, and whose validation, is over; -1 for none.
  int32_t sealed() const { return sealed_; }
  int32_t validated() const { return validated_; }
  // Gives up the validations that are not done, and those that are not begun yet.
  void GiveUpValidations(const std::string& cause);

  // Seals the checkpoints that waited for the steps that have ended now.
  void SealSaved(StepEffects& out);

  // Take the answers of the processes.
  void Take(StepEffects& out, SessionId from, const SnapshotSaved& m);
  enum class Sealing {
    kFenced,  // it was not under way: nothing changed
    kPassed,  // the run goes on
    kStop,    // the run ends with it
    kFatal,   // the first or the last checkpoint failed
  };
  Sealing Take(StepEffects& out, SessionId from, const CheckpointSealed& m);
  enum class Validating { kFenced, kUnderWay, kDone };
  Validating Take(StepEffects& out, SessionId from, Validation& m);

  // Returns true while a snapshot of that step or of one before is not done.
  bool SavesUpTo(int32_t step) const { return !checkpoints_.idle() && checkpoints_.oldest() <= step; }
  // Returns true while a snapshot or a validation is not done.
  bool saving() const { return !checkpoints_.idle(); }
  bool validating() const { return checkpoints_.validating(); }
  int64_t next_due() const { return checkpoints_.next_due(); }
  // Counts the age of the newest checkpoint if the run is late with the next one. `granted_end` as in
  // WorkQueue.
  void Count(int64_t now, int32_t granted_end, Probe* probe) const;

  // Returns "the checkpoint of step 40 from process 1 (..)". Requires saving().
  std::string DescribeSaving() const;
  // Returns "the validation of step 40 from process 1 (..)". Requires validating().
  std::string DescribeValidation() const;
  // Returns "not saved after 60 s: <the same>" about what a run that ends waits for; "" for nothing.
  std::string DescribeLate(const std::string& time) const;

 private:
  void Announce(StepEffects& out, int32_t step);
  void Seal(StepEffects& out, int32_t step, const std::string& failure);
  void BeginValidation(StepEffects& out);
  // Returns true if the run has gone on for more than two intervals since its newest checkpoint.
  bool IsLate(int64_t now, int32_t granted_end) const;
  void RecordNotValidated(int32_t step, const std::string& cause);
  void AddValidation(int32_t step);
  void NoteComplete(StepEffects& out, int32_t step, int64_t announced_ns);
  void RecordSealed(StepEffects& out, const CheckpointSealed& m, bool passes, bool validates,
                    int64_t announced_ns, const std::string& save_failure);

  const RunPlan& plan_;
  const RunMembers& members_;
  RunInfo& info_;
  Checkpoints checkpoints_;
  // Snapshots that all processes have saved, and the failure for which one is to be dropped, by step.
  std::map<int32_t, std::string> saved_;
  std::optional<int32_t> sealing_;  // step of the one that is being sealed or dropped
  int32_t sealed_ = -1, validated_ = -1;
  int64_t newest_ns_ = 0;  // time when the newest checkpoint was complete; before one, when the attempt began
  bool stop_sealed_ = false;
  std::string given_up_;  // cause for which no weights are validated any more; "" for none
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_CHECKPOINTS_H_
