#include "worker/shell/torch/batch_norm.h"

#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>

namespace weft {
namespace {

// Passes `x` on. Its backward passes the gradient of `x` on, and gives the measurements as the gradients of
// the running averages.
class Measured : public torch::autograd::Function<Measured> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& /*running_mean*/, const at::Tensor& /*running_variance*/,
                            const at::Tensor& mean, const at::Tensor& variance) {
    context->save_for_backward({mean, variance});
    return x;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list measured = context->get_saved_variables();
    return {gradients[0], measured[0], measured[1], {}, {}};
  }
};

}  // namespace

at::Tensor BatchNorm(const at::Tensor& x, const at::Tensor* parameters, double epsilon, bool training) {
  const at::Tensor &weight = parameters[0], &bias = parameters[1];
  const at::Tensor &running_mean = parameters[2], &running_variance = parameters[3];
  if (!training) {
    return std::get<0>(at::native_batch_norm(x, weight, bias, running_mean, running_variance,
                                             /*training=*/false, /*momentum=*/0, epsilon));
  }
  // LibTorch moves the averages that it is given towards the batch's; from zero, all the way, they become the
  // batch's.
  const at::Tensor mean = at::zeros(running_mean.sizes(), running_mean.options().requires_grad(false));
  const at::Tensor variance = at::zeros(running_mean.sizes(), running_mean.options().requires_grad(false));
  const at::Tensor y = std::get<0>(at::native_batch_norm(x, weight, bias, mean, variance,
                                                         /*training=*/true, /*momentum=*/1, epsilon));
  // These must be copies: the norm's graph keeps these two as they were before it filled them.
  return Measured::apply(y, running_mean, running_variance, mean.clone(), variance.clone());
}

}  // namespace weft
