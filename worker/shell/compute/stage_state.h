// Describes the state of a stage as one flat tensor, as it travels from rank to rank: its contents and their
// places.
//
// A head of whole numbers names the parts that follow: the versions of the weights, ascending; the gradient
// sum in progress, if one has begun; the optimizer's buffers. All of these have the size of the stage's flat
// buffer and begin at multiples of 64 bytes. Both sides are ranks of one run, on machines of one kind. Pure.
#ifndef WEFT_WORKER_SHELL_COMPUTE_STAGE_STATE_H_
#define WEFT_WORKER_SHELL_COMPUTE_STAGE_STATE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

struct StageState {
  int stage = 0;
  int64_t elements = 0;       // size of the stage's flat buffer
  std::vector<int> versions;  // versions of the weights, ascending; at most kMaxVersions
  int sum_step = 0;           // step of the sum in progress
  int sum_next = 0;           // number of micro-batches in it; 0 for no sum
  int64_t optimizer_steps = 0;
  int optimizer_buffers = 0;

  static constexpr int kMaxVersions = 48;
  static constexpr int64_t kHeadElements = 128;  // float32, as the rest

  friend bool operator==(const StageState&, const StageState&) = default;

  // Returns the elements of the tensor.
  int64_t total_elements() const;
  // Return where its parts begin.
  int64_t version_offset(size_t i) const { return kHeadElements + static_cast<int64_t>(i) * elements; }
  int64_t sum_offset() const { return version_offset(versions.size()); }
  int64_t optimizer_offset(int i) const { return sum_offset() + ((sum_next > 0 ? 1 : 0) + i) * elements; }
};

// Writes the head at the start of a tensor of total_elements(). Requires at most kMaxVersions.
void WriteHead(const StageState& state, float* begin);

// Reads the head. DataLoss if the tensor is not the state of the stage with so many elements and optimizer
// buffers.
absl::StatusOr<StageState> ReadHead(const Tensor& tensor, int stage, int64_t elements, int optimizer_buffers);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_STAGE_STATE_H_
