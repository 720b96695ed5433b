// Chooses the paths that tensors take to a peer, of the host's memory and of the device's, and says why
// device memory is staged where it is.
//
// A path follows from what both processes can do: the options and the device of this one, the address of the
// other, and the transports that UCX has chosen for the connection (transfer_path.h). Pure.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_PEER_PATHS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_PEER_PATHS_H_

#include <string>
#include <vector>

#include "worker/shell/transport/peer_connections.h"
#include "worker/shell/transport/transfer_table.h"
#include "worker/shell/transport/transport_address.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft {

// Sets the paths of a connection to the process of the address. `own`: the device of this process, whose
// tensors it takes directly; kind "" for none. `transports`: those of the connection.
void ChoosePaths(const UcxOptions& options, const DeviceIdentity& own, const TransportAddress& address,
                 const std::vector<std::string>& transports, PeerConnection* connection);

// Returns the paths on which tensors have gone to the peers that have a number.
std::vector<PeerPath> PathsInUse(const TransferTable& table, const PeerConnections& connections);

// Returns a line for the log: "tensors to process 1 (..): host memory by tcp, ..".
std::string DescribePaths(const std::string& label, const PeerConnection& connection);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_PEER_PATHS_H_
