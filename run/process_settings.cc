#include "run/process_settings.h"

#include <variant>

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

ProcessSettings ProcessSettingsOf(const RunSpec& run) {
  return {run.kernels == Kernels::kDeterministic, run.precision == Precision::kTf32, GainsByOneDnn(run)};
}

std::string ToText(const ProcessSettings& settings) {
  return absl::StrCat(settings.deterministic ? "deterministic" : "any", " kernels, ",
                      settings.tf32 ? "tf32" : "float32", settings.one_dnn ? ", oneDNN" : "");
}

}  // namespace weft
