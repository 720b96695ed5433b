// Chooses how the test device computes: as the CPU does, otherwise, or wrongly.
//
// A GPU sums in another order than the CPU and has other kernels, so its float32 results are not the CPU's
// bits. These arithmetics show on a machine without one how far apart correct ones come, and what a wrong one
// looks like (docs/guide/tolerance.md). One for the process's device, chosen where a backend is made.
#ifndef WEFT_TESTS_TESTGPU_OTHER_ARITHMETIC_H_
#define WEFT_TESTS_TESTGPU_OTHER_ARITHMETIC_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace weft::testgpu {

enum class Arithmetic : uint8_t {
  kCpu,  // the CPU's kernels, to the bit
  // Correct:
  kWide,   // each operation in float64, its results rounded once
  kSplit,  // products and norms in another order: sums in pieces of few terms, from the end
  // The kernels that the CPU does not choose: oneDNN's where it takes LibTorch's own, and the other way
  // around.
  kOtherKernels,
  // Convolutions of 3 x 3 by Winograd's minimal filtering, in tiles of 4 x 4: fewer products, larger errors.
  kWinograd,
  // Wrong:
  kTf32,          // factors of products rounded to 10 bits
  kBFloat16,      // to 7 bits
  kNoBias,        // products that add a bias do not
  kWrongEpsilon,  // norms with ten times the epsilon
};

// Parses "cpu", "wide", "split", "other_kernels", "winograd", "tf32", "bf16", "no_bias", "wrong_epsilon".
std::optional<Arithmetic> ParseArithmetic(absl::string_view name);

// Runs the operation on tensors of the CPU, from the stack to the stack.
void Compute(Arithmetic arithmetic, const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace weft::testgpu

#endif  // WEFT_TESTS_TESTGPU_OTHER_ARITHMETIC_H_
