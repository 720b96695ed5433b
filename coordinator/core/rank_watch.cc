#include "coordinator/core/rank_watch.h"

#include <algorithm>

namespace weft {
namespace {

// Returns the key that has grown most; "" if none has.
std::string MostGrown(const std::map<std::string, double>& before, const std::map<std::string, double>& now) {
  std::string most;
  double growth = 0;
  for (const auto& [name, seconds] : now) {
    const auto found = before.find(name);
    const double grown = seconds - (found == before.end() ? 0 : found->second);
    if (grown <= growth) continue;
    growth = grown;
    most = name;
  }
  return most;
}

// Keeps the older of two that a report names of one rank: others wait for that one.
template <typename Running>
void KeepOlder(const Running& named, std::optional<Running>* kept) {
  if (!kept->has_value() || named.age_ns > (*kept)->age_ns) *kept = named;
}

}  // namespace

void RankWatch::Take(int64_t now, const std::vector<Rank>& ranks, const Report& report) {
  const auto is_its_own = [&](Rank rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  for (const Rank rank : ranks) {
    seen_[rank].running.reset();
    seen_[rank].joint.reset();
    seen_[rank].reported_ns = now;
  }
  for (const RunningJob& running : report.running) {
    if (is_its_own(running.rank)) KeepOlder(running, &seen_[running.rank].running);
  }
  for (const RunningJointOperation& joint : report.joint_operations) {
    if (is_its_own(joint.rank)) KeepOlder(joint, &seen_[joint.rank].joint);
  }
  for (const RankReport& r : report.ranks) {
    if (!is_its_own(r.rank)) continue;
    seen_[r.rank].idle_cause = MostGrown(seen_[r.rank].idle_seconds, r.idle_seconds);
    seen_[r.rank].idle_seconds = r.idle_seconds;
  }
}

}  // namespace weft
