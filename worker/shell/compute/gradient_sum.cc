#include "worker/shell/compute/gradient_sum.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"

namespace weft {

absl::Status GradientSum::Check(int microbatch) const {
  if (microbatch < 0 || microbatch >= microbatches_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("there is no micro-batch %d among %d", microbatch, microbatches_));
  }
  if (microbatch < next_ || waiting_.count(microbatch) != 0) {
    return absl::AlreadyExistsError(
        absl::StrFormat("the gradient of micro-batch %d was already added", microbatch));
  }
  return absl::OkStatus();
}

void GradientSum::AddPieces(int microbatch, const std::vector<FlatPiece>& pieces) {
  if (!InOrder(microbatch)) std::abort();
  if (next_ == 0) {
    memory_.math().WritePieces(pieces, data(), elements());
  } else {
    memory_.math().AddPieces(pieces, data());
  }
  ++next_;
  AddWaiting();
}

void GradientSum::Add(int microbatch, const Tensor& gradient) {
  if (gradient.bytes != buffer_.bytes || !Check(microbatch).ok()) std::abort();
  if (!InOrder(microbatch)) {
    waiting_.emplace(microbatch, gradient);
    return;
  }
  memory_.Await(gradient);
  AddPieces(microbatch, {{0, elements(), gradient.data}});
}

void GradientSum::AddWaiting() {
  for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_;
       first = waiting_.begin()) {
    memory_.Await(first->second);
    memory_.math().Add(data(), static_cast<const float*>(first->second.data), elements());
    ++next_;
    waiting_.erase(first);
  }
}

absl::Status CheckFlat(const char* what, const Tensor& tensor, int64_t elements) {
  const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
  if (tensor.shape.type == DataType::kFloat32 && tensor.bytes == bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("the %s have %d bytes, not those of %d float32 elements",
                                                    what, tensor.bytes, elements));
}

absl::StatusOr<GradientSum*> StageSums::SumOf(const Key& key) {
  auto found = sums_.find(key);
  if (found == sums_.end()) {
    const SliceBounds bounds = SliceOf(elements_, key.part, key.parts);
    absl::StatusOr<Tensor> buffer = memory_.NewFlat(bounds.end - bounds.begin, MemoryClass::kGradients);
    if (!buffer.ok()) return buffer.status();
    found = sums_.emplace(key, GradientSum(memory_, *std::move(buffer), microbatches_)).first;
  }
  return &found->second;
}

absl::Status StageSums::Add(int step, int microbatch, const std::vector<FlatPiece>& pieces) {
  absl::StatusOr<GradientSum*> sum = SumOf({step, 0, 1});
  if (!sum.ok()) return sum.status();
  if (sums_what_comes_) {
    // The gradient gets another number than its own, so that it is the next.
    if (!came_.emplace(step, microbatch).second) {
      return absl::AlreadyExistsError(
          absl::StrFormat("the gradient of micro-batch %d was already added", microbatch));
    }
    microbatch = (*sum)->next();
  }
  if (absl::Status s = (*sum)->Check(microbatch); !s.ok()) return s;
  if ((*sum)->InOrder(microbatch)) {
    (*sum)->AddPieces(microbatch, pieces);
    return absl::OkStatus();
  }
  absl::StatusOr<Tensor> early = memory_.NewFlat(elements_, MemoryClass::kGradients);
  if (!early.ok()) return early.status();
  memory_.math().WritePieces(pieces, static_cast<float*>(early->data), elements_);
  (*sum)->Add(microbatch, *early);
  return absl::OkStatus();
}

absl::Status StageSums::Add(int step, int microbatch, const Tensor& slice, int part, int parts) {
  absl::StatusOr<GradientSum*> sum = SumOf({step, part, parts});
  if (!sum.ok()) return sum.status();
  if (absl::Status s = CheckFlat("gradients", slice, (*sum)->elements()); !s.ok()) return s;
  if (absl::Status s = (*sum)->Check(microbatch); !s.ok()) return s;
  (*sum)->Add(microbatch, slice);
  return absl::OkStatus();
}

absl::StatusOr<StageSums::Part> StageSums::TakePart() {
  if (sums_.empty()) return Part{};
  const auto& [key, sum] = *sums_.begin();
  if (sums_.size() > 1 || key.parts != 1 || sum.anything_waits()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "there are %d gradient sums in progress, or micro-batches that came early; one sum alone can go on "
        "elsewhere",
        sums_.size()));
  }
  Part part{key.step, sum.next(), sum.buffer()};
  sums_.clear();
  return part;
}

void StageSums::Resume(Part part) {
  if (part.next == 0) return;
  sums_.emplace(Key{part.step, 0, 1}, GradientSum(memory_, std::move(part.sum), microbatches_, part.next));
}

absl::StatusOr<Tensor> StageSums::TakeWhatCame(int step) {
  const absl::StatusOr<GradientSum*> sum = SumOf({step, 0, 1});
  if (!sum.ok()) return sum.status();
  if ((*sum)->next() == 0) (*sum)->AddPieces(0, {});  // zeros
  Tensor whole = (*sum)->buffer();
  sums_.erase({step, 0, 1});
  came_.erase(came_.lower_bound({step, 0}), came_.lower_bound({step + 1, 0}));
  return whole;
}

absl::StatusOr<Tensor> StageSums::Take(int step, int part, int parts) {
  if (sums_what_comes_) return TakeWhatCame(step);
  const auto found = sums_.find({step, part, parts});
  if (found == sums_.end() || !found->second.complete()) {
    const int next = found == sums_.end() ? 0 : found->second.next();
    return absl::FailedPreconditionError(
        absl::StrFormat("the sum of part %d of %d still lacks micro-batch %d", part, parts, next));
  }
  Tensor sum = found->second.buffer();
  sums_.erase(found);
  return sum;
}

}  // namespace weft
