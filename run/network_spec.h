// Reads the description of machines and links on which a run is predicted: the `network` of a run file or of
// a profile, and the file of --network, which has the same keys at its top:
//
//   links: port            # or pair_full (default), pair_half
//   bandwidth: 10e9        # of a link, in bytes per unit of time; left out: what else says it, or infinite
//   latency: 0.001
//   nodes: [4, 4]          # ranks of each node, in order of ranks
//   between: {bandwidth: 1e9, latency: 0.01}     # of a link between nodes
//   speeds: [1, 1, 0.5, 1] # of each rank; 1 is the speed at which the times hold
//
// A value. Pure. Failure: as run_spec.h; CheckNetwork says whether it has the ranks of a schedule.
#ifndef WEFT_RUN_NETWORK_SPEC_H_
#define WEFT_RUN_NETWORK_SPEC_H_

#include <string>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"
#include "schedules/simulator/network.h"

namespace weft {

struct SimulationOptions;

inline constexpr double kLeastOfALink = 1e-30;  // least bandwidth above 0; bytes take a finite time with it

struct NetworkSpec {
  Network network;
  double bandwidth = 0, latency = 0;  // of a link between two ranks, inside a node; 0 where not given

  // Returns true where a transfer may take time, or wait for another.
  bool slow_links() const;
};

// Reads the section whose place in the file is `path`, "" for the whole file. The first error stays in
// `status`.
NetworkSpec ReadNetworkSpec(const nlohmann::json& value, const std::string& path, absl::Status& status);

// Returns the inverse of ReadNetworkSpec.
nlohmann::json ToJson(const NetworkSpec& network);

// Gives the simulation the network. A bandwidth or latency that it does not say stays as it is.
void ApplyNetwork(const NetworkSpec& network, SimulationOptions* options);

}  // namespace weft

#endif  // WEFT_RUN_NETWORK_SPEC_H_
