#include "worker/shell/transport/transfer_table.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/session/worst_rate.h"
#include "worker/shell/transport/transfer_times.h"
#include "worker/shell/transport/transport_message.h"

namespace weft {
namespace {

TransportEvent WantFailed(PeerId peer, const TensorKey& key, absl::Status status) {
  TransportEvent event;
  event.kind = TransportEvent::Kind::kWantFailed;
  event.peer = peer;
  event.key = key;
  event.status = std::move(status);
  return event;
}

}  // namespace

TransportEvent ArrivedEvent(PeerId peer, const TensorKey& key, Tensor tensor) {
  TransportEvent event;
  event.kind = TransportEvent::Kind::kArrived;
  event.peer = peer;
  event.key = key;
  event.tensor = std::move(tensor);
  return event;
}

void TransferTable::AddPeer(PeerId peer, uint64_t sender, const std::string& label,
                            std::vector<TransportEvent>* events) {
  if (PeerOf(sender) == peer) {
    peers_[peer].label = label;
    return;
  }
  RemovePeer(peer, absl::StrCat("process ", peer, " now is ", label), events);
  absl::Status status;
  if (const std::optional<PeerId> former = PeerOf(sender)) {
    status = peers_[*former].status;
    RemovePeer(*former, absl::StrCat(label, " now is process ", peer), events);
  }
  peers_[peer] = Peer{sender, label, status};
  peer_of_[sender] = peer;
  AdmitEarlyWants();
}

void TransferTable::RemovePeer(PeerId peer, const std::string& reason, std::vector<TransportEvent>* events) {
  auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  FailWantsOn(peer, absl::UnavailableError(reason), events);
  DropOffersTo(peer);
  peer_of_.erase(it->second.sender);
  peers_.erase(it);
}

std::optional<uint64_t> TransferTable::SenderOf(PeerId peer) const {
  auto it = peers_.find(peer);
  if (it == peers_.end()) return std::nullopt;
  return it->second.sender;
}

std::optional<PeerId> TransferTable::PeerOf(uint64_t sender) const {
  auto it = peer_of_.find(sender);
  if (it == peer_of_.end()) return std::nullopt;
  return it->second;
}

absl::Status TransferTable::PeerStatus(PeerId peer) const {
  auto it = peers_.find(peer);
  if (it == peers_.end()) return absl::NotFoundError(absl::StrCat("process ", peer, " is not connected"));
  return it->second.status;
}

const std::string& TransferTable::label(PeerId peer) const {
  static const std::string* const kUnknown = new std::string("a process that is not connected");
  auto it = peers_.find(peer);
  return it == peers_.end() ? *kUnknown : it->second.label;
}

bool TransferTable::FailPeer(PeerId peer, const absl::Status& cause, bool report,
                             std::vector<TransportEvent>* events) {
  auto it = peers_.find(peer);
  if (it == peers_.end() || !it->second.status.ok()) return false;
  it->second.status = cause;
  if (report) {
    TransportEvent event;
    event.kind = TransportEvent::Kind::kPeerFailed;
    event.peer = peer;
    event.status = cause;
    events->push_back(std::move(event));
  }
  FailWantsOn(peer, cause, events);
  DropOffersTo(peer);
  return true;
}

void TransferTable::FailWantsOn(PeerId peer, const absl::Status& cause, std::vector<TransportEvent>* events) {
  for (auto it = wants_.begin(); it != wants_.end();) {
    if (it->second.peer != peer) {
      ++it;
      continue;
    }
    events->push_back(WantFailed(
        peer, it->first,
        absl::Status(cause.code(), absl::StrCat("no ", Describe(it->first), ": ", cause.message()))));
    it = wants_.erase(it);
  }
}

void TransferTable::DropOffersTo(PeerId peer) {
  const ByPeer first{peer, TensorKey{0, 0, std::numeric_limits<int32_t>::min()}};
  auto offer = offers_.lower_bound(first);
  while (offer != offers_.end() && offer->first.first == peer) {
    offered_bytes_ -= offer->second.bytes;
    offer = offers_.erase(offer);
  }
  auto want = remote_wants_.lower_bound(first);
  while (want != remote_wants_.end() && want->first.first == peer) want = remote_wants_.erase(want);
}

void TransferTable::BeginEpoch(uint64_t run, uint64_t epoch) {
  if (run == run_ && epoch == epoch_) return;
  run_ = run;
  epoch_ = epoch;
  wants_.clear();
  offers_.clear();
  offered_bytes_ = 0;
  remote_wants_.clear();
  AdmitEarlyWants();
}

absl::Status TransferTable::CheckWant(PeerId peer, const TensorKey& key) const {
  if (!InEpoch(key)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s is of run %d epoch %d, but run %d epoch %d is current", Describe(key), key.run,
                        key.epoch, run_, epoch_));
  }
  if (absl::Status status = PeerStatus(peer); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("no ", Describe(key), ": ", status.message()));
  }
  if (wants_.contains(key))
    return absl::AlreadyExistsError(absl::StrCat(Describe(key), " is already wanted"));
  return absl::OkStatus();
}

