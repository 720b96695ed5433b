#include "schedules/simulator/links.h"

#include <algorithm>
#include <map>

namespace weft {

Links::Links(const SimulationOptions& options, SimulationResult* result)
    : sharing_(options.network.links),
      bandwidth_(options.bandwidth),
      latency_(options.latency),
      bandwidth_between_(options.network.bandwidth_between),
      latency_between_(options.network.latency_between),
      result_(result),
      ranks_(result->ranks.size()),
      nodes_(options.network.nodes.size()) {
  for (size_t node = 0; node < nodes_; ++node) {
    node_of_rank_.insert(node_of_rank_.end(), options.network.nodes[node], static_cast<int>(node));
  }
  bool paired = bandwidth_ > 0;
  for (const PairLink& pair : options.network.pairs) {
    pairs_[std::minmax(pair.a, pair.b)] = pair;
    paired = paired || pair.bandwidth > 0;
  }
  const auto links = [this](size_t ends) { return sharing_ == LinkSharing::kPort ? 2 * ends : ends * ends; };
  first_of_nodes_ = paired ? links(ranks_) : 0;
  free_.assign(first_of_nodes_ + (bandwidth_between_ > 0 ? links(nodes_) : 0), 0);
}

double Links::RunRing(double now, const std::vector<Rank>& members, int turns, double bytes) {
  const double rounds = turns * (static_cast<double>(members.size()) - 1);
  const double sent_by_each = rounds / static_cast<double>(members.size()) * bytes;
  // The parts follow one another closely, so the busiest link tells how long it takes.
  std::map<size_t, double> busy;  // time by link
  double begin = now, latency = 0;
  for (size_t m = 0; m < members.size(); ++m) {
    const Path path = PathOf(members[m], members[(m + 1) % members.size()]);
    latency = std::max(latency, path.latency);
    RankStats& stats = result_->ranks[members[m]];
    stats.bytes_sent += sent_by_each;
    stats.bytes_received += sent_by_each;
    stats.sent_by_kind[static_cast<int>(TensorKind::kGradientSum)] += sent_by_each;
    if (path.bandwidth <= 0) continue;
    busy[path.out] += sent_by_each / path.bandwidth;
    if (path.in != path.out) busy[path.in] += sent_by_each / path.bandwidth;
  }
  double longest = 0;
  for (const auto& [link, time] : busy) {
    begin = std::max(begin, free_[link]);
    longest = std::max(longest, time);
  }
  for (const auto& [link, time] : busy) free_[link] = begin + longest;
  return begin + longest + rounds * latency - now;
}

}  // namespace weft
