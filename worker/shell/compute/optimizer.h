// Applies the optimizer to one flat buffer of weights, and keeps the number of its steps and its state
// between them.
//
// A step is taken in parts: Begin once, then Apply over consecutive ranges that together cover the buffer.
// The caller gives the rate of a step (run/learning_rate.h), in place of the specification's. The state
// (`state_buffers` buffers as large as the weights) belongs to the caller, who begins it as zeros, in the
// memory of any device. Both the runtime and the reference loop use it. One thread at a time.
#ifndef WEFT_WORKER_SHELL_COMPUTE_OPTIMIZER_H_
#define WEFT_WORKER_SHELL_COMPUTE_OPTIMIZER_H_

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "run/run_spec.h"
#include "worker/shell/compute/elementwise.h"
#include "worker/shell/compute/flat_math.h"

namespace weft {

class Optimizer {
 public:
  static constexpr int kMaxStateBuffers = 2;
  using State = std::array<float*, kMaxStateBuffers>;  // state of the range; null beyond state_buffers()

  explicit Optimizer(const OptimizerSpec& spec) : spec_(spec) {}

  int state_buffers() const { return static_cast<int>(state_names().size()); }
  // Returns the name of each buffer in checkpoints: as PyTorch's optimizers have them.
  std::vector<const char*> state_names() const;
  // Returns the steps that were begun; Resume sets them for an optimizer that goes on with another's state.
  int64_t steps() const { return steps_; }
  void Resume(int64_t steps) { steps_ = steps; }
  void Begin(double learning_rate);
  // Computes out = weights after the step, for n elements; `out` may be `weights`. All pointers are of the
  // memory that `math` computes in. `factor`: one float by which gradients are multiplied before anything
  // else, as clipping does; null for none. `decays`: false for weights that do not decay.
  void Apply(const FlatMath& math, const float* weights, float* out, const float* gradient,
             const State& state, const float* factor, int64_t n, bool decays = true) const;

 private:
  OptimizerSpec spec_;
  int64_t steps_ = 0;  // steps begun
  using Step = std::variant<SgdStep, AdamWStep>;
  Step StepFor(double learning_rate, bool decays) const;
  Step step_, step_without_decay_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_OPTIMIZER_H_
