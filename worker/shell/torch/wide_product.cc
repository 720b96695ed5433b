#include "worker/shell/torch/wide_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <limits>

#include "run/layer_spec.h"

namespace weft {
namespace {

at::Tensor Lengthened(const at::Tensor& projection, int64_t added) {
  return at::constant_pad_nd(projection, {0, 0, 0, added});
}

class LengthenedProduct : public torch::autograd::Function<LengthenedProduct> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& projection, int64_t added) {
    context->save_for_backward({x, projection});
    context->saved_data["added"] = added;
    const at::Tensor none = at::zeros({projection.size(0)}, x.options().requires_grad(false));
    const at::Tensor bias = at::constant_pad_nd(none, {0, added}, -std::numeric_limits<double>::infinity());
    return at::linear(x, Lengthened(projection, added), bias);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &projection = saved[1];
    const at::Tensor of_rows = gradients[0].reshape({-1, gradients[0].size(-1)});
    at::Tensor of_x, of_projection;
    if (context->needs_input_grad(0)) {
      const at::Tensor longer = Lengthened(projection, context->saved_data["added"].toInt());
      of_x = at::mm(of_rows, longer).view(x.sizes());
    }
    if (context->needs_input_grad(1)) {
      const at::Tensor whole = at::mm(of_rows.t(), x.reshape({-1, x.size(-1)}));
      of_projection = whole.narrow(0, 0, projection.size(0));
    }
    return {of_x, of_projection, {}};
  }
};

}  // namespace

at::Tensor WideProduct(const at::Tensor& x, const at::Tensor& projection) {
  const int64_t classes = projection.size(0), added = ScoreColumnsOnGpu(classes) - classes;
  return added == 0 ? at::linear(x, projection) : LengthenedProduct::apply(x, projection, added);
}

}  // namespace weft
