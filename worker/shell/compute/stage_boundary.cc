#include "worker/shell/compute/stage_boundary.h"

#include <cstdint>

#include "absl/strings/str_format.h"

namespace weft {
namespace {

absl::Status CheckBoundary(const RunSpec& run, const char* what, const StageLayout& layout,
                           const LayerOutput& output, const Tensor& tensor) {
  TensorShape expected;
  if (output.by_sample) expected.size[expected.dims++] = run.microbatch_samples();
  for (const int64_t size : output.sizes) expected.size[expected.dims++] = size;
  if (run.precision == Precision::kBFloat16) expected.type = DataType::kBFloat16;
  const size_t bytes =
      ElementBytes(expected.type) * static_cast<size_t>(output.elements(run.microbatch_samples()));
  if (tensor.shape == expected && tensor.bytes == bytes && tensor.data != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("the %s of stage %d came with %d dimensions and %d bytes, expected are %d and %d", what,
                      layout.stage, tensor.shape.dims, tensor.bytes, expected.dims, bytes));
}

}  // namespace

absl::Status CheckInputs(const RunSpec& run, const StageLayout& layout, const std::vector<Tensor>& inputs) {
  if (inputs.size() != layout.inputs.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("stage %d reads the outputs of %d stages, %d came",
                                                      layout.stage, layout.inputs.size(), inputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (absl::Status s = CheckBoundary(run, "input", layout, layout.inputs[i], inputs[i]); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status CheckOutputGradients(const RunSpec& run, const StageLayout& layout,
                                  const std::vector<Tensor>& gradients) {
  if (gradients.empty() || static_cast<int>(gradients.size()) != layout.consumers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the output of stage %d is read by %d stages, %d gradients came", layout.stage,
                        layout.consumers, gradients.size()));
  }
  for (const Tensor& gradient : gradients) {
    absl::Status s = CheckBoundary(run, "output gradient", layout, layout.output, gradient);
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace weft
