// Keeps the connections of one UCX transport: link, process and memory access of each peer, and which of them
// have ended.
//
// A connection belongs to a transport of another process (its sender number), not to a process number of the
// run: the coordinator may number processes anew for the next attempt, while a peer still reads memory of the
// last one.
//
// Not thread-safe. Borrows the messenger. The wait set is an epoll descriptor that becomes readable when a
// peer's process ends; more descriptors can be added to it.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_PEER_CONNECTIONS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_PEER_CONNECTIONS_H_

#include <poll.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "base/peer_clock.h"
#include "worker/shell/transport/messenger.h"
#include "worker/shell/transport/transport_address.h"

namespace weft {

struct PeerConnection {
  Messenger::LinkId link = 0;
  int32_t pid = 0;
  int process_fd = -1;    // -1: not of this machine, or ended
  bool in_place = false;  // this process can read the peer's memory
  bool open = true;       // true unless the peer has failed or said goodbye
  // True once its link has failed and it is not yet decided what that means.
  bool broken = false;
  PeerClock clock;                     // clock of a peer on another machine
  bool carries_device = false;         // true if tensors of the device's memory may go to it
  bool used = false;                   // true once a tensor has gone to it
  std::string host_path, device_path;  // paths as Transport::PathTo
  std::string staged_because;          // reason for a device_path that is not direct
};

class PeerConnections {
 public:
  using Map = absl::btree_map<uint64_t, PeerConnection>;  // by sender; ordered, so that runs repeat

  PeerConnections() = default;
  ~PeerConnections();
  PeerConnections(const PeerConnections&) = delete;
  PeerConnections& operator=(const PeerConnections&) = delete;

  absl::Status OpenWaitSet();
  absl::Status AddToWaitSet(int fd);
  int wait_set() const { return wait_set_; }

  PeerConnection* Find(uint64_t sender);
  std::optional<uint64_t> SenderOf(Messenger::LinkId link) const;
  const Map& all() const { return connections_; }

  // Opens a connection. Unavailable if the process has ended or cannot be reached.
  absl::Status Open(const TransportAddress& address, Messenger* messenger);
  // Ends the connection of a peer that has gone: closes link and process descriptor. The entry stays, so that
  // late messages are recognized.
  void End(uint64_t sender, Messenger* messenger);

  // Returns the open connections whose process has ended.
  const std::vector<uint64_t>& FindEnded();

  // Notes that the link has failed. That counts as a failure of the peer only after `verdict`, because its
  // goodbye may be read after the end of its connection was noticed.
  void MarkBroken(uint64_t sender, int64_t verdict, std::string cause);
  int64_t next_verdict() const;
  // Returns a connection whose time for a goodbye is over at `now`, with the cause; one per call.
  std::optional<std::pair<uint64_t, std::string>> TakeBroken(int64_t now);

 private:
  struct BrokenLink {
    uint64_t sender;
    int64_t verdict;
    std::string cause;
  };

  Map connections_;
  std::deque<BrokenLink> broken_;  // by verdict
  int wait_set_ = -1;
  std::vector<pollfd> polled_;
  std::vector<uint64_t> polled_senders_, ended_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_PEER_CONNECTIONS_H_
