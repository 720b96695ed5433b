// Begins the state that ranks hold of stages, and writes it: initial weights, the checkpoint that a run goes
// on from, and the checkpoints that it makes.
//
// Initial weights depend on the seed and on each parameter's layer and name alone. The host makes them, for
// every device: its generator's numbers are the run's. So version 0 can be made again at any time, by any
// rank, and a slice of it is cut from the whole parameter. All other files are written from a snapshot
// (checkpoint.h): what is in it says the stage's rule (training_state.h).
//
// Invariants:
//   1. Only Begin, Save and SaveInitial wait for the device, and none of them is called in a job. Snapshot is
//      called in the job that made the newest version, does not wait, and holds what that job made: the
//      copies are behind it, and the rank's later work is behind the copies.
//   2. A stage's files are those of the newest version; older versions are in them as far as later steps read
//      them: those that are held, and the one that the last update wrote over, which BeginSnapshot or
//      BeginSave took before it.
//
// Private to the adapter of LibTorch. Each rank has one. Threads: one call at a time, and no update of the
// stage beside it. Failure: NotFound, DataLoss or InvalidArgument for a checkpoint, naming the file;
// FailedPrecondition where the rank does not hold what the files need; of writing, naming the file.
#ifndef WEFT_WORKER_SHELL_TORCH_STAGE_FILES_H_
#define WEFT_WORKER_SHELL_TORCH_STAGE_FILES_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/run_schedule.h"
#include "worker/shell/checkpoint/checkpoint.h"
#include "worker/shell/checkpoint/snapshot_memory.h"
#include "worker/shell/compute/training_state.h"
#include "worker/shell/memory/tensor.h"
#include "worker/shell/torch/held_stage.h"
#include "worker/shell/torch/rank_device.h"

namespace weft {

class StageFiles {
 public:
  // Both outlive this.
  StageFiles(const ScheduledRun& run, RankDevice& device)
      : run_(run), device_(device), rules_(StateRulesOf(run)) {}

  // Makes the state that the rank holds of the stage when the run begins: weights, and, unless another rank
  // updates them, the optimizer's state. Makes nothing yet if the state is to come from memory.
  absl::Status Begin(HeldStage* stage);
  // Keeps the state that was in memory for the stage's Begin.
  void Keep(int stage, std::shared_ptr<const KeptStage> kept) { kept_[stage] = std::move(kept); }

  // Do as RankFiles's methods.
  absl::Status Save(const HeldStage& stage, const std::string& folder);
  absl::Status BeginSnapshot(const HeldStage& stage, SnapshotMemory& memory);
  absl::Status BeginSave(const HeldStage& stage, const std::string& folder);
  absl::StatusOr<std::shared_ptr<const StageSnapshot>> Snapshot(const HeldStage& stage,
                                                                SnapshotMemory& memory);
  size_t SnapshotBytes(const HeldStage& stage) const;
  absl::Status SaveInitial(const StageLayout& layout, const std::string& folder);

 private:
  // A version that an update wrote over; and, where that is in the memory of a snapshot, the whole of it.
  struct Replaced {
    int version;
    Tensor flat;
    Tensor block;
  };
  // Returns a flat buffer of the stage as the host can read it, at once or once it is `ready`.
  using ReadBuffer = std::function<absl::StatusOr<Tensor>(const Tensor& flat)>;

  absl::Status MakeInitial(const HeldStage& stage, StageWeights& weights);
  absl::Status Restore(HeldStage* stage);
  absl::Status RestoreFrom(const KeptStage& kept, const StateRule& rule, HeldStage* stage);
  absl::Status Fill(const Tensor& flat, const std::function<void(float*)>& write);
  // Returns true if steps behind the update that follows read the newest version.
  bool NeedsReplaced(const HeldStage& stage) const;
  absl::StatusOr<Tensor> TakeBlock(const HeldStage& stage, int64_t version, SnapshotMemory& memory) const;
  absl::StatusOr<Tensor> ReadOut(const Tensor& flat);
  absl::StatusOr<Tensor> CopyBehindJob(const Tensor& flat);
  absl::StatusOr<std::vector<Tensor>> BuffersOf(const HeldStage& stage, const StateRule& rule) const;
  absl::StatusOr<std::shared_ptr<StageSnapshot>> TakeSnapshot(const HeldStage& stage, const ReadBuffer& read);

  const ScheduledRun& run_;
  RankDevice& device_;
  const std::vector<StateRule> rules_;  // by stage
  std::map<int, std::shared_ptr<const KeptStage>> kept_;
  std::map<int, Replaced> replaced_;  // by stage
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_STAGE_FILES_H_
