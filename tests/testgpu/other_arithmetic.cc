#include "tests/testgpu/other_arithmetic.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace weft::testgpu {
namespace {

using Stack = torch::jit::Stack;

void RunOnCpu(const c10::OperatorHandle& op, Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

// The arguments of a call, which lie at the stack's end.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, Stack* stack)
      : stack_(*stack), first_(stack->size() - op.schema().arguments().size()) {}
  c10::IValue& operator[](size_t i) { return stack_[first_ + i]; }
  at::Tensor tensor(size_t i) { return (*this)[i].isTensor() ? (*this)[i].toTensor() : at::Tensor(); }
  // Returns the results in place of the arguments.
  void Return(std::vector<at::Tensor> results) {
    stack_.resize(first_);
    for (at::Tensor& result : results) stack_.emplace_back(std::move(result));
  }

 private:
  Stack& stack_;
  const size_t first_;
};

bool IsFloat(const at::Tensor& tensor) { return tensor.defined() && tensor.scalar_type() == c10::kFloat; }

bool IsFunctional(const c10::FunctionSchema& schema) {
  const auto aliases = [](const c10::Argument& argument) { return argument.alias_info() != nullptr; };
  return std::none_of(schema.arguments().begin(), schema.arguments().end(), aliases) &&
         std::none_of(schema.returns().begin(), schema.returns().end(), aliases);
}

// --- kWide

class Widened {
 public:
  at::Tensor Of(const at::Tensor& tensor) {
    if (!IsFloat(tensor)) return tensor;
    at::Tensor wide = tensor.to(c10::kDouble);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      wide.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    pairs_.emplace_back(tensor, wide);
    return wide;
  }
  // A batch norm moves the averages that it is given, and its schema does not say so.
  void TakeChanges() {
    for (const auto& [narrow, wide] : pairs_) {
      const at::Tensor now = wide.to(c10::kFloat);
      if (!now.equal(narrow)) narrow.copy_(now);
    }
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

void RunWide(const c10::OperatorHandle& op, Stack* stack) {
  if (!IsFunctional(op.schema())) return RunOnCpu(op, stack);
  Widened widened;
  Arguments arguments(op, stack);
  for (size_t i = 0; i < op.schema().arguments().size(); ++i) {
    c10::IValue& value = arguments[i];
    if (value.isTensor()) value = widened.Of(value.toTensor());
    if (!value.isTensorList()) continue;
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(widened.Of(tensor));
    value = list;
  }
  RunOnCpu(op, stack);
  widened.TakeChanges();
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    if (value.toTensor().scalar_type() == c10::kDouble) value = value.toTensor().to(c10::kFloat);
  }
}

// --- kSplit

constexpr int64_t kTermsOfPiece = 1;

// The sum of `make(begin, count)` over pieces of [0, n), the last first.
template <typename Make>
at::Tensor SumOfPieces(int64_t n, int64_t piece, Make make) {
  at::Tensor sum;
  for (int64_t end = n; end > 0; end -= piece) {
    const int64_t begin = std::max<int64_t>(0, end - piece);
    const at::Tensor part = make(begin, end - begin);
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

at::Tensor SplitProduct(const at::Tensor& a, const at::Tensor& b) {
  return SumOfPieces(a.size(-1), kTermsOfPiece, [&](int64_t begin, int64_t n) {
    return at::matmul(a.narrow(-1, begin, n), b.narrow(-2, begin, n));
  });
}

// Strides and so on, from argument `first` on, as both convolutions have them.
struct ConvolutionPlan {
  ConvolutionPlan(Arguments& arguments, size_t first)
      : stride(arguments[first].toIntVector()),
        padding(arguments[first + 1].toIntVector()),
        dilation(arguments[first + 2].toIntVector()),
        transposed(arguments[first + 3].toBool()),
        output_padding(arguments[first + 4].toIntVector()),
        groups(arguments[first + 5].toInt()) {}
  bool is_plain() const { return !transposed && groups == 1; }

  std::vector<int64_t> stride, padding, dilation;
  bool transposed;
  std::vector<int64_t> output_padding;
  int64_t groups;
};

bool RunSplitConvolution(Arguments& arguments) {
  const at::Tensor x = arguments.tensor(0), weight = arguments.tensor(1), bias = arguments.tensor(2);
  const ConvolutionPlan plan(arguments, 3);
  if (!plan.is_plain() || bias.defined()) return false;
  arguments.Return({SumOfPieces(x.size(1), 1, [&](int64_t begin, int64_t n) {
    return at::convolution(x.narrow(1, begin, n), weight.narrow(1, begin, n), {}, plan.stride, plan.padding,
                           plan.dilation, false, plan.output_padding, 1);
  })});
  return true;
}

bool RunSplitConvolutionBackward(Arguments& arguments) {
  const at::Tensor gradient = arguments.tensor(0), x = arguments.tensor(1), weight = arguments.tensor(2);
  const ConvolutionPlan plan(arguments, 4);
  const auto mask = arguments[10].toBoolList();
  if (!plan.is_plain() || mask.get(2)) return false;
  const auto backward = [&](const at::Tensor& g, const at::Tensor& of, const at::Tensor& w,
                            std::array<bool, 3> wanted) {
    return at::convolution_backward(g, of, w, std::nullopt, plan.stride, plan.padding, plan.dilation, false,
                                    plan.output_padding, 1, wanted);
  };
  at::Tensor of_input, of_weight;
  if (mask.get(0)) {
    of_input = SumOfPieces(gradient.size(1), 1, [&](int64_t begin, int64_t n) {
      return std::get<0>(
          backward(gradient.narrow(1, begin, n), x, weight.narrow(0, begin, n), {true, false, false}));
    });
  }
  if (mask.get(1)) {
    of_weight = SumOfPieces(x.size(0), 1, [&](int64_t begin, int64_t n) {
      return std::get<1>(
          backward(gradient.narrow(0, begin, n), x.narrow(0, begin, n), weight, {false, true, false}));
    });
  }
  arguments.Return({of_input, of_weight, at::Tensor()});
  return true;
}

// Runs it on the first argument, and others that are given, turned round in `dimensions`.
void RunTurned(const c10::OperatorHandle& op, Stack* stack, const std::vector<int64_t>& dimensions,
               std::initializer_list<size_t> turned) {
  Arguments arguments(op, stack);
  for (const size_t i : turned) {
    if (arguments.tensor(i).defined()) arguments[i] = arguments.tensor(i).flip(dimensions);
  }
  RunOnCpu(op, stack);
  c10::IValue& result = (*stack)[stack->size() - op.schema().returns().size()];
  result = result.toTensor().flip(dimensions);
}

bool RunSplitProduct(const std::string& name, Arguments& arguments) {
  if (name == "aten::mm" || name == "aten::bmm") {
    arguments.Return({SplitProduct(arguments.tensor(0), arguments.tensor(1))});
    return true;
  }
  if (name != "aten::addmm" && name != "aten::baddbmm") return false;
  if (!arguments[3].toScalar().equal(1) || !arguments[4].toScalar().equal(1)) return false;
  arguments.Return({SplitProduct(arguments.tensor(1), arguments.tensor(2)) + arguments.tensor(0)});
  return true;
}

void RunSplit(const c10::OperatorHandle& op, Stack* stack) {
  const std::string& name = op.schema().name();
  if (!IsFunctional(op.schema())) return RunOnCpu(op, stack);
  Arguments arguments(op, stack);
  if (RunSplitProduct(name, arguments)) return;
  if (name == "aten::convolution" && RunSplitConvolution(arguments)) return;
  if (name == "aten::convolution_backward" && RunSplitConvolutionBackward(arguments)) return;
  if (name == "aten::native_layer_norm") return RunTurned(op, stack, {-1}, {0, 2, 3});
  if (name == "aten::native_batch_norm") return RunTurned(op, stack, {0, 2, 3}, {0});
  RunOnCpu(op, stack);
}

// --- kOtherKernels

// The switch is the process's: two devices must not compute at once.
void RunWithOtherKernels(const c10::OperatorHandle& op, Stack* stack) {
  struct Switch {
    Switch() { at::globalContext().setUserEnabledMkldnn(!of_the_run); }
    ~Switch() { at::globalContext().setUserEnabledMkldnn(of_the_run); }
    const bool of_the_run = at::globalContext().userEnabledMkldnn();
  } switched;
  RunOnCpu(op, stack);
}

// --- kWinograd

// F(4 x 4, 3 x 3) of Lavin and Gray (arXiv 1509.09308): transforms of 6 x 6 inputs, kernels, and results.
struct Winograd {
  at::Tensor input, kernel, output;
};
const Winograd& Transforms() {
  static const auto* const made =
      new Winograd{at::tensor({4., 0.,  -5., 0., 1., 0., 0., -4., -4., 1.,  1., 0., 0., 4., -4., -1., 1., 0.,
                               0., -2., -1., 2., 1., 0., 0., 2.,  -1., -2., 1., 0., 0., 4., 0.,  -5., 0., 1.})
                       .view({6, 6})
                       .to(c10::kFloat),
                   at::tensor({1. / 4, 0., 0., -1. / 6, -1. / 6, -1. / 6, -1. / 6, 1. / 6, -1. / 6, 1. / 24,
                               1. / 12, 1. / 6, 1. / 24, -1. / 12, 1. / 6, 0., 0., 1.})
                       .view({6, 3})
                       .to(c10::kFloat),
                   at::tensor({1., 1., 1., 1., 1., 0., 0., 1., -1., 2., -2., 0.,
                               0., 1., 1., 4., 4., 0., 0., 1., -1., 8., -8., 1.})
                       .view({4, 6})
                       .to(c10::kFloat)};
  return *made;
}

at::Tensor OnBothSides(const at::Tensor& transform, const at::Tensor& tiles) {
  return at::matmul(transform, at::matmul(tiles, transform.t()));
}

// Convolves with stride 1 and padding 1.
at::Tensor WinogradConvolution(const at::Tensor& x, const at::Tensor& weight) {
  const int64_t samples = x.size(0), in = x.size(1), rows = x.size(2), columns = x.size(3);
  const int64_t out = weight.size(0), down = (rows + 3) / 4, across = (columns + 3) / 4;
  const at::Tensor padded = at::constant_pad_nd(x, {1, 4 * across + 1 - columns, 1, 4 * down + 1 - rows}, 0);
  // The tensors are indexed by place in the tile, of 36: [in, tiles] and [out, in].
  const at::Tensor tiles = OnBothSides(Transforms().input, padded.unfold(2, 6, 4).unfold(3, 6, 4))
                               .permute({4, 5, 1, 0, 2, 3})
                               .reshape({36, in, samples * down * across});
  const at::Tensor kernels =
      OnBothSides(Transforms().kernel, weight).permute({2, 3, 0, 1}).reshape({36, out, in});
  const at::Tensor made =
      at::bmm(kernels, tiles).view({6, 6, out, samples, down, across}).permute({3, 2, 4, 5, 0, 1});
  return OnBothSides(Transforms().output, made)
      .permute({0, 1, 2, 4, 3, 5})
      .reshape({samples, out, 4 * down, 4 * across})
      .narrow(2, 0, rows)
      .narrow(3, 0, columns)
      .contiguous();
}

bool IsWinograds(const at::Tensor& x, const at::Tensor& weight, const ConvolutionPlan& plan) {
  // One number stands for both dimensions.
  const auto ones = [](const std::vector<int64_t>& values) {
    return std::all_of(values.begin(), values.end(), [](int64_t value) { return value == 1; });
  };
  return plan.is_plain() && ones(plan.stride) && ones(plan.padding) && ones(plan.dilation) &&
         weight.size(2) == 3 && weight.size(3) == 3 && IsFloat(x);
}

void RunWinograd(const c10::OperatorHandle& op, Stack* stack) {
  const std::string& name = op.schema().name();
  Arguments arguments(op, stack);
  if (name == "aten::convolution" && !arguments.tensor(2).defined() &&
      IsWinograds(arguments.tensor(0), arguments.tensor(1), ConvolutionPlan(arguments, 3))) {
    return arguments.Return({WinogradConvolution(arguments.tensor(0), arguments.tensor(1))});
  }
  at::Tensor of_input;
  if (name == "aten::convolution_backward" && arguments[10].toBoolList().get(0) &&
      IsWinograds(arguments.tensor(0), arguments.tensor(2), ConvolutionPlan(arguments, 4))) {
    // The input's gradient is a convolution of the output's.
    of_input = WinogradConvolution(arguments.tensor(0),
                                   arguments.tensor(2).transpose(0, 1).flip({2, 3}).contiguous());
  }
  RunOnCpu(op, stack);
  if (of_input.defined()) (*stack)[stack->size() - 3] = of_input;
}

// --- Wrong ones

// Arguments that are factors of products.
std::vector<size_t> FactorsOf(const std::string& name) {
  if (name == "aten::mm" || name == "aten::bmm" || name == "aten::convolution") return {0, 1};
  if (name == "aten::addmm" || name == "aten::baddbmm") return {1, 2};
  if (name == "aten::convolution_backward") return {0, 1, 2};
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu") return {0, 1, 2};
  return {};
}

// Rounds to the nearest number of `bits` bits behind the point; ties go up.
at::Tensor RoundedTo(int bits, const at::Tensor& x) {
  const int64_t dropped = 23 - bits, half = int64_t{1} << (dropped - 1);
  const at::Tensor pattern = x.contiguous().view(c10::kInt) + half;
  return pattern.bitwise_and(-(int64_t{1} << dropped)).view(c10::kFloat);
}

void RunRounded(int bits, const c10::OperatorHandle& op, Stack* stack) {
  Arguments arguments(op, stack);
  for (const size_t i : FactorsOf(op.schema().name())) {
    if (IsFloat(arguments.tensor(i))) arguments[i] = RoundedTo(bits, arguments.tensor(i));
  }
  RunOnCpu(op, stack);
}

void RunWithoutBias(const c10::OperatorHandle& op, Stack* stack) {
  Arguments arguments(op, stack);
  if (op.schema().name() == "aten::addmm") arguments[0] = at::zeros_like(arguments.tensor(0));
  RunOnCpu(op, stack);
}

void RunWithWrongEpsilon(const c10::OperatorHandle& op, Stack* stack) {
  const std::string& name = op.schema().name();
  Arguments arguments(op, stack);
  const size_t epsilon = name == "aten::native_layer_norm" ? 4 : name == "aten::native_batch_norm" ? 7 : 0;
  if (epsilon > 0) arguments[epsilon] = 10 * arguments[epsilon].toDouble();
  RunOnCpu(op, stack);
}

}  // namespace

std::optional<Arithmetic> ParseArithmetic(absl::string_view name) {
  constexpr std::pair<const char*, Arithmetic> kNames[] = {{"cpu", Arithmetic::kCpu},
                                                           {"wide", Arithmetic::kWide},
                                                           {"split", Arithmetic::kSplit},
                                                           {"other_kernels", Arithmetic::kOtherKernels},
                                                           {"winograd", Arithmetic::kWinograd},
                                                           {"tf32", Arithmetic::kTf32},
                                                           {"bf16", Arithmetic::kBFloat16},
                                                           {"no_bias", Arithmetic::kNoBias},
                                                           {"wrong_epsilon", Arithmetic::kWrongEpsilon}};
  for (const auto& [known, arithmetic] : kNames) {
    if (name == known) return arithmetic;
  }
  return std::nullopt;
}

void Compute(Arithmetic arithmetic, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  switch (arithmetic) {
    case Arithmetic::kCpu:
      return RunOnCpu(op, stack);
    case Arithmetic::kWide:
      return RunWide(op, stack);
    case Arithmetic::kSplit:
      return RunSplit(op, stack);
    case Arithmetic::kOtherKernels:
      return RunWithOtherKernels(op, stack);
    case Arithmetic::kWinograd:
      return RunWinograd(op, stack);
    case Arithmetic::kTf32:
      return RunRounded(10, op, stack);
    case Arithmetic::kBFloat16:
      return RunRounded(7, op, stack);
    case Arithmetic::kNoBias:
      return RunWithoutBias(op, stack);
    case Arithmetic::kWrongEpsilon:
      return RunWithWrongEpsilon(op, stack);
  }
}

}  // namespace weft::testgpu
