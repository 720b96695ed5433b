// Tells a collective that hangs from one that waits for its members.
//
// A collective ends when all members' devices have begun it. Until then it waits for the jobs of those that
// have not, which have deadlines of their own (job_watch.h). From then on it waits for nothing but itself: it
// is a root like a transfer (docs/design/waits.md), and may take a fixed time and its bytes at the worst rate
// of a link.
//
// A process says of each rank which collective its device has begun and not ended, while the device runs no
// job. All ranks begin their collectives in one order (schedules/sync/joint_order.h). So if every member of a
// group says so, the first of what they name is under way on all of them. A member that names a later one has
// ended the first, and waits for the others to do so.
//
// RunAttempt owns it. A value; pure; one thread.
#ifndef WEFT_COORDINATOR_CORE_JOINT_OPERATION_WATCH_H_
#define WEFT_COORDINATOR_CORE_JOINT_OPERATION_WATCH_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/session/messages.h"
#include "schedules/sync/joint_order.h"

namespace weft {

class JointOperationWatch {
 public:
  // Refers to `order`.
  explicit JointOperationWatch(const JointOrder& order) : order_(order) {}

  // Takes what the process of these ranks reports, in place of its report before. Returns a sentence about a
  // collective that has taken longer than it may: `at_least_ns` besides the time of its bytes; "" for none.
  // Collectives of other ranks, and of stages that have none, change nothing.
  std::string Take(const std::vector<Rank>& ranks, const std::vector<RunningJointOperation>& reported,
                   int64_t at_least_ns);

 private:
  bool AllNameOneOf(const std::vector<Rank>& group) const;
  std::string Judge(const std::vector<Rank>& group, int64_t at_least_ns) const;

  const JointOrder& order_;
  std::map<Rank, RunningJointOperation> named_;  // by rank, of its newest report
};

}  // namespace weft

#endif  // WEFT_COORDINATOR_CORE_JOINT_OPERATION_WATCH_H_
