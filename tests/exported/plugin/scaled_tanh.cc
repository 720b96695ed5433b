// Registers an operation of a user's own, weft_test::scaled_tanh, with a backward of its own: the library
// that the tests of plug-ins name in their runs (docs/guide/your_own_model.md).
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

// The version of this library: the tests build two, each with a source of its own for this.
extern const int library_version;

namespace {

// Returns library_version * tanh(scale * x).
at::Tensor ScaledTanh(const at::Tensor& x, double scale) { return (x * scale).tanh() * library_version; }

at::Tensor WithoutBytes(const at::Tensor& x, double /*scale*/) { return at::empty_like(x); }

at::Tensor Dispatched(const at::Tensor& x, double scale) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("weft_test::scaled_tanh", "")
                                    .typed<at::Tensor(const at::Tensor&, double)>();
  return operation.call(x, scale);
}

class Differentiable : public torch::autograd::Function<Differentiable> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, double scale) {
    // Below autograd, so that a tracer sees this operation and not those that it is made of.
    at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor y = Dispatched(x, scale);
    context->save_for_backward({y});
    context->saved_data["scale"] = scale;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor y = context->get_saved_variables()[0] / library_version;
    return {gradients[0] * (1 - y * y) * (context->saved_data["scale"].toDouble() * library_version),
            at::Tensor()};
  }
};

at::Tensor WithGradient(const at::Tensor& x, double scale) { return Differentiable::apply(x, scale); }

}  // namespace

TORCH_LIBRARY(weft_test, library) { library.def("scaled_tanh(Tensor x, float scale) -> Tensor"); }
TORCH_LIBRARY_IMPL(weft_test, CPU, library) { library.impl("scaled_tanh", ScaledTanh); }
TORCH_LIBRARY_IMPL(weft_test, Meta, library) { library.impl("scaled_tanh", WithoutBytes); }
TORCH_LIBRARY_IMPL(weft_test, Autograd, library) { library.impl("scaled_tanh", WithGradient); }
