// Declares the class behind CreateUcxTransport (ucx_transport.h). It has three files: its state and its
// connections (ucx_transport.cc), how tensors come (ucx_transport_receive.cc) and how they go
// (ucx_transport_send.cc).
#ifndef WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_CLASS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_CLASS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "base/monotonic_clock.h"
#include "worker/shell/transport/held_offers.h"
#include "worker/shell/transport/landings.h"
#include "worker/shell/transport/link_watch.h"
#include "worker/shell/transport/mapped_memory.h"
#include "worker/shell/transport/peer_connections.h"
#include "worker/shell/transport/release_queue.h"
#include "worker/shell/transport/transfer_table.h"
#include "worker/shell/transport/transport_address.h"
#include "worker/shell/transport/transport_message.h"
#include "worker/shell/transport/ucx_messenger.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft {

class UcxTransport final : public Transport, private UcxMessenger::Handler {
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
  void Want(PeerId peer, const TensorKey& key, Nanos deadline) override;
  void Cancel(const TensorKey& key) override;
  void Offer(PeerId peer, const TensorKey& key, Tensor tensor) override;
  int Progress(Nanos now, std::vector<TransportEvent>* events) override;

  int event_fd() const override { return connections_.wait_set(); }
  bool Arm() override { return events_.empty() && releases_->Arm() && messenger_->Arm(); }
  Nanos next_deadline() const override {
    const Nanos wants = table_.next_deadline();
    // A look finds nothing while nothing is wanted and no link was silent.
    const bool watches = wants != std::numeric_limits<Nanos>::max() || watch_.silent_links() > 0;
    return std::min({wants, connections_.next_verdict(),
                     watches ? watch_.next_look() : std::numeric_limits<Nanos>::max()});
  }
  bool CarriesDevice(PeerId peer) const override;
  std::string PathTo(PeerId peer, MemoryPlace place) const override;
  std::vector<PeerPath> paths() const override;

  std::string DescribeSilence(Nanos now) const override;
  absl::Status health() const override { return lost_link_.ok() ? messenger_->ListenerStatus() : lost_link_; }
  int silent_links() const override { return watch_.silent_links(); }
  uint64_t bytes_held() const override { return table_.offered_bytes() + held_.bytes(); }
  TransportCounters counters() const override;
  void Close(Nanos deadline) override;

 private:
  using Type = TransportMessage::Type;

  // UcxMessenger::Handler.
  void OnMessage(absl::string_view header) override;
  Landing OnPayload(absl::string_view header, size_t bytes) override;
  void OnLanded(uint64_t token, const absl::Status& status) override;
  void OnSent(uint64_t token, const absl::Status& status) override;
  void OnLinkFailed(UcxMessenger::LinkId link, const absl::Status& cause) override;

  void HandleInPlace(const TransportMessage& message);
  void HandleNotice(const TransportMessage& message);
  void HandleReleases(const TransportMessage& message);
  void HandleCopyInstead(const TransportMessage& message);
  void HandleGoodbye(uint64_t sender);

  void SendMessage(uint64_t to, TransportMessage* message);
  void SendMessage(const PeerConnection& to, TransportMessage* message);
  void SendKey(PeerId peer, Type type, const TensorKey& key);
  void Deliver(Delivery delivery);
  void SendBytes(const PeerConnection& to, uint64_t offer);
  Nanos MadeAt(const TransportMessage& message);
  void Arrived(PeerId peer, const TensorKey& key, Tensor tensor, bool in_place);
  absl::Status AdmitSenders(const std::vector<TransportAddress>& addresses);
  absl::Status AdmitOnlyKnown();
  void ChoosePaths(const TransportAddress& address, PeerConnection* connection);
  const PeerConnection* ConnectionOf(PeerId peer) const;
  void NoteUse(PeerId peer, PeerConnection* connection);
  void Lose(uint64_t sender, absl::string_view cause);
  void NoteLostLink(const std::string& label);

  void FlushReleases();
  void AnnounceFreedSegments();
  void CheckLiveness(Nanos now, bool busy);
  void ExpireWants(Nanos now);
  void WatchLinks(Nanos now);
  std::string DescribeWait(const TransferTable::PeerWants& wants, Nanos now) const;
  bool AwaitsReleases() const;

  const UcxOptions options_;
  const uint64_t sender_;
  const std::shared_ptr<MappedMemory> memory_;
  const std::shared_ptr<ReleaseQueue> releases_;  // shared with arrived tensors
  std::string address_;

  DeviceIdentity device_;  // kind "": takes no tensors of a device

  TransferTable table_;
  PeerSegments segments_;
  PeerConnections connections_;
  absl::btree_map<uint64_t, std::vector<std::string>> admitted_;  // addresses by sender
  LinkWatch watch_;
  HeldOffers held_;
  Landings landings_;
  std::vector<TransportEvent> events_;
  std::vector<ReleaseQueue::Release> release_buffer_;
  TransportCounters counters_;  // dropped_messages: those that the table does not count
  Nanos now_ = 0;
  Nanos last_liveness_ = 0, last_watch_ = 0;
  std::unique_ptr<UcxMessenger> messenger_;
  absl::Status lost_link_;  // of the first link that is lost though its peer lives; OK for none
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_UCX_TRANSPORT_CLASS_H_
