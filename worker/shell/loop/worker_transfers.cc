// Implements WorkerLoop's tensors from other processes and to them.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "worker/shell/loop/worker_loop.h"

namespace weft {

void WorkerLoop::HandleTransport(int64_t now) {
  for (TransportEvent& e : events_) {
    if (e.kind != TransportEvent::Kind::kArrived) {
      Fail(now, e.status);
      continue;
    }
    CountReceived(e.key, e.tensor.bytes);
    const int64_t made = e.tensor.made_ns;
    if (e.key.kind != TensorKind::kOrder && SlotOf(e.key.consumer) != nullptr)
      inbox_[e.key] = std::move(e.tensor);
    core_.OnTensor(now, e.key, made, &effects_);
    Apply(now, nullptr);
  }
}

void WorkerLoop::CountReceived(const TensorKey& key, size_t bytes) {
  if (key.producer == key.consumer) return;
  if (Slot* slot = SlotOf(key.consumer)) slot->bytes_received[static_cast<int>(key.kind)] += bytes;
}

void WorkerLoop::Publish(int64_t now, const PublishEffect& effect, const JobOutcome* outcome) {
  const TensorKey& key = effect.key;
  Slot* producer = SlotOf(key.producer);
  Tensor tensor;
  if (key.kind == TensorKind::kWeights) {
    auto weights = producer->compute->Weights(key.stage, key.version);
    if (!weights.ok()) return Fail(now, weights.status());
    tensor = *std::move(weights);
    // An update that was launched made them, or a job before it did.
    const bool made_now = outcome != nullptr && tensor.place == MemoryPlace::kDevice;
    if (made_now && tensor.ready == nullptr) tensor.ready = outcome->launched;
  } else if (outcome != nullptr) {
    tensor = outcome->Output(key.kind, key.part, effect.parts);
  }
  tensor.made_ns = now;
  if (key.producer != key.consumer) producer->bytes_sent[static_cast<int>(key.kind)] += tensor.bytes;
  if (effect.process >= 0) {
    return Offer(now, effect.process, key, std::move(tensor),
                 outcome != nullptr ? outcome->launched : nullptr);
  }
  CountReceived(key, tensor.bytes);
  inbox_[key] = std::move(tensor);
}

void WorkerLoop::Offer(int64_t now, PeerId peer, const TensorKey& key, Tensor tensor,
                       std::shared_ptr<LaunchedJob> made_by) {
  if (tensor.place == MemoryPlace::kDevice && !transport_.CarriesDevice(peer)) {
    absl::StatusOr<Tensor> host = SlotOf(key.producer)->compute->ToHost(std::move(tensor));
    if (!host.ok()) return Fail(now, host.status());
    tensor = *std::move(host);
    tensor.made_ns = now;
  }
  if (tensor.ready == nullptr) return transport_.Offer(peer, key, std::move(tensor));
  awaited_.Add({key, std::move(tensor), peer, std::move(made_by), now, {}});
}

// Offers a tensor whose bytes the device has brought.
void WorkerLoop::Arrived(int64_t now, AwaitedTensors::Awaited awaited) {
  awaited.tensor.ready = nullptr;
  awaited.tensor.made_ns = now;
  if (awaited.made_by != nullptr) {
    // The tensor was on its way from the end of the job on.
    const absl::StatusOr<bool> ended = awaited.made_by->Reached();
    if (ended.ok() && *ended) awaited.tensor.made_ns = std::min(now, awaited.made_by->figures().end_ns);
  }
  transport_.Offer(awaited.peer, awaited.key, std::move(awaited.tensor));
}

}  // namespace weft
