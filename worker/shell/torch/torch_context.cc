#include "worker/shell/torch/torch_context.h"

#include <ATen/Context.h>

#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// oneDNN computes a convolution's forward and backward in 0.55 to 1 of the time that LibTorch's own kernels
// take, with the same bits each time. In a model without convolutions it would serve GELU alone, where its
// set-up costs more than it gains: 6 us forward and 12 us backward, against 1 and 2 us of LibTorch's own
// kernel on small tensors. LibTorch has one switch for all operations of a process, so the model decides.
// Only in float32: whether oneDNN serves bfloat16 depends on the CPU, and its work memory there was not
// measured (model_layers.h counts that of float32).
bool GainsByOneDnn(const RunSpec& run) {
  return run.precision != Precision::kBFloat16 && std::holds_alternative<ResNetSpec>(run.model);
}

}  // namespace

void PrepareRun(const RunSpec& run) {
  at::Context& context = at::globalContext();
  context.setUserEnabledMkldnn(GainsByOneDnn(run));
  const bool deterministic = run.kernels == Kernels::kDeterministic;
  context.setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
  context.setDeterministicCuDNN(deterministic);
  // The benchmark mode tries kernels and chooses the fastest one by the clock.
  context.setBenchmarkCuDNN(!deterministic);
  const bool tf32 = run.precision == Precision::kTf32;
  context.setAllowTF32CuBLAS(tf32);
  context.setAllowTF32CuDNN(tf32);
  // Among the fused attentions, cuDNN's has no deterministic backward; the others follow the switch above.
  context.setSDPUseCuDNN(!deterministic);
  // Products of bfloat16 numbers are summed in float32, also across the parts of a product.
  context.setAllowBF16ReductionCuBLAS(false);
}

absl::Status TorchError(absl::string_view what, absl::string_view message) {
  constexpr absl::string_view kRefused = " does not have a deterministic implementation";
  constexpr absl::string_view kCost = "then two trainings may end with different bits";
  if (const size_t end = message.find(kRefused); end != absl::string_view::npos) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, ": the operation ", message.substr(0, end),
        " has no deterministic kernel here; `kernels: any` in the run file allows it, and ", kCost));
  }
  if (absl::StrContains(message, "CUBLAS_WORKSPACE_CONFIG")) {
    return absl::FailedPreconditionError(absl::StrCat(
        what,
        ": a matrix product is deterministic only with CUBLAS_WORKSPACE_CONFIG=:4096:8, but the environment "
        "sets another value; unset it, or allow `kernels: any` in the run file, and ",
        kCost));
  }
  return absl::InternalError(absl::StrCat(what, ": LibTorch: ", message));
}

}  // namespace weft
