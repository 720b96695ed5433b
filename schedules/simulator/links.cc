#include "schedules/simulator/links.h"

namespace weft {

Links::Links(double bandwidth, double latency, SimulationResult* result)
    : bandwidth_(bandwidth), latency_(latency), result_(result), ranks_(result->ranks.size()) {
  if (bandwidth_ > 0) free_.assign(ranks_ * ranks_, 0);
}

double Links::RunRing(double now, const std::vector<Rank>& members, int turns, double bytes) {
  const double rounds = turns * (static_cast<double>(members.size()) - 1);
  const double sent_by_each = rounds / static_cast<double>(members.size()) * bytes;
  const auto link_from = [&](size_t m) -> double& {
    return FreeAt(members[m], members[(m + 1) % members.size()]);
  };
  double begin = now;
  if (bandwidth_ > 0) {
    for (size_t m = 0; m < members.size(); ++m) begin = std::max(begin, link_from(m));
  }
  const double sent = bandwidth_ > 0 ? begin + sent_by_each / bandwidth_ : begin;
  for (size_t m = 0; m < members.size(); ++m) {
    if (bandwidth_ > 0) link_from(m) = sent;
    RankStats& stats = result_->ranks[members[m]];
    stats.bytes_sent += sent_by_each;
    stats.bytes_received += sent_by_each;
    stats.sent_by_kind[static_cast<int>(TensorKind::kGradientSum)] += sent_by_each;
  }
  return sent + rounds * latency_ - now;
}

}  // namespace weft