bool TransferTable::Want(PeerId peer, const TensorKey& key, Nanos now, std::vector<TransportEvent>* events) {
  if (absl::Status status = CheckWant(peer, key); !status.ok()) {
    events->push_back(WantFailed(peer, key, std::move(status)));
    return false;
  }
  wants_.emplace(key, PendingWant{peer, now, now});
  return true;
}

std::vector<TensorKey> TransferTable::AskAgain(PeerId peer, Nanos now) {
  std::vector<TensorKey> keys;
  for (auto& [key, want] : wants_) {
    if (want.peer != peer || now < want.landing_until) continue;
    const bool late = std::exchange(want.landing_until, 0) != 0;
    const Nanos pause = std::clamp<Nanos>((now - want.since) / 2, kAskAgain, kAskSeldom);
    if (!late && now - want.asked < pause) continue;
    want.asked = now;
    keys.push_back(key);
  }
  asked_again_ += keys.size();
  return keys;
}

TransportCounters TransferTable::WithCounts(TransportCounters counters) const {
  counters.dropped_messages += dropped_;
  counters.asked_again += asked_again_;
  return counters;
}

std::optional<PeerId> TransferTable::Cancel(const TensorKey& key) {
  auto it = wants_.find(key);
  if (it == wants_.end()) return std::nullopt;
  const PeerId peer = it->second.peer;
  wants_.erase(it);
  return peer;
}

bool TransferTable::IsAwaited(PeerId peer, const TensorKey& key) const {
  auto it = wants_.find(key);
  return it != wants_.end() && it->second.peer == peer && it->second.landing_until == 0;
}

bool TransferTable::IsWanted(PeerId peer, const TensorKey& key) const {
  auto it = wants_.find(key);
  return it != wants_.end() && it->second.peer == peer;
}

void TransferTable::MarkLanding(const TensorKey& key, Nanos now, uint64_t bytes) {
  auto it = wants_.find(key);
  if (it != wants_.end()) it->second.landing_until = now + kAskAgain + TransferTime(bytes);
}

void TransferTable::LandingFailed(const TensorKey& key, const absl::Status& cause,
                                  std::vector<TransportEvent>* events) {
  auto it = wants_.find(key);
  if (it == wants_.end()) return;
  it->second.landing_until = 0;
  it->second.asked = it->second.since;
  if (++it->second.failed_landings >= kMostLandings) FailWant(key, cause, events);
}

bool TransferTable::Take(PeerId peer, const TensorKey& key) {
  auto it = wants_.find(key);
  if (it == wants_.end() || it->second.peer != peer) {
    ++dropped_;
    return false;
  }
  wants_.erase(it);
  return true;
}

void TransferTable::FailWant(const TensorKey& key, const absl::Status& cause,
                             std::vector<TransportEvent>* events) {
  auto it = wants_.find(key);
  if (it == wants_.end()) return;
  events->push_back(WantFailed(it->second.peer, key, cause));
  wants_.erase(it);
}

