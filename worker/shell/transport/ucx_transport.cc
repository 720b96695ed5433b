#include "worker/shell/transport/ucx_transport.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "worker/shell/transport/held_offers.h"
#include "worker/shell/transport/in_place_arrival.h"
#include "worker/shell/transport/mapped_memory.h"
#include "worker/shell/transport/peer_connections.h"
#include "worker/shell/transport/peer_process.h"
#include "worker/shell/transport/receive_pool.h"
#include "worker/shell/transport/release_queue.h"
#include "worker/shell/transport/transfer_table.h"
#include "worker/shell/transport/transport_address.h"
#include "worker/shell/transport/transport_message.h"
#include "worker/shell/transport/ucx_messenger.h"

namespace weft {
namespace {

using Type = TransportMessage::Type;

static_assert(TransportMessage::kMaxBytes <= UcxMessenger::kMaxHeaderBytes);

constexpr Nanos kMillisecond = 1'000'000;
constexpr Nanos kLivenessInterval = 20 * kMillisecond;       // when idle
constexpr Nanos kLivenessIntervalBusy = 500 * kMillisecond;  // when messages keep coming
// A goodbye may be read after the end of its connection was noticed; so long is waited for it.
constexpr Nanos kGoodbyeGrace = 250 * kMillisecond;
constexpr Nanos kGoodbyeTime = 500 * kMillisecond;  // least time for closing, whatever the deadline

Nanos MonotonicNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class UcxTransport final : public Transport, private UcxMessenger::Handler {
 public:
  explicit UcxTransport(const UcxOptions& options)
      : options_(options),
        sender_(NewSenderNumber()),
        memory_(std::make_shared<MappedMemory>()),
        pool_(ReceivePool::Create(memory_, options.receive_pool_idle_limit)),
        releases_(std::make_shared<ReleaseQueue>()) {}
  ~UcxTransport() override;

  absl::Status Start();

  const std::string& address() const override { return address_; }
  absl::string_view name() const override { return "ucx"; }
  MemorySource& memory() override { return *memory_; }

  void BeginEpoch(uint64_t run, uint64_t epoch) override { table_.BeginEpoch(run, epoch); }
  absl::Status Connect(PeerId peer, const std::string& address, const std::string& label) override;
  void Want(PeerId peer, const TensorKey& key, Nanos deadline) override;
  void Cancel(const TensorKey& key) override;
  void Offer(PeerId peer, const TensorKey& key, Tensor tensor) override;
  int Progress(Nanos now, std::vector<TransportEvent>* events) override;

  int event_fd() const override { return connections_.wait_set(); }
  bool Arm() override { return events_.empty() && releases_->Arm() && messenger_->Arm(); }
  Nanos next_deadline() const override {
    return std::min(table_.next_deadline(), connections_.next_verdict());
  }
  uint64_t bytes_held() const override { return table_.offered_bytes() + held_.bytes(); }
  TransportCounters counters() const override;
  void Close(Nanos deadline) override;

 private:
  // Bytes on their way into `block`.
  struct Incoming {
    PeerId peer;
    TensorKey key;
    Tensor tensor;  // its bytes are not there yet
  };
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
  void SendKey(PeerId peer, Type type, const TensorKey& key);
  void Deliver(Delivery delivery);
  void SendBytes(uint64_t offer);
  Nanos MadeAt(const TransportMessage& message);
  void Arrived(PeerId peer, const TensorKey& key, Tensor tensor, bool in_place);
  void Lose(uint64_t sender, absl::string_view cause);

  void FlushReleases();
  void AnnounceFreedSegments();
  void CheckLiveness(Nanos now, bool busy);
  void ExpireWants(Nanos now);
  bool AwaitsReleases() const;

  const UcxOptions options_;
  const uint64_t sender_;
  const std::shared_ptr<MappedMemory> memory_;
  const std::shared_ptr<ReceivePool> pool_;       // shared with arrived tensors
  const std::shared_ptr<ReleaseQueue> releases_;  // shared with arrived tensors
  std::string address_;

  TransferTable table_;
  PeerSegments segments_;
  PeerConnections connections_;
  HeldOffers held_;
  absl::flat_hash_map<uint64_t, Incoming> incoming_;
  uint64_t next_incoming_ = 1;
  std::vector<TransportEvent> events_;
  std::vector<ReleaseQueue::Release> release_buffer_;
  TransportCounters counters_;  // dropped_messages: those that the table does not count
  Nanos now_ = MonotonicNow();
  Nanos last_liveness_ = 0;
  std::unique_ptr<UcxMessenger> messenger_;
};

// ---- Start and end.

absl::Status UcxTransport::Start() {
  const absl::StatusOr<void*> probe = memory_->Allocate(1);
  if (!probe.ok()) return probe.status();
  absl::StatusOr<std::unique_ptr<UcxMessenger>> messenger = UcxMessenger::Create(UcxSettings(options_), this);
  if (!messenger.ok()) return messenger.status();
  messenger_ = *std::move(messenger);
  address_ =
      EncodeAddress({sender_, ThisProcess(), memory_->Find(*probe, 1)->segment, messenger_->address()});
  if (absl::Status status = connections_.OpenWaitSet(); !status.ok()) return status;
  if (absl::Status status = connections_.AddToWaitSet(messenger_->event_fd()); !status.ok()) return status;
  return connections_.AddToWaitSet(releases_->event_fd());
}

UcxTransport::~UcxTransport() {
  releases_->Close();
  messenger_.reset();  // first: it completes what is under way through this object
}

bool UcxTransport::AwaitsReleases() const {
  // A peer that failed or said goodbye will not release any more.
  return table_.offers() > 0 ||
         held_.AnyHeldBy([this](uint64_t consumer) { return connections_.all().at(consumer).open; });
}

void UcxTransport::Close(Nanos deadline) {
  std::vector<TransportEvent> ignored;
  for (Nanos now = MonotonicNow(); AwaitsReleases() && now < deadline; now = MonotonicNow()) {
    if (Progress(now, &ignored) > 0 || !Arm()) continue;
    pollfd wake{event_fd(), POLLIN, 0};
    poll(&wake, 1, static_cast<int>(std::min((deadline - now) / kMillisecond + 1, Nanos{50})));
  }
  FlushReleases();
  releases_->Close();
  for (const auto& [sender, connection] : connections_.all()) {
    TransportMessage goodbye;
    goodbye.type = Type::kGoodbye;
    if (connection.open) SendMessage(sender, &goodbye);
  }
  messenger_->Close(std::max(deadline, MonotonicNow() + kGoodbyeTime));
}

TransportCounters UcxTransport::counters() const {
  TransportCounters counters = counters_;
  counters.dropped_messages += table_.dropped();
  return counters;
}

// ---- Peers.

absl::Status UcxTransport::Connect(PeerId peer, const std::string& bytes, const std::string& label) {
  const absl::StatusOr<TransportAddress> address = DecodeAddress(bytes);
  if (!address.ok()) return absl::InvalidArgumentError(absl::StrCat(label, ": ", address.status().message()));
  if (connections_.Find(address->sender) == nullptr) {
    if (absl::Status status = connections_.Open(*address, messenger_.get()); !status.ok()) {
      return absl::UnavailableError(absl::StrCat(label, ": ", status.message()));
    }
    PeerConnection* connection = connections_.Find(address->sender);
    // Reading in place also needs the process descriptor: it tells when the reader is gone.
    connection->in_place = options_.in_place && connection->process_fd >= 0 &&
                           segments_.Map(address->sender, connection->pid, address->probe).ok();
  }
  table_.AddPeer(peer, address->sender, label, &events_);
  return table_.PeerStatus(peer);
}

void UcxTransport::Lose(uint64_t sender, absl::string_view cause) {
  connections_.End(sender, messenger_.get());
  segments_.ForgetAll(sender);
  held_.DropReadBy(sender);
  const std::optional<PeerId> peer = table_.PeerOf(sender);
  if (!peer) return;
  table_.FailPeer(*peer, absl::UnavailableError(absl::StrCat(table_.label(*peer), " is lost: ", cause)),
                  /*report=*/true, &events_);
}

void UcxTransport::OnLinkFailed(UcxMessenger::LinkId link, const absl::Status& cause) {
  const std::optional<uint64_t> sender = connections_.SenderOf(link);
  if (sender) connections_.MarkBroken(*sender, now_ + kGoodbyeGrace, std::string(cause.message()));
}

void UcxTransport::CheckLiveness(Nanos now, bool busy) {
  while (const auto broken = connections_.TakeBroken(now)) Lose(broken->first, broken->second);
  if (now - last_liveness_ < (busy ? kLivenessIntervalBusy : kLivenessInterval)) return;
  last_liveness_ = now;
  for (const uint64_t sender : connections_.FindEnded()) Lose(sender, "its process has ended");
}

void UcxTransport::HandleGoodbye(uint64_t sender) {
  // Not Lose: this runs inside UCX, and the peer may go on reading tensors that it has not dropped.
  connections_.Find(sender)->open = false;
  const std::optional<PeerId> peer = table_.PeerOf(sender);
  if (!peer) return;
  table_.FailPeer(*peer,
                  absl::UnavailableError(absl::StrCat(table_.label(*peer), " has closed its connections")),
                  /*report=*/false, &events_);
}

// ---- The consumer's half.

void UcxTransport::Want(PeerId peer, const TensorKey& key, Nanos deadline) {
  if (table_.Want(peer, key, now_, deadline, &events_)) SendKey(peer, Type::kWant, key);
}

void UcxTransport::Cancel(const TensorKey& key) {
  if (const std::optional<PeerId> peer = table_.Cancel(key)) SendKey(*peer, Type::kCancel, key);
}

void UcxTransport::ExpireWants(Nanos now) {
  if (table_.next_deadline() > now) return;
  const size_t before = events_.size();
  table_.Expire(now, &events_);
  for (size_t i = before; i < events_.size(); ++i) SendKey(events_[i].peer, Type::kCancel, events_[i].key);
}

// On this machine's clock.
Nanos UcxTransport::MadeAt(const TransportMessage& message) {
  PeerConnection& connection = *connections_.Find(message.sender);
  if (connection.process_fd >= 0 || message.made_ns == 0) return message.made_ns;
  connection.clock.Observe(message.sent_ns, now_);
  return connection.clock.ToLocal(message.made_ns);
}

void UcxTransport::Arrived(PeerId peer, const TensorKey& key, Tensor tensor, bool in_place) {
  ++counters_.tensors_received;
  counters_.bytes_received += tensor.bytes;
  if (in_place) counters_.bytes_in_place += tensor.bytes;
  events_.push_back(ArrivedEvent(peer, key, std::move(tensor)));
}

void UcxTransport::HandleInPlace(const TransportMessage& message) {
  const std::optional<PeerId> peer = table_.PeerOf(message.sender);
  if (!peer || !table_.IsAwaited(*peer, message.key)) {
    ++counters_.dropped_messages;
    releases_->Push({message.sender, message.offer});
    return;
  }
  const PeerConnection& connection = *connections_.Find(message.sender);
  absl::StatusOr<std::shared_ptr<PeerMapping>> mapping = absl::PermissionDeniedError("not asked for");
  if (connection.in_place) mapping = segments_.Map(message.sender, connection.pid, message.segment);
  if (!mapping.ok()) {
    TransportMessage instead;
    instead.type = Type::kCopyInstead;
    instead.offers[0] = message.offer;
    instead.offer_count = 1;
    SendMessage(message.sender, &instead);
    return;
  }
  table_.Take(*peer, message.key);
  void* const data = (*mapping)->base() + message.offset;
  auto arrival = std::make_shared<InPlaceArrival>(*std::move(mapping), releases_,
                                                  ReleaseQueue::Release{message.sender, message.offer});
  Arrived(*peer, message.key,
          Tensor{message.shape, data, message.bytes, std::shared_ptr<void>(arrival, data), MadeAt(message)},
          /*in_place=*/true);
}

void UcxTransport::HandleNotice(const TransportMessage& message) {
  const std::optional<PeerId> peer = table_.PeerOf(message.sender);
  if (!peer || message.bytes > 0 || !table_.IsAwaited(*peer, message.key)) {
    ++counters_.dropped_messages;
  } else if (table_.Take(*peer, message.key)) {
    Arrived(*peer, message.key, Tensor{message.shape, nullptr, 0, nullptr, MadeAt(message)},
            /*in_place=*/false);
  }
}

UcxMessenger::Handler::Landing UcxTransport::OnPayload(absl::string_view header, size_t bytes) {
  TransportMessage message;
  std::optional<PeerId> peer;
  if (Decode(header, &message).ok() && message.type == Type::kData && message.bytes == bytes) {
    peer = table_.PeerOf(message.sender);
  }
  if (!peer || !table_.IsAwaited(*peer, message.key)) {
    ++counters_.dropped_messages;
    return {};
  }
  absl::StatusOr<std::shared_ptr<void>> block = pool_->Get(bytes);
  if (!block.ok()) {
    const std::string what =
        absl::StrCat("no memory to receive ", Describe(message.key), ": ", block.status().message());
    table_.FailWant(message.key, absl::Status(block.status().code(), what), &events_);
    return {};
  }
  table_.MarkLanding(message.key);
  const uint64_t token = next_incoming_++;
  void* const to = block->get();
  Tensor tensor{message.shape, to, bytes, *std::move(block), MadeAt(message)};
  incoming_.emplace(token, Incoming{*peer, message.key, std::move(tensor)});
  return {to, token};
}

void UcxTransport::OnLanded(uint64_t token, const absl::Status& status) {
  auto it = incoming_.find(token);
  Incoming in = std::move(it->second);
  incoming_.erase(it);
  if (!status.ok()) {
    const std::string what =
        absl::StrCat("no ", Describe(in.key), " from ", table_.label(in.peer), ": ", status.message());
    table_.FailWant(in.key, absl::UnavailableError(what), &events_);
    return;
  }
  if (!table_.Take(in.peer, in.key)) return;
  Arrived(in.peer, in.key, std::move(in.tensor), /*in_place=*/false);
}

void UcxTransport::FlushReleases() {
  release_buffer_.clear();
  releases_->Take(&release_buffer_);
  if (release_buffer_.empty()) return;
  std::stable_sort(release_buffer_.begin(), release_buffer_.end(),
                   [](const auto& a, const auto& b) { return a.producer < b.producer; });
  TransportMessage message;
  message.type = Type::kRelease;
  for (size_t i = 0; i < release_buffer_.size(); ++i) {
    const auto& [producer, offer] = release_buffer_[i];
    message.offers[message.offer_count++] = offer;
    const bool last = i + 1 == release_buffer_.size() || release_buffer_[i + 1].producer != producer;
    if (!last && message.offer_count < TransportMessage::kMaxOffers) continue;
    const PeerConnection* connection = connections_.Find(producer);
    if (connection != nullptr && connection->open) SendMessage(producer, &message);
    message.offer_count = 0;
  }
}

// ---- The producer's half.

void UcxTransport::Offer(PeerId peer, const TensorKey& key, Tensor tensor) {
  if (std::optional<Delivery> due = table_.Offer(peer, key, std::move(tensor))) Deliver(*std::move(due));
}

void UcxTransport::Deliver(Delivery delivery) {
  ++counters_.tensors_sent;
  counters_.bytes_sent += delivery.tensor.bytes;
  const uint64_t consumer = *table_.SenderOf(delivery.peer);
  TransportMessage message;
  message.key = delivery.key;
  message.shape = delivery.tensor.shape;
  message.bytes = delivery.tensor.bytes;
  message.made_ns = delivery.tensor.made_ns;
  message.sent_ns = MonotonicNow();
  if (message.bytes == 0) {
    message.type = Type::kData;
    SendMessage(consumer, &message);
    return;
  }
  if (delivery.in_place_ok && options_.in_place && message.bytes > options_.inline_bytes) {
    if (const auto place = memory_->Find(delivery.tensor.data, message.bytes)) {
      message.type = Type::kInPlace;
      message.segment = place->segment;
      message.offset = place->offset;
      message.offer = held_.Add({consumer, delivery.key, std::move(delivery.tensor), /*sending=*/false});
      SendMessage(consumer, &message);
      return;
    }
  }
  SendBytes(held_.Add({consumer, delivery.key, std::move(delivery.tensor), /*sending=*/true}));
}

void UcxTransport::SendBytes(uint64_t offer) {
  const HeldOffer& held = *held_.Find(offer);
  TransportMessage message;
  message.type = Type::kData;
  message.sender = sender_;
  message.key = held.key;
  message.shape = held.tensor.shape;
  message.bytes = held.tensor.bytes;
  message.made_ns = held.tensor.made_ns;
  message.sent_ns = MonotonicNow();
  char buffer[TransportMessage::kMaxBytes];
  const size_t size = Encode(message, buffer);
  messenger_->Send(connections_.Find(held.consumer)->link, absl::string_view(buffer, size), held.tensor.data,
                   held.tensor.bytes, offer);
}

void UcxTransport::OnSent(uint64_t token, const absl::Status& /*status*/) {
  // A send fails with its link only, and that is reported by itself.
  held_.Drop(token);
}

void UcxTransport::HandleReleases(const TransportMessage& message) {
  for (uint32_t i = 0; i < message.offer_count; ++i) {
    if (held_.FindReadBy(message.sender, message.offers[i]) == nullptr) {
      ++counters_.dropped_messages;
    } else {
      held_.Drop(message.offers[i]);
    }
  }
}

void UcxTransport::HandleCopyInstead(const TransportMessage& message) {
  for (uint32_t i = 0; i < message.offer_count; ++i) {
    if (HeldOffer* held = held_.FindReadBy(message.sender, message.offers[i])) {
      held->sending = true;
      SendBytes(message.offers[i]);
    } else {
      ++counters_.dropped_messages;
    }
  }
}

void UcxTransport::AnnounceFreedSegments() {
  for (const uint64_t id : memory_->TakeFreed()) {
    TransportMessage gone;
    gone.type = Type::kSegmentGone;
    gone.segment.id = id;
    for (const auto& [sender, connection] : connections_.all()) {
      if (connection.process_fd >= 0 && connection.open) SendMessage(sender, &gone);
    }
  }
}

// ---- Messages.

void UcxTransport::SendMessage(uint64_t to, TransportMessage* message) {
  message->sender = sender_;
  char buffer[TransportMessage::kMaxBytes];
  const size_t size = Encode(*message, buffer);
  messenger_->Send(connections_.Find(to)->link, absl::string_view(buffer, size), nullptr, 0, 0);
}

void UcxTransport::SendKey(PeerId peer, Type type, const TensorKey& key) {
  const uint64_t to = *table_.SenderOf(peer);
  TransportMessage message;
  message.type = type;
  message.key = key;
  message.in_place_ok = connections_.Find(to)->in_place;
  SendMessage(to, &message);
}

void UcxTransport::OnMessage(absl::string_view header) {
  TransportMessage message;
  const bool valid = Decode(header, &message).ok();
  // Wants may come from processes that are not connected yet; the table keeps them.
  if (valid && message.type == Type::kWant) {
    if (auto due = table_.OnWant(message.sender, message.key, message.in_place_ok)) Deliver(*std::move(due));
    return;
  }
  if (valid && message.type == Type::kCancel) return table_.OnCancel(message.sender, message.key);
  if (!valid || connections_.Find(message.sender) == nullptr) {
    ++counters_.dropped_messages;
    return;
  }
  switch (message.type) {
    case Type::kInPlace:
      return HandleInPlace(message);
    case Type::kData:
      return HandleNotice(message);
    case Type::kRelease:
      return HandleReleases(message);
    case Type::kCopyInstead:
      return HandleCopyInstead(message);
    case Type::kSegmentGone:
      return segments_.Forget(message.sender, message.segment.id);
    case Type::kGoodbye:
      return HandleGoodbye(message.sender);
    case Type::kWant:
    case Type::kCancel:
      return;
  }
}

int UcxTransport::Progress(Nanos now, std::vector<TransportEvent>* events) {
  now_ = now;
  FlushReleases();
  AnnounceFreedSegments();
  const int moved = messenger_->Progress();
  CheckLiveness(now, moved > 0);
  ExpireWants(now);
  const int handled = moved + static_cast<int>(events_.size());
  std::move(events_.begin(), events_.end(), std::back_inserter(*events));
  events_.clear();
  return handled;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const UcxOptions& options) {
  auto transport = std::make_unique<UcxTransport>(options);
  if (absl::Status status = transport->Start(); !status.ok()) return status;
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace weft
