// Sums one stage's gradients over the micro-batches of one step, or a slice of them, in the order of
// micro-batches.
//
// Sums of floating-point numbers depend on their order, so there is one: 0, 1, 2, ... A contribution that
// comes early waits. The first is copied, the others are added element by element, on the device. One thread
// at a time. Contributions that were added are no longer referenced.
#ifndef WEFT_WORKER_SHELL_COMPUTE_GRADIENT_SUM_H_
#define WEFT_WORKER_SHELL_COMPUTE_GRADIENT_SUM_H_

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/shell/compute/flat_memory.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class GradientSum {
 public:
  // `buffer` (flat float32) becomes the sum; its content does not matter yet, or is that of the first `next`
  // micro-batches. `memory`, which provided it, outlives this.
  GradientSum(FlatMemory& memory, Tensor buffer, int microbatches, int next = 0)
      : memory_(memory), buffer_(std::move(buffer)), microbatches_(microbatches), next_(next) {}

  // Returns true if the micro-batch is the next in order.
  bool InOrder(int microbatch) const { return microbatch == next_; }
  // Returns AlreadyExists when the micro-batch contributed before, InvalidArgument when it cannot contribute.
  absl::Status Check(int microbatch) const;
  // Adds, and then adds the contributions that waited for it. Requires InOrder(microbatch).
  void AddPieces(int microbatch, const std::vector<FlatPiece>& pieces);
  // Adds, or keeps (shares) the gradient until its turn. Requires Check(microbatch).ok() and equal sizes.
  void Add(int microbatch, const Tensor& gradient);

  bool anything_waits() const { return !waiting_.empty(); }
  bool complete() const { return next_ == microbatches_; }
  int next() const { return next_; }
  const Tensor& buffer() const { return buffer_; }
  float* data() const { return static_cast<float*>(buffer_.data); }
  int64_t elements() const { return static_cast<int64_t>(buffer_.bytes / sizeof(float)); }

 private:
  void AddWaiting();

  FlatMemory& memory_;
  Tensor buffer_;
  const int microbatches_;
  int next_;
  std::map<int, Tensor> waiting_;
};

// Keeps the sums of one stage on one rank: by step, and by slice where several ranks share the summing. Their
// memory is charged to gradients. One thread at a time.
class StageSums {
 public:
  // `elements` of the whole gradient. `memory` outlives this.
  StageSums(FlatMemory& memory, int64_t elements, int microbatches)
      : memory_(memory), elements_(elements), microbatches_(microbatches) {}

  // Sums only the micro-batches that come here, in the order in which they come. Call at the beginning. Take
  // then returns what there is of part 0 of 1, zeros if nothing came.
  void SumWhatComes() { sums_what_comes_ = true; }
  bool sums_what_comes() const { return sums_what_comes_; }

  // Adds one micro-batch's whole gradient, for the sum of part 0 of 1.
  absl::Status Add(int step, int microbatch, const std::vector<FlatPiece>& pieces);
  // Adds one micro-batch's slice. InvalidArgument when it is not of the slice's size.
  absl::Status Add(int step, int microbatch, const Tensor& slice, int part, int parts);
  // A whole gradient's sum that is not finished, of the micro-batches before `next`; `next` is 0 for none.
  struct Part {
    int step = 0, next = 0;
    Tensor sum;
  };
  // TakePart gives up the only sum, if there is one; nothing may wait for its turn in it. Resume takes it
  // over.
  absl::StatusOr<Part> TakePart();
  void Resume(Part part);

  // Gives the finished sum up. FailedPrecondition, naming the micro-batch, when one is missing.
  absl::StatusOr<Tensor> Take(int step, int part, int parts);

 private:
  struct Key {
    int step, part, parts;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  absl::StatusOr<GradientSum*> SumOf(const Key& key);
  absl::StatusOr<Tensor> TakeWhatCame(int step);

  FlatMemory& memory_;
  const int64_t elements_;
  const int microbatches_;
  std::map<Key, GradientSum> sums_;
  bool sums_what_comes_ = false;
  std::set<std::pair<int, int>> came_;  // step and micro-batch of the gradients in such sums
};

// Returns InvalidArgument unless `tensor` is `elements` float32. `what` names it in the plural: "weights".
absl::Status CheckFlat(const char* what, const Tensor& tensor, int64_t elements);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_GRADIENT_SUM_H_
