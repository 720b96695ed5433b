// Holds the other processes of a run: lets them in, connects to them, and knows whether they are connected.
//
// A process lets the others in while it prepares, and connects when it has, so that meanwhile they have let
// it in (Transport::Admit).
//
// Not thread-safe; the owner locks. Ownership: borrows the transport. Failure: of the transport.
#ifndef WEFT_WORKER_SHELL_LOOP_RUN_PEERS_H_
#define WEFT_WORKER_SHELL_LOOP_RUN_PEERS_H_

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "proto/session/messages.h"
#include "worker/shell/transport/transport.h"

namespace weft {

class RunPeers {
 public:
  explicit RunPeers(Transport& transport) : transport_(transport) {}

  // Begins an attempt: lets its processes in, all but this one.
  absl::Status Admit(const std::vector<Peer>& processes) {
    connected_ = false;
    peers_.clear();
    std::vector<PeerAddress> others;
    for (const Peer& peer : processes) {
      if (peer.address == transport_.address()) continue;
      peers_.push_back(peer);
      others.push_back({peer.address, peer.label});
    }
    return transport_.Admit(others);
  }
  // Connects to all. `at_fault`: the process that could not be reached, if the status is Unavailable.
  absl::Status Connect(std::optional<PeerId>* at_fault) {
    for (const Peer& peer : peers_) {
      absl::Status status = transport_.Connect(peer.process, peer.address, peer.label);
      if (status.ok()) continue;
      if (absl::IsUnavailable(status)) *at_fault = peer.process;
      return status;
    }
    connected_ = true;
    return absl::OkStatus();
  }
  // Ends the attempt. The end of one of its processes may be noticed later, and says nothing then.
  void Leave() { connected_ = false; }
  bool IsConnected(PeerId process) const {
    return connected_ && std::any_of(peers_.begin(), peers_.end(),
                                     [&](const Peer& peer) { return peer.process == process; });
  }

 private:
  Transport& transport_;
  std::vector<Peer> peers_;  // without this process
  bool connected_ = false;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_RUN_PEERS_H_
