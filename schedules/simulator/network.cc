#include "schedules/simulator/network.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_format.h"

namespace weft {

Network Network::FirstRanks(int ranks) const {
  Network first = *this;
  if (static_cast<int>(speeds.size()) > ranks) first.speeds.resize(ranks);
  int64_t placed = 0;
  for (size_t node = 0; node < nodes.size(); ++node) {
    if (placed + nodes[node] >= ranks) {
      first.nodes.resize(node + 1);
      first.nodes[node] = static_cast<int>(ranks - placed);
      break;
    }
    placed += nodes[node];
  }
  const auto is_beyond = [ranks](const PairLink& pair) { return pair.a >= ranks || pair.b >= ranks; };
  first.pairs.erase(std::remove_if(first.pairs.begin(), first.pairs.end(), is_beyond), first.pairs.end());
  return first;
}

absl::Status CheckNetwork(const Network& network, int ranks) {
  for (const double value : {network.bandwidth_between, network.latency_between}) {
    if (value >= 0 && std::isfinite(value)) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("network: between: %g is not a finite number >= 0", value));
  }
  for (const int of_node : network.nodes) {
    if (of_node >= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("network: nodes: a node has %d ranks; it needs at least 1", of_node));
  }
  const int64_t placed = std::accumulate(network.nodes.begin(), network.nodes.end(), int64_t{0});
  if (!network.nodes.empty() && placed < ranks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "network: nodes: the nodes have %d ranks together; the schedule has %d", placed, ranks));
  }
  for (const PairLink& pair : network.pairs) {
    const bool sound = pair.bandwidth >= 0 && std::isfinite(pair.bandwidth) && pair.latency >= 0 &&
                       std::isfinite(pair.latency);
    if (pair.a >= 0 && pair.b >= 0 && pair.a < ranks && pair.b < ranks && pair.a != pair.b && sound) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("network: ranks %d and %d of %d have no link of %g and %g", pair.a, pair.b, ranks,
                        pair.bandwidth, pair.latency));
  }
  for (const double speed : network.speeds) {
    if (speed > 0 && std::isfinite(speed)) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("network: speeds: %g is no speed; 1 is the speed of the given times", speed));
  }
  if (network.speeds.empty() || static_cast<int>(network.speeds.size()) >= ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "network: speeds: there are %d; the schedule has %d ranks", network.speeds.size(), ranks));
}

}  // namespace weft
