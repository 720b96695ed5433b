#include "worker/shell/transport/ucx_transport.h"

#include <poll.h>

#include <iterator>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "worker/shell/transport/open_messenger.h"
#include "worker/shell/transport/peer_paths.h"
#include "worker/shell/transport/peer_process.h"
#include "worker/shell/transport/receive_pool.h"
#include "worker/shell/transport/ucx_transport_class.h"

namespace weft {
namespace {

static_assert(TransportMessage::kMaxBytes <= Messenger::kMaxHeaderBytes);

constexpr Nanos kMillisecond = 1'000'000;
constexpr Nanos kLivenessInterval = 20 * kMillisecond;       // when idle
constexpr Nanos kLivenessIntervalBusy = 500 * kMillisecond;  // when messages keep coming
// The time to wait for a goodbye, which may be read after the end of its connection was noticed.
constexpr Nanos kGoodbyeGrace = 250 * kMillisecond;
constexpr Nanos kGoodbyeTime = 500 * kMillisecond;  // least time for closing, whatever the deadline

// Makes a pool that keeps all that it takes: its source is borrowed for as long as tensors live.
std::shared_ptr<ReceivePool> DevicePool(MemorySource* memory) {
  if (memory == nullptr) return nullptr;
  return ReceivePool::Create(std::shared_ptr<MemorySource>(memory, [](MemorySource*) {}),
                             std::numeric_limits<size_t>::max());
}

}  // namespace

// ---- Start and end.

UcxTransport::UcxTransport(const UcxOptions& options)
    : options_(options),
      sender_(NewSenderNumber()),
      memory_(std::make_shared<MappedMemory>()),
      links_({{.notice_ns = options.link_notice_ns, .timeout_ns = options.link_timeout_ns},
              options.log,
              [this](PeerId peer, uint64_t sender) {
                return incoming_.BytesFrom(peer) + outgoing_.BytesBeingSentTo(sender);
              }},
             table_, connections_),
      incoming_(table_, connections_, ReceivePool::Create(memory_, options.receive_pool_idle_limit),
                DevicePool(options.device_memory),
                [this](const PeerConnection& to, TransportMessage* message) { Send(to, message); }),
      outgoing_(
          {options.in_place, options.inline_bytes, options.log}, table_, connections_, *memory_,
          [this](const PeerConnection& to, TransportMessage* message, const Messenger::Payload& payload) {
            // A job's inputs are given back before its outputs arrive.
            incoming_.SendReceipts();
            message->sent_ns = MonotonicNow();
            Send(to, message, payload);
          }),
      now_(MonotonicNow()) {}

absl::Status UcxTransport::Start() {
  const absl::StatusOr<void*> probe = memory_->Allocate(1);
  if (!probe.ok()) return probe.status();
  absl::StatusOr<std::unique_ptr<Messenger>> messenger = OpenMessenger(options_, this);
  if (!messenger.ok()) return messenger.status();
  messenger_ = *std::move(messenger);
  admitted_.emplace(messenger_->sources(), [this](const std::vector<std::string>& addresses) {
    return messenger_->AdmitOnly(addresses);
  });
  if (options_.device_memory != nullptr && options_.device_direct &&
      messenger_->KnowsMemory(options_.device_kind)) {
    device_ = {options_.device_kind, options_.device_uuid};
  }
  address_ = EncodeAddress({sender_, ThisProcess(), memory_->Find(*probe, 1)->segment, messenger_->address(),
                            device_, messenger_->sources(), PlaneOf(options_)});
  if (absl::Status status = connections_.OpenWaitSet(); !status.ok()) return status;
  if (absl::Status status = connections_.AddToWaitSet(messenger_->event_fd()); !status.ok()) return status;
  return connections_.AddToWaitSet(incoming_.releases().event_fd());
}

UcxTransport::~UcxTransport() {
  incoming_.releases().Close();
  messenger_.reset();  // first: it completes what is under way through this object
}

void UcxTransport::Close(Nanos deadline) {
  std::vector<TransportEvent> ignored;
  for (Nanos now = MonotonicNow(); outgoing_.AwaitsReleases() && now < deadline; now = MonotonicNow()) {
    if (Progress(now, &ignored) > 0 || !Arm()) continue;
    pollfd wake{event_fd(), POLLIN, 0};
    poll(&wake, 1, static_cast<int>(std::min((deadline - now) / kMillisecond + 1, Nanos{50})));
  }
  incoming_.SendReceipts();
  incoming_.releases().Close();
  for (const auto& [sender, connection] : connections_.all()) {
    if (connection.open) Send(connection, Type::kGoodbye);
  }
  messenger_->Close(std::max(deadline, MonotonicNow() + kGoodbyeTime));
}

TransportCounters UcxTransport::counters() const {
  return outgoing_.WithCounts(incoming_.WithCounts(table_.WithCounts({.dropped_messages = dropped_})));
}

// ---- Peers.

void UcxTransport::BeginEpoch(uint64_t run, uint64_t epoch) {
  table_.BeginEpoch(run, epoch);
  outgoing_.BeginEpoch(run, epoch);
  admitted_->KeepOnly([this](uint64_t sender) { return connections_.Find(sender) != nullptr; });
}

absl::Status UcxTransport::Admit(const std::vector<PeerAddress>& peers) {
  std::vector<TransportAddress> addresses;
  for (const PeerAddress& peer : peers) {
    absl::StatusOr<TransportAddress> address = DecodeAddress(peer.address);
    if (!address.ok())
      return absl::InvalidArgumentError(absl::StrCat(peer.label, ": ", address.status().message()));
    addresses.push_back(*std::move(address));
  }
  return admitted_->Add(addresses);
}

absl::Status UcxTransport::Connect(PeerId peer, const std::string& bytes, const std::string& label) {
  const absl::StatusOr<TransportAddress> address = DecodeAddress(bytes);
  if (!address.ok()) return absl::InvalidArgumentError(absl::StrCat(label, ": ", address.status().message()));
  if (connections_.Find(address->sender) == nullptr) {
    if (absl::Status status = Open(*address, label); !status.ok()) return status;
  }
  table_.AddPeer(peer, address->sender, label, &events_);
  absl::Status status = table_.PeerStatus(peer);
  // It is here again, so its process has not ended, and neither end has a link to the other.
  if (!status.ok()) links_.NoteLost(label);
  return status;
}

absl::Status UcxTransport::Open(const TransportAddress& address, const std::string& label) {
  if (absl::Status status = CheckPlane(options_, address.plane); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(label, ": ", status.message()));
  }
  if (absl::Status status = admitted_->Add({address}); !status.ok()) return status;
  if (absl::Status status = connections_.Open(address, messenger_.get()); !status.ok()) {
    const bool local = ReachesThisMachineOnly(options_);
    // The networks are those that were up when the process began.
    if (absl::IsFailedPrecondition(status) && !local) links_.NoteLost(label);
    const bool stays = absl::IsInvalidArgument(status) || local;
    return absl::Status(
        stays ? status.code() : absl::StatusCode::kUnavailable,
        absl::StrCat(label, ": ", status.message(), " (by ",
                     local ? "shared memory only; see --data-network" : "the networks of the data plane",
                     ")"));
  }
  PeerConnection* connection = connections_.Find(address.sender);
  // Reading in place also needs the process descriptor: it tells when the reader is gone.
  connection->in_place = options_.in_place && connection->process_fd >= 0 &&
                         incoming_.CanRead(address.sender, connection->pid, address.probe);
  ChoosePaths(options_, device_, address, messenger_->Transports(connection->link), connection);
  return absl::OkStatus();
}

