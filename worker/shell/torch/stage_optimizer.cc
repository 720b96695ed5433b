#include "worker/shell/torch/stage_optimizer.h"

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "run/learning_rate.h"
#include "worker/shell/compute/stage_update.h"

namespace weft {

absl::Status StageOptimizer::Begin() {
  for (int i = 0; i < state_buffers(); ++i) {
    absl::StatusOr<Tensor> buffer = device_.NewFlat(held_.end - held_.begin, MemoryClass::kOptimizer);
    if (!buffer.ok()) return buffer.status();
    device_.math().Zero(buffer->data, buffer->bytes);
    buffers_.push_back(*std::move(buffer));
  }
  return absl::OkStatus();
}

void StageOptimizer::Resume(int64_t steps, std::vector<Tensor> buffers) {
  optimizer_.Resume(steps);
  buffers_ = std::move(buffers);
}

std::vector<Tensor> StageOptimizer::Release() { return std::exchange(buffers_, {}); }

void StageOptimizer::Step(int step, const std::vector<Tensor>& gradients, const float* factor,
                          const float* weights, float* next) {
  const int64_t elements = held_.end - held_.begin;
  const int count = static_cast<int>(gradients.size());
  optimizer_.Begin(LearningRateAt(run_.train, step));
  for (int i = 0; i < count; ++i) {
    const SliceBounds part = SliceOf(elements, i, count);
    Optimizer::State state{};
    for (size_t k = 0; k < buffers_.size(); ++k) {
      state[k] = static_cast<float*>(buffers_[k].data) + part.begin;
    }
    UpdateRange(device_.math(), optimizer_, layout_, run_.train.microbatches, held_.begin + part.begin,
                part.end - part.begin, weights + part.begin, next + part.begin,
                static_cast<const float*>(gradients[i].data), state, factor);
  }
}

}  // namespace weft
