// Manages the collectives of one run in this process: its groups, how they come together, and the operations
// under way.
//
// One group after the other is joined, in the order of their numbers, which all processes share: so nobody
// waits in a circle. The first member of a group makes its id; the others get it from the control plane. Then
// each collective that the core begins is given to its group, and stays here until the device says that it is
// over. Nothing waits; the owner asks again (JoinNext, Poll).
//
// Threads: one at a time. Ownership: borrows the device's collectives, and the groups live until Clear, which
// aborts operations under way. Failure: of a group, naming its ranks.
#ifndef WEFT_WORKER_SHELL_LOOP_COLLECTIVE_GROUPS_H_
#define WEFT_WORKER_SHELL_LOOP_COLLECTIVE_GROUPS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/core/worker_core.h"
#include "worker/shell/memory/collectives.h"

namespace weft {

enum class CollectiveKind : uint8_t {
  kAllReduce,      // all members' sums, to all
  kReduceScatter,  // all members' sums, to each its slice
  kAllGather,      // all members' slices, to all
};

class CollectiveGroups {
 public:
  struct Limits {
    int64_t join_ns = 0;  // time from Begin until all groups are complete: their members have time to prepare
    int64_t operation_ns = 0;  // time of each collective
  };
  // Begins a run. Returns the ids that this process makes, by group, for the other members.
  absl::StatusOr<std::vector<std::pair<int, std::string>>> Begin(Collectives* collectives,
                                                                 std::vector<PrepareEffect::Group> groups,
                                                                 int64_t now, Limits limits);
  void TakeId(int group, const std::string& id);

  // Returns true once all groups have joined, and where there are none.
  absl::StatusOr<bool> JoinNext(int64_t now);

  // Gives the rank's tensor to the group. Requires that the group has joined. A sum is made in place, of all
  // or of the member's slice, of as many as there are members; a slice is gathered into `whole`.
  absl::Status Start(int group, Rank rank, const Job& job, CollectiveKind kind, const Tensor& from,
                     const Tensor& whole = {});
  struct Done {
    Rank rank;
    Job job;
  };
  // Appends the collectives that have ended since the last call.
  absl::Status Poll(std::vector<Done>* done);
  // Returns the result of a collective that has ended.
  Tensor TakeResult(const Job& job);

  // True if Poll or JoinNext should be called again soon, because nobody reports that they have news.
  bool busy() const {
    return !under_way_.empty() || (joined_ < entries_.size() && entries_[joined_].joined != nullptr);
  }

  void Clear(const absl::Status& cause);

 private:
  struct Entry {
    PrepareEffect::Group group;
    std::string id;
    std::unique_ptr<CollectiveGroup> joined;
  };
  struct UnderWay {
    Rank rank;
    Job job;
    Tensor result;
    std::shared_ptr<Fence> fence;  // null: there is nothing to do
  };
  absl::Status IsLate(const Entry& entry) const;
  static absl::StatusOr<std::shared_ptr<Fence>> Give(const Entry& entry, CollectiveKind kind,
                                                     const Tensor& from, const Tensor& result);

  Collectives* collectives_ = nullptr;
  Limits limits_;
  int64_t join_until_ = 0;
  std::vector<Entry> entries_;
  size_t joined_ = 0;  // number of entries that have joined
  std::vector<UnderWay> under_way_;
  std::map<Job, Tensor> results_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_COLLECTIVE_GROUPS_H_
