// Declares the class behind CreateUcxTransport (ucx_transport.h).
//
// It opens, watches and ends the connections to other processes, and brings each message to the part that it
// is for. Each part with a state of its own is a machine of its own, which this class steps: wants and offers
// (transfer_table.h), tensors that come (incoming_tensors.h) and that go (outgoing_tensors.h), connections
// (peer_connections.h), who may connect (admitted_peers.h), and links on which something is awaited
// (awaited_links.h).
//
// Invariant: every part hears of the end of a process from Lose alone. Threads, ownership and failure are
// those of Transport.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_CLASS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_CLASS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/monotonic_clock.h"
#include "worker/shell/transport/admitted_peers.h"
#include "worker/shell/transport/awaited_links.h"
#include "worker/shell/transport/incoming_tensors.h"
#include "worker/shell/transport/mapped_memory.h"
#include "worker/shell/transport/messenger.h"
#include "worker/shell/transport/outgoing_tensors.h"
#include "worker/shell/transport/peer_connections.h"
#include "worker/shell/transport/transfer_table.h"
#include "worker/shell/transport/transport_address.h"
#include "worker/shell/transport/transport_message.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft {

class UcxTransport final : public Transport, private Messenger::Handler {
 public:
  explicit UcxTransport(const UcxOptions& options);
  ~UcxTransport() override;

  absl::Status Start();

  const std::string& address() const override { return address_; }
  absl::string_view name() const override { return "ucx"; }
  MemorySource& memory() override { return *memory_; }

  void BeginEpoch(uint64_t run, uint64_t epoch) override;
  absl::Status Admit(const std::vector<PeerAddress>& peers) override;
  absl::Status Connect(PeerId peer, const std::string& address, const std::string& label) override;
  void Want(PeerId peer, const TensorKey& key) override { incoming_.Want(now_, peer, key, &events_); }
  void Cancel(const TensorKey& key) override { incoming_.Cancel(key); }
  void Offer(PeerId peer, const TensorKey& key, Tensor tensor) override {
    outgoing_.Offer(now_, peer, key, std::move(tensor));
  }
  int Progress(Nanos now, std::vector<TransportEvent>* events) override;

  int event_fd() const override { return connections_.wait_set(); }
  bool Arm() override { return events_.empty() && incoming_.releases().Arm() && messenger_->Arm(); }
  Nanos next_look() const override { return std::min(connections_.next_verdict(), links_.next_look()); }
  bool CarriesDevice(PeerId peer) const override;
  std::string PathTo(PeerId peer, MemoryPlace place) const override;
  std::vector<PeerPath> paths() const override;

  std::string DescribeSilence(Nanos now) const override { return links_.DescribeSilence(now); }
  absl::Status health() const override { return links_.lost().ok() ? messenger_->Health() : links_.lost(); }
  int silent_links() const override { return links_.silent_links(); }
  uint64_t bytes_held() const override { return outgoing_.bytes_held(); }
  TransportCounters counters() const override;
  void Close(Nanos deadline) override;

 private:
  using Type = TransportMessage::Type;

  // Messenger::Handler.
  void OnMessage(absl::string_view header) override;
  Landing OnPayload(absl::string_view header, size_t bytes) override;
  void OnLanded(uint64_t token, const absl::Status& status) override;
  void OnSent(uint64_t token, const absl::Status& status) override;
  void OnLinkFailed(Messenger::LinkId link, const absl::Status& cause) override;

  void HandleGoodbye(uint64_t sender);
  // Sends a message. One that a test loses counts as sent.
  void Send(const PeerConnection& to, TransportMessage* message, const Messenger::Payload& payload = {});
  // Sends a message that says no more than this.
  void Send(const PeerConnection& to, Type type);
  absl::Status Open(const TransportAddress& address, const std::string& label);
  const PeerConnection* ConnectionOf(PeerId peer) const;
  void Lose(uint64_t sender, absl::string_view cause);

  void AnnounceFreedSegments();
  void CheckLiveness(Nanos now, bool busy);
  void WatchLinks(Nanos now);

  const UcxOptions options_;
  const uint64_t sender_;
  const std::shared_ptr<MappedMemory> memory_;
  std::string address_;

  DeviceIdentity device_;  // kind "": takes no tensors of a device

  TransferTable table_;
  PeerConnections connections_;
  std::optional<AdmittedPeers> admitted_;  // from Start on
  AwaitedLinks links_;
  IncomingTensors incoming_;
  OutgoingTensors outgoing_;
  std::vector<TransportEvent> events_;
  uint64_t dropped_ = 0;  // messages that cannot be decoded, or of processes that are not connected
  Nanos now_ = 0;
  Nanos last_liveness_ = 0, last_probe_ = 0;
  std::unique_ptr<Messenger> messenger_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_CLASS_H_
