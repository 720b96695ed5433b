// Declares what a rank holds of its stages, and how it shares that with others: the part of RankCompute
// (compute.h) about weights and the state of stages.
//
// A rank holds the newest version of a stage's weights and those that updates were told to keep, until they
// are dropped.
//
// A migrating state is here from BeginState or InstallState to GiveState, and all jobs of the stage are
// between them. A rank that has none and computes, or has one and gets another, aborts and names the job:
// state would be lost or doubled.
//
// Threads: one call at a time, on any thread, and no pass beside it; Weights and DropWeights may be called
// from any thread at any time.
#ifndef WEFT_WORKER_SHELL_COMPUTE_RANK_WEIGHTS_H_
#define WEFT_WORKER_SHELL_COMPUTE_RANK_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schedules/job.h"
#include "worker/shell/compute/stage_role.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class RankWeights {
 public:
  virtual ~RankWeights() = default;

  // Builds stage `stage`. A rank that holds something of it holds the weights that the run begins with:
  // version 0, or, where it goes on from a checkpoint, the versions there that steps may read. Call once a
  // stage, before its first job.
  virtual absl::Status AddStage(int stage, const StageRole& role) = 0;
  // Returns the elements of the stage's flat weights buffer, padding included.
  virtual int64_t stage_elements(int stage) const = 0;

  // Returns the held weights of the stage at a version, flat; where the rank holds a slice, that. They stay
  // as they are as long as the tensor is kept.
  virtual absl::StatusOr<Tensor> Weights(int stage, int version) = 0;
  // Drops a version of the held weights that no job will read any more. May be called while jobs run.
  virtual void DropWeights(int stage, int version) = 0;

  // Returns the whole weights for the job, from the slices of all parts, in order; the rank's own, held at
  // this version, may be empty.
  virtual absl::StatusOr<Tensor> GatherWeights(const Job& job, const std::vector<Tensor>& slices,
                                               int version) = 0;
  // Returns memory for the whole weights of a stage, which collectives fill from all slices for one job; as
  // GatherWeights returns them.
  virtual absl::StatusOr<Tensor> RoomForWeights(const Job& /*job*/) {
    return absl::UnimplementedError("this device has no room for gathered weights");
  }

  // Begins the migrating state of a stage of which the rank holds nothing: all versions of the weights that
  // are still read, the sum of gradients in progress with all that are in it, and the optimizer's state.
  // While the state is here, the stage is as one that the rank holds; no pass may keep using them. BeginState
  // begins it with the initial weights.
  virtual absl::Status BeginState(const Job& job) = 0;
  // Takes in a state that another rank's GiveState gave: DataLoss for one that is not of this stage.
  virtual absl::Status InstallState(const Job& job, Tensor state) = 0;
  virtual absl::StatusOr<Tensor> GiveState(const Job& job) = 0;
  virtual bool HasState(int stage) const = 0;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_RANK_WEIGHTS_H_
