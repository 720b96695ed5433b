#include "worker/shell/transport/tensor_receipts.h"

#include <algorithm>

namespace weft {

void TensorReceipts::SendAll() {
  buffer_.clear();
  queue_->Take(&buffer_);
  if (!reading_.empty()) {
    for (const auto& [producer, offer] : buffer_) reading_.erase({producer, offer});
  }
  buffer_.insert(buffer_.end(), owed_.begin(), owed_.end());
  owed_.clear();
  std::stable_sort(buffer_.begin(), buffer_.end(),
                   [](const auto& a, const auto& b) { return a.producer < b.producer; });
  TransportMessage message;
  message.type = TransportMessage::Type::kRelease;
  for (size_t i = 0; i < buffer_.size(); ++i) {
    const auto& [producer, offer] = buffer_[i];
    message.offers[message.offer_count++] = offer;
    const bool last = i + 1 == buffer_.size() || buffer_[i + 1].producer != producer;
    if (!last && message.offer_count < TransportMessage::kMaxOffers) continue;
    send_(producer, &message);
    message.offer_count = 0;
  }
}

}  // namespace weft
