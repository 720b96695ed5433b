#include "worker/shell/transport/transfer_path.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// Returns true for reliable transports: "rc_mlx5", "rc_verbs", "dc_mlx5"; "srd" is Amazon's.
bool IsRdma(absl::string_view transport) {
  return absl::StartsWith(transport, "rc") || absl::StartsWith(transport, "dc") || transport == "srd";
}

bool Has(const std::vector<std::string>& transports, absl::string_view name) {
  return std::find(transports.begin(), transports.end(), name) != transports.end();
}

std::string FirstRdma(const std::vector<std::string>& transports) {
  const auto it = std::find_if(transports.begin(), transports.end(), IsRdma);
  return it == transports.end() ? "" : *it;
}

}  // namespace

std::string HostPath(const std::vector<std::string>& transports) {
  // The order is UCX's preference for bulk: one copy between address spaces, then through shared segments,
  // then the network.
  for (const char* name : {"xpmem", "cma", "knem", "sysv", "posix"}) {
    if (Has(transports, name)) return name;
  }
  std::string rdma = FirstRdma(transports);
  return !rdma.empty() || transports.empty() ? rdma : transports.front();
}

std::string DevicePath(absl::string_view kind, bool rdma_direct, bool sees_peer,
                       const std::vector<std::string>& transports) {
  if (kind.empty()) return kPathStaged;
  std::string path;
  if (kind == kHostKind) {
    path = HostPath(transports);
  } else if (const std::string ipc = absl::StrCat(kind, "_ipc"); sees_peer && Has(transports, ipc)) {
    path = ipc;
  } else if (rdma_direct) {
    path = FirstRdma(transports);
  }
  return path.empty() ? kPathStaged : path;
}

}  // namespace weft
