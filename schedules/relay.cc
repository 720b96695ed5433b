#include "schedules/relay.h"

#include <algorithm>
#include <utility>

namespace weft {
namespace {

int MemberOf(const std::vector<Rank>& members, Rank rank) {
  return static_cast<int>(std::lower_bound(members.begin(), members.end(), rank) - members.begin());
}

// All members, the home first.
std::vector<int> OrderOfReading(const Schedule& schedule, int stage, const std::vector<Rank>& members,
                                int home, int step) {
  std::vector<int> order = {home};
  std::vector<bool> placed(members.size(), false);
  placed[home] = true;
  const auto place = [&](int member) {
    if (!placed[member]) order.push_back(member);
    placed[member] = true;
  };
  for (int staleness = 0; staleness <= schedule.MostStaleness(stage); ++staleness) {
    for (int b = 0; b < schedule.microbatches; ++b) {
      if (schedule.StalenessOf(stage, b) != staleness) continue;
      const Job reader = Job::Compute(step + 1 + staleness, stage, b, JobKind::kForward);
      place(MemberOf(members, schedule.weights(reader)));
    }
  }
  for (int member = 0; member < static_cast<int>(members.size()); ++member) place(member);
  return order;
}

}  // namespace

Relay::Relay(const Schedule& schedule, int stage, const std::vector<Rank>& members, JobKind last_backward)
    : home_(MemberOf(members,
                     schedule.weights(Job::Compute(0, stage, schedule.microbatches - 1, last_backward)))) {
  for (int step = 0; step < schedule.period; ++step) {
    const std::vector<int> order = OrderOfReading(schedule, stage, members, home_, step);
    Round round{std::vector<int>(members.size(), -1), std::vector<int>(members.size(), -1)};
    for (size_t i = 1; i < order.size(); ++i) {
      round.before[order[i]] = order[i - 1];
      round.after[order[i - 1]] = order[i];
    }
    rounds_.push_back(std::move(round));
  }
}

}  // namespace weft
