#include "worker/shell/torch/torch_graphs.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <string>
#include <utility>

#include "worker/shell/torch/torch_guard.h"

namespace weft {
namespace {

// The number of passes that run first, in which libraries make what they make at first use.
constexpr int kWarmUp = 2;
// The number of changes of the weights' place after which captures are not worth it.
constexpr int kMaxChanges = 4;
// The number of refusals after which the device counts as never able to capture. A device may not be able to
// capture beside something else.
constexpr int kMaxRefusals = 8;

// Returns a buffer for copied inputs, which is no part of any graph.
at::Tensor RoomFor(const at::Tensor& tensor) {
  return tensor.defined() ? at::empty(tensor.sizes(), tensor.options().requires_grad(false)) : at::Tensor();
}

void CopyIn(RankDevice& device, const at::Tensor& from, const at::Tensor& to) {
  if (!to.defined()) return;
  const at::Tensor bytes = from.contiguous();
  device.math().Copy(to.data_ptr(), bytes.const_data_ptr(), to.nbytes());
}

std::vector<PassHalf> HalvesOf(const PassShape& shape) {
  if (shape.split_backward) return {PassHalf::kInput, PassHalf::kWeight};
  return {PassHalf::kBoth};
}

// Returns why passes of the stage must not be captured, by what its layers do; OK if they may.
absl::Status CheckCapturable(const PassShape& shape) {
  for (int layer = shape.layout.first_layer; layer < shape.layout.end_layer; ++layer) {
    if (absl::Status s = shape.layers[layer]->CheckCapturable(); !s.ok()) return s;
  }
  return absl::OkStatus();
}

int DropoutSitesOf(const PassShape& shape) {
  int sites = 0;
  for (int layer = shape.layout.first_layer; layer < shape.layout.end_layer; ++layer)
    sites += shape.layers[layer]->dropout_sites();
  return sites;
}

// Returns a number that no other thread of the process has or had.
uint64_t ThisThread() {
  static std::atomic<uint64_t> threads{0};
  thread_local const uint64_t number = ++threads;
  return number;
}

}  // namespace

CapturedPass::CapturedPass(RankDevice& device, const PassShape& shape)
    : device_(device), numbers_(device.math(), device.torch_device(), DropoutSitesOf(shape)) {}

absl::StatusOr<std::shared_ptr<CapturedPass>> CapturedPass::Capture(RankDevice& device,
                                                                    const PassShape& shape,
                                                                    std::shared_ptr<StageWeights> weights,
                                                                    const std::vector<at::Tensor>& inputs,
                                                                    const at::Tensor& targets, bool warm) {
  const Charged charged(device, MemoryClass::kActivations);
  std::shared_ptr<CapturedPass> pass(new CapturedPass(device, shape));
  for (const at::Tensor& input : inputs) pass->inputs_.push_back(RoomFor(input));
  pass->targets_ = RoomFor(targets);
  // Captured work reads these buffers, also on a device that does it at once.
  for (size_t i = 0; i < inputs.size(); ++i) CopyIn(device, inputs[i], pass->inputs_[i]);
  CopyIn(device, targets, pass->targets_);
  pass->place_ = PlaceOf(device, *weights);
  pass->pass_.weights = std::move(weights);
  if (warm) pass->WarmUp(shape);
  const absl::StatusOr<bool> captured = pass->CaptureAll(shape);
  if (!captured.ok()) return captured.status();
  if (!*captured) return nullptr;
  return pass;
}

// Returns a key that reads its numbers from the device's memory.
MaskKey CapturedPass::CapturedKey() {
  MaskKey key;
  key.math = &device_.math();
  key.numbers = &numbers_;
  return key;
}

// Runs a pass over the same buffers and drops its results.
void CapturedPass::WarmUp(const PassShape& shape) {
  Pass pass;
  pass.weights = pass_.weights;
  const PassOutput output = RunForward(shape.layers, shape.layout, inputs_, targets_, CapturedKey(), &pass);
  MakeOutputGradient(shape, output);
  const Charged charged(device_, MemoryClass::kBuffers);
  for (const PassHalf half : HalvesOf(shape)) RunBackward(pass, output_gradient_, half);
}

void CapturedPass::MakeOutputGradient(const PassShape& shape, const PassOutput& output) {
  if (output_gradient_.defined()) return;
  if (output.loss.defined()) {
    output_gradient_ = shape.loss_gradient;
    return;
  }
  output_gradient_ = RoomFor(output.activation);
  device_.math().Zero(output_gradient_.data_ptr(), output_gradient_.nbytes());
}

// Captures all. Returns false where the device does not capture now.
absl::StatusOr<bool> CapturedPass::CaptureAll(const PassShape& shape) {
  const auto run_forward = [this, shape] {
    pass_.input_edges.clear();
    pass_.path.clear();
    output_ = RunForward(shape.layers, shape.layout, inputs_, targets_, CapturedKey(), &pass_);
    return absl::OkStatus();
  };
  absl::StatusOr<std::unique_ptr<CapturedWork>> forward = device_.Capture(run_forward, nullptr);
  if (!forward.ok()) return forward.status();
  if (*forward == nullptr) return false;
  forward_ = *std::move(forward);
  MakeOutputGradient(shape, output_);
  for (const PassHalf half : HalvesOf(shape)) halves_.push_back({half, nullptr, {}});
  for (Half& half : halves_) {
    // The stage reads no inputs, so there are no gradients of inputs.
    if (half.half == PassHalf::kInput && pass_.input_edges.empty()) continue;
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
  numbers_.Write(key);
  forward_->Replay();
  PassOutput output;
  if (output_.activation.defined()) output.activation = output_.activation.detach().clone();
  if (output_.loss.defined()) output.loss = output_.loss.detach().clone();
  return output;
}

PassGradients CapturedPass::Backward(const at::Tensor& output_gradient, PassHalf half) {
  for (Half& captured : halves_) {
    if (captured.half != half) continue;
    if (captured.work == nullptr) return {};
    if (output_gradient.data_ptr() != output_gradient_.data_ptr())
      CopyIn(device_, output_gradient, output_gradient_);
    captured.work->Replay();
    PassGradients gradients = captured.gradients;
    for (at::Tensor& gradient : gradients.inputs) gradient = gradient.clone();
    return gradients;
  }
  TORCH_CHECK(false, "a pass was captured for other halves of its backward");
}

CapturedPass::Place CapturedPass::PlaceOf(const RankDevice& device, const StageWeights& weights) {
  Place place;
  place.lane = device.lane();
  place.parameters.reserve(weights.parameters().size());
  for (const at::Tensor& p : weights.parameters()) place.parameters.push_back(p.const_data_ptr());
  return place;
}

std::shared_ptr<CapturedPass> StageGraphs::Take(const PassShape& shape,
                                                const std::shared_ptr<StageWeights>& weights,
                                                const std::vector<at::Tensor>& inputs,
                                                const at::Tensor& targets) {
  if (eager_.load(std::memory_order_relaxed) < kWarmUp) return nullptr;
  bool moves = false;
  {
    std::vector<std::shared_ptr<CapturedPass>>
        outdated;  // freed after the lock, and before others take memory
    MutexLock lock(mutex_);
    if (refused_) return nullptr;
    CapturedPass::Place place = CapturedPass::PlaceOf(device_, *weights);
    if (place != place_) {
      place_ = std::move(place);
      outdated = std::exchange(idle_, {});
      moves = ++changes_ > kMaxChanges;
    }
    if (!idle_.empty()) {
      std::shared_ptr<CapturedPass> pass = std::move(idle_.back());
      idle_.pop_back();
      return pass;
    }
  }
  const absl::Status capturable =
      moves ? absl::AbortedError("its weights or its lane change again and again") : CheckCapturable(shape);
  if (!capturable.ok()) {
    Refuse(shape.layout.stage, capturable);
    return nullptr;
  }
  absl::StatusOr<std::shared_ptr<CapturedPass>> pass = Capture(shape, weights, inputs, targets);
  if (absl::IsResourceExhausted(pass.status())) {
    // LibTorch keeps the memory of passes that ran without for such passes, and does not give it out while
    // the device captures.
    device_.ReleaseUnused();
    pass = Capture(shape, weights, inputs, targets);
  }
  if (!pass.ok()) {
    Refuse(shape.layout.stage, pass.status());
    return nullptr;
  }
  if (*pass == nullptr && !BearsRefusal())
    Refuse(shape.layout.stage, absl::UnavailableError("the device cannot capture beside its other work"));
  return *std::move(pass);
}

absl::StatusOr<std::shared_ptr<CapturedPass>> StageGraphs::Capture(
    const PassShape& shape, const std::shared_ptr<StageWeights>& weights,
    const std::vector<at::Tensor>& inputs, const at::Tensor& targets) {
  const std::pair<uint64_t, int> here(ThisThread(), device_.lane());
  bool warm = false;
  {
    MutexLock lock(mutex_);
    warm = !warm_.contains(here);
  }
  try {
    auto pass = CapturedPass::Capture(device_, shape, weights, inputs, targets, warm);
    MutexLock lock(mutex_);
    // Another try warms up again: this one may have been out of memory before it had.
    if (pass.ok()) warm_.insert(here);
    return pass;
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(OutOfMemoryText(e));
  }
}

// Counts that the device could not capture now. Returns false if it has happened too often.
bool StageGraphs::BearsRefusal() {
  MutexLock lock(mutex_);
  return ++refusals_ < kMaxRefusals;
}

// Gives up capturing. If the device has failed, the pass that runs without fails, too, and names the job.
void StageGraphs::Refuse(int stage, const absl::Status& why) {
  std::vector<std::shared_ptr<CapturedPass>> idle;  // freed after the lock
  MutexLock lock(mutex_);
  if (!std::exchange(refused_, true)) {
    std::fprintf(stderr, "weft: from here on stage %d runs without graphs, with the same bits: %s\n", stage,
                 std::string(why.message()).c_str());
  }
  idle = std::exchange(idle_, {});
}

void StageGraphs::Return(std::shared_ptr<CapturedPass> pass) {
  MutexLock lock(mutex_);
  // Otherwise the weights have moved meanwhile.
  if (!refused_ && pass->place() == place_) idle_.push_back(std::move(pass));
}

}  // namespace weft
