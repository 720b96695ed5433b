// Keeps the producer's tensors that are with a consumer: read in place there, or being sent.
//
// Each has a number that goes over the wire, so every lookup is checked against the consumer that names it.
// Pure logic. Not thread-safe.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_HELD_OFFERS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_HELD_OFFERS_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "worker/core/tensor_key.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

struct HeldOffer {
  uint64_t consumer = 0;  // sender number of the consumer's transport
  TensorKey key;
  Tensor tensor;
  bool sending = false;  // true while the carrier uses the bytes: then it alone may end the holding
};

class HeldOffers {
 public:
  uint64_t Add(HeldOffer&& offer) {
    const uint64_t id = next_id_++;
    bytes_ += offer.tensor.bytes;
    held_.emplace(id, std::move(offer));
    return id;
  }

  // Returns the offer that `consumer` reads in place under this number, or nullptr.
  HeldOffer* FindReadBy(uint64_t consumer, uint64_t id) {
    auto it = held_.find(id);
    return it == held_.end() || it->second.consumer != consumer || it->second.sending ? nullptr : &it->second;
  }
  const HeldOffer* Find(uint64_t id) const {
    auto it = held_.find(id);
    return it == held_.end() ? nullptr : &it->second;
  }

  void Drop(uint64_t id) {
    auto it = held_.find(id);
    if (it == held_.end()) return;
    bytes_ -= it->second.tensor.bytes;
    held_.erase(it);
  }
  // Drops the offers of a consumer that has gone. Tensors that are being sent stay until the carrier is done
  // with them.
  void DropReadBy(uint64_t consumer) {
    for (auto it = held_.begin(); it != held_.end();) {
      auto current = it++;
      if (current->second.consumer != consumer || current->second.sending) continue;
      bytes_ -= current->second.tensor.bytes;
      held_.erase(current);
    }
  }

  template <typename Predicate>  // takes the consumer's sender number
  bool AnyHeldBy(Predicate predicate) const {
    return std::any_of(held_.begin(), held_.end(),
                       [&](const auto& entry) { return predicate(entry.second.consumer); });
  }

  uint64_t BytesBeingSentTo(uint64_t consumer) const {
    uint64_t bytes = 0;
    for (const auto& [id, offer] : held_)
      bytes += offer.sending && offer.consumer == consumer ? offer.tensor.bytes : 0;
    return bytes;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  absl::flat_hash_map<uint64_t, HeldOffer> held_;
  uint64_t bytes_ = 0;
  uint64_t next_id_ = 1;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_HELD_OFFERS_H_
