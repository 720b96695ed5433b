#include "worker/shell/transport/ucx_transport.h"

#include <poll.h>

#include <iterator>
#include <limits>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/monotonic_clock.h"
#include "worker/shell/transport/peer_filter.h"
#include "worker/shell/transport/peer_process.h"
#include "worker/shell/transport/receive_pool.h"
#include "worker/shell/transport/transfer_path.h"
#include "worker/shell/transport/ucx_transport_class.h"

namespace weft {
namespace {

static_assert(TransportMessage::kMaxBytes <= UcxMessenger::kMaxHeaderBytes);

constexpr Nanos kMillisecond = 1'000'000;
constexpr Nanos kLivenessInterval = 20 * kMillisecond;       // when idle
constexpr Nanos kLivenessIntervalBusy = 500 * kMillisecond;  // when messages keep coming
// The time to wait for a goodbye, which may be read after the end of its connection was noticed.
constexpr Nanos kGoodbyeGrace = 250 * kMillisecond;
constexpr Nanos kSecond = 1'000'000'000;
// Interval of looks at the links on which a tensor is awaited.
constexpr Nanos kWatchInterval = kSecond;
constexpr Nanos kGoodbyeTime = 500 * kMillisecond;  // least time for closing, whatever the deadline

// Makes a pool that keeps all that it takes: its source is borrowed for as long as tensors live.
std::shared_ptr<ReceivePool> DevicePool(MemorySource* memory) {
  if (memory == nullptr) return nullptr;
  return ReceivePool::Create(std::shared_ptr<MemorySource>(memory, [](MemorySource*) {}),
                             std::numeric_limits<size_t>::max());
}

std::string WhyStaged(const UcxOptions& options, const DeviceIdentity& own, const TransportAddress& peer,
                      bool sees_peer) {
  if (!options.device_direct) return "as WEFT_DEVICE_DIRECT=0 asks";
  if (own.kind.empty()) {
    return absl::StrCat("this UCX does not know memory of ", options.device_kind,
                        options.device_kind == "cuda"
                            ? ": its libuct_cuda.so cannot be loaded, which needs the "
                              "driver's libcuda.so.1 and libnvidia-ml.so.1"
                            : "");
  }
  if (peer.device.kind != own.kind) return "the other process does not take device memory directly";
  return sees_peer ? "no transport of UCX reaches it" : "the two processes do not see each other's pids";
}

}  // namespace

// ---- Start and end.

UcxTransport::UcxTransport(const UcxOptions& options)
    : options_(options),
      sender_(NewSenderNumber()),
      memory_(std::make_shared<MappedMemory>()),
      releases_(std::make_shared<ReleaseQueue>()),
      watch_({.notice_ns = options.link_notice_ns, .timeout_ns = options.link_timeout_ns}),
      landings_(ReceivePool::Create(memory_, options.receive_pool_idle_limit),
                DevicePool(options.device_memory)),
      now_(MonotonicNow()) {}

absl::Status UcxTransport::Start() {
  const absl::StatusOr<void*> probe = memory_->Allocate(1);
  if (!probe.ok()) return probe.status();
  absl::StatusOr<std::unique_ptr<UcxMessenger>> messenger = UcxMessenger::Create(UcxSettings(options_), this);
  if (!messenger.ok()) return messenger.status();
  messenger_ = *std::move(messenger);
  if (options_.device_memory != nullptr && options_.device_direct &&
      messenger_->KnowsMemory(options_.device_kind)) {
    device_ = {options_.device_kind, options_.device_uuid};
  }
  address_ = EncodeAddress({sender_, ThisProcess(), memory_->Find(*probe, 1)->segment, messenger_->address(),
                            device_, messenger_->sources()});
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

void UcxTransport::BeginEpoch(uint64_t run, uint64_t epoch) {
  table_.BeginEpoch(run, epoch);
  const size_t removed = absl::erase_if(
      admitted_, [this](const auto& entry) { return connections_.Find(entry.first) == nullptr; });
  if (removed > 0) AdmitOnlyKnown().IgnoreError();  // too many may connect now, never too few
}

absl::Status UcxTransport::Admit(const std::vector<PeerAddress>& peers) {
  std::vector<TransportAddress> addresses;
  for (const PeerAddress& peer : peers) {
    absl::StatusOr<TransportAddress> address = DecodeAddress(peer.address);
    if (!address.ok())
      return absl::InvalidArgumentError(absl::StrCat(peer.label, ": ", address.status().message()));
    addresses.push_back(*std::move(address));
  }
  return AdmitSenders(addresses);
}

// Sets the filter once for all: setting it takes time in proportion to all who are admitted.
absl::Status UcxTransport::AdmitSenders(const std::vector<TransportAddress>& addresses) {
  bool has_new = false;
  for (const TransportAddress& address : addresses)
    has_new |= admitted_.try_emplace(address.sender, address.sources).second;
  return has_new ? AdmitOnlyKnown() : absl::OkStatus();
}

absl::Status UcxTransport::AdmitOnlyKnown() {
  const std::vector<std::string> own = messenger_->sources();
  std::vector<std::string> all;
  for (const auto& [sender, sources] : admitted_) {
    const std::vector<std::string> counted = AddressesOfPeer(own, sources);
    all.insert(all.end(), counted.begin(), counted.end());
  }
  return messenger_->AdmitOnly(all);
}

absl::Status UcxTransport::Connect(PeerId peer, const std::string& bytes, const std::string& label) {
  const absl::StatusOr<TransportAddress> address = DecodeAddress(bytes);
  if (!address.ok()) return absl::InvalidArgumentError(absl::StrCat(label, ": ", address.status().message()));
  if (connections_.Find(address->sender) == nullptr) {
    if (absl::Status status = AdmitSenders({*address}); !status.ok()) return status;
    if (absl::Status status = connections_.Open(*address, messenger_.get()); !status.ok()) {
      const bool local = options_.tls == kLocalTls;
      // The networks are those that were up when the process began.
      if (absl::IsFailedPrecondition(status) && !local) NoteLostLink(label);
      const bool stays = absl::IsInvalidArgument(status) || local;
      return absl::Status(
          stays ? status.code() : absl::StatusCode::kUnavailable,
          absl::StrCat(label, ": ", status.message(), " (by ",
                       local ? "shared memory only; see --data-network" : "the networks of the data plane",
                       ")"));
    }
    PeerConnection* connection = connections_.Find(address->sender);
    // Reading in place also needs the process descriptor: it tells when the reader is gone.
    connection->in_place = options_.in_place && connection->process_fd >= 0 &&
                           segments_.Map(address->sender, connection->pid, address->probe).ok();
    ChoosePaths(*address, connection);
  }
  table_.AddPeer(peer, address->sender, label, &events_);
  absl::Status status = table_.PeerStatus(peer);
  // It is here again, so its process has not ended, and neither end has a link to the other.
  if (!status.ok()) NoteLostLink(label);
  return status;
}

// A process and a peer have one link to each other in their lives.
void UcxTransport::NoteLostLink(const std::string& label) {
  if (!lost_link_.ok()) return;
  lost_link_ = absl::UnavailableError(absl::StrCat("there is no data link to ", label,
                                                   "; a new process in the place of this one has new links"));
}

void UcxTransport::ChoosePaths(const TransportAddress& address, PeerConnection* connection) {
  const std::vector<std::string> transports = messenger_->Transports(connection->link);
  connection->host_path = connection->in_place ? kPathInPlace : HostPath(transports);
  if (options_.device_memory == nullptr) return;
  const bool same_kind = !device_.kind.empty() && device_.kind == address.device.kind;
  const bool sees_peer = address.process.machine == ThisProcess().machine;
  connection->device_path =
      same_kind ? DevicePath(device_.kind, options_.rdma_direct, sees_peer, transports) : kPathStaged;
  connection->carries_device = connection->device_path != kPathStaged;
  if (!connection->carries_device)
    connection->staged_because = WhyStaged(options_, device_, address, sees_peer);
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

std::vector<PeerPath> UcxTransport::paths() const {
  std::vector<PeerPath> paths;
  for (const auto& [sender, connection] : connections_.all()) {
    const std::optional<PeerId> peer = table_.PeerOf(sender);
    if (!peer || !connection.used) continue;
    paths.push_back({*peer, MemoryPlace::kHost, connection.host_path});
    if (connection.device_path.empty()) continue;
    paths.push_back({*peer, MemoryPlace::kDevice, connection.device_path});
  }
  return paths;
}

void UcxTransport::NoteUse(PeerId peer, PeerConnection* connection) {
  connection->used = true;
  if (!options_.log) return;
  std::string line =
      absl::StrCat("tensors to ", table_.label(peer), ": host memory by ", connection->host_path);
  if (!connection->device_path.empty()) {
    absl::StrAppend(&line, ", device memory by ", connection->device_path);
    if (!connection->carries_device) absl::StrAppend(&line, " (", connection->staged_because, ")");
  }
  options_.log(line);
}

void UcxTransport::Lose(uint64_t sender, absl::string_view cause) {
  connections_.End(sender, messenger_.get());
  if (admitted_.erase(sender) > 0) AdmitOnlyKnown().IgnoreError();
  watch_.Forget(sender);
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

// Asks the peers that owe a tensor and are silent.
void UcxTransport::WatchLinks(Nanos now) {
  if ((table_.wants() == 0 && watch_.next_look() > now) || now - last_watch_ < kWatchInterval) return;
  last_watch_ = now;
  const std::vector<TransferTable::PeerWants> wants = table_.WantsByPeer();
  std::map<uint64_t, const TransferTable::PeerWants*> by_sender;
  for (const TransferTable::PeerWants& w : wants) {
    const std::optional<uint64_t> sender = table_.SenderOf(w.peer);
    if (sender && connections_.Find(*sender) != nullptr && connections_.Find(*sender)->open)
      by_sender[*sender] = &w;
  }
  std::vector<LinkWatch::Wanted> wanted;
  for (const auto& [sender, w] : by_sender)
    wanted.push_back({sender, landings_.BytesFrom(w->peer) + held_.BytesBeingSentTo(sender)});
  const LinkWatch::Verdict verdict = watch_.Look(now, wanted);
  for (const uint64_t sender : verdict.ask) {
    TransportMessage ping;
    ping.type = Type::kPing;
    SendMessage(sender, &ping);
  }
  for (const uint64_t sender : verdict.silent) {
    if (options_.log) options_.log(DescribeWait(*by_sender.at(sender), now));
  }
  for (const uint64_t sender : verdict.healed) {
    const std::optional<PeerId> peer = table_.PeerOf(sender);
    if (options_.log && peer)
      options_.log(absl::StrCat("the data link to ", table_.label(*peer), " answers again"));
  }
  for (const uint64_t sender : verdict.dead) {
    const TransferTable::PeerWants& w = *by_sender.at(sender);
    NoteLostLink(table_.label(w.peer));
    Lose(sender,
         absl::StrCat("its data link (", connections_.Find(sender)->host_path, ") has carried nothing for ",
                      options_.link_timeout_ns / kSecond, " s; awaited: ", Describe(w.oldest)));
  }
}

std::string UcxTransport::DescribeWait(const TransferTable::PeerWants& wants, Nanos now) const {
  const uint64_t sender = *table_.SenderOf(wants.peer);
  return absl::StrFormat(
      "waiting for %s%s of %s for %.0f s; its data link (%s) has been silent for %.0f s",
      Describe(wants.oldest), wants.count > 1 ? absl::StrCat(" and ", wants.count - 1, " more") : "",
      table_.label(wants.peer), 1e-9 * static_cast<double>(now - wants.since),
      connections_.all().at(sender).host_path, 1e-9 * static_cast<double>(watch_.SilenceOf(sender)));
}

std::string UcxTransport::DescribeSilence(Nanos now) const {
  if (watch_.silent_links() == 0) return "";
  std::vector<std::string> waits;
  for (const TransferTable::PeerWants& w : table_.WantsByPeer()) {
    const std::optional<uint64_t> sender = table_.SenderOf(w.peer);
    if (sender && watch_.SilenceOf(*sender) > 0) waits.push_back(DescribeWait(w, now));
  }
  return absl::StrJoin(waits, "; ");
}

void UcxTransport::HandleGoodbye(uint64_t sender) {
  // Do not call Lose: this runs inside UCX, and the peer may go on reading tensors that it has not dropped.
  connections_.Find(sender)->open = false;
  if (admitted_.erase(sender) > 0) AdmitOnlyKnown().IgnoreError();
  const std::optional<PeerId> peer = table_.PeerOf(sender);
  if (!peer) return;
  table_.FailPeer(*peer,
                  absl::UnavailableError(absl::StrCat(table_.label(*peer), " has closed its connections")),
                  /*report=*/false, &events_);
}

// ---- Messages.

void UcxTransport::SendMessage(uint64_t to, TransportMessage* message) {
  SendMessage(*connections_.Find(to), message);
}

void UcxTransport::SendMessage(const PeerConnection& to, TransportMessage* message) {
  message->sender = sender_;
  char buffer[TransportMessage::kMaxBytes];
  const size_t size = Encode(*message, buffer);
  messenger_->Send(to.link, absl::string_view(buffer, size), {});
}

void UcxTransport::SendKey(PeerId peer, Type type, const TensorKey& key) {
  const PeerConnection& to = *connections_.Find(*table_.SenderOf(peer));
  TransportMessage message;
  message.type = type;
  message.key = key;
  message.in_place_ok = to.in_place;
  SendMessage(to, &message);
}

void UcxTransport::OnMessage(absl::string_view header) {
  TransportMessage message;
  const bool valid = Decode(header, &message).ok();
  if (valid) watch_.Heard(message.sender);
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
    case Type::kPing: {
      TransportMessage pong;
      pong.type = Type::kPong;
      return SendMessage(message.sender, &pong);
    }
    case Type::kPong:
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
  WatchLinks(now);
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
