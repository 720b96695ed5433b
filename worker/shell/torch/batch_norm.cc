#include "worker/shell/torch/batch_norm.h"

#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <tuple>

namespace weft {
namespace {

// Normalizes by the micro-batch. Its backward computes all gradients at once, also where only some are asked
// for: LibTorch's on a GPU sums in another order where it is asked for the parameters' alone, as the weight
// half of a split backward does. It gives the measurements as the gradients of the running averages.
class TrainingNorm : public torch::autograd::Function<TrainingNorm> {
 public:
  using Parameter = std::optional<at::Tensor>;  // none, where the norm has none

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const Parameter& weight, const Parameter& bias, const at::Tensor& running_mean,
                            const at::Tensor& /*running_variance*/, double epsilon) {
    // LibTorch moves the averages that it is given towards the batch's; from zero, all the way, they become
    // the batch's.
    const at::Tensor mean = at::zeros(running_mean.sizes(), running_mean.options().requires_grad(false));
    const at::Tensor variance = at::zeros_like(mean);
    auto [y, own_mean, inverse_deviation] =
        at::native_batch_norm(x, weight, bias, mean, variance, /*training=*/true, /*momentum=*/1, epsilon);
    context->save_for_backward(
        {x, weight.value_or(at::Tensor()), own_mean, inverse_deviation, mean, variance});
    context->saved_data["epsilon"] = epsilon;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &weight = saved[1], &mean = saved[4], &variance = saved[5];
    auto [of_x, of_weight, of_bias] = at::native_batch_norm_backward(
        gradients[0], saved[0], weight, mean, variance, saved[2], saved[3], /*train=*/true,
        context->saved_data["epsilon"].toDouble(), {true, weight.defined(), weight.defined()});
    return {of_x, of_weight, of_bias, mean, variance, {}};
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
  const auto given = [](const at::Tensor& parameter) {
    return parameter.defined() ? TrainingNorm::Parameter(parameter) : std::nullopt;
  };
  return TrainingNorm::apply(x, given(weight), given(bias), running_mean, running_variance, epsilon);
}

}  // namespace weft