std::vector<TransferTable::PeerWants> TransferTable::WantsByPeer() const {
  absl::btree_map<PeerId, PeerWants> by_peer;
  for (const auto& [key, want] : wants_) {
    PeerWants& wants = by_peer[want.peer];
    if (wants.count++ == 0 || want.since < wants.since) {
      wants.oldest = key;
      wants.since = want.since;
    }
    wants.peer = want.peer;
  }
  std::vector<PeerWants> list;
  for (const auto& [peer, wants] : by_peer) list.push_back(wants);
  return list;
}

std::optional<Delivery> TransferTable::Offer(PeerId peer, const TensorKey& key, Tensor tensor) {
  if (absl::Status status = CheckShape(tensor.shape, tensor.bytes); !status.ok()) {
    std::fprintf(stderr, "weft: offered %s with %s\n", Describe(key).c_str(),
                 std::string(status.message()).c_str());
    std::abort();
  }
  if (!InEpoch(key) || !PeerStatus(peer).ok()) {
    ++dropped_;
    return std::nullopt;
  }
  auto want = remote_wants_.find({peer, key});
  if (want != remote_wants_.end()) {
    Delivery delivery{peer, key, std::move(tensor), want->second};
    remote_wants_.erase(want);
    return delivery;
  }
  const uint64_t bytes = tensor.bytes;
  if (offers_.emplace(ByPeer{peer, key}, std::move(tensor)).second) {
    offered_bytes_ += bytes;
  } else {
    ++dropped_;
  }
  return std::nullopt;
}

// A want that comes again is kept once, and is no fault. An early want will come once more.
std::optional<Delivery> TransferTable::OnWant(uint64_t sender, const TensorKey& key, bool in_place_ok,
                                              bool again) {
  const std::optional<PeerId> peer = PeerOf(sender);
  if (IsStale(key) || (peer && !PeerStatus(*peer).ok())) {
    ++dropped_;
    return std::nullopt;
  }
  if (!peer || !InEpoch(key)) {
    if (!again) KeepEarly({sender, key, in_place_ok});
    return std::nullopt;
  }
  auto offer = offers_.find({*peer, key});
  if (offer != offers_.end()) {
    Delivery delivery{*peer, key, std::move(offer->second), in_place_ok};
    offered_bytes_ -= delivery.tensor.bytes;
    offers_.erase(offer);
    return delivery;
  }
  const bool kept =
      remote_wants_.size() < kMaxRemoteWants && remote_wants_.emplace(ByPeer{*peer, key}, in_place_ok).second;
  if (!kept && !again) ++dropped_;
  return std::nullopt;
}

void TransferTable::OnCancel(uint64_t sender, const TensorKey& key) {
  if (const std::optional<PeerId> peer = PeerOf(sender)) {
    if (remote_wants_.erase({*peer, key}) > 0) return;
  }
  for (auto it = early_wants_.begin(); it != early_wants_.end(); ++it) {
    if (it->sender == sender && it->key == key) {
      early_wants_.erase(it);
      return;
    }
  }
  // Otherwise its tensor is already on its way; the consumer returns it.
}

void TransferTable::KeepEarly(EarlyWant want) {
  if (early_wants_.size() >= kMaxEarlyWants) {
    early_wants_.pop_front();
    ++dropped_;
  }
  early_wants_.push_back(want);
}

void TransferTable::AdmitEarlyWants() {
  std::deque<EarlyWant> waiting;
  waiting.swap(early_wants_);
  for (EarlyWant& want : waiting) {
    if (OnWant(want.sender, want.key, want.in_place_ok)) {
      // A new peer, or a new epoch, has no offers yet.
      std::fprintf(stderr, "weft: transfer table: an early want met an offer: %s\n",
                   Describe(want.key).c_str());
      std::abort();
    }
  }
}

}  // namespace weft
