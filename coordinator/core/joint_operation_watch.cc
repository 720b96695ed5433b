#include "coordinator/core/joint_operation_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/seconds.h"
#include "proto/session/worst_rate.h"

namespace weft {

bool JointOperationWatch::AllNameOneOf(const std::vector<Rank>& group) const {
  return std::all_of(group.begin(), group.end(), [&](Rank rank) {
    const auto named = named_.find(rank);
    return named != named_.end() && order_.groups()[order_.GroupOf(named->second.job.stage)] == group;
  });
}

std::string JointOperationWatch::Judge(const std::vector<Rank>& group, int64_t at_least_ns) const {
  if (!AllNameOneOf(group)) return "";
  // The youngest age is the time since all have begun.
  const auto age = [&](Rank rank) { return named_.at(rank).age_ns; };
  const Rank last =
      *std::min_element(group.begin(), group.end(), [&](Rank a, Rank b) { return age(a) < age(b); });
  // The operation with the longest wait is the first of all that they name.
  const Rank longest =
      *std::max_element(group.begin(), group.end(), [&](Rank a, Rank b) { return age(a) < age(b); });
  const RunningJointOperation& hangs = named_.at(longest);
  const int64_t limit = at_least_ns + TransferTime(hangs.bytes);
  if (age(last) <= limit) return "";
  return absl::StrCat("the collective of ", Describe(hangs.job), " on ranks ", absl::StrJoin(group, ", "),
                      " hangs: all have begun it, the last one, rank ", last, ", ", Seconds(age(last)),
                      " ago, and it may take ", Seconds(limit));
}

std::string JointOperationWatch::Take(const std::vector<Rank>& ranks,
                                      const std::vector<RunningJointOperation>& reported,
                                      int64_t at_least_ns) {
  for (const Rank rank : ranks) named_.erase(rank);
  for (const RunningJointOperation& c : reported) {
    if (std::find(ranks.begin(), ranks.end(), c.rank) == ranks.end()) continue;
    if (order_.IsJoint(c.job.stage)) named_.emplace(c.rank, c);
  }
  if (named_.empty()) return "";
  for (const std::vector<Rank>& group : order_.groups()) {
    std::string hangs = Judge(group, at_least_ns);
    if (!hangs.empty()) return hangs;
  }
  return "";
}

}  // namespace weft
