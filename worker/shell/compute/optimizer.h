// The optimizer of one flat buffer of weights: how many steps it made, and what it remembers between them.
//
// A step is taken in parts: Begin once, then Apply over consecutive ranges that together cover the buffer.
// The rate of a step is the caller's (proto/run/learning_rate.h), in place of the specification's. The state
// (`state_buffers` buffers as large as the weights) belongs to the caller, who begins it as zeros. Both the
// runtime and the reference loop use it. One thread at a time.
#ifndef WEFT_WORKER_SHELL_COMPUTE_OPTIMIZER_H_
#define WEFT_WORKER_SHELL_COMPUTE_OPTIMIZER_H_

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "proto/run/run_spec.h"
#include "worker/shell/compute/elementwise.h"

namespace weft {

class Optimizer {
 public:
  static constexpr int kMaxStateBuffers = 2;
  using State = std::array<float*, kMaxStateBuffers>;  // of the range; null beyond state_buffers()

  explicit Optimizer(const OptimizerSpec& spec) : spec_(spec) {}

  int state_buffers() const { return static_cast<int>(state_names().size()); }
  // What each buffer is called in checkpoints: as PyTorch's optimizers do.
  std::vector<const char*> state_names() const;
  // Steps that were begun, and the same of an optimizer that goes on with another's state.
  int64_t steps() const { return steps_; }
  void Resume(int64_t steps) { steps_ = steps; }
  // `gradient_factor`: what the gradients are multiplied by before anything else, as clipping does.
  void Begin(double learning_rate, float gradient_factor);
  // out = weights after the step, for n elements; `out` may be `weights`.
  void Apply(const float* weights, float* out, const float* gradient, const State& state, int64_t n) const;

 private:
  OptimizerSpec spec_;
  int64_t steps_ = 0;  // begun
  std::variant<SgdStep, AdamWStep> step_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_OPTIMIZER_H_
