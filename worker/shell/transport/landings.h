// Keeps tensors whose bytes are on their way into memory of this process: the host's or the device's.
//
// The memory of each belongs to the carrier (UCX, and behind it a copy engine or a network adapter) until the
// carrier says that it is done, whatever became of the want meanwhile: a deadline, an epoch, the death of the
// peer. Only End gives the memory back, so it is never used for another purpose while bytes may still come.
// Landings that the carrier has not ended when everything is over are kept for ever.
//
// Device memory is only handed around, never touched. Not thread-safe; the tensors may be dropped on any
// thread.
#ifndef WEFT_WORKER_SHELL_TRANSPORT_LANDINGS_H_
#define WEFT_WORKER_SHELL_TRANSPORT_LANDINGS_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/core/tensor_key.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/transport/receive_pool.h"
#include "worker/shell/transport/transport.h"

namespace weft {

class Landings {
 public:
  struct Landing {
    PeerId peer = -1;
    TensorKey key;
    uint64_t offer = 0;  // its producer's number
    Tensor tensor;       // tensor whose bytes are not there yet
  };

  // `device` may be null: then no tensor lands in device memory.
  Landings(std::shared_ptr<ReceivePool> host, std::shared_ptr<ReceivePool> device)
      : host_(std::move(host)), device_(std::move(device)) {}
  ~Landings() {
    // Without memory for it the process ends, as it should.
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
    if (!landings_.empty()) new absl::flat_hash_map<uint64_t, Landing>(std::move(landings_));
  }
  Landings(const Landings&) = delete;
  Landings& operator=(const Landings&) = delete;

  // Gets memory for `tensor`, whose other fields are set: from `first` if that has some, which may also
  // refuse. Returns the number of the landing. FailedPrecondition without memory of that place, or the error
  // of the memory's source.
  absl::StatusOr<uint64_t> Begin(PeerId peer, const TensorKey& key, uint64_t offer,
                                 const Transport::MemoryToReceive& first, Tensor tensor) {
    const std::shared_ptr<ReceivePool>& pool = tensor.place == MemoryPlace::kHost ? host_ : device_;
    if (pool == nullptr) return absl::FailedPreconditionError("this process takes no device memory");
    absl::StatusOr<std::shared_ptr<void>> block = nullptr;
    if (first) block = first(key, tensor.bytes);
    if (block.ok() && *block == nullptr) {
      block = pool->Get(tensor.bytes);
    } else if (block.ok()) {
      // The pool keeps the source of the memory, which may outlive the transport.
      void* const data = block->get();
      block = std::shared_ptr<void>(data, [pool, own = *std::move(block)](void*) mutable { own.reset(); });
    }
    if (!block.ok()) return block.status();
    tensor.data = block->get();
    tensor.owner = *std::move(block);
    landings_.emplace(next_, Landing{peer, key, offer, std::move(tensor)});
    return next_++;
  }
  uint64_t BytesFrom(PeerId peer) const {
    uint64_t bytes = 0;
    for (const auto& [number, landing] : landings_) bytes += landing.peer == peer ? landing.tensor.bytes : 0;
    return bytes;
  }
  const Tensor& tensor(uint64_t number) const { return landings_.at(number).tensor; }

  // Ends the landing: the carrier is done with the memory.
  Landing End(uint64_t number) {
    auto it = landings_.find(number);
    Landing landing = std::move(it->second);
    landings_.erase(it);
    return landing;
  }

 private:
  const std::shared_ptr<ReceivePool> host_, device_;  // shared with arrived tensors
  absl::flat_hash_map<uint64_t, Landing> landings_;
  uint64_t next_ = 1;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TRANSPORT_LANDINGS_H_
