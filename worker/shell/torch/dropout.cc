#include "worker/shell/torch/dropout.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <utility>

#include "worker/shell/compute/parameters.h"
#include "worker/shell/torch/pass_numbers.h"

namespace weft {
namespace {

struct Operation {
  const FlatMath* math;
  DropoutMask mask;
  const uint64_t* seed;
};

Operation OperationOf(const FlatMath& math, double p, DropoutSeed seed) {
  const DropoutMask mask{static_cast<uint32_t>(p * 4294967296.0), static_cast<float>(1 / (1 - p)),
                         seed.value};
  return {&math, mask, seed.at};
}

at::Tensor Dropped(const Operation& operation, const at::Tensor& x) {
  at::NoGradGuard no_grad;
  const bool narrow = x.scalar_type() == c10::kBFloat16;
  TORCH_CHECK(narrow || x.scalar_type() == c10::kFloat, "dropout of ", x.scalar_type());
  const at::Tensor from = x.contiguous();  // elements are numbered in the order of their indices
  at::Tensor to = at::empty(from.sizes(), from.options());
  operation.math->Drop(operation.mask, operation.seed, from.const_data_ptr(), to.mutable_data_ptr(),
                       from.numel(), narrow ? DataType::kBFloat16 : DataType::kFloat32);
  return to;
}

class DropoutBackward final : public torch::autograd::Node {
 public:
  DropoutBackward(const Operation& operation, torch::autograd::edge_list&& next)
      : Node(std::move(next)), operation_(operation) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const at::Tensor& gradient = gradients[0];
    return {gradient.defined() ? Dropped(operation_, gradient) : at::Tensor()};
  }

 private:
  const Operation operation_;
};

}  // namespace

at::Tensor Drop(const FlatMath& math, const at::Tensor& x, double p, DropoutSeed seed) {
  const Operation operation = OperationOf(math, p, seed);
  at::Tensor dropped = Dropped(operation, x);
  if (at::GradMode::is_enabled() && x.requires_grad()) {
    torch::autograd::set_history(dropped,
                                 std::shared_ptr<DropoutBackward>(
                                     new DropoutBackward(operation, torch::autograd::collect_next_edges(x)),
                                     torch::autograd::deleteNode));
  }
  return dropped;
}

at::Tensor Dropout(const at::Tensor& x, double p, const MaskKey& key, int layer, int site) {
  if (p == 0 || !key.training) return x;
  TORCH_CHECK(key.math != nullptr, "dropout in a pass that was not to drop anything");
  if (key.numbers != nullptr) return Drop(*key.math, x, p, {0, key.numbers->SeedOf(layer, site)});
  return Drop(*key.math, x, p, {MaskSeed(key.seed, key.step, key.microbatch, layer, site), nullptr});
}

}  // namespace weft
