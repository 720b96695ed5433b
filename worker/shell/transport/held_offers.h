// Keeps the producer's tensors that are with a consumer: read in place there, or sent and not acknowledged.
//
// The consumer acknowledges each by its number: a tensor that it reads when it drops it, a copy when it has
// it. Until then the producer can send it again, so that no message of a transfer is lost for good. It does
// so when the consumer asks again and the first sending has had its time: the bytes at the link's worst rate.
// A tensor that was sent kMostSends times in vain shows that the link does not carry it.
//
// Numbers go over the wire, so every lookup is checked against the consumer that names it. Pure logic. Not
// thread-safe.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_HELD_OFFERS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_HELD_OFFERS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/session/worst_rate.h"
#include "worker/core/tensor_key.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/transport/transfer_times.h"

namespace weft {

struct HeldOffer {
  uint64_t consumer = 0;  // sender number of the consumer's transport
  TensorKey key;
  Tensor tensor;
  bool in_place = false;  // true if the consumer reads it where it is
  int64_t sent_ns = 0;    // time when it was last sent
  int sent = 1;           // times that it was sent
  int sending = 0;        // sendings in which the carrier uses the bytes: it alone may end the holding then
  bool released = false;  // true if the consumer is done with it, or gone
};

class HeldOffers {
 public:
  static constexpr int kMostSends = 5;

  uint64_t Add(HeldOffer&& offer) {
    const uint64_t id = next_id_++;
    bytes_ += offer.tensor.bytes;
    held_.emplace(id, std::move(offer));
    return id;
  }
  // Returns the offer of this number, or nullptr.
  const HeldOffer* Find(uint64_t id) const {
    auto it = held_.find(id);
    return it == held_.end() ? nullptr : &it->second;
  }
  // Returns the offer that `consumer` reads in place under this number, or nullptr.
  HeldOffer* FindReadBy(uint64_t consumer, uint64_t id) {
    auto it = held_.find(id);
    const bool reads = it != held_.end() && it->second.consumer == consumer && it->second.in_place;
    return reads ? &it->second : nullptr;
  }

  // Notes that the carrier uses the bytes, or no longer does.
  void BeginSending(uint64_t id) { ++held_.at(id).sending; }
  void EndSending(uint64_t id) {
    auto it = held_.find(id);
    if (it == held_.end()) return;
    --it->second.sending;
    DropIfDone(it);
  }
  // Takes the consumer's word that it is done with the offer. Returns false for a number that is not one of
  // its offers.
  bool Release(uint64_t consumer, uint64_t id) {
    auto it = held_.find(id);
    if (it == held_.end() || it->second.consumer != consumer) return false;
    it->second.released = true;
    DropIfDone(it);
    return true;
  }
  // Releases the offers of a consumer that has gone.
  void ReleaseAllOf(uint64_t consumer) {
    ReleaseIf([consumer](const HeldOffer& o) { return o.consumer == consumer; });
  }
  // Releases the copies of other epochs, which nobody asks for again. Offers that are read in place stay.
  void BeginEpoch(uint64_t run, uint64_t epoch) {
    ReleaseIf([run, epoch](const HeldOffer& o) {
      return !o.in_place && (o.key.run != run || o.key.epoch != epoch);
    });
  }

  // Answers a consumer that asks again for a tensor: `offer` is to be sent once more, unless it may still be
  // on its way, or was sent in vain too often. kNone: it is not held.
  enum class Again : uint8_t { kNone, kOnItsWay, kSend, kGiveUp };
  struct Answer {
    Again again = Again::kNone;
    uint64_t offer = 0;
  };
  Answer AskedAgain(uint64_t consumer, const TensorKey& key, int64_t now) {
    for (auto& [id, held] : held_) {
      if (held.consumer != consumer || held.key != key || held.released) continue;
      const uint64_t bytes = held.in_place ? 0 : held.tensor.bytes;
      if (now - held.sent_ns < kAnswerTime + TransferTime(bytes)) return {Again::kOnItsWay, id};
      if (held.sent >= kMostSends) return {Again::kGiveUp, id};
      ++held.sent;
      held.sent_ns = now;
      ++sent_again_;
      return {Again::kSend, id};
    }
    return {};
  }

  // Returns, ascending, the offers that nobody has acknowledged or asked for in kProbeTime, and counts them
  // as sent now: their acknowledgement may be lost, and one more sending brings another.
  std::vector<uint64_t> Overdue(int64_t now) {
    std::vector<uint64_t> overdue;
    for (auto& [id, held] : held_) {
      const int64_t time = kProbeTime + (held.in_place ? 0 : TransferTime(held.tensor.bytes));
      if (held.sending > 0 || held.released || now - held.sent_ns < time) continue;
      held.sent_ns = now;
      overdue.push_back(id);
    }
    std::sort(overdue.begin(), overdue.end());
    return overdue;
  }

  template <typename Predicate>  // takes the consumer's sender number
  bool AnyHeldBy(Predicate predicate) const {
    return std::any_of(held_.begin(), held_.end(),
                       [&](const auto& entry) { return predicate(entry.second.consumer); });
  }
  uint64_t BytesBeingSentTo(uint64_t consumer) const {
    uint64_t bytes = 0;
    for (const auto& [id, offer] : held_)
      bytes += offer.sending > 0 && offer.consumer == consumer ? offer.tensor.bytes : 0;
    return bytes;
  }
  uint64_t bytes() const { return bytes_; }
  // Returns how often AskedAgain has said kSend.
  uint64_t sent_again() const { return sent_again_; }
  bool empty() const { return held_.empty(); }

 private:
  using Map = absl::flat_hash_map<uint64_t, HeldOffer>;

  void DropIfDone(Map::iterator it) {
    if (!it->second.released || it->second.sending > 0) return;
    bytes_ -= it->second.tensor.bytes;
    held_.erase(it);
  }
  template <typename Predicate>
  void ReleaseIf(Predicate predicate) {
    for (auto it = held_.begin(); it != held_.end();) {
      auto current = it++;
      if (!predicate(current->second)) continue;
      current->second.released = true;
      DropIfDone(current);
    }
  }

  Map held_;
  uint64_t bytes_ = 0, sent_again_ = 0;
  uint64_t next_id_ = 1;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_HELD_OFFERS_H_
