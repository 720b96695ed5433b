#include "worker/shell/transport/ucx_transport.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "worker/shell/transport/mapped_memory.h"
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

constexpr Nanos kMillisecond = 1'000'000;
constexpr Nanos kLivenessInterval = 20 * kMillisecond;       // when idle
constexpr Nanos kLivenessIntervalBusy = 500 * kMillisecond;  // when messages keep coming
constexpr Nanos kGoodbyeTime = 500 * kMillisecond;           // least time for closing, whatever the deadline

Nanos MonotonicNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

uint64_t RandomSender() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

UcxMessenger::Settings SettingsFrom(const UcxOptions& options) {
  UcxMessenger::Settings settings;
  if (!options.tls.empty()) settings.required.emplace_back("TLS", options.tls);
  if (!options.net_devices.empty()) settings.required.emplace_back("NET_DEVICES", options.net_devices);
  settings.wished = {
      // Shared memory reports no failures unless asked to, and then is not used with our error handling; nor
      // is CMA.
      {"SYSV_ERROR_HANDLING", "y"},
      {"POSIX_ERROR_HANDLING", "y"},
      {"CMA_MEMORY_INVALIDATE", "y"},
      // A machine that vanished must be noticed in seconds.
      {"KEEPALIVE_INTERVAL", "1s"},
      {"TCP_KEEPIDLE", "2s"},
      {"TCP_KEEPINTVL", "1s"},
      {"TCP_KEEPCNT", "3"},
  };
  return settings;
}

// What keeps an in-place arrival readable; dropping it, on any thread, lets the producer have its memory
// back.
class InPlaceArrival {
 public:
  InPlaceArrival(std::shared_ptr<PeerMapping> mapping, std::shared_ptr<ReleaseQueue> releases,
                 ReleaseQueue::Release release)
      : mapping_(std::move(mapping)), releases_(std::move(releases)), release_(release) {}
  ~InPlaceArrival() { releases_->Push(release_); }
  InPlaceArrival(const InPlaceArrival&) = delete;
  InPlaceArrival& operator=(const InPlaceArrival&) = delete;

 private:
  const std::shared_ptr<PeerMapping> mapping_;
  const std::shared_ptr<ReleaseQueue> releases_;
  const ReleaseQueue::Release release_;
};

class UcxTransport final : public Transport, private UcxMessenger::Handler {
 public:
  explicit UcxTransport(const UcxOptions& options)
      : options_(options),
        sender_(RandomSender()),
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

  int event_fd() const override { return event_fd_; }
  bool Arm() override { return events_.empty() && releases_->Arm() && messenger_->Arm(); }
  Nanos next_deadline() const override { return table_.next_deadline(); }
  uint64_t bytes_held() const override { return table_.offered_bytes() + held_bytes_; }
  TransportCounters counters() const override;
  void Close(Nanos deadline) override;

 private:
  struct Peer {
    uint64_t sender = 0;
    UcxMessenger::LinkId link = 0;
    int32_t pid = 0;
    int process_fd = -1;    // -1: not of this machine, or ended
    bool in_place = false;  // this process can read the peer's memory
  };
  // A tensor that its consumer reads in place, or that is being sent. Its number goes over the wire.
  struct Held {
    PeerId peer;
    TensorKey key;
    Tensor tensor;
    bool sending;
  };
  struct Landing {
    PeerId peer;
    TensorKey key;
    TensorShape shape;
    uint64_t bytes;
    std::shared_ptr<void> block;
  };

  void OnMessage(absl::string_view header) override;
  UcxMessenger::Handler::Landing OnPayload(absl::string_view header, size_t bytes) override;
  void OnLanded(uint64_t token, const absl::Status& status) override;
  void OnSent(uint64_t token, const absl::Status& status) override;
  void OnLinkFailed(UcxMessenger::LinkId link, const absl::Status& cause) override;

  void HandleNotice(PeerId peer, const TransportMessage& message);
  void HandleReleases(PeerId peer, const TransportMessage& message);
  void HandleCopyInstead(PeerId peer, const TransportMessage& message);
  void HandleGoodbye(PeerId peer);

  void SendMessage(PeerId peer, TransportMessage* message);
  void SendKey(PeerId peer, Type type, const TensorKey& key, bool in_place_ok = false);
  void Deliver(Delivery delivery);
  void SendBytes(uint64_t token);
  uint64_t Hold(Delivery delivery, bool sending);
  void Drop(absl::flat_hash_map<uint64_t, Held>::iterator held);
  void DropHeldBy(PeerId peer);
  void Arrived(PeerId peer, const TensorKey& key, Tensor tensor, bool in_place);
  void Gone(PeerId peer, const absl::Status& cause, bool report);
  void CloseProcess(Peer* peer);

