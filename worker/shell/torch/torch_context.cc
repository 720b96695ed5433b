#include "worker/shell/torch/torch_context.h"

#include <ATen/Context.h>
#include <torch/headeronly/version.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"

namespace weft {
namespace {

void Set(const ProcessSettings& settings) {
  at::Context& context = at::globalContext();
  context.setUserEnabledMkldnn(settings.one_dnn);
  context.setDeterministicAlgorithms(settings.deterministic, /*warn_only=*/false);
  context.setDeterministicCuDNN(settings.deterministic);
  // The benchmark mode tries kernels and chooses the fastest one by the clock.
  context.setBenchmarkCuDNN(!settings.deterministic);
  context.setAllowTF32CuBLAS(settings.tf32);
  context.setAllowTF32CuDNN(settings.tf32);
  // Among the fused attentions, cuDNN's has no deterministic backward; the others follow the switch above.
  context.setSDPUseCuDNN(!settings.deterministic);
  // Products of bfloat16 numbers are summed in float32, also across the parts of a product.
  context.setAllowBF16ReductionCuBLAS(false);
}

}  // namespace

std::string TorchVersion() { return TORCH_VERSION; }

absl::StatusOr<PreparedRun> PrepareRun(const RunSpec& run) {
  static Mutex* const mutex = new Mutex;
  static std::weak_ptr<const ProcessSettings>* const held = new std::weak_ptr<const ProcessSettings>;
  const ProcessSettings wanted = ProcessSettingsOf(run);
  MutexLock lock(*mutex);
  if (PreparedRun present = held->lock(); present != nullptr) {
    if (*present == wanted) return present;
    return absl::FailedPreconditionError(absl::StrCat("this process serves another run with ",
                                                      ToText(*present), ", and cannot serve one with ",
                                                      ToText(wanted), " beside it"));
  }
  Set(wanted);
  const auto prepared = std::make_shared<const ProcessSettings>(wanted);
  *held = prepared;
  return prepared;
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
