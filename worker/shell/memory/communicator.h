// Declares collectives among the devices of several processes: sums and gathers that a library of the
// device's maker does faster than messages between pairs can (NCCL).
//
// A group is the ordered set of ranks that have collectives together. Its communicator belongs to one epoch
// of a run: one member makes an id, the control plane brings it to the others, all join. Operations are
// enqueued and done later, like every work of a device. All members must enqueue the same operations of a
// group in the same order.
//
// Invariants: nothing waits for ever. A member that fails, or does not come within the deadline, fails the
// group: its communicator is aborted here and the enqueued operations end with a status that names the ranks
// that are missing or failed. Threads: one at a time. Ownership: memory of an aborted operation is kept until
// the device has come past it, at the longest until the CommunicationLibrary goes. It is memory of the
// device, which is there as long.
#ifndef WEFT_WORKER_SHELL_MEMORY_COMMUNICATOR_H_
#define WEFT_WORKER_SHELL_MEMORY_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schedules/job.h"
#include "worker/shell/memory/fence.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class Communicator {
 public:
  virtual ~Communicator() = default;

  // Returns true once all members have joined. Never waits. DeadlineExceeded names the missing ranks.
  virtual absl::StatusOr<bool> Joined() = 0;

  // Sums all members' `from`, to all of them (may be in place). This and the next enqueue, behind `ready` of
  // what is read, and return a fence for their end. Buffers are flat float32 of the device; `to` is written.
  virtual absl::StatusOr<std::shared_ptr<Fence>> AllReduce(const Tensor& from, const Tensor& to) = 0;
  // AllGather brings member i's slice, `slices[i]` elements, to its place in everybody's `to`. ReduceScatter
  // brings the sum of slice i of all members' `from` to member i, whose `slice` may be that of its own
  // `from`. The slices follow one another.
  virtual absl::StatusOr<std::shared_ptr<Fence>> AllGather(const Tensor& slice, const Tensor& to,
                                                           const std::vector<int64_t>& slices) = 0;
  virtual absl::StatusOr<std::shared_ptr<Fence>> ReduceScatter(const Tensor& from, const Tensor& slice,
                                                               const std::vector<int64_t>& slices) = 0;

  // Ends the enqueued operations with `cause`, on this member. The others notice.
  virtual void Abort(const absl::Status& cause) = 0;
};

class CommunicationLibrary {
 public:
  virtual ~CommunicationLibrary() = default;
  // Returns the library and its version, as "nccl 2.28.3": members of a group have the same.
  virtual const std::string& name() const = 0;
  // Makes opaque bytes by which members find each other.
  virtual absl::StatusOr<std::string> NewGroupId() = 0;
  // Begins to join; `deadline_ns` (monotonic clock) bounds that, and `operation_ns` each operation.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Join(const std::string& id,
                                                             const std::vector<Rank>& members, int self,
                                                             int64_t deadline_ns, int64_t operation_ns) = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_MEMORY_COMMUNICATOR_H_
