#include "worker/shell/torch/max_pool.h"

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/shell/compute/pass_math.h"
#include "worker/shell/torch/channels_last.h"

namespace weft {
namespace {

constexpr int64_t kWindow = 3, kStride = 2, kPadding = 1;

// Computes the gradient of images of `rows` x `columns` with the device's kernel.
at::Tensor GradientBy(const PassMath& math, const at::Tensor& given, const at::Tensor& places, int64_t rows,
                      int64_t columns) {
  const c10::MemoryFormat layout = places.suggest_memory_format();
  const bool last = layout == c10::MemoryFormat::ChannelsLast;
  const at::Tensor gradient = last ? LaidOutChannelsLast(given) : given.contiguous();
  const bool narrow = gradient.scalar_type() == c10::kBFloat16;
  TORCH_CHECK(narrow || gradient.scalar_type() == c10::kFloat, "max pooling of ", gradient.scalar_type());
  MaxPooling pooling{gradient.size(0), gradient.size(1), rows, columns, gradient.size(2), gradient.size(3)};
  pooling.window = kWindow;
  pooling.stride = kStride;
  pooling.padding = kPadding;
  pooling.channels_last = last;
  at::Tensor out = at::empty({pooling.samples, pooling.channels, rows, columns}, gradient.options(), layout);
  math.MaxPoolGradient(pooling, narrow ? DataType::kBFloat16 : DataType::kFloat32, gradient.const_data_ptr(),
                       places.const_data_ptr<int64_t>(), out.mutable_data_ptr());
  return out;
}

// Computes it with LibTorch's operations.
at::Tensor GradientOf(const at::Tensor& gradient, const at::Tensor& places, int64_t rows, int64_t columns) {
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
  return padded.narrow(2, kPadding, rows).narrow(3, kPadding, columns).contiguous();
}

class DeterministicMaxPool : public torch::autograd::Function<DeterministicMaxPool> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& images,
                            const PassMath* math) {
    auto [most, places] = at::max_pool2d_with_indices(images, kWindow, kStride, kPadding);
    context->save_for_backward({places});
    context->saved_data["rows"] = images.size(2);
    context->saved_data["columns"] = images.size(3);
    context->saved_data["math"] = reinterpret_cast<int64_t>(math);
    return most;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor places = context->get_saved_variables()[0];
    const int64_t rows = context->saved_data["rows"].toInt(),
                  columns = context->saved_data["columns"].toInt();
    const auto* const math = reinterpret_cast<const PassMath*>(context->saved_data["math"].toInt());
    return {math != nullptr ? GradientBy(*math, gradients[0], places, rows, columns)
                            : GradientOf(gradients[0], places, rows, columns),
            {}};
  }
};

}  // namespace

at::Tensor MaxPool(const at::Tensor& images, const FlatMath* math) {
  return DeterministicMaxPool::apply(images, math == nullptr ? nullptr : math->pass_math());
}

}  // namespace weft
