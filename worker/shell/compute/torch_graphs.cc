#include "worker/shell/compute/torch_graphs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "worker/shell/compute/torch_guard.h"

namespace weft {
namespace {

// So many passes run first, in which libraries make what they make at first use.
constexpr int kWarmUp = 2;
// Weights that lie elsewhere so often are not worth it.
constexpr int kMostChanges = 4;
// A device may not be able to capture beside something else; one that so often is not, is never.
constexpr int kMostRefusals = 8;

// Room for what is copied in, which is no part of any graph.
at::Tensor RoomFor(const at::Tensor& tensor) {
  return tensor.defined() ? at::empty(tensor.sizes(), tensor.options().requires_grad(false)) : at::Tensor();
}

void CopyIn(RankDevice& device, const at::Tensor& from, const at::Tensor& to) {
  if (!to.defined()) return;
  const at::Tensor bytes = from.contiguous();
  device.math().Copy(to.data_ptr(), bytes.const_data_ptr(), to.nbytes());
}

}  // namespace

absl::StatusOr<std::shared_ptr<CapturedPass>> CapturedPass::Capture(RankDevice& device,
                                                                    const PassShape& shape,
                                                                    std::shared_ptr<StageWeights> weights,
                                                                    const std::vector<at::Tensor>& inputs,
                                                                    const at::Tensor& targets) {
  const Charged charged(device, MemoryClass::kActivations);
  std::shared_ptr<CapturedPass> pass(new CapturedPass(device, shape.layout));
  for (const at::Tensor& input : inputs) pass->inputs_.push_back(RoomFor(input));
  pass->targets_ = RoomFor(targets);
  // Captured work is done with what lies there, on a device that does it at once too.
  for (size_t i = 0; i < inputs.size(); ++i) CopyIn(device, inputs[i], pass->inputs_[i]);
  CopyIn(device, targets, pass->targets_);
  pass->addresses_ = AddressesOf(*weights);
  pass->pass_.weights = std::move(weights);
  const absl::StatusOr<bool> captured = pass->CaptureAll(shape, targets);
  if (!captured.ok()) return captured.status();
  if (!*captured) return nullptr;
  return pass;
}

// False where the device does not capture now.
absl::StatusOr<bool> CapturedPass::CaptureAll(const PassShape& shape, const at::Tensor& targets) {
  const auto run_forward = [this, shape] {
    pass_.input_edges.clear();
    pass_.path.clear();
    MaskKey key;
    key.math = &device_.math();
    key.seeds = &seeds_;
    output_ = RunForward(shape.layers, shape.layout, inputs_, targets_, key, &pass_);
    return absl::OkStatus();
  };
  absl::StatusOr<std::unique_ptr<CapturedWork>> forward = device_.Capture(run_forward, nullptr);
  if (!forward.ok()) return forward.status();
  if (*forward == nullptr) return false;
  forward_ = *std::move(forward);
  output_gradient_ = targets.defined() ? shape.loss_gradient : RoomFor(output_.activation);
  if (!targets.defined()) device_.math().Zero(output_gradient_.data_ptr(), output_gradient_.nbytes());
  const std::vector<PassHalf> halves = shape.split_backward
                                           ? std::vector<PassHalf>{PassHalf::kInput, PassHalf::kWeight}
                                           : std::vector<PassHalf>{PassHalf::kBoth};
  halves_.resize(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) {
    Half& half = halves_[i];
    half.half = halves[i];
    const auto run_backward = [this, &half] {
      const Charged charged(device_, MemoryClass::kBuffers);
      half.gradients = RunBackward(pass_, output_gradient_, half.half);
      return absl::OkStatus();
    };
    absl::StatusOr<std::unique_ptr<CapturedWork>> backward = device_.Capture(run_backward, forward_.get());
    if (!backward.ok()) return backward.status();
    if (*backward == nullptr) return false;
    half.work = *std::move(backward);
  }
  return true;
}

PassOutput CapturedPass::Forward(const std::vector<at::Tensor>& inputs, const at::Tensor& targets,
                                 const MaskKey& key) {
  for (size_t i = 0; i < inputs.size(); ++i) CopyIn(device_, inputs[i], inputs_[i]);
  CopyIn(device_, targets, targets_);
  seeds_.Write(key);
  forward_->Replay();
  PassOutput output;
  if (output_.activation.defined()) output.activation = output_.activation.detach().clone();
  if (output_.loss.defined()) output.loss = output_.loss.detach().clone();
  return output;
}

PassGradients CapturedPass::Backward(const at::Tensor& output_gradient, PassHalf half) {
  for (Half& captured : halves_) {
    if (captured.half != half) continue;
    if (output_gradient.data_ptr() != output_gradient_.data_ptr())
      CopyIn(device_, output_gradient, output_gradient_);
    captured.work->Replay();
    PassGradients gradients = captured.gradients;
    for (at::Tensor& gradient : gradients.inputs) gradient = gradient.clone();
    return gradients;
  }
  TORCH_CHECK(false, "a pass was captured for other halves of its backward");
}

CapturedPass::Addresses CapturedPass::AddressesOf(const StageWeights& weights) {
  Addresses addresses;
  addresses.reserve(weights.parameters().size());
  for (const at::Tensor& p : weights.parameters()) addresses.push_back(p.const_data_ptr());
  return addresses;
}

absl::StatusOr<std::shared_ptr<CapturedPass>> StageGraphs::Take(const PassShape& shape,
                                                                const std::shared_ptr<StageWeights>& weights,
                                                                const std::vector<at::Tensor>& inputs,
                                                                const at::Tensor& targets) {
  if (eager_.load(std::memory_order_relaxed) < kWarmUp) return nullptr;
  std::vector<std::shared_ptr<CapturedPass>> outdated;  // freed after the lock
  {
    MutexLock lock(mutex_);
    if (refused_) return nullptr;
    CapturedPass::Addresses addresses = CapturedPass::AddressesOf(*weights);
    if (addresses != addresses_) {
      addresses_ = std::move(addresses);
      outdated = std::exchange(idle_, {});
      refused_ = ++changes_ > kMostChanges;
      if (refused_) return nullptr;
    }
    if (!idle_.empty()) {
      std::shared_ptr<CapturedPass> pass = std::move(idle_.back());
      idle_.pop_back();
      return pass;
    }
  }
  auto pass = CapturedPass::Capture(device_, shape, weights, inputs, targets);
  if (pass.ok() && *pass == nullptr) {
    MutexLock lock(mutex_);
    refused_ = ++refusals_ >= kMostRefusals;
  }
  return pass;
}

void StageGraphs::Return(std::shared_ptr<CapturedPass> pass) {
  MutexLock lock(mutex_);
  // Else the weights have come to lie elsewhere meanwhile.
  if (!refused_ && pass->addresses() == addresses_) idle_.push_back(std::move(pass));
}

}  // namespace weft
