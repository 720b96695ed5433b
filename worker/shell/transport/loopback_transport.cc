#include "worker/shell/transport/loopback_transport.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"
#include "base/mutex.h"
#include "worker/shell/transport/held_offers.h"
#include "worker/shell/transport/transfer_table.h"

namespace weft {
namespace {

using NodeId = uint64_t;

struct Message {
  enum class Type { kWant, kCancel, kTensor, kRelease, kGoodbye } type = Type::kGoodbye;
  NodeId from = 0;
  TensorKey key;
  Tensor tensor;
  uint64_t offer = 0;
  bool again = false;  // kWant
};

struct Node {
  explicit Node(int fd) : event_fd(fd) {}
  ~Node() { close(event_fd); }
  const int event_fd;
  std::deque<Message> inbox;
  bool armed = false;
  bool dead = false;
};

std::string AddressOf(NodeId node) { return absl::StrCat("loopback:", node); }

}  // namespace

struct LoopbackNetwork::State {
  Mutex mutex;
  std::map<NodeId, Node> nodes ABSL_GUARDED_BY(mutex);
  std::map<std::pair<NodeId, NodeId>, std::deque<Message>> held_back ABSL_GUARDED_BY(mutex);
  std::map<std::pair<NodeId, NodeId>, int> to_lose ABSL_GUARDED_BY(mutex);  // messages until the one to lose
  int lost ABSL_GUARDED_BY(mutex) = 0;
  // Offers that a consumer has and has not dropped: by consumer, producer and number.
  std::set<std::tuple<NodeId, NodeId, uint64_t>> taken ABSL_GUARDED_BY(mutex);

  void Signal(Node* node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (std::exchange(node->armed, false)) eventfd_write(node->event_fd, 1);
  }

  void Post(NodeId to, Message message) {
    Message lost_message;  // destroyed outside the lock, as in Remove
    MutexLock lock(mutex);
    auto target = nodes.find(to);
    auto source = nodes.find(message.from);
    if (target == nodes.end() || target->second.dead) return;
    if (source != nodes.end() && source->second.dead) return;
    if (auto lose = to_lose.find({message.from, to}); lose != to_lose.end() && lose->second-- == 0) {
      to_lose.erase(lose);
      ++lost;
      lost_message = std::move(message);
      return;
    }
    auto held = held_back.find({message.from, to});
    if (held != held_back.end()) {
      held->second.push_back(std::move(message));
      return;
    }
    target->second.inbox.push_back(std::move(message));
    Signal(&target->second);
  }

  // Removes a node. Its undelivered messages are destroyed outside the lock: dropping a tensor posts a
  // message.
  void Remove(NodeId id) {
    std::vector<std::deque<Message>> undelivered;
    MutexLock lock(mutex);
    auto node = nodes.find(id);
    undelivered.push_back(std::move(node->second.inbox));
    nodes.erase(node);
    for (auto it = held_back.begin(); it != held_back.end();) {
      if (it->first.first == id || it->first.second == id) {
        undelivered.push_back(std::move(it->second));
        it = held_back.erase(it);
      } else {
        ++it;
      }
    }
  }

  std::optional<NodeId> Find(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (const auto& [id, node] : nodes) {
      if (AddressOf(id) == address) return id;
    }
    return std::nullopt;
  }

  bool IsDead(NodeId id) {
    MutexLock lock(mutex);
    auto it = nodes.find(id);
    return it == nodes.end() || it->second.dead;
  }
};

namespace {

using State = LoopbackNetwork::State;

// Keeps an arrived tensor's bytes and tells the producer when the consumer is done with them.
struct Arrival {
  Arrival(std::shared_ptr<State> s, NodeId from, NodeId to, uint64_t o, std::shared_ptr<void> bytes)
      : state(std::move(s)), consumer(from), producer(to), offer(o), owner(std::move(bytes)) {
    MutexLock lock(state->mutex);
    state->taken.insert({consumer, producer, offer});
  }
  ~Arrival() {
    owner.reset();  // before the producer can learn of it
    {
      MutexLock lock(state->mutex);
      state->taken.erase({consumer, producer, offer});
    }
    Message release;
    release.type = Message::Type::kRelease;
    release.from = consumer;
    release.offer = offer;
    state->Post(producer, std::move(release));
  }
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;

