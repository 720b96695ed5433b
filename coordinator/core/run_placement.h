// Says on which of its processes a run's ranks lie: in equal blocks, or as they were ordered to (weft move),
// or to stay, by a run whose schedule suits the speeds of its ranks.
//
// An order names ranks and a process. All other ranks stay where they are, and a process that is left without
// ranks leaves the run. The order holds for the attempts of the run that follow, as long as all of its
// processes are there, also when they come back to a coordinator that was started again. Without one of them
// the run takes what is there, in equal blocks again: bits do not depend on the placement
// (docs/design/recovery.md).
//
// RunRelocation (run_relocation.h) owns it; RunQueue (run_queue.h) asks it which processes the next attempt
// waits for. A value; pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_RUN_PLACEMENT_H_
#define WEFT_COORDINATOR_CORE_RUN_PLACEMENT_H_

#include <set>
#include <vector>

#include "coordinator/core/run_members.h"

namespace weft {

class RunPlacement {
 public:
  // Orders the ranks, which exist, from where the members have them to the process of the session. Returns
  // false, and changes nothing, if all are there.
  bool Order(const RunMembers& members, const std::vector<Rank>& ranks, SessionId to);
  // Orders all ranks to stay where the members have them.
  void Keep(const RunMembers& members);
  // Forgets the order: a process of it is not there.
  void Forget();

  bool ordered() const { return !session_of_rank_.empty(); }
  // The processes that have ranks by the order, which the next attempt takes and no others; none without an
  // order.
  const std::set<SessionId>& processes() const { return processes_; }

  // Returns how many of the members have no ranks by the order.
  int Leaving(const RunMembers& members) const;
  // Returns the number of the process of each rank among these: by the order, if it is for them.
  std::vector<int> MemberOfRank(int ranks, const std::vector<SessionId>& sessions) const;

 private:
  std::vector<SessionId> session_of_rank_;  // empty without an order
  std::set<SessionId> processes_;
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_RUN_PLACEMENT_H_
