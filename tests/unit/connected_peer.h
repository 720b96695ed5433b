// One other process as a peer of a transport's parts, with no network between: its messages are what a test
// makes of them.
#ifndef WEFT_TESTS_UNIT_CONNECTED_PEER_H_
#define WEFT_TESTS_UNIT_CONNECTED_PEER_H_

#include <memory>
#include <string>
#include <vector>

#include "worker/shell/transport/messenger.h"
#include "worker/shell/transport/peer_connections.h"
#include "worker/shell/transport/transfer_table.h"

namespace weft {

inline constexpr Nanos kNow = 1'000'000'000;  // time of what the tests do

// Opens links on which nothing is sent.
class MuteMessenger final : public Messenger {
 public:
  const std::string& address() const override { return address_; }
  absl::StatusOr<LinkId> Connect(absl::string_view) override { return LinkId{1}; }
  void Disconnect(LinkId) override {}
  void Send(LinkId, absl::string_view, const Payload&) override {}
  std::vector<std::string> Transports(LinkId) const override { return {}; }
  int Progress() override { return 0; }
  int event_fd() const override { return -1; }
  bool Arm() override { return true; }
  void Close(int64_t) override {}

 private:
  const std::string address_ = "mute";
};

struct ConnectedPeer {
  static constexpr uint64_t kSender = 1001, kRun = 7, kEpoch = 1;
  static constexpr PeerId kPeer = 3;

  // `process`: that of the peer; one of another machine unless it is ThisProcess().
  explicit ConnectedPeer(const ProcessIdentity& process = {"another machine", 1, 1}) {
    TransportAddress address;
    address.sender = kSender;
    address.process = process;
    opened = connections.Open(address, &messenger);
    table.BeginEpoch(kRun, kEpoch);
    table.AddPeer(kPeer, kSender, "process 3", &events);
  }

  PeerConnection& connection() { return *connections.Find(kSender); }
  static TensorKey Key(int step) {
    TensorKey key;
    key.run = kRun;
    key.epoch = kEpoch;
    key.step = step;
    return key;
  }
  static TensorShape Bytes(int64_t bytes) { return {DataType::kUInt8, 1, {bytes}}; }

  MuteMessenger messenger;
  TransferTable table;
  PeerConnections connections;
  std::vector<TransportEvent> events;
  absl::Status opened;
};

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_CONNECTED_PEER_H_
