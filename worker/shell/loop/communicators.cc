#include "worker/shell/loop/communicators.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/shell/compute/compute.h"

namespace weft {

Operation JointOperationOf(const Graph& graph, const Job& job) {
  if (HasMicrobatch(job.kind)) return Operation::kJoinGather;
  return graph.protocol(job.stage).scatters_sum() ? Operation::kReduceScatter : Operation::kAllReduce;
}

uint64_t RingBytes(Operation operation, const Tensor& from, const Tensor& whole, size_t members) {
  const uint64_t rounds = (operation == Operation::kAllReduce ? 2 : 1) * (members - 1);
  return rounds * (operation == Operation::kJoinGather ? whole : from).bytes / members;
}

absl::StatusOr<std::vector<std::pair<int, std::string>>> Communicators::Begin(
    CommunicationLibrary* library, std::vector<PrepareEffect::Group> groups, int64_t now, Limits limits) {
  Clear(absl::OkStatus());
  if (!groups.empty() && library == nullptr) {
    return absl::FailedPreconditionError(
        "the run reduces by collectives, and the device of this process has no collectives");
  }
  library_ = library;
  limits_ = limits;
  join_until_ = now + limits.join_ns;
  std::vector<std::pair<int, std::string>> made;
  for (PrepareEffect::Group& group : groups) {
    Entry& entry = entries_.emplace_back(Entry{std::move(group), "", nullptr});
    if (entry.group.self != 0) continue;
    absl::StatusOr<std::string> id = library->NewGroupId();
    if (!id.ok()) return id.status();
    entry.id = *id;
    made.emplace_back(entry.group.number, *std::move(id));
  }
  return made;
}

void Communicators::TakeId(int group, const std::string& id) {
  for (Entry& entry : entries_) {
    if (entry.group.number == group && entry.group.self != 0) entry.id = id;
  }
}

absl::Status Communicators::IsLate(const Entry& entry) const {
  const std::string why =
      entry.id.empty()
          ? absl::StrCat("their id, which rank ", entry.group.members.front(), " was to make, has not come")
          : "until then it prepared itself, or waited for groups before";
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", entry.group.rank, " had ", limits_.join_ns / 1'000'000'000,
                   " s from the run's beginning to join its collectives with ranks ",
                   absl::StrJoin(entry.group.members, ", "), ": ", why));
}

absl::StatusOr<bool> Communicators::JoinNext(int64_t now) {
  for (; joined_ < entries_.size(); ++joined_) {
    Entry& entry = entries_[joined_];
    if (entry.joined == nullptr) {
      if (now >= join_until_) return IsLate(entry);
      if (entry.id.empty()) return false;
      auto group =
          library_->Join(entry.id, entry.group.members, entry.group.self, join_until_, limits_.operation_ns);
      if (!group.ok()) return group.status();
      entry.joined = *std::move(group);
    }
    absl::StatusOr<bool> joined = entry.joined->Joined();
    if (!joined.ok() || !*joined) return joined;
  }
  return true;
}

absl::StatusOr<std::shared_ptr<Fence>> Communicators::Give(const Entry& entry, Operation operation,
                                                           const Tensor& from, const Tensor& result) {
  if (operation == Operation::kAllReduce) return entry.joined->AllReduce(from, result);
  const bool gathers = operation == Operation::kJoinGather;
  const auto elements = static_cast<int64_t>((gathers ? result : from).bytes / sizeof(float));
  const int members = static_cast<int>(entry.group.members.size());
  std::vector<int64_t> slices;
  for (int m = 0; m < members; ++m) {
    const SliceBounds bounds = SliceOf(elements, m, members);
    slices.push_back(bounds.end - bounds.begin);
  }
  return gathers ? entry.joined->AllGather(from, result, slices)
                 : entry.joined->ReduceScatter(from, result, slices);
}

absl::Status Communicators::Start(int64_t now, int group, Rank rank, const Job& job, Operation operation,
                                  const Tensor& from, const Tensor& whole) {
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
    return e.group.number == group && e.group.rank == rank;
  });
  if (entry == entries_.end() || entry->joined == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(Describe(job), " on rank ", rank, " needs a group that it has not joined"));
  }
  UnderWay started{rank,    job, whole,
                   nullptr, now, RingBytes(operation, from, whole, entry->group.members.size())};
  if (operation == Operation::kAllReduce) started.result = from;
  if (operation == Operation::kReduceScatter)
    started.result = Slice(from, entry->group.self, static_cast<int>(entry->group.members.size()));
  // All members of a stage have as much: of a stage without parameters, nothing.
  if ((operation == Operation::kJoinGather ? whole : from).bytes > 0) {
    absl::StatusOr<std::shared_ptr<Fence>> fence = Give(*entry, operation, from, started.result);
    if (!fence.ok()) return fence.status();
    started.fence = *std::move(fence);
  }
  under_way_.push_back(std::move(started));
  return absl::OkStatus();
}

absl::Status Communicators::Poll(std::vector<Done>* done) {
  for (size_t i = 0; i < under_way_.size();) {
    UnderWay& r = under_way_[i];
    const absl::StatusOr<bool> reached = r.fence == nullptr ? true : r.fence->Reached();
    if (!reached.ok()) {
      const absl::Status& why = reached.status();
      return absl::Status(why.code(),
                          absl::StrCat(Describe(r.job), " on rank ", r.rank, ": ", why.message()));
    }
    if (!*reached) {
      ++i;
      continue;
    }
    done->push_back({r.rank, r.job});
    r.result.ready = nullptr;
    results_[r.job] = std::move(r.result);
    under_way_.erase(under_way_.begin() + static_cast<int64_t>(i));
  }
  return absl::OkStatus();
}

std::vector<RunningJointOperation> Communicators::Running(int64_t now, int64_t device_ended_ns) const {
  std::vector<RunningJointOperation> running;
  std::set<Rank> named;
  for (const UnderWay& u : under_way_) {
    if (named.insert(u.rank).second)
      running.push_back({u.rank, u.job, now - std::max(u.since_ns, device_ended_ns), u.bytes});
  }
  return running;
}

Tensor Communicators::TakeResult(const Job& job) {
  const auto found = results_.find(job);
  if (found == results_.end()) return {};
  Tensor result = std::move(found->second);
  results_.erase(found);
  return result;
}

void Communicators::Clear(const absl::Status& cause) {
  for (Entry& entry : entries_) {
    if (entry.joined != nullptr && !cause.ok()) entry.joined->Abort(cause);
  }
  entries_.clear();
  joined_ = 0;
  under_way_.clear();
  results_.clear();
  library_ = nullptr;
}

}  // namespace weft