const PeerConnection* UcxTransport::ConnectionOf(PeerId peer) const {
  const std::optional<uint64_t> sender = table_.SenderOf(peer);
  if (!sender) return nullptr;
  auto it = connections_.all().find(*sender);
  return it == connections_.all().end() ? nullptr : &it->second;
}

bool UcxTransport::CarriesDevice(PeerId peer) const {
  const PeerConnection* connection = ConnectionOf(peer);
  return connection != nullptr && connection->carries_device;
}

std::string UcxTransport::PathTo(PeerId peer, MemoryPlace place) const {
  const PeerConnection* connection = ConnectionOf(peer);
  if (connection == nullptr) return "";
  return place == MemoryPlace::kHost ? connection->host_path : connection->device_path;
}

std::vector<PeerPath> UcxTransport::paths() const { return PathsInUse(table_, connections_); }

void UcxTransport::Lose(uint64_t sender, absl::string_view cause) {
  // It may have been killed while it wrote, whatever shows its end first, as a read of its memory that fails.
  const PeerConnection* const lost = connections_.Find(sender);
  if (lost != nullptr && lost->process_fd >= 0) messenger_->PeerEnded();
  connections_.End(sender, messenger_.get());
  admitted_->Remove(sender);
  links_.Forget(sender);
  incoming_.Forget(sender);
  outgoing_.Forget(sender);
  const std::optional<PeerId> peer = table_.PeerOf(sender);
  if (!peer) return;
  table_.FailPeer(*peer, absl::UnavailableError(absl::StrCat(table_.label(*peer), " is lost: ", cause)),
                  /*report=*/true, &events_);
}

void UcxTransport::OnLinkFailed(Messenger::LinkId link, const absl::Status& cause) {
  const std::optional<uint64_t> sender = connections_.SenderOf(link);
  if (sender) connections_.MarkBroken(*sender, now_ + kGoodbyeGrace, std::string(cause.message()));
}

void UcxTransport::CheckLiveness(Nanos now, bool busy) {
  while (const auto broken = connections_.TakeBroken(now)) Lose(broken->first, broken->second);
  if (now - last_liveness_ < (busy ? kLivenessIntervalBusy : kLivenessInterval)) return;
  last_liveness_ = now;
  if (now - last_probe_ >= kProbeTime / 8) {
    last_probe_ = now;
    outgoing_.SendOverdue(now);
  }
  for (const uint64_t sender : connections_.FindEnded()) Lose(sender, "its process has ended");
  if (messenger_->hears()) return;
  // This process hears no peer any more, and another one in its place does.
  for (const auto& [sender, connection] : connections_.all()) {
    if (connection.open) Lose(sender, messenger_->Health().message());
  }
}

