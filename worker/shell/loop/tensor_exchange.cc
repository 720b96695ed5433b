#include "worker/shell/loop/tensor_exchange.h"

#include <algorithm>
#include <utility>

namespace weft {

absl::StatusOr<std::shared_ptr<void>> TensorExchange::MemoryFor(const TensorKey& key, size_t bytes) {
  const Seat* const seat = key.kind == TensorKind::kCopy ? nullptr : seats_.Of(key.consumer);
  // A rank that ends, on a thread, reads nothing more.
  if (seat == nullptr || seat->ending || seat->compute == nullptr) return nullptr;
  return seat->compute->MemoryToReceive(bytes);
}

TensorArrival TensorExchange::TakeArrived(int64_t now, PeerId peer, const TensorKey& key, Tensor tensor) {
  events_.Arrived(now, peer, key);
  CountReceived(key, tensor.bytes);
  const TensorArrival arrival{tensor.made_ns, static_cast<int64_t>(tensor.bytes)};
  const bool is_input = key.kind != TensorKind::kOrder && key.kind != TensorKind::kCopy;
  if (is_input && seats_.Of(key.consumer) != nullptr) inbox_[key] = std::move(tensor);
  return arrival;
}

void TensorExchange::CountReceived(const TensorKey& key, size_t bytes) {
  if (key.producer == key.consumer) return;
  if (Seat* seat = seats_.Of(key.consumer)) seat->bytes_received[static_cast<int>(key.kind)] += bytes;
}

std::vector<Tensor> TensorExchange::Take(const std::vector<TensorKey>& keys) {
  std::vector<Tensor> tensors;
  for (const TensorKey& key : keys) {
    const auto it = inbox_.find(key);
    tensors.emplace_back();
    if (it == inbox_.end()) continue;  // an empty tensor, as of a stage without parameters
    tensors.back() = std::move(it->second);
    inbox_.erase(it);
  }
  return tensors;
}

absl::StatusOr<Tensor> TensorExchange::TensorOf(const PublishEffect& effect, const JobOutcome* outcome) {
  const TensorKey& key = effect.key;
  if (key.kind != TensorKind::kWeights)
    return outcome != nullptr ? outcome->Output(key.kind, key.part, effect.parts) : Tensor();
  if (outcome != nullptr && outcome->kept_weights.has_value()) return *outcome->kept_weights;
  auto weights = seats_.Of(key.producer)->compute->Weights(key.stage, key.version);
  if (!weights.ok()) return weights.status();
  Tensor tensor = *std::move(weights);
  // An update that was launched made them, or a job before it did.
  const bool made_now = outcome != nullptr && tensor.place == MemoryPlace::kDevice;
  if (made_now && tensor.ready == nullptr) tensor.ready = outcome->launched;
  return tensor;
}

absl::Status TensorExchange::Publish(int64_t now, const PublishEffect& effect, const JobOutcome* outcome) {
  const TensorKey& key = effect.key;
  absl::StatusOr<Tensor> tensor = TensorOf(effect, outcome);
  if (!tensor.ok()) return tensor.status();
  tensor->made_ns = now;
  if (effect.note.has_value()) taken_.Follow(*effect.note, &*tensor);
  if (key.producer != key.consumer)
    seats_.Of(key.producer)->bytes_sent[static_cast<int>(key.kind)] += tensor->bytes;
  if (effect.process >= 0) {
    return OfferTo(now, effect.process, key, *std::move(tensor),
                   outcome != nullptr ? outcome->launched : nullptr);
  }
  CountReceived(key, tensor->bytes);
  inbox_[key] = *std::move(tensor);
  return absl::OkStatus();
}

absl::Status TensorExchange::OfferTo(int64_t now, PeerId peer, const TensorKey& key, Tensor tensor,
                                     std::shared_ptr<LaunchedJob> made_by) {
  events_.Offers(now, peer, key);
  if (tensor.place == MemoryPlace::kDevice && !transport_.CarriesDevice(peer)) {
    absl::StatusOr<Tensor> host = seats_.Of(key.producer)->compute->ToHost(std::move(tensor));
    if (!host.ok()) return host.status();
    tensor = *std::move(host);
    tensor.made_ns = now;
  }
  if (tensor.ready == nullptr) {
    transport_.Offer(peer, key, std::move(tensor));
  } else {
    device_work_.Add(AwaitedTensors::Awaited{key, std::move(tensor), peer, std::move(made_by), now, {}});
  }
  return absl::OkStatus();
}

void TensorExchange::Offer(int64_t now, AwaitedTensors::Awaited awaited) {
  awaited.tensor.ready = nullptr;
  awaited.tensor.made_ns = now;
  if (awaited.made_by != nullptr) {
    // The tensor was on its way from the end of the job on.
    const absl::StatusOr<bool> ended = awaited.made_by->Reached();
    if (ended.ok() && *ended) awaited.tensor.made_ns = std::min(now, awaited.made_by->figures().end_ns);
  }
  transport_.Offer(awaited.peer, awaited.key, std::move(awaited.tensor));
}

std::shared_ptr<void> TensorExchange::Release() {
  return std::make_shared<absl::flat_hash_map<TensorKey, Tensor>>(std::move(inbox_));
}

}  // namespace weft
