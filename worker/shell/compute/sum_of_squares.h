// The exact sum of the squares of float32 values: the bits of a gradient's norm, however it is cut.
//
// A global norm is summed over slices, stages and ranks, whose borders and order are the schedule's. Floating
// point sums would depend on them. The square of a float32 is an integer of at most 48 bits times a power of
// two, from 2^-298 to 2^254; here such integers are added in fixed point, wide enough for all of them, so
// that nothing is ever rounded and any order gives the same limbs. Rounding happens once, in Value().
//
// Invariants:
//   1. Limbs are canonical: below 2^32, so that equal sums are equal bytes.
//   2. Room for 2^80 squares of the largest float32.
// Copyable. One thread at a time.
#ifndef WEFT_WORKER_SHELL_COMPUTE_SUM_OF_SQUARES_H_
#define WEFT_WORKER_SHELL_COMPUTE_SUM_OF_SQUARES_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/shell/tensor.h"

namespace weft {

class SumOfSquares {
 public:
  // Adds the squares of n values. False if one of them is infinite or not a number; the sum is then of no
  // use.
  [[nodiscard]] bool Add(const float* values, int64_t n);
  void Add(const SumOfSquares& other);

  // The double nearest to the sum, ties to even.
  double Value() const;
  // The square root of that: the L2 norm.
  double Norm() const;

  // As it travels from rank to rank: kBytes bytes in ordinary memory. InvalidArgument for anything else.
  static constexpr size_t kLimbs = 20, kBytes = kLimbs * sizeof(uint64_t);
  Tensor ToTensor() const;
  static absl::StatusOr<SumOfSquares> FromTensor(const Tensor& tensor);

  friend bool operator==(const SumOfSquares&, const SumOfSquares&) = default;

 private:
  void AddShifted(uint64_t value, int bits);
  void Carry();

  // The sum is that of limbs_[i] * 2^(32 * i - 298).
  std::array<uint64_t, kLimbs> limbs_{};
};

// That the gradients of a stage have no norm, since SumOfSquares::Add said so.
absl::Status NoNormError(int stage);

// What gradients of this norm are multiplied by so that it is at most `most`: most / norm, or 1.
float ClipFactor(double norm, double most);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_SUM_OF_SQUARES_H_