  const std::shared_ptr<State> state;
  const NodeId consumer, producer;
  const uint64_t offer;
  std::shared_ptr<void> owner;
};

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<State> state, NodeId id, int event_fd, bool carries_device)
      : state_(std::move(state)),
        id_(id),
        address_(AddressOf(id)),
        event_fd_(event_fd),
        carries_device_(carries_device) {}
  ~LoopbackTransport() override { state_->Remove(id_); }

  const std::string& address() const override { return address_; }
  absl::string_view name() const override { return "loopback"; }
  MemorySource& memory() override { return memory_; }
  void BeginEpoch(uint64_t run, uint64_t epoch) override {
    table_.BeginEpoch(run, epoch);
    held_.BeginEpoch(run, epoch);
  }
  absl::Status Connect(PeerId peer, const std::string& address, const std::string& label) override;
  void Want(PeerId peer, const TensorKey& key) override;
  void Cancel(const TensorKey& key) override;
  void Offer(PeerId peer, const TensorKey& key, Tensor tensor) override;
  int Progress(Nanos now, std::vector<TransportEvent>* events) override;
  int event_fd() const override { return event_fd_; }
  bool Arm() override;
  Nanos next_look() const override {
    return table_.wants() == 0 && held_.empty() ? std::numeric_limits<Nanos>::max()
                                                : last_look_ + kAnswerTime;
  }
  bool CarriesDevice(PeerId peer) const override { return carries_device_ && table_.SenderOf(peer); }
  std::string PathTo(PeerId peer, MemoryPlace place) const override {
    const bool taken = place == MemoryPlace::kHost ? table_.SenderOf(peer).has_value() : CarriesDevice(peer);
    return taken ? "in_place" : "";
  }
  uint64_t bytes_held() const override { return table_.offered_bytes() + held_.bytes(); }
  TransportCounters counters() const override;
  void Close(Nanos deadline) override;

 private:
  void Post(PeerId peer, Message message);
  void Handle(Message message);
  void HandleWant(const Message& message);
  void HandleTensor(PeerId peer, Message message);
  void HandleRelease(NodeId consumer, uint64_t offer);
  void Deliver(Delivery delivery);
  void SendOffer(uint64_t offer);
  void GiveUp(NodeId consumer, const TensorKey& key);
  void AskAgain(Nanos now);
  void CheckPeers();

  const std::shared_ptr<State> state_;
  const NodeId id_;
  const std::string address_;
  const int event_fd_;  // descriptor of the node; the state closes it
  const bool carries_device_;
  PlainMemory memory_;
  TransferTable table_;
  std::set<NodeId> peers_;  // every node that was ever connected
  HeldOffers held_;
  std::vector<TransportEvent> events_;
  TransportCounters counters_;
  Nanos now_ = MonotonicNow(), last_look_ = 0;
};

absl::Status LoopbackTransport::Connect(PeerId peer, const std::string& address, const std::string& label) {
  std::optional<NodeId> node;
  {
    MutexLock lock(state_->mutex);
    node = state_->Find(address);
    if (node && state_->nodes.at(*node).dead) node.reset();
  }
  if (!node) return absl::UnavailableError(absl::StrCat(label, ": nothing is at ", address));
  peers_.insert(*node);
  table_.AddPeer(peer, *node, label, &events_);
  return table_.PeerStatus(peer);
}

void LoopbackTransport::Post(PeerId peer, Message message) {
  message.from = id_;
  state_->Post(*table_.SenderOf(peer), std::move(message));
}

void LoopbackTransport::Want(PeerId peer, const TensorKey& key) {
  if (table_.Want(peer, key, now_, &events_)) Post(peer, {Message::Type::kWant, id_, key});
}

void LoopbackTransport::AskAgain(Nanos now) {
  if (now - last_look_ < kAnswerTime) return;
  last_look_ = now;
  for (const NodeId node : peers_) {
    const std::optional<PeerId> peer = table_.PeerOf(node);
    if (!peer) continue;
    for (const TensorKey& key : table_.AskAgain(*peer, now))
      Post(*peer, {Message::Type::kWant, id_, key, {}, 0, /*again=*/true});
  }
  for (const uint64_t offer : held_.Overdue(now)) SendOffer(offer);
}

void LoopbackTransport::Cancel(const TensorKey& key) {
  if (const std::optional<PeerId> peer = table_.Cancel(key)) Post(*peer, {Message::Type::kCancel, id_, key});
}

