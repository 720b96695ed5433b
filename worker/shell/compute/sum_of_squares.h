// Computes the exact sum of the squares of float32 values: the bits of a gradient's norm, however it is cut.
//
// A global norm is summed over slices, stages and ranks, whose borders and order are the schedule's. Floating
// point sums would depend on them. The square of a float32 is an integer of at most 48 bits times a power of
// two, from 2^-298 to 2^254. Such integers are added in fixed point, wide enough for all of them, so that
// nothing is ever rounded and any order gives the same limbs. Rounding happens once, in Value().
//
// Invariants:
//   1. Limbs are canonical: below 2^32, so that equal sums are equal bytes. A sum without a norm has kNoNorm
//      as its last limb, and 0 in the others.
//   2. Room for 2^80 squares of the largest float32.
//
// Copyable. One thread at a time.
#ifndef WEFT_WORKER_SHELL_COMPUTE_SUM_OF_SQUARES_H_
#define WEFT_WORKER_SHELL_COMPUTE_SUM_OF_SQUARES_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class SumOfSquares {
 public:
  // Adds the squares of n values. Returns false if one of them is infinite or not a number; the sum then has
  // no norm, whatever is added.
  [[nodiscard]] bool Add(const float* values, int64_t n);
  void Add(const SumOfSquares& other);
  bool has_norm() const { return limbs_.back() != kNoNorm; }

  // Returns the double nearest to the sum, ties to even; not a number if it has no norm.
  double Value() const;
  // Returns the square root of that: the L2 norm.
  double Norm() const;

  // The form in which it travels from rank to rank: kLimbs int64, here in the host's memory. InvalidArgument
  // for anything else.
  static constexpr size_t kLimbs = 20, kBytes = kLimbs * sizeof(uint64_t);
  static constexpr uint64_t kNoNorm = ~uint64_t{0};
  static absl::StatusOr<SumOfSquares> FromTensor(const Tensor& tensor);
  // Checks whether the tensor can be one, wherever it lies.
  static absl::Status CheckShape(const Tensor& tensor);
  // Makes a sum of limbs. Requires that they are one.
  static SumOfSquares FromLimbs(const uint64_t* limbs);
  void WriteLimbs(uint64_t* limbs) const;

  friend bool operator==(const SumOfSquares&, const SumOfSquares&) = default;

 private:
  void LoseNorm();
  void AddShifted(uint64_t value, int bits);
  void Carry();

  // The limbs: the sum is that of limbs_[i] * 2^(32 * i - 298).
  std::array<uint64_t, kLimbs> limbs_{};
};

// Returns the factor of gradients with this norm by which it becomes at most `most`: most / norm, or 1, also
// for a norm that is not a number.
float ClipFactor(double norm, double most);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_SUM_OF_SQUARES_H_
