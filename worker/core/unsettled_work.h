// Keeps what this process has been asked and has said in the present attempt, as long as the coordinator may
// not have stored it: with that it goes on under a coordinator that was started again
// (docs/design/recovery.md).
//
// A message of the process is settled when the coordinator says so (Settled), which it does once it has
// stored the message. A coordinator that is started again knows nothing of the rest. So the process tells it
// how many jobs each rank has been granted, which snapshots and validations it was asked for, and then
// repeats its unsettled messages. The process's messages count, whatever the former coordinator granted or
// received.
//
// Invariants: completions of unsettled steps are here, or too many were (then the attempt cannot go on under
// another coordinator before they are settled); a request that comes twice is answered again, and not carried
// out again. Memory: at most kMaxJobs completions, of kMaxUnsettledSteps steps. Pure; one thread.
#ifndef WEFT_WORKER_CORE_UNSETTLED_WORK_H_
#define WEFT_WORKER_CORE_UNSETTLED_WORK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "worker/core/worker_effects.h"

namespace weft {

class UnsettledWork {
 public:
  explicit UnsettledWork(const Assign& assign);

  // Notes a message of the run that leaves this process.
  void Sent(const FromWorker& message);
  // Notes that the rank, one of this process, has been granted so many jobs.
  void Granted(Rank rank, size_t jobs) { ranks_[rank].granted += static_cast<int64_t>(jobs); }
  // Note a request. Return false if it was made before: then the answer, if there is one, is given again.
  bool Asked(const TakeSnapshot& take, WorkerEffects* out);
  bool Asked(const SealCheckpoint& seal, WorkerEffects* out);
  bool Asked(const Validate& validate, WorkerEffects* out);
  void Settle(const Settled& settled);

  // Returns true if the attempt can go on under another coordinator.
  bool can_return() const { return prepared_ && settled_.ended >= missing_before_; }
  // Tells it everything. Requires can_return().
  void Tell(WorkerEffects* out) const;

  // More are not settled only where the store stands still.
  static constexpr size_t kMaxJobs = 1 << 18, kMaxHashes = 1 << 18;

 private:
  struct HeldRank {
    Token token;
    int32_t credit = 0;
    int64_t granted = 0;
  };
  struct Snapshot {
    std::optional<SnapshotSaved> saved;
    std::optional<SealCheckpoint> seal;
    std::optional<CheckpointSealed> sealed;
  };
  struct Validating {
    bool begun = false;
    std::optional<Validation> done;
  };
  struct Done {
    Rank rank = 0;
    Completion job;
  };

  void Completed(const Completions& completions);
  void TellJobs(WorkerEffects* out) const;

  const uint64_t run_, epoch_;
  const std::string run_id_;
  bool prepared_ = false;
  int32_t missing_before_ = 0;  // completions of steps before this one are not all here
  std::map<Rank, HeldRank> ranks_;
  std::map<int32_t, std::vector<Done>> jobs_;  // by step
  size_t job_count_ = 0, hash_count_ = 0;      // in jobs_
  std::map<int32_t, Snapshot> snapshots_;      // by step
  std::map<int32_t, Validating> validations_;  // likewise: whose weights are aside
  std::optional<Failed> failed_;
  Settled settled_;  // the last
};

}  // namespace weft

#endif  // WEFT_WORKER_CORE_UNSETTLED_WORK_H_
