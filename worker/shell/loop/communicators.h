// Manages the communicators of one run in this process: how their groups come together, and the joint
// operations under way on them.
//
// One group after the other is joined, in the order of their numbers, which all processes share: so nobody
// waits in a circle. The first member of a group makes its id; the others get it from the control plane. Then
// each joint operation that the core begins is given to its group's communicator, and stays here until the
// device says that it is over. Nothing waits; the owner asks again (JoinNext, Poll).
//
// Threads: one at a time. Ownership: borrows the device's library, and the communicators live until Clear,
// which aborts operations under way. Failure: of a group, naming its ranks.
#ifndef WEFT_WORKER_SHELL_LOOP_COMMUNICATORS_H_
#define WEFT_WORKER_SHELL_LOOP_COMMUNICATORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/session/messages.h"
#include "schedules/graph/graph.h"
#include "worker/core/worker_effects.h"
#include "worker/shell/memory/communicator.h"

namespace weft {

// Returns the joint operation with which the job begins: kAllReduce (all members' sums, to all),
// kReduceScatter (all members' sums, to each its slice) or kJoinGather (all members' slices, to all).
Operation JointOperationOf(const Graph& graph, const Job& job);
// Returns the bytes that each of so many members sends, and receives, in a ring. `from` and `whole` as in
// Communicators::Start.
uint64_t RingBytes(Operation operation, const Tensor& from, const Tensor& whole, size_t members);

class Communicators {
 public:
  struct Limits {
    int64_t join_ns = 0;  // time from Begin until all groups are complete: their members have time to prepare
    int64_t operation_ns = 0;  // time of each operation
  };
  // Begins a run. Returns the ids that this process makes, by group, for the other members.
  absl::StatusOr<std::vector<std::pair<int, std::string>>> Begin(CommunicationLibrary* library,
                                                                 std::vector<PrepareEffect::Group> groups,
                                                                 int64_t now, Limits limits);
  void TakeId(int group, const std::string& id);

  // Returns true once all groups have joined, and where there are none.
  absl::StatusOr<bool> JoinNext(int64_t now);

  // Gives the rank's tensor to the group. Requires that the group has joined. A sum is made in place, of all
  // or of the member's slice, of as many as there are members; a slice is gathered into `whole`.
  absl::Status Start(int64_t now, int group, Rank rank, const Job& job, Operation operation,
                     const Tensor& from, const Tensor& whole = {});
  struct Done {
    Rank rank;
    Job job;
  };
  // Appends the operations that have ended since the last call.
  absl::Status Poll(std::vector<Done>* done);
  // Returns of each rank the first operation that has begun and not ended. The device ended its last job at
  // `device_ended_ns`: an operation that was begun before may have waited for that.
  std::vector<RunningJointOperation> Running(int64_t now, int64_t device_ended_ns) const;
  // Returns the result of an operation that has ended.
  Tensor TakeResult(const Job& job);

  // Returns true if Poll or JoinNext should be called again soon, because nobody reports that they have news.
  bool busy() const {
    return !under_way_.empty() || (joined_ < entries_.size() && entries_[joined_].joined != nullptr);
  }

  void Clear(const absl::Status& cause);

 private:
  struct Entry {
    PrepareEffect::Group group;
    std::string id;
    std::unique_ptr<Communicator> joined;
  };
  struct UnderWay {
    Rank rank;
    Job job;
    Tensor result;
    std::shared_ptr<Fence> fence;  // null: there is nothing to do
    int64_t since_ns = 0;
    uint64_t bytes = 0;  // bytes that each member sends
  };
  absl::Status IsLate(const Entry& entry) const;
  static absl::StatusOr<std::shared_ptr<Fence>> Give(const Entry& entry, Operation operation,
                                                     const Tensor& from, const Tensor& result);

  CommunicationLibrary* library_ = nullptr;
  Limits limits_;
  int64_t join_until_ = 0;
  std::vector<Entry> entries_;
  size_t joined_ = 0;  // number of entries that have joined
  std::vector<UnderWay> under_way_;
  std::map<Job, Tensor> results_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_COMMUNICATORS_H_
