// Holds what a rank keeps of one stage from job to job: versions of the weights, the optimizer's state, and
// the gradient sums in progress.
//
// Updates make the versions one after the other, by optimizer steps or from another rank's; passes and peers
// read them. A rank may hold the whole stage, a slice of it, or nothing: then each job brings the weights
// that it needs, or the stage's whole state comes with a job and goes on with it (stage_packing.h). Passes of
// the stage are elsewhere (stage_passes.h).
//
// Invariants:
//   1. The newest version is the one that the last update made. The next one is written over it only if
//      nobody keeps it as a version and nobody uses its memory.
//   2. Held weights, optimizer state and the sums that updates take are of the same slice of the stage.
//   3. A version that was shared stays as it is as long as its tensor is kept.
//   4. After a failure the state is not to be used further.
//
// Private to the adapter of LibTorch. Ownership: the tensors are the stage's, and shared with their readers.
// Threads: as RankCompute's: one update at a time and nothing beside it; reads of versions, Share and Drop at
// any time; only backwards touch gradient sums. Failure: InvalidArgument for tensors of other sizes,
// FailedPrecondition for what the role excludes, ResourceExhausted of the device.
#ifndef WEFT_WORKER_SHELL_TORCH_HELD_STAGE_H_
#define WEFT_WORKER_SHELL_TORCH_HELD_STAGE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/run_spec.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/gradient_sum.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/compute/stage_role.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/torch/gradient_norm.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/spare_weights.h"
#include "worker/shell/torch/stage_optimizer.h"
#include "worker/shell/torch/torch_stage.h"
#include "worker/shell/torch/weight_versions.h"

namespace weft {

class HeldStage {
 public:
  // Holds nothing yet, whatever the role. `run` and `device` outlive this.
  HeldStage(const RunSpec& run, int stage, const StageRole& role, RankDevice& device);
  HeldStage(const HeldStage&) = delete;
  HeldStage& operator=(const HeldStage&) = delete;

  const StageLayout& layout() const { return layout_; }
  const StageRole& role() const { return role_; }
  // Returns the place of the held weights in the stage's flat buffer.
  SliceBounds held() const { return held_; }
  int64_t held_elements() const { return held_.end - held_.begin; }
  // Returns true if weights are here, whole or in part.
  bool holds() const { return versions_.held(); }
  // Returns true if the rank holds all the weights, so that a job needs none to come with it.
  bool holds_whole() const { return holds() && role_.parts == 1; }
  // Returns true if its micro-batches' gradients are summed here as they are made.
  bool sums_whole() const { return holds_whole() || sums_.sums_what_comes(); }

  // The parts of the state.
  WeightVersions& versions() { return versions_; }
  const WeightVersions& versions() const { return versions_; }
  StageOptimizer& optimizer() { return optimizer_; }
  const StageOptimizer& optimizer() const { return optimizer_; }
  StageSums& sums() { return sums_; }
  SpareWeights& spare() { return spare_; }
  const GradientNorm& norm() const { return norm_; }

  // Makes room for a version of the held weights, zeros.
  absl::StatusOr<std::shared_ptr<StageWeights>> NewVersion();

  // Shares a held version with a peer, or with a collective.
  absl::StatusOr<Tensor> Share(int version) const;
  // Drops a version that no job will read any more. Any thread.
  void Drop(int version);
  // Puts the whole weights together from the slices of all parts, in order; the rank's own, held at this
  // version, may be empty.
  absl::StatusOr<Tensor> Gather(const std::vector<Tensor>& slices, int version);

  // Adds one micro-batch's slice to the sum of part `part` of `parts`.
  absl::Status Accumulate(int step, int microbatch, const Tensor& slice, int part, int parts);
  // Returns the sum of a running sum and a micro-batch's gradient, whose memory it takes.
  absl::StatusOr<Tensor> AddToSum(const Tensor& before, const Tensor& gradient);

  // Makes the next version by an optimizer step, from the summed gradients of all `parts` of the held
  // weights, in order; or the same version again where the run leaves the update out. RankUpdates::Update
  // says more.
  absl::Status Update(int step, const std::vector<Tensor>& parts, const Tensor& norm, bool keep);
  // Makes the next version a copy of another rank's, so that the arrived tensor is given back at once: it may
  // be another process's memory.
  absl::Status Install(const Tensor& weights, bool keep);

 private:
  std::shared_ptr<StageWeights> NewHeldWeights();
  absl::StatusOr<std::shared_ptr<StageWeights>> NextVersion(bool keep);
  absl::StatusOr<std::vector<Tensor>> SummedGradients(const std::vector<Tensor>& parts);
  absl::Status Repeat(bool keep);

  RankDevice& device_;
  const StageLayout layout_;
  const StageRole role_;
  const SliceBounds held_;
  const Precision precision_;
  WeightVersions versions_;
  StageOptimizer optimizer_;
  StageSums sums_;
  SpareWeights spare_;
  const GradientNorm norm_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_HELD_STAGE_H_
