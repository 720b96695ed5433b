// The sum of one stage's gradients over the micro-batches of one step, or a slice of it, in the order of
// micro-batches.
//
// Sums of floating-point numbers depend on their order, so there is one: 0, 1, 2, ... A contribution that
// comes early waits. The first is copied, the others are added element by element.
// One thread at a time. Contributions that were added are no longer referenced.
#ifndef WEFT_WORKER_SHELL_COMPUTE_GRADIENT_SUM_H_
#define WEFT_WORKER_SHELL_COMPUTE_GRADIENT_SUM_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "worker/shell/tensor.h"

namespace weft {

class GradientSum {
 public:
  // `buffer` (flat float32) becomes the sum; its content does not matter yet.
  GradientSum(Tensor buffer, int microbatches) : buffer_(std::move(buffer)), microbatches_(microbatches) {}

  // A gradient that lies in pieces: `n` elements for `offset` of the buffer. Between pieces it is zero.
  struct Piece {
    int64_t offset, n;
    const float* data;
  };

  // True if the micro-batch is the next in order.
  bool InOrder(int microbatch) const { return microbatch == next_; }
  // AlreadyExists when the micro-batch contributed before, InvalidArgument when it cannot contribute.
  absl::Status Check(int microbatch) const;
  // Requires InOrder(microbatch). Adds, and then what waited for it.
  void AddPieces(int microbatch, const std::vector<Piece>& pieces);
  // Adds, or keeps (shares) the gradient until its turn. Requires Check(microbatch).ok() and equal sizes.
  void Add(int microbatch, const Tensor& gradient);

  bool complete() const { return next_ == microbatches_; }
  int next() const { return next_; }
  const Tensor& buffer() const { return buffer_; }
  float* data() const { return static_cast<float*>(buffer_.data); }
  int64_t elements() const { return static_cast<int64_t>(buffer_.bytes / sizeof(float)); }

 private:
  void AddWaiting();

  Tensor buffer_;
  const int microbatches_;
  int next_ = 0;
  std::map<int, Tensor> waiting_;
};

// Writes the pieces to `out` of `elements` elements, with zeros between.
void WritePieces(const std::vector<GradientSum::Piece>& pieces, float* out, int64_t elements);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_GRADIENT_SUM_H_