void UcxTransport::WatchLinks(Nanos now) {
  const AwaitedLinks::Verdict verdict = links_.Look(now);
  for (const uint64_t sender : verdict.ask) Send(*connections_.Find(sender), Type::kPing);
  for (const auto& [sender, cause] : verdict.dead) Lose(sender, cause);
  // On a link that answers nothing waits, so what is late there is lost.
  for (const uint64_t sender : verdict.answer) {
    if (const std::optional<PeerId> peer = table_.PeerOf(sender)) incoming_.AskAgain(now, *peer);
  }
}

void UcxTransport::HandleGoodbye(uint64_t sender) {
  // Do not call Lose: this runs inside UCX, and the peer may go on reading tensors that it has not dropped.
  connections_.Find(sender)->open = false;
  admitted_->Remove(sender);
  const std::optional<PeerId> peer = table_.PeerOf(sender);
  if (!peer) return;
  table_.FailPeer(*peer,
                  absl::UnavailableError(absl::StrCat(table_.label(*peer), " has closed its connections")),
                  /*report=*/false, &events_);
}

// ---- Messages.

void UcxTransport::Send(const PeerConnection& to, TransportMessage* message,
                        const Messenger::Payload& payload) {
  if (options_.loses && options_.loses(message->type)) {
    if (payload.bytes > 0) OnSent(payload.token, absl::OkStatus());
    return;
  }
  message->sender = sender_;
  char buffer[TransportMessage::kMaxBytes];
  const size_t size = Encode(*message, buffer);
  messenger_->Send(to.link, absl::string_view(buffer, size), payload);
}

void UcxTransport::Send(const PeerConnection& to, Type type) {
  TransportMessage message;
  message.type = type;
  Send(to, &message);
}

void UcxTransport::OnMessage(absl::string_view header) {
  TransportMessage message;
  const bool valid = Decode(header, &message).ok();
  if (valid) links_.Heard(message.sender);
  // Wants may come from processes that are not connected yet; the table keeps them.
  if (valid && message.type == Type::kWant) return outgoing_.OnWant(now_, message);
  if (valid && message.type == Type::kCancel) return outgoing_.OnCancel(message);
  const PeerConnection* const from = valid ? connections_.Find(message.sender) : nullptr;
  if (from == nullptr) {
    ++dropped_;
    return;
  }
  switch (message.type) {
    case Type::kInPlace:
      return incoming_.OnInPlace(now_, message, &events_);
    case Type::kData:
      return incoming_.OnNotice(now_, message, &events_);
    case Type::kRelease:
      return outgoing_.OnReleases(message);
    case Type::kCopyInstead:
      return outgoing_.OnCopyInstead(now_, message);
    case Type::kSegmentGone:
      return incoming_.ForgetSegment(message.sender, message.segment.id);
    case Type::kGoodbye:
      return HandleGoodbye(message.sender);
    case Type::kPing:
      return Send(*from, Type::kPong);
    case Type::kPong:
    case Type::kWant:
    case Type::kCancel:
      return;
  }
}

Messenger::Handler::Landing UcxTransport::OnPayload(absl::string_view header, size_t bytes) {
  TransportMessage message;
  const bool valid = Decode(header, &message).ok() && message.type == Type::kData && message.bytes == bytes;
  if (valid) links_.Heard(message.sender);
  return incoming_.OnPayload(now_, message, valid, receive_into(), &events_);
}

void UcxTransport::OnLanded(uint64_t token, const absl::Status& status) {
  if (const auto producer = incoming_.OnLanded(token, status, &events_)) links_.Heard(*producer);
}

void UcxTransport::OnSent(uint64_t token, const absl::Status& /*status*/) { outgoing_.OnSent(token); }

void UcxTransport::AnnounceFreedSegments() {
  for (const uint64_t id : memory_->TakeFreed()) {
    TransportMessage gone;
    gone.type = Type::kSegmentGone;
    gone.segment.id = id;
    for (const auto& [sender, connection] : connections_.all()) {
      if (connection.process_fd >= 0 && connection.open) Send(connection, &gone);
    }
  }
}

int UcxTransport::Progress(Nanos now, std::vector<TransportEvent>* events) {
  now_ = now;
  incoming_.SendReceipts();
  AnnounceFreedSegments();
  const int moved = messenger_->Progress();
  CheckLiveness(now, moved > 0);
  WatchLinks(now);
  if (incoming_.owes_receipts()) incoming_.SendReceipts();
  const int handled = moved + static_cast<int>(events_.size());
  std::move(events_.begin(), events_.end(), std::back_inserter(*events));
  events_.clear();
  return handled;
}

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const UcxOptions& options) {
  auto transport = std::make_unique<UcxTransport>(options);
  if (absl::Status status = transport->Start(); !status.ok()) return status;
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace weft
