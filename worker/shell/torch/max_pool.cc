#include "worker/shell/torch/max_pool.h"

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

namespace weft {
namespace {

constexpr int64_t kWindow = 3, kStride = 2, kPadding = 1;

class DeterministicMaxPool : public torch::autograd::Function<DeterministicMaxPool> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& images) {
    auto [most, places] = at::max_pool2d_with_indices(images, kWindow, kStride, kPadding);
    context->save_for_backward({places});
    context->saved_data["rows"] = images.size(2);
    context->saved_data["columns"] = images.size(3);
    return most;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor& gradient = gradients[0];
    const at::Tensor places = context->get_saved_variables()[0];
    const int64_t rows = context->saved_data["rows"].toInt(),
                  columns = context->saved_data["columns"].toInt();
    const int64_t out_rows = gradient.size(2), out_columns = gradient.size(3);
    const at::Tensor none = at::zeros({}, gradient.options());
    // This is the gradient with the padding around it.
    const at::Tensor padded =
        at::zeros({gradient.size(0), gradient.size(1), kStride * out_rows + kWindow - kStride,
                   kStride * out_columns + kWindow - kStride},
                  gradient.options());
    // For each window, this is the place in the image of its first element, which may lie in the padding.
    const auto numbers = places.options();
    const at::Tensor first = (at::arange(out_rows, numbers) * kStride - kPadding).unsqueeze(1) * columns +
                             (at::arange(out_columns, numbers) * kStride - kPadding);
    for (int64_t place = kWindow * kWindow - 1; place >= 0; --place) {
      const int64_t down = place / kWindow, right = place % kWindow;
      const at::Tensor here = at::where(places.eq(first + (down * columns + right)), gradient, none);
      padded.slice(2, down, down + kStride * (out_rows - 1) + 1, kStride)
          .slice(3, right, right + kStride * (out_columns - 1) + 1, kStride)
          .add_(here);
    }
    return {padded.narrow(2, kPadding, rows).narrow(3, kPadding, columns).contiguous()};
  }
};

}  // namespace

at::Tensor MaxPool(const at::Tensor& images) { return DeterministicMaxPool::apply(images); }

}  // namespace weft
