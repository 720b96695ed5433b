#include "worker/shell/compute/gradient_sum.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "worker/shell/compute/elementwise.h"

namespace weft {

void WritePieces(const std::vector<GradientSum::Piece>& pieces, float* out, int64_t elements) {
  int64_t at = 0;
  for (const GradientSum::Piece& piece : pieces) {
    std::memset(out + at, 0, static_cast<size_t>(piece.offset - at) * sizeof(float));
    std::memcpy(out + piece.offset, piece.data, static_cast<size_t>(piece.n) * sizeof(float));
    at = piece.offset + piece.n;
  }
  std::memset(out + at, 0, static_cast<size_t>(elements - at) * sizeof(float));
}

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

void GradientSum::AddPieces(int microbatch, const std::vector<Piece>& pieces) {
  if (!InOrder(microbatch)) std::abort();
  if (next_ == 0) {
    WritePieces(pieces, data(), elements());
  } else {
    for (const Piece& piece : pieces) AddInPlace(data() + piece.offset, piece.data, piece.n);
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
  AddPieces(microbatch, {{0, elements(), static_cast<const float*>(gradient.data)}});
}

void GradientSum::AddWaiting() {
  for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_;
       first = waiting_.begin()) {
    AddInPlace(data(), static_cast<const float*>(first->second.data), elements());
    ++next_;
    waiting_.erase(first);
  }
}

}  // namespace weft
