#include "schedules/collectives.h"

#include <algorithm>

namespace weft {

void CollectiveOrder::Add(int stage, const std::vector<Rank>& members) {
  const auto known = std::find(groups_.begin(), groups_.end(), members);
  group_of_stage_.resize(stage + 1, -1);
  group_of_stage_[stage] = static_cast<int>(known - groups_.begin());
  if (known == groups_.end()) groups_.push_back(members);
  for (size_t m = 0; m < members.size(); ++m) places_[members[m]].push_back({stage, static_cast<int>(m)});
}

const std::vector<CollectiveOrder::Place>& CollectiveOrder::PlacesOf(const Job& reduce) const {
  return places_.at(groups_[group_of_stage_[reduce.stage]][reduce.member]);
}

int CollectiveOrder::IndexIn(const std::vector<Place>& places, int stage) {
  const auto found = std::lower_bound(places.begin(), places.end(), stage,
                                      [](const Place& place, int s) { return place.stage < s; });
  return static_cast<int>(found - places.begin());
}

std::optional<Job> CollectiveOrder::Before(const Job& reduce) const {
  const std::vector<Place>& places = PlacesOf(reduce);
  const size_t next = IndexIn(places, reduce.stage) + 1;
  if (next < places.size()) return Job::Reduce(reduce.step, places[next].stage, places[next].member);
  if (reduce.step == 0) return std::nullopt;
  return Job::Reduce(reduce.step - 1, places.front().stage, places.front().member);
}

Job CollectiveOrder::After(const Job& reduce) const {
  const std::vector<Place>& places = PlacesOf(reduce);
  const int index = IndexIn(places, reduce.stage);
  if (index > 0) return Job::Reduce(reduce.step, places[index - 1].stage, places[index - 1].member);
  return Job::Reduce(reduce.step + 1, places.back().stage, places.back().member);
}

}  // namespace weft
