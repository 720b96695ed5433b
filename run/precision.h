// Says in which numbers a run computes, and which kernels it allows: `precision` and `kernels` of a run file.
//
// A run's weights, the sums of its gradients and the optimizer's state are float32, in whatever precision
// layers compute. These travel, are updated and are saved. Pure. Failure: as file_section.h.
#ifndef WEFT_RUN_PRECISION_H_
#define WEFT_RUN_PRECISION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace weft {

enum class Precision : uint8_t {
  kFloat32,
  // Float32 numbers whose products a GPU may round to TensorFloat-32; on the CPU the same as float32.
  kTf32,
  // Layers compute in bfloat16 with narrowed copies of the weights. Batch norms' parameters and statistics,
  // and the loss, stay float32. Activations and their gradients are bfloat16, also on their way.
  kBFloat16,
};

enum class Kernels : uint8_t {
  kDeterministic,  // only kernels that give the same bits each time; any other one is refused by name
  kAny,
};

// Return "float32", "tf32", "bf16"; "deterministic", "any".
absl::string_view PrecisionName(Precision precision);
absl::string_view KernelsName(Kernels kernels);

// Returns the bytes of one number of an activation, of its gradient, and of a weight as layers read it.
constexpr int64_t ComputeBytes(Precision precision) { return precision == Precision::kBFloat16 ? 2 : 4; }

// Reads `bf16`, or `{compute: bf16, weights: fp32}`; null gives the default. fp32 is float32.
Precision ReadPrecision(const nlohmann::json& value, absl::string_view path, absl::Status& status);
Kernels ReadKernels(const nlohmann::json& value, absl::string_view path, absl::Status& status);

}  // namespace weft

#endif  // WEFT_RUN_PRECISION_H_
