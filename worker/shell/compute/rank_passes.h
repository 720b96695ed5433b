// Declares the forwards and backwards of a rank: the part of RankCompute (compute.h) that computes with
// micro-batches.
//
// A forward and its backward compute with the same version of the weights. In between, the rank keeps tensors
// according to the schedule's `activations`: all that the backward needs (retain), the stage's inputs alone
// (recompute: the backward runs the forward again first), or all of it in host memory (offload). The bits are
// the same. Random masks depend on seed, step, micro-batch and layer only.
//
// Threads: one call at a time, on any thread; or, as an overlapped pair, one forward (Forward, ForwardOnly)
// on one thread and one backward (TakePass, Backward) of another micro-batch, of any stage, on another.
#ifndef WEFT_WORKER_SHELL_COMPUTE_RANK_PASSES_H_
#define WEFT_WORKER_SHELL_COMPUTE_RANK_PASSES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schedules/job.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

struct ForwardResult {
  Tensor activation;           // [samples, ..] output of the stage; empty for the last stage
  std::optional<double> loss;  // mean loss of the micro-batch; last stage only
  // Bytes of class activations, the output included: they stay until the backward at most.
  int64_t activation_bytes = 0;
};
struct BackwardResult {
  std::vector<Tensor> input_gradients;  // gradients of each input, as they came to the forward
  Tensor gradient;                      // flat [parameters] float32 of this micro-batch; only if handed out
  // Hash of one that was added to the held sum (value_hash.h), in a run that records hashes, where the host
  // has its bytes.
  std::optional<uint64_t> gradient_hash;
};

class RankPasses {
 public:
  virtual ~RankPasses() = default;

  // Runs a forward. `inputs`: the activations of the stages that it reads, ascending; data it reads by
  // itself. `weights`: a fetched copy, empty to use the held ones at this version. OutOfRange for a loss that
  // is not finite where the run stops at it.
  virtual absl::StatusOr<ForwardResult> Forward(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                                int version) = 0;

  // Run a micro-batch's forward and backward of a stage on different ranks: the forward keeps nothing, and
  // before its backward the other rank takes the pass, to start over from the stage's inputs.
  virtual absl::StatusOr<ForwardResult> ForwardOnly(const Job& job, std::vector<Tensor> inputs,
                                                    Tensor weights, int version) = 0;
  virtual absl::Status TakePass(const Job& job, std::vector<Tensor> inputs) = 0;

  // Runs a backward. `output_gradients`: of the stages that read its output, ascending; the last stage starts
  // from its loss. `hand_out`: return the micro-batch's gradient instead of adding it to the held sum.
  virtual absl::StatusOr<BackwardResult> Backward(const Job& job, std::vector<Tensor> output_gradients,
                                                  Tensor weights, int version, bool hand_out) = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_RANK_PASSES_H_
