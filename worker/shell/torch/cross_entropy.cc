#include "worker/shell/torch/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mean.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/shell/compute/pass_math.h"

namespace weft {
namespace {

ScoreRows RowsOf(const at::Tensor& scores) {
  const bool narrow = scores.scalar_type() == c10::kBFloat16;
  TORCH_CHECK(narrow || scores.scalar_type() == c10::kFloat, "cross entropy of ", scores.scalar_type());
  return {scores.const_data_ptr(), narrow ? DataType::kBFloat16 : DataType::kFloat32, scores.size(0),
          scores.size(1)};
}

class MeanCrossEntropy : public torch::autograd::Function<MeanCrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& given,
                            const at::Tensor& targets, const PassMath* math) {
    const at::Tensor scores = given.contiguous();
    const at::TensorOptions floats = scores.options().dtype(c10::kFloat);
    const at::Tensor losses = at::empty({scores.size(0)}, floats), log_sums = at::empty_like(losses);
    math->CrossEntropy(RowsOf(scores), targets.const_data_ptr<int64_t>(), losses.mutable_data_ptr<float>(),
                       log_sums.mutable_data_ptr<float>());
    context->save_for_backward({scores, targets, log_sums});
    context->saved_data["math"] = reinterpret_cast<int64_t>(math);
    return at::mean(losses);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &scores = saved[0], &targets = saved[1], &log_sums = saved[2];
    const auto* const math = reinterpret_cast<const PassMath*>(context->saved_data["math"].toInt());
    const at::Tensor scale = gradients[0] / static_cast<double>(scores.size(0));
    at::Tensor out = at::empty(scores.sizes(), scores.options());
    math->CrossEntropyGradient(RowsOf(scores), targets.const_data_ptr<int64_t>(),
                               log_sums.const_data_ptr<float>(), scale.const_data_ptr<float>(),
                               out.mutable_data_ptr());
    return {out, {}, {}};
  }
};

}  // namespace

at::Tensor Loss(const at::Tensor& scores, const at::Tensor& targets, const FlatMath* math) {
  const PassMath* const own = math == nullptr ? nullptr : math->pass_math();
  if (own != nullptr) return MeanCrossEntropy::apply(scores, targets, own);
  return at::cross_entropy_loss(scores.to(c10::kFloat), targets);
}

}  // namespace weft
