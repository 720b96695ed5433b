// Runs the forwards and backwards of one stage's micro-batches on a rank, and keeps what waits between them.
//
// A pass is a micro-batch's way through the stage:
//
//   none --Forward--> with graph -------------------------------- Backward --> none
//     |                    `-- backward_input --> half done -- backward_weight --> none
//     |--Forward--> inputs alone (activations: recompute) -- Backward: runs the forward again, with graph
//     |--TakePass-> inputs alone (its forward was on another rank) -- Backward: likewise
//     `--Forward without a pass--> none (its backward is on another rank)
//
// Invariants:
//   1. A pass computes its backward with the version of the weights of its forward (pass_weights.h).
//   2. Masks and data depend on the job alone, so a forward that runs again has the bits of the first time,
//      and so have a captured pass (torch_graphs.h) and one whose activations waited on the host
//      (host_offload.h).
//   3. Memory that a forward keeps is charged to activations; a backward's own memory to buffers.
//   4. A pass is kept only if its forward succeeded.
//
// Private to the adapter of LibTorch. Ownership: passes are the stage's; all that the constructor is given
// outlives it. Threads: a forward and a backward of another micro-batch may run at the same time. Failure:
// FailedPrecondition for a job out of turn, InvalidArgument for tensors that do not fit, OutOfRange for a
// loss that is not finite where the run stops at it; LibTorch's exceptions pass. After one, the rank is not
// to be used further.
#ifndef WEFT_WORKER_SHELL_TORCH_STAGE_PASSES_H_
#define WEFT_WORKER_SHELL_TORCH_STAGE_PASSES_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/run_schedule.h"
#include "run/run_spec.h"
#include "schedules/job.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/torch/data_feed.h"
#include "worker/shell/torch/held_stage.h"
#include "worker/shell/torch/loss_counts.h"
#include "worker/shell/torch/pass_table.h"
#include "worker/shell/torch/pass_weights.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/torch_graphs.h"
#include "worker/shell/torch/torch_layers.h"
#include "worker/shell/torch/torch_stage.h"

namespace weft {

// The parts that the passes of all stages of a rank share.
struct PassModel {
  const RunSpec& run;
  const std::vector<std::unique_ptr<Layer>> layers;
  at::Tensor loss_gradient;  // gradient of the step's loss by one micro-batch's
  const std::unique_ptr<LossCounts> counts;
  // True if passes may be captured: weights stay in their place.
  bool capturable = false;
  bool split_backward = false;
};

class StagePasses {
 public:
  StagePasses(const PassModel& model, HeldStage& held, DataFeed& data, RankDevice& device);
  StagePasses(const StagePasses&) = delete;
  StagePasses& operator=(const StagePasses&) = delete;

  // Run one job; arguments as RankPasses's methods have them. `leaves_pass`: the backward is on this rank.
  absl::StatusOr<ForwardResult> Forward(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                        int version, bool leaves_pass);
  absl::Status TakePass(const Job& job, const std::vector<Tensor>& inputs);
  absl::StatusOr<BackwardResult> Backward(const Job& job, const std::vector<Tensor>& output_gradients,
                                          Tensor weights, int version, bool hand_out);

 private:
  bool is_last() const { return layout_.stage + 1 == model_.run.stages(); }
  absl::StatusOr<MaskKey> KeyOf(const Job& job) const;
  absl::Status AppendData(const Job& job, std::vector<at::Tensor>* inputs);
  absl::StatusOr<at::Tensor> Targets(const Job& job);
  absl::StatusOr<PassOutput> RunPass(const Job& job, const std::vector<at::Tensor>& inputs, Pass* pass);
  PassOutput RunOffloaded(const std::vector<at::Tensor>& inputs, const at::Tensor& targets,
                          const MaskKey& key, Pass* pass);
  absl::StatusOr<PassOutput> RunOnce(const Job& job, const std::vector<at::Tensor>& inputs, Pass* pass);
  absl::Status TakeLoss(PassOutput* output, ForwardResult* result);
  absl::Status Recompute(const Job& job, Tensor weights, int version, Pass* pass);
  absl::StatusOr<at::Tensor> OutputGradient(const Pass& pass, PassHalf half,
                                            const std::vector<Tensor>& given);
  absl::Status KeepGradient(const Job& job, const std::vector<at::Tensor>& parameters, bool hand_out,
                            BackwardResult* result);

  const PassModel& model_;
  const StageLayout& layout_;
  const ActivationPolicy activations_;
  HeldStage& held_;
  DataFeed& data_;
  RankDevice& device_;
  PassWeights weights_;
  StageGraphs graphs_;
  PassTable passes_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_STAGE_PASSES_H_
