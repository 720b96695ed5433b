// Takes back the processes of an attempt whose coordinator was started again, so that the attempt goes on
// (docs/design/recovery.md).
//
// The store has the attempt as it was assigned, and what has ended since. Each of its processes tells the
// rest (Reattach): how many jobs its ranks were granted, and which snapshots and validations it was asked
// for. Its unsettled messages follow; they wait here until all processes are back, and are then taken as if
// they had come just now. A process counts as back only with the tokens that the attempt gave it.
//
// PresentAttempt (present_attempt.h) owns one while it awaits processes; Run (run.h) decides what becomes of
// an attempt of which one does not come back. A value; pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_RETURN_H_
#define WEFT_COORDINATOR_CORE_RUN_RETURN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/records.h"
#include "coordinator/core/run_checkpoints.h"
#include "coordinator/core/run_failures.h"
#include "coordinator/core/run_members.h"
#include "coordinator/core/worker_table.h"

namespace weft {

class RunReturn {
 public:
  // `until`: time by which all have to be back. `figures`: as they were stored.
  // `otherwise`: how the run ends if not all come back; none if it begins again.
  RunReturn(AttemptRecord record, const RunFigures& figures, std::string run_id, int64_t until,
            std::optional<RunEnding> otherwise);

  const AttemptRecord& record() const { return record_; }
  int64_t until() const { return until_; }
  const std::optional<RunEnding>& otherwise() const { return otherwise_; }
  // Returns true if it awaits the worker of this name, or one with this process number.
  bool Awaits(const std::string& worker) const;
  bool Awaits(int32_t process) const;

  // Takes a process back as a member. Returns why it cannot be; "" if it is.
  std::string Take(const Worker& worker, const Reattach& reattach, RunMembers* members);
  // Returns true once all are back.
  bool complete() const;
  // Returns "1 of 3 processes is back".
  std::string Progress() const;
  // Keeps a message until all are back. Returns false if there are too many.
  bool Defer(SessionId from, FromWorker message);

  // The attempt as all of its processes together know it. Require complete().
  // Steps before this one have ended.
  int32_t ended() const { return ended_; }
  const std::vector<Reattach::HeldRank>& ranks() const { return ranks_; }
  const AskedBefore& asked() const { return asked_; }
  std::vector<std::pair<SessionId, FromWorker>>& deferred() { return deferred_; }

 private:
  int MemberOf(const Worker& worker) const;
  // `first`: it has the first rank.
  void Note(int member, bool first, const Reattach& reattach);

  const AttemptRecord record_;
  const std::string run_id_;
  const int64_t until_;
  const std::optional<RunEnding> otherwise_;
  std::vector<bool> back_;  // by member
  int32_t ended_;
  std::vector<Reattach::HeldRank> ranks_;
  AskedBefore asked_;
  std::vector<std::pair<SessionId, FromWorker>> deferred_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_RETURN_H_
