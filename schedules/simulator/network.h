// Describes the machines and links of a simulation: which transfers share what, how nodes differ from each
// other, and how fast each rank computes.
//
// The plain network has a full-duplex link between each two ranks, and ranks that are equally fast. With
// nodes, ranks of one node use the links inside it, with the bandwidth and latency of SimulationOptions;
// transfers between two nodes share the links of the nodes, as they share what `links` says of ranks. A
// value. Pure.
#ifndef WEFT_SCHEDULES_SIMULATOR_NETWORK_H_
#define WEFT_SCHEDULES_SIMULATOR_NETWORK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "schedules/job.h"

namespace weft {

// Says what transfers share, one after the other.
enum class LinkSharing : uint8_t {
  kPairFull,  // those from one rank to one other
  kPairHalf,  // those between two ranks, in both directions
  kPort,      // all that a rank sends, and all that it receives
};

// A link between two ranks of one node that is not as the others, in both directions. A bandwidth of 0 means
// infinite.
struct PairLink {
  Rank a = 0, b = 0;
  double bandwidth = 0, latency = 0;
};

struct Network {
  LinkSharing links = LinkSharing::kPairFull;
  std::vector<int> nodes;  // ranks of each node, in order of ranks; empty if all are on one node
  // A link between nodes, in the units of SimulationOptions. A bandwidth of 0 means infinite.
  double bandwidth_between = 0, latency_between = 0;
  std::vector<PairLink> pairs;
  std::vector<double> speeds;  // by rank: what a duration is divided by; empty if all are 1

  // Returns true where it changes nothing.
  bool IsPlain() const {
    return links == LinkSharing::kPairFull && nodes.empty() && pairs.empty() && speeds.empty();
  }
  double SpeedOf(Rank rank) const { return speeds.empty() ? 1 : speeds[rank]; }
  // Returns the network of its first so many ranks, if it has more.
  Network FirstRanks(int ranks) const;
};

// Returns InvalidArgument for a network of another number of ranks, or with figures that cannot be.
absl::Status CheckNetwork(const Network& network, int ranks);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_NETWORK_H_
