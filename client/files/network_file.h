// Reads the description of a network, as --network takes it:
//
//   links: port            # or pair_full (default), pair_half
//   bandwidth: 10e9        # of a link, in bytes per unit of time; left out: --bandwidth, or infinite
//   latency: 0.001
//   nodes: [4, 4]          # ranks of each node, in order of ranks
//   between: {bandwidth: 1e9, latency: 0.01}     # of a link between nodes
//   speeds: [1, 1, 0.5, 1] # of each rank; 1 is the speed at which the times hold
//
// Failure: InvalidArgument with file, line, place and what is allowed.
#ifndef WEFT_CLIENT_FILES_NETWORK_FILE_H_
#define WEFT_CLIENT_FILES_NETWORK_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "schedules/simulator/network.h"
#include "schedules/simulator/simulate.h"

namespace weft {

struct NetworkFile {
  Network network;
  double bandwidth = 0, latency = 0;  // of a link between two ranks, inside a node; 0 where not given
};

absl::StatusOr<NetworkFile> ReadNetworkFile(const std::string& path);

// Gives the simulation the network. Whether it has the ranks of the schedule is Simulate's to say.
void ApplyNetwork(const NetworkFile& file, SimulationOptions* options);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_NETWORK_FILE_H_