  void FlushReleases();
  void AnnounceFreedSegments();
  void CheckLiveness(Nanos now, bool busy);
  void ExpireWants(Nanos now);
  bool AwaitsReleases() const;

  const UcxOptions options_;
  const uint64_t sender_;
  const std::shared_ptr<MappedMemory> memory_;
  const std::shared_ptr<ReceivePool> pool_;
  const std::shared_ptr<ReleaseQueue> releases_;  // shared with arrived tensors
  std::string address_;
  int event_fd_ = -1;

  TransferTable table_;
  PeerSegments segments_;
  std::vector<std::pair<PeerId, Peer>> peers_;  // few; ordered by arrival
  absl::flat_hash_map<uint64_t, Held> held_;
  absl::flat_hash_map<uint64_t, Landing> landings_;
  std::vector<TransportEvent> events_;
  std::vector<ReleaseQueue::Release> release_buffer_;
  std::vector<pollfd> poll_buffer_;
  uint64_t next_token_ = 1;
  uint64_t held_bytes_ = 0;
  TransportCounters counters_;  // dropped_messages: those that the table does not count
  Nanos now_ = MonotonicNow();
  Nanos last_liveness_ = 0;
  std::unique_ptr<UcxMessenger> messenger_;

  Peer* FindPeer(PeerId peer) {
    for (auto& [id, p] : peers_) {
      if (id == peer) return &p;
    }
    return nullptr;
  }
};

// Start and end
// ---------------------------------------------------------------------------------------------------

