#include "worker/shell/torch/gradient_norm.h"

#include <cstdint>

#include "worker/shell/compute/gradient_sum.h"
#include "worker/shell/compute/non_finite.h"
#include "worker/shell/compute/stage_update.h"
#include "worker/shell/compute/sum_of_squares.h"
#include "worker/shell/torch/job_inputs.h"

namespace weft {

// Makes a sum of no squares.
absl::StatusOr<Tensor> GradientNorm::NewSum() const {
  absl::StatusOr<Tensor> squares =
      device_.NewFlat(SumOfSquares::kLimbs, MemoryClass::kBuffers, DataType::kInt64);
  if (squares.ok()) device_.math().Zero(squares->data, squares->bytes);
  return squares;
}

absl::StatusOr<Tensor> GradientNorm::SumSquares(const Tensor& sum, int part, int parts,
                                                const std::vector<Tensor>& others) const {
  const SliceBounds bounds = SliceOf(layout_.elements, part, parts);
  const int64_t elements = bounds.end - bounds.begin;
  if (absl::Status s = CheckFlat("summed gradients", sum, elements); !s.ok()) return s;
  const FlatMath& math = device_.math();
  absl::StatusOr<Tensor> squares = NewSum();
  if (!squares.ok()) return squares.status();
  auto* const limbs = static_cast<uint64_t*>(squares->data);
  const absl::StatusOr<Tensor> summed = OnDevice(device_, sum);
  if (!summed.ok()) return summed.status();
  AddSquares(math, layout_, bounds.begin, elements, static_cast<const float*>(summed->data), limbs);
  for (const Tensor& other : others) {
    if (absl::Status s = SumOfSquares::CheckShape(other); !s.ok()) return s;
    const absl::StatusOr<Tensor> more = OnDevice(device_, other);
    if (!more.ok()) return more.status();
    math.AddSums(limbs, static_cast<const uint64_t*>(more->data));
  }
  if (!device_.is_host()) {
    device_.ReportSquares(*squares);
    return squares;
  }
  const absl::StatusOr<SumOfSquares> made = SumOfSquares::FromTensor(*squares);
  if (!made.ok()) return made.status();
  // Others that stop have not sent a sum without a norm.
  if (made->has_norm() || run_.train.non_finite != NonFinite::kStop) return squares;
  return NonFiniteGradient(layout_, bounds.begin, elements, static_cast<const float*>(sum.data));
}

absl::StatusOr<Tensor> GradientNorm::ClipFactor(const Tensor& norm) const {
  if (run_.train.clip_norm == 0) return Tensor();
  if (absl::Status s = SumOfSquares::CheckShape(norm); !s.ok()) return s;
  const absl::StatusOr<Tensor> limbs = OnDevice(device_, norm);
  if (!limbs.ok()) return limbs.status();
  absl::StatusOr<Tensor> factor = device_.NewFlat(1, MemoryClass::kBuffers);
  if (!factor.ok()) return factor.status();
  device_.math().ClipFactor(static_cast<float*>(factor->data), static_cast<const uint64_t*>(limbs->data),
                            run_.train.clip_norm);
  return factor;
}

absl::StatusOr<bool> GradientNorm::SkipsUpdate(const Tensor& norm) const {
  if (run_.train.non_finite != NonFinite::kSkip) return false;
  const absl::StatusOr<SumOfSquares> total = SumOfSquares::FromTensor(norm);
  if (!total.ok()) return total.status();
  return !total->has_norm();
}

absl::Status GradientNorm::CheckUpdate(SliceBounds held, const std::vector<Tensor>& gradients,
                                       const float* weights) const {
  const int64_t elements = held.end - held.begin;
  if (run_.train.non_finite == NonFinite::kContinue || elements == 0) return absl::OkStatus();
  if (!device_.is_host()) {
    const absl::StatusOr<Tensor> squares = NewSum();
    if (!squares.ok()) return squares.status();
    device_.math().AddSquares(static_cast<uint64_t*>(squares->data), weights, elements);
    device_.ReportSquares(*squares);
    return absl::OkStatus();
  }
  const int count = static_cast<int>(gradients.size());
  for (int i = 0; i < count; ++i) {
    const SliceBounds part = SliceOf(elements, i, count);
    absl::Status s = CheckUpdated(run_, layout_, held.begin + part.begin, part.end - part.begin,
                                  weights + part.begin, static_cast<const float*>(gradients[i].data));
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace weft
