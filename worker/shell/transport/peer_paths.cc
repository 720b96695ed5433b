#include "worker/shell/transport/peer_paths.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "worker/shell/transport/peer_process.h"
#include "worker/shell/transport/transfer_path.h"

namespace weft {
namespace {

std::string WhyStaged(const UcxOptions& options, const DeviceIdentity& own, const TransportAddress& peer,
                      bool sees_peer) {
  if (!options.device_direct) return "as WEFT_DEVICE_DIRECT=0 asks";
  if (own.kind.empty()) {
    return absl::StrCat("this UCX does not know memory of ", options.device_kind,
                        options.device_kind == "cuda"
                            ? ": its libuct_cuda.so cannot be loaded, which needs the "
                              "driver's libcuda.so.1 and libnvidia-ml.so.1"
                            : "");
  }
  if (peer.device.kind != own.kind) return "the other process does not take device memory directly";
  return sees_peer ? "no transport of UCX reaches it" : "the two processes do not see each other's pids";
}

}  // namespace

void ChoosePaths(const UcxOptions& options, const DeviceIdentity& own, const TransportAddress& address,
                 const std::vector<std::string>& transports, PeerConnection* connection) {
  connection->host_path = connection->in_place ? kPathInPlace : HostPath(transports);
  if (options.device_memory == nullptr) return;
  const bool same_kind = !own.kind.empty() && own.kind == address.device.kind;
  const bool sees_peer = address.process.machine == ThisProcess().machine;
  connection->device_path =
      same_kind ? DevicePath(own.kind, options.rdma_direct, sees_peer, transports) : kPathStaged;
  connection->carries_device = connection->device_path != kPathStaged;
  if (!connection->carries_device) connection->staged_because = WhyStaged(options, own, address, sees_peer);
}

std::vector<PeerPath> PathsInUse(const TransferTable& table, const PeerConnections& connections) {
  std::vector<PeerPath> paths;
  for (const auto& [sender, connection] : connections.all()) {
    const std::optional<PeerId> peer = table.PeerOf(sender);
    if (!peer || !connection.used) continue;
    paths.push_back({*peer, MemoryPlace::kHost, connection.host_path});
    if (connection.device_path.empty()) continue;
    paths.push_back({*peer, MemoryPlace::kDevice, connection.device_path});
  }
  return paths;
}

std::string DescribePaths(const std::string& label, const PeerConnection& connection) {
  std::string line = absl::StrCat("tensors to ", label, ": host memory by ", connection.host_path);
  if (connection.device_path.empty()) return line;
  absl::StrAppend(&line, ", device memory by ", connection.device_path);
  if (!connection.carries_device) absl::StrAppend(&line, " (", connection.staged_because, ")");
  return line;
}

}  // namespace weft