absl::Status UcxTransport::Start() {
  absl::StatusOr<void*> probe = memory_->Allocate(1);
  if (!probe.ok()) return probe.status();
  absl::StatusOr<std::unique_ptr<UcxMessenger>> messenger =
      UcxMessenger::Create(SettingsFrom(options_), this);
  if (!messenger.ok()) return messenger.status();
  messenger_ = *std::move(messenger);
  address_ =
      EncodeAddress({sender_, ThisProcess(), memory_->Find(*probe, 1)->segment, messenger_->address()});

  event_fd_ = epoll_create1(EPOLL_CLOEXEC);
  for (const int fd : {messenger_->event_fd(), releases_->event_fd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (event_fd_ < 0 || epoll_ctl(event_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
      return absl::ResourceExhaustedError(absl::StrCat("epoll of the transport: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

UcxTransport::~UcxTransport() {
  releases_->Close();
  messenger_.reset();  // first: it completes what is under way through this object
  for (auto& [id, peer] : peers_) CloseProcess(&peer);
  if (event_fd_ >= 0) close(event_fd_);
}

bool UcxTransport::AwaitsReleases() const {
  if (table_.offers() > 0) return true;
  // A peer that said goodbye or failed will not release any more.
  return std::any_of(held_.begin(), held_.end(),
                     [this](const auto& entry) { return table_.PeerStatus(entry.second.peer).ok(); });
}

void UcxTransport::Close(Nanos deadline) {
  std::vector<TransportEvent> ignored;
  for (Nanos now = MonotonicNow(); AwaitsReleases() && now < deadline; now = MonotonicNow()) {
    if (Progress(now, &ignored) > 0 || !Arm()) continue;
    pollfd wake{event_fd_, POLLIN, 0};
    poll(&wake, 1, static_cast<int>(std::min((deadline - now) / kMillisecond + 1, Nanos{50})));
  }
  FlushReleases();
  releases_->Close();
  for (const auto& [id, peer] : peers_) {
    TransportMessage goodbye;
    goodbye.type = Type::kGoodbye;
    if (table_.PeerStatus(id).ok()) SendMessage(id, &goodbye);
  }
  messenger_->Close(std::max(deadline, MonotonicNow() + kGoodbyeTime));
}

TransportCounters UcxTransport::counters() const {
  TransportCounters counters = counters_;
  counters.dropped_messages += table_.dropped();
  return counters;
}

// Peers
// -----------------------------------------------------------------------------------------------------------

absl::Status UcxTransport::Connect(PeerId id, const std::string& bytes, const std::string& label) {
  absl::StatusOr<TransportAddress> address = DecodeAddress(bytes);
  if (!address.ok()) return absl::InvalidArgumentError(absl::StrCat(label, ": ", address.status().message()));
  Peer* known = FindPeer(id);
  if (known != nullptr && known->sender == address->sender) return table_.PeerStatus(id);

  Peer peer{address->sender, 0, address->process.pid};
  absl::StatusOr<int> process = OpenProcess(address->process);
  if (absl::IsUnavailable(process.status())) {
    return absl::UnavailableError(absl::StrCat(label, ": ", process.status().message()));
  }
  absl::StatusOr<UcxMessenger::LinkId> link = messenger_->Connect(address->ucx);
  if (!link.ok()) {
    if (process.ok()) close(*process);
    return absl::UnavailableError(absl::StrCat(label, ": ", link.status().message()));
  }
  peer.link = *link;
  if (process.ok()) {
    peer.process_fd = *process;
    peer.in_place = options_.in_place && segments_.Map(peer.sender, peer.pid, address->probe).ok();
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(event_fd_, EPOLL_CTL_ADD, peer.process_fd, &event);
  }
  if (known != nullptr) {
    Gone(id, absl::UnavailableError(absl::StrCat(table_.label(id), " was replaced by ", label)),
         /*report=*/false);
    *known = peer;
  } else {
    peers_.emplace_back(id, peer);
  }
  table_.AddPeer(id, peer.sender, label, &events_);
  return absl::OkStatus();
}

void UcxTransport::CloseProcess(Peer* peer) {
  if (peer->process_fd >= 0) close(std::exchange(peer->process_fd, -1));  // leaves the epoll set by itself
}

void UcxTransport::Gone(PeerId id, const absl::Status& cause, bool report) {
  Peer* peer = FindPeer(id);
  CloseProcess(peer);
  table_.FailPeer(id, cause, report, &events_);
  messenger_->Disconnect(peer->link);
  segments_.ForgetAll(peer->sender);
  DropHeldBy(id);
}

void UcxTransport::OnLinkFailed(UcxMessenger::LinkId link, const absl::Status& cause) {
  for (const auto& [id, peer] : peers_) {
    if (peer.link != link) continue;
    // After a goodbye the connection is expected to end; the process may still be reading our memory.
    if (!table_.PeerStatus(id).ok()) return;
    Gone(id, absl::UnavailableError(absl::StrCat(table_.label(id), " is lost: ", cause.message())), true);
    return;
  }
}

void UcxTransport::CheckLiveness(Nanos now, bool busy) {
  if (now - last_liveness_ < (busy ? kLivenessIntervalBusy : kLivenessInterval)) return;
  last_liveness_ = now;
  poll_buffer_.clear();
  for (const auto& [id, peer] : peers_) poll_buffer_.push_back({peer.process_fd, POLLIN, 0});
  if (poll_buffer_.empty() || poll(poll_buffer_.data(), poll_buffer_.size(), 0) <= 0) return;
  for (size_t i = 0; i < poll_buffer_.size(); ++i) {
    if (poll_buffer_[i].revents == 0) continue;
    const PeerId id = peers_[i].first;
    Gone(id, absl::UnavailableError(absl::StrCat(table_.label(id), " is lost: its process has ended")), true);
  }
}

void UcxTransport::HandleGoodbye(PeerId peer) {
  // Not Gone: this runs inside UCX, and the peer may go on reading tensors that it has not dropped.
  table_.FailPeer(peer,
                  absl::UnavailableError(absl::StrCat(table_.label(peer), " has closed its connections")),
                  /*report=*/false, &events_);
}

// The consumer's half
// ---------------------------------------------------------------------------------------------

void UcxTransport::Want(PeerId peer, const TensorKey& key, Nanos deadline) {
  if (absl::Status status = table_.Want(peer, key, now_, deadline); !status.ok()) {
    TransportEvent refused;
    refused.kind = TransportEvent::Kind::kWantFailed;
    refused.peer = peer;
    refused.key = key;
    refused.status = std::move(status);
    events_.push_back(std::move(refused));
    return;
  }
  SendKey(peer, Type::kWant, key, FindPeer(peer)->in_place);
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

void UcxTransport::Arrived(PeerId peer, const TensorKey& key, Tensor tensor, bool in_place) {
  ++counters_.tensors_received;
  counters_.bytes_received += tensor.bytes;
  if (in_place) counters_.bytes_in_place += tensor.bytes;
  TransportEvent event;
  event.kind = TransportEvent::Kind::kArrived;
  event.peer = peer;
  event.key = key;
  event.tensor = std::move(tensor);
  events_.push_back(std::move(event));
}

void UcxTransport::HandleNotice(PeerId id, const TransportMessage& message) {
  if (!table_.IsAwaited(id, message.key)) {
    ++counters_.dropped_messages;
    releases_->Push({message.sender, message.offer});
    return;
  }
  const Peer& peer = *FindPeer(id);
  absl::StatusOr<std::shared_ptr<PeerMapping>> mapping = absl::PermissionDeniedError("not offered");
  if (peer.in_place) mapping = segments_.Map(peer.sender, peer.pid, message.segment);
  if (!mapping.ok()) {
    TransportMessage instead;
    instead.type = Type::kCopyInstead;
    instead.offers[0] = message.offer;
    instead.offer_count = 1;
    SendMessage(id, &instead);
    return;
  }
  table_.Take(id, message.key);
  void* const data = (*mapping)->base() + message.offset;
  auto arrival = std::make_shared<InPlaceArrival>(*std::move(mapping), releases_,
                                                  ReleaseQueue::Release{message.sender, message.offer});
  Arrived(id, message.key, Tensor{message.shape, data, message.bytes, std::shared_ptr<void>(arrival, data)},
          true);
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
    table_.FailWant(
        message.key,
        absl::Status(block.status().code(), absl::StrCat("no memory to receive ", Describe(message.key), ": ",
                                                         block.status().message())),
        &events_);
    return {};
  }
  table_.MarkLanding(message.key);
  const uint64_t token = next_token_++;
  void* const to = block->get();
  landings_.emplace(token, Landing{*peer, message.key, message.shape, bytes, *std::move(block)});
  return {to, token};
}

void UcxTransport::OnLanded(uint64_t token, const absl::Status& status) {
  auto it = landings_.find(token);
  Landing landing = std::move(it->second);
  landings_.erase(it);
  if (!status.ok()) {
    table_.FailWant(landing.key,
                    absl::UnavailableError(absl::StrCat("no ", Describe(landing.key), " from ",
                                                        table_.label(landing.peer), ": ", status.message())),
                    &events_);
    return;
  }
  if (!table_.Take(landing.peer, landing.key)) return;
  void* const data = landing.block.get();
  Arrived(landing.peer, landing.key, Tensor{landing.shape, data, landing.bytes, std::move(landing.block)},
          false);
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
    if (const std::optional<PeerId> peer = table_.PeerOf(producer)) SendMessage(*peer, &message);
    message.offer_count = 0;
  }
}

// The producer's half
// ---------------------------------------------------------------------------------------------

void UcxTransport::Offer(PeerId peer, const TensorKey& key, Tensor tensor) {
  if (absl::Status status = CheckShape(tensor.shape, tensor.bytes); !status.ok()) {
    std::fprintf(stderr, "weft: offered %s with %s\n", Describe(key).c_str(), status.ToString().c_str());
    std::abort();
  }
  if (std::optional<Delivery> due = table_.Offer(peer, key, std::move(tensor))) Deliver(*std::move(due));
}

void UcxTransport::Deliver(Delivery delivery) {
  ++counters_.tensors_sent;
  counters_.bytes_sent += delivery.tensor.bytes;
  const PeerId peer = delivery.peer;
  TransportMessage message;
  message.key = delivery.key;
  message.shape = delivery.tensor.shape;
  message.bytes = delivery.tensor.bytes;
  if (message.bytes == 0) {
    message.type = Type::kData;
    SendMessage(peer, &message);
    return;
  }
  if (delivery.in_place_ok && options_.in_place && message.bytes > options_.inline_bytes) {
    if (const auto place = memory_->Find(delivery.tensor.data, message.bytes)) {
      message.type = Type::kNotice;
      message.segment = place->segment;
      message.offset = place->offset;
      message.offer = Hold(std::move(delivery), /*sending=*/false);
      SendMessage(peer, &message);
      return;
    }
  }
  SendBytes(Hold(std::move(delivery), /*sending=*/true));
}

void UcxTransport::SendBytes(uint64_t token) {
  const Held& held = held_.find(token)->second;
  TransportMessage message;
  message.type = Type::kData;
  message.sender = sender_;
  message.key = held.key;
  message.shape = held.tensor.shape;
  message.bytes = held.tensor.bytes;
  char buffer[TransportMessage::kMaxBytes];
  const size_t size = Encode(message, buffer);
  messenger_->Send(FindPeer(held.peer)->link, absl::string_view(buffer, size), held.tensor.data,
                   held.tensor.bytes, token);
}

uint64_t UcxTransport::Hold(Delivery delivery, bool sending) {
  const uint64_t token = next_token_++;
  held_bytes_ += delivery.tensor.bytes;
  held_.emplace(token, Held{delivery.peer, delivery.key, std::move(delivery.tensor), sending});
  return token;
}

void UcxTransport::Drop(absl::flat_hash_map<uint64_t, Held>::iterator held) {
  held_bytes_ -= held->second.tensor.bytes;
  held_.erase(held);
}

void UcxTransport::DropHeldBy(PeerId peer) {
  for (auto it = held_.begin(); it != held_.end();) {
    auto next = std::next(it);
    // UCX still uses what is being sent; OnSent drops it.
    if (it->second.peer == peer && !it->second.sending) Drop(it);
    it = next;
  }
}

void UcxTransport::OnSent(uint64_t token, const absl::Status& /*status*/) {
  // A send fails with its link only, and that is reported by itself.
  if (auto held = held_.find(token); held != held_.end()) Drop(held);
}

void UcxTransport::HandleReleases(PeerId peer, const TransportMessage& message) {
  for (uint32_t i = 0; i < message.offer_count; ++i) {
    auto held = held_.find(message.offers[i]);
    if (held == held_.end() || held->second.peer != peer || held->second.sending) {
      ++counters_.dropped_messages;
    } else {
      Drop(held);
    }
  }
}

void UcxTransport::HandleCopyInstead(PeerId peer, const TransportMessage& message) {
  for (uint32_t i = 0; i < message.offer_count; ++i) {
    auto held = held_.find(message.offers[i]);
    if (held == held_.end() || held->second.peer != peer || held->second.sending) {
      ++counters_.dropped_messages;
    } else {
      held->second.sending = true;
      SendBytes(message.offers[i]);
    }
  }
}

void UcxTransport::AnnounceFreedSegments() {
  for (const uint64_t id : memory_->TakeFreed()) {
    TransportMessage gone;
    gone.type = Type::kSegmentGone;
    gone.segment.id = id;
    for (const auto& [peer_id, peer] : peers_) {
      if (peer.process_fd >= 0 && table_.PeerStatus(peer_id).ok()) SendMessage(peer_id, &gone);
    }
  }
}

// Messages
// --------------------------------------------------------------------------------------------------------

void UcxTransport::SendMessage(PeerId peer, TransportMessage* message) {
  message->sender = sender_;
  char buffer[TransportMessage::kMaxBytes];
  const size_t size = Encode(*message, buffer);
  messenger_->Send(FindPeer(peer)->link, absl::string_view(buffer, size), nullptr, 0, 0);
}

void UcxTransport::SendKey(PeerId peer, Type type, const TensorKey& key, bool in_place_ok) {
  TransportMessage message;
  message.type = type;
  message.key = key;
  message.in_place_ok = in_place_ok;
  SendMessage(peer, &message);
}

void UcxTransport::OnMessage(absl::string_view header) {
  TransportMessage message;
  if (!Decode(header, &message).ok()) {
    ++counters_.dropped_messages;
    return;
  }
  // Wants may come from processes that are not connected yet; the table keeps them.
  if (message.type == Type::kWant) {
    if (auto due = table_.OnWant(message.sender, message.key, message.in_place_ok)) Deliver(*std::move(due));
    return;
  }
  if (message.type == Type::kCancel) return table_.OnCancel(message.sender, message.key);
  const std::optional<PeerId> peer = table_.PeerOf(message.sender);
  if (!peer) {
    ++counters_.dropped_messages;
    return;
  }
  switch (message.type) {
    case Type::kNotice:
      return HandleNotice(*peer, message);
    case Type::kData:
      if (message.bytes > 0 || !table_.IsAwaited(*peer, message.key)) {
        ++counters_.dropped_messages;
      } else if (table_.Take(*peer, message.key)) {
        Arrived(*peer, message.key, Tensor{message.shape}, false);
      }
      return;
    case Type::kRelease:
      return HandleReleases(*peer, message);
    case Type::kCopyInstead:
      return HandleCopyInstead(*peer, message);
    case Type::kSegmentGone:
      return segments_.Forget(message.sender, message.segment.id);
    case Type::kGoodbye:
      return HandleGoodbye(*peer);
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

UcxOptions UcxOptionsFromEnvironment() {
  UcxOptions options;
  if (std::getenv("UCX_TLS") != nullptr) options.tls.clear();
  if (std::getenv("UCX_NET_DEVICES") != nullptr) options.net_devices.clear();
  const char* in_place = std::getenv("WEFT_IN_PLACE");
  if (in_place != nullptr && std::strcmp(in_place, "0") == 0) options.in_place = false;
  return options;
}

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const UcxOptions& options) {
  auto transport = std::make_unique<UcxTransport>(options);
  if (absl::Status status = transport->Start(); !status.ok()) return status;
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace weft