void LoopbackTransport::Offer(PeerId peer, const TensorKey& key, Tensor tensor) {
  if (std::optional<Delivery> due = table_.Offer(peer, key, std::move(tensor))) Deliver(*std::move(due));
}

void LoopbackTransport::Deliver(Delivery delivery) {
  ++counters_.tensors_sent;
  counters_.bytes_sent += delivery.tensor.bytes;
  HeldOffer offer{*table_.SenderOf(delivery.peer), delivery.key, std::move(delivery.tensor)};
  offer.in_place = offer.tensor.bytes > 0;
  offer.sent_ns = now_;
  SendOffer(held_.Add(std::move(offer)));
}

void LoopbackTransport::SendOffer(uint64_t offer) {
  const HeldOffer& held = *held_.Find(offer);
  state_->Post(held.consumer, {Message::Type::kTensor, id_, held.key, held.tensor, offer});
}

void LoopbackTransport::GiveUp(NodeId consumer, const TensorKey& key) {
  held_.ReleaseAllOf(consumer);
  const std::optional<PeerId> peer = table_.PeerOf(consumer);
  if (!peer) return;
  const std::string what = absl::StrCat("the link to ", table_.label(*peer), " has lost the ", Describe(key),
                                        " ", HeldOffers::kMostSends, " times");
  table_.FailPeer(*peer, absl::UnavailableError(what), /*report=*/true, &events_);
}

void LoopbackTransport::HandleWant(const Message& message) {
  if (message.again) {
    const HeldOffers::Answer answer = held_.AskedAgain(message.from, message.key, now_);
    if (answer.again == HeldOffers::Again::kSend) SendOffer(answer.offer);
    if (answer.again == HeldOffers::Again::kGiveUp) GiveUp(message.from, message.key);
    if (answer.again != HeldOffers::Again::kNone) return;
  }
  if (auto due = table_.OnWant(message.from, message.key, /*in_place_ok=*/true, message.again))
    Deliver(*std::move(due));
}

void LoopbackTransport::HandleTensor(PeerId peer, Message message) {
  Tensor tensor = std::move(message.tensor);
  {
    MutexLock lock(state_->mutex);
    // It was sent again, and the first has come after all.
    if (state_->taken.count({id_, message.from, message.offer}) > 0) return;
  }
  auto arrival = std::make_shared<Arrival>(state_, id_, message.from, message.offer, std::move(tensor.owner));
  if (tensor.bytes > 0) tensor.owner = std::shared_ptr<void>(arrival, tensor.data);
  if (!table_.Take(peer, message.key)) return;  // counted there; dropping the tensor releases it
  ++counters_.tensors_received;
  counters_.bytes_received += tensor.bytes;
  counters_.bytes_in_place += tensor.bytes;
  events_.push_back(ArrivedEvent(peer, message.key, std::move(tensor)));
}

void LoopbackTransport::HandleRelease(NodeId consumer, uint64_t offer) {
  if (!held_.Release(consumer, offer)) ++counters_.dropped_messages;
}

void LoopbackTransport::Handle(Message message) {
  if (message.type == Message::Type::kWant) return HandleWant(message);
  if (message.type == Message::Type::kCancel) return table_.OnCancel(message.from, message.key);
  if (message.type == Message::Type::kRelease) return HandleRelease(message.from, message.offer);
  const std::optional<PeerId> peer = table_.PeerOf(message.from);
  if (!peer) {
    ++counters_.dropped_messages;
  } else if (message.type == Message::Type::kTensor) {
    HandleTensor(*peer, std::move(message));
  } else {
    table_.FailPeer(*peer,
                    absl::UnavailableError(absl::StrCat(table_.label(*peer), " has closed its connections")),
                    /*report=*/false, &events_);
  }
}

void LoopbackTransport::CheckPeers() {
  for (const NodeId node : peers_) {
    if (!state_->IsDead(node)) continue;
    held_.ReleaseAllOf(node);
    const std::optional<PeerId> peer = table_.PeerOf(node);
    if (!peer) continue;
    table_.FailPeer(
        *peer, absl::UnavailableError(absl::StrCat(table_.label(*peer), " is lost: its process has ended")),
        /*report=*/true, &events_);
  }
}

