// Follows which processes keep which parts of a run's state in memory, and finds the newest step from which
// the run can go on without a checkpoint.
//
// Behind each step every process keeps what its ranks save, and so does its peer
// (worker/core/state_copies.h). A step is complete when each of its parts is in two processes: then older
// copies may go, and no loss of one process takes it away. To begin an attempt with it, one living process
// for each part is enough. Until the next step is complete no process gets far ahead (hold), which bounds the
// copies.
//
// PresentAttempt (present_attempt.h) owns it, for all attempts of a run: copies outlive the attempt that made
// them. Invariants: copies of different epochs are never mixed; what is reported of an epoch that is not the
// present one changes nothing, but for copies that are known. Pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_COPIES_H_
#define WEFT_COORDINATOR_CORE_RUN_COPIES_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "coordinator/core/events.h"
#include "schedules/graph/graph.h"

namespace weft {

class RunCopies {
 public:
  // A step with which an attempt can begin, and a process for each part of its state.
  struct Beginning {
    int32_t step = 0;
    uint64_t epoch = 0;
    ReductionMode reduction = ReductionMode::kOrdered;
    std::map<StatePart, SessionId> keepers;
  };

  // Begins an attempt that makes copies. `graph` outlives it.
  void Begin(const Graph& graph, ReductionMode reduction, uint64_t epoch, int32_t first_step);
  // Ends the attempt. The records of copies stay.
  void End() { graph_ = nullptr; }

  // Returns true in an attempt that makes copies.
  bool under_way() const { return graph_ != nullptr; }

  // Takes what a process keeps. Returns false for copies of another attempt that are not known.
  bool Take(SessionId from, const CopiesHeld& m);
  // Takes what a process keeps, and tells a coordinator that was started again: of any attempt, all of whose
  // steps have the same bits where they sum in the same way. `graph` is the run's, for that way.
  void TakeAgain(const Graph& graph, SessionId from, const CopiesHeld& m);
  // Returns the newest complete step of the attempt, if that has changed since the last call: older copies
  // may go.
  std::optional<int32_t> TakeComplete();
  // Returns all who kept any copies when that step became complete.
  const std::set<SessionId>& keepers_then() const { return keepers_then_; }
  // Returns the step from which on no job may be granted yet; INT32_MAX in an attempt that makes no copies.
  int32_t hold() const;
  // Returns a step from which on nothing is granted if nothing is from `granted_end` on, and of which copies
  // will be complete when it is reached. Requires under_way().
  int32_t NextStop(int32_t granted_end) const { return std::max(granted_end, complete_ + 1); }
  // Returns true if the attempt's copies of the step are complete.
  bool HasComplete(int32_t step) const { return under_way() && complete_ >= step; }
  // Returns the newest step up to `most` of which the processes that may serve keep every part.
  std::optional<Beginning> Newest(int32_t most, const std::set<SessionId>* may_serve = nullptr) const;

  // Notes that a process is lost with all that it kept.
  void Lose(SessionId session);
  // Forgets the copies of the step, which proved to be damaged or gone.
  void Forget(int32_t step);
  // Returns the processes that keep any.
  std::set<SessionId> Keepers() const;

 private:
  struct Step {
    ReductionMode reduction = ReductionMode::kOrdered;
    std::map<StatePart, std::set<SessionId>> keepers;  // of each part of the state
  };
  using Key = std::pair<uint64_t, int32_t>;  // epoch and step

  Step& StepWith(const Graph& graph, const Key& key, ReductionMode reduction);
  static void Add(Step* step, SessionId from, const std::vector<StatePart>& parts);
  void FindComplete();

  const Graph* graph_ = nullptr;  // null where no attempt makes copies
  ReductionMode reduction_ = ReductionMode::kOrdered;
  uint64_t epoch_ = 0;
  // Newest step of the attempt that is complete; before there is one, the last without copies.
  int32_t complete_ = 0;
  bool changed_ = false;
  std::set<SessionId> keepers_then_;
  std::map<Key, Step> steps_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_COPIES_H_
