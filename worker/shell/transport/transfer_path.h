// Names the path that tensors take to a peer, as logs and metrics show it.
//
// A path is "in_place" (the consumer reads the producer's memory), one of UCX's transports ("cuda_ipc",
// "rc_mlx5", "cma", "sysv", "tcp", ..), or "staged": device memory that the worker copies to the host's and
// then sends as a tensor of the host.
//
// Device memory is given to UCX only where a transport reads and writes it directly. UCX could also copy it
// through host memory by itself, but it does part of that on the thread that calls, and one of its protocols
// for it (rndv/get/mtype, UCX 1.22) ends the whole process when the peer dies in the middle.
//
// Pure functions of the transports that UCX has chosen for a connection.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_TRANSFER_PATH_H_
#define WEFT_WORKER_SHELL_TRANSPORT_TRANSFER_PATH_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

inline constexpr char kPathInPlace[] = "in_place";
inline constexpr char kPathStaged[] = "staged";

// The kind of host memory that tests treat as a device's, to try the device path without one.
inline constexpr char kHostKind[] = "host";

// Returns the transport that moves large tensors of the host; "" if there is none.
std::string HostPath(const std::vector<std::string>& transports);

// Returns the transport that moves device memory of this kind directly, or "staged". `rdma_direct`: network
// adapters reach it. `sees_peer`: the two processes see each other's pids. UCX considers a device's IPC
// possible between all processes of a machine, also where drivers refuse it, as between containers.
std::string DevicePath(absl::string_view kind, bool rdma_direct, bool sees_peer,
                       const std::vector<std::string>& transports);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_TRANSFER_PATH_H_
