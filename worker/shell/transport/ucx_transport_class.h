// Declares the class behind CreateUcxTransport (ucx_transport.h). It has three files: its state and its
// connections (ucx_transport.cc), how tensors come (ucx_transport_receive.cc) and how they go
// (ucx_transport_send.cc).
//
// Each part with a state of its own is a machine of its own, which this class steps: wants and offers
// (transfer_table.h), connections (peer_connections.h), who may connect (admitted_peers.h), links on which
// something is awaited (awaited_links.h), tensors that others read (held_offers.h), those that arrive
// (landings.h), and what their producers are to hear of them (tensor_receipts.h).
#ifndef WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_CLASS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_CLASS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/monotonic_clock.h"
#include "worker/shell/transport/admitted_peers.h"
#include "worker/shell/transport/awaited_links.h"
#include "worker/shell/transport/held_offers.h"
#include "worker/shell/transport/landings.h"
#include "worker/shell/transport/mapped_memory.h"
#include "worker/shell/transport/messenger.h"
#include "worker/shell/transport/peer_connections.h"
#include "worker/shell/transport/tensor_receipts.h"
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
  void Want(PeerId peer, const TensorKey& key) override;
  void Cancel(const TensorKey& key) override;
  void Offer(PeerId peer, const TensorKey& key, Tensor tensor) override;
  int Progress(Nanos now, std::vector<TransportEvent>* events) override;

  int event_fd() const override { return connections_.wait_set(); }
  bool Arm() override { return events_.empty() && receipts_.queue()->Arm() && messenger_->Arm(); }
  Nanos next_look() const override { return std::min(connections_.next_verdict(), links_.next_look()); }
  bool CarriesDevice(PeerId peer) const override;
  std::string PathTo(PeerId peer, MemoryPlace place) const override;
  std::vector<PeerPath> paths() const override;

  std::string DescribeSilence(Nanos now) const override { return links_.DescribeSilence(now); }
  absl::Status health() const override { return links_.lost().ok() ? messenger_->Health() : links_.lost(); }
  int silent_links() const override { return links_.silent_links(); }
  uint64_t bytes_held() const override { return table_.offered_bytes() + held_.bytes(); }
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

  void HandleWant(const TransportMessage& message);
  void HandleInPlace(const TransportMessage& message);
  void HandleNotice(const TransportMessage& message);
  void HandleReleases(const TransportMessage& message);
  void HandleCopyInstead(const TransportMessage& message);
  void HandleGoodbye(uint64_t sender);

  void SendMessage(uint64_t to, TransportMessage* message);
  void SendMessage(const PeerConnection& to, TransportMessage* message);
  void SendKey(PeerId peer, Type type, const TensorKey& key, bool again = false);
  void Deliver(Delivery delivery);
  void SendOffer(uint64_t offer);
  void SendAgain(const HeldOffers::Answer& answer);
  Nanos MadeAt(const TransportMessage& message);
  void Arrived(PeerId peer, const TensorKey& key, Tensor tensor, bool in_place);
  absl::Status Open(const TransportAddress& address, const std::string& label);
  const PeerConnection* ConnectionOf(PeerId peer) const;
  void NoteUse(PeerId peer, PeerConnection* connection);
  void Lose(uint64_t sender, absl::string_view cause);

  void AnnounceFreedSegments();
  void CheckLiveness(Nanos now, bool busy);
  void WatchLinks(Nanos now);
  bool AwaitsReleases() const;

  const UcxOptions options_;
  const uint64_t sender_;
  const std::shared_ptr<MappedMemory> memory_;
  std::string address_;

  DeviceIdentity device_;  // kind "": takes no tensors of a device

  TransferTable table_;
  PeerSegments segments_;
  PeerConnections connections_;
  std::optional<AdmittedPeers> admitted_;  // from Start on
  AwaitedLinks links_;
  HeldOffers held_;
  Landings landings_;
  std::vector<TransportEvent> events_;
  TensorReceipts receipts_;
  TransportCounters counters_;  // dropped_messages: those that the table does not count
  Nanos now_ = 0;
  Nanos last_liveness_ = 0, last_probe_ = 0;
  std::unique_ptr<Messenger> messenger_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_CLASS_H_