int LoopbackTransport::Progress(Nanos now, std::vector<TransportEvent>* events) {
  now_ = now;
  std::deque<Message> inbox;
  {
    MutexLock lock(state_->mutex);
    Node& self = state_->nodes.at(id_);
    if (self.dead) return 0;
    self.armed = false;
    eventfd_t ignored;
    eventfd_read(event_fd_, &ignored);
    inbox.swap(self.inbox);
  }
  for (Message& message : inbox) Handle(std::move(message));
  CheckPeers();
  AskAgain(now);
  const int handled = static_cast<int>(inbox.size() + events_.size());
  std::move(events_.begin(), events_.end(), std::back_inserter(*events));
  events_.clear();
  return handled;
}

bool LoopbackTransport::Arm() {
  if (!events_.empty()) return false;
  MutexLock lock(state_->mutex);
  Node& self = state_->nodes.at(id_);
  if (!self.inbox.empty()) return false;
  // A peer that died after the last Progress has signaled in vain.
  for (const NodeId node : peers_) {
    auto it = state_->nodes.find(node);
    const std::optional<PeerId> peer = table_.PeerOf(node);
    if ((it == state_->nodes.end() || it->second.dead) && peer && table_.PeerStatus(*peer).ok()) return false;
  }
  self.armed = true;
  return true;
}

TransportCounters LoopbackTransport::counters() const {
  TransportCounters counters = table_.WithCounts(counters_);
  counters.sent_again = held_.sent_again();
  return counters;
}

void LoopbackTransport::Close(Nanos deadline) {
  const auto is_open = [this](NodeId node) {
    const std::optional<PeerId> peer = table_.PeerOf(node);
    return peer && table_.PeerStatus(*peer).ok();
  };
  const auto awaits_releases = [&] { return table_.offers() > 0 || held_.AnyHeldBy(is_open); };
  std::vector<TransportEvent> ignored;
  for (Nanos now = MonotonicNow(); awaits_releases() && now < deadline; now = MonotonicNow()) {
    if (Progress(now, &ignored) > 0 || !Arm()) continue;
    pollfd wake{event_fd_, POLLIN, 0};
    poll(&wake, 1, 10);
  }
  for (const NodeId node : peers_) {
    if (is_open(node)) state_->Post(node, {Message::Type::kGoodbye, id_});
  }
}

}  // namespace

LoopbackNetwork::LoopbackNetwork() : state_(std::make_shared<State>()) {}
LoopbackNetwork::~LoopbackNetwork() = default;

std::unique_ptr<Transport> LoopbackNetwork::CreateTransport(bool carries_device) {
  static std::atomic<NodeId> next{
      1};  // unique over networks, so that an address is never taken for another's
  const NodeId id = next.fetch_add(1);
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) {
    std::perror("weft: eventfd of a loopback transport");
    std::abort();
  }
  {
    MutexLock lock(state_->mutex);
    state_->nodes.try_emplace(id, fd);
  }
  return std::make_unique<LoopbackTransport>(state_, id, fd, carries_device);
}

void LoopbackNetwork::Kill(const std::string& address) {
  MutexLock lock(state_->mutex);
  if (const std::optional<NodeId> id = state_->Find(address)) state_->nodes.at(*id).dead = true;
  for (auto& [other, node] : state_->nodes) state_->Signal(&node);
}

void LoopbackNetwork::Lose(const std::string& from, const std::string& to, int nth) {
  MutexLock lock(state_->mutex);
  const auto source = state_->Find(from), target = state_->Find(to);
  if (source && target) state_->to_lose[{*source, *target}] = nth;
}

int LoopbackNetwork::lost() const {
  MutexLock lock(state_->mutex);
  return state_->lost;
}

void LoopbackNetwork::HoldBack(const std::string& from, const std::string& to) {
  MutexLock lock(state_->mutex);
  const auto source = state_->Find(from), target = state_->Find(to);
  if (source && target) state_->held_back.try_emplace({*source, *target});
}

void LoopbackNetwork::Deliver(const std::string& from, const std::string& to) {
  MutexLock lock(state_->mutex);
  const auto source = state_->Find(from), target = state_->Find(to);
  if (!source || !target) return;
  auto held = state_->held_back.find({*source, *target});
  if (held == state_->held_back.end()) return;
  Node& node = state_->nodes.at(*target);
  for (Message& message : held->second) node.inbox.push_back(std::move(message));
  state_->held_back.erase(held);
  state_->Signal(&node);
}

}  // namespace weft
