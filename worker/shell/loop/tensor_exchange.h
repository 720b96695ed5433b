// Brings the tensors of jobs to where they are read: to ranks of this process by an inbox, to other processes
// by the transport.
//
// A tensor of a device's memory is offered to a peer when its bytes are there, and goes through host memory
// where the transport does not carry the device's. One that arrives waits in the inbox until the job that
// reads it starts, and that brings it to the device.
//
// Invariants: a tensor in the inbox is taken once. Bytes are counted for the ranks that send and receive
// them, once each, and not between a rank and itself. Not thread-safe; the owner locks. Ownership: borrows
// transport, seats, the device's work and the notes of events and of taken tensors, which outlive it.
// Failure: of the device that makes or copies the tensor.
#ifndef WEFT_WORKER_SHELL_LOOP_TENSOR_EXCHANGE_H_
#define WEFT_WORKER_SHELL_LOOP_TENSOR_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/core/worker_effects.h"
#include "worker/shell/loop/device_work.h"
#include "worker/shell/loop/job_runner.h"
#include "worker/shell/loop/loop_events.h"
#include "worker/shell/loop/rank_seats.h"
#include "worker/shell/loop/taken_tensors.h"
#include "worker/shell/transport/transport.h"

namespace weft {

class TensorExchange {
 public:
  TensorExchange(Transport& transport, RankSeats& seats, DeviceWork& device_work, const LoopEvents& events,
                 TakenTensors& taken)
      : transport_(transport), seats_(seats), device_work_(device_work), events_(events), taken_(taken) {
    transport.ReceiveInto([this](const TensorKey& key, size_t bytes) { return MemoryFor(key, bytes); });
  }
  ~TensorExchange() { transport_.ReceiveInto(nullptr); }
  TensorExchange(const TensorExchange&) = delete;
  TensorExchange& operator=(const TensorExchange&) = delete;

  // Takes a tensor that has arrived from another process. Returns what the core is to know of it.
  TensorArrival TakeArrived(int64_t now, PeerId peer, const TensorKey& key, Tensor tensor);
  // Takes the tensors that a job reads out of the inbox.
  std::vector<Tensor> Take(const std::vector<TensorKey>& keys);
  // Hands on an output of the job with this outcome, or initial weights (null).
  absl::Status Publish(int64_t now, const PublishEffect& effect, const JobOutcome* outcome);
  // Offers a tensor whose bytes the device has brought.
  void Offer(int64_t now, AwaitedTensors::Awaited awaited);
  void Clear() { inbox_.clear(); }

  // Takes everything out, to be kept for as long as a device may touch it.
  std::shared_ptr<void> Release();

 private:
  // Returns memory for a tensor that arrives as a copy: that of the rank that reads it; null for one that is
  // read by none of this process, as a copy of a state, and where the rank has none for it.
  absl::StatusOr<std::shared_ptr<void>> MemoryFor(const TensorKey& key, size_t bytes);
  void CountReceived(const TensorKey& key, size_t bytes);
  absl::StatusOr<Tensor> TensorOf(const PublishEffect& effect, const JobOutcome* outcome);
  absl::Status OfferTo(int64_t now, PeerId peer, const TensorKey& key, Tensor tensor,
                       std::shared_ptr<LaunchedJob> made_by);

  Transport& transport_;
  RankSeats& seats_;
  DeviceWork& device_work_;
  const LoopEvents& events_;
  TakenTensors& taken_;
  absl::flat_hash_map<TensorKey, Tensor> inbox_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_LOOP_TENSOR_EXCHANGE_H_
