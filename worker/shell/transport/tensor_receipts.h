// Keeps, for a consumer of tensors, what it owes their producers: the word that a tensor is here as a copy,
// is not wanted, or was read in place and dropped. Until then a producer holds the tensor and may send it
// again.
//
// Arrived tensors are dropped on any thread, which goes through the release queue; all else is called by the
// transport's thread. Failure: none; a receipt that is lost is owed anew when the tensor comes again.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_TENSOR_RECEIPTS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_TENSOR_RECEIPTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "worker/shell/transport/release_queue.h"
#include "worker/shell/transport/transport_message.h"

namespace weft {

class TensorReceipts {
 public:
  using Receipt = ReleaseQueue::Release;
  using Send = std::function<void(uint64_t producer, TransportMessage* message)>;
  explicit TensorReceipts(Send send) : send_(std::move(send)), queue_(std::make_shared<ReleaseQueue>()) {}

  // Returns the queue that arrived tensors share.
  const std::shared_ptr<ReleaseQueue>& queue() const { return queue_; }
  // Notes that the offer is read in place here, until the queue has its release.
  void Read(const Receipt& r) { reading_.insert({r.producer, r.offer}); }
  bool IsRead(const Receipt& r) const { return reading_.contains({r.producer, r.offer}); }
  // Adds a receipt for what need not be sent again.
  void Owe(const Receipt& r) { owed_.push_back(r); }
  bool owes() const { return !owed_.empty(); }
  // Sends all receipts, many in a message.
  void SendAll();
  // Forgets what is read of a producer that has gone.
  void Forget(uint64_t producer) {
    absl::erase_if(reading_, [producer](const auto& read) { return read.first == producer; });
  }

 private:
  const Send send_;
  const std::shared_ptr<ReleaseQueue> queue_;
  absl::flat_hash_set<std::pair<uint64_t, uint64_t>> reading_;  // by producer and number
  std::vector<Receipt> owed_, buffer_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_TENSOR_RECEIPTS_H_
