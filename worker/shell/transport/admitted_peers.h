// Knows which processes may connect to this one, and lets in no others (peer_filter.h).
//
// A process is let in when it is named as a peer, and shut out again when it is lost, has said goodbye, or
// has not come by the next attempt. Setting the filter takes time in proportion to all who are admitted, so
// it is set once for many.
//
// Invariant: every process that was added and not removed may connect. If the filter cannot be set anew after
// a removal, too many processes may connect, never too few. Not thread-safe. Failure: of the filter, where a
// process is added.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_ADMITTED_PEERS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_ADMITTED_PEERS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "worker/shell/transport/transport_address.h"

namespace weft {

class AdmittedPeers {
 public:
  // Lets packets of these addresses through, and no others.
  using Filter = std::function<absl::Status(const std::vector<std::string>& addresses)>;

  // `own`: the addresses of this process.
  AdmittedPeers(std::vector<std::string> own, Filter filter)
      : own_(std::move(own)), filter_(std::move(filter)) {}

  absl::Status Add(const std::vector<TransportAddress>& peers);
  void Remove(uint64_t sender);
  // Removes all of whom `stays(sender)` is false.
  void KeepOnly(const std::function<bool(uint64_t sender)>& stays);

 private:
  absl::Status SetFilter() const;

  const std::vector<std::string> own_;
  const Filter filter_;
  absl::btree_map<uint64_t, std::vector<std::string>> addresses_;  // by sender
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_ADMITTED_PEERS_H_
