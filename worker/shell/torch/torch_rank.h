// Implements RankCompute through LibTorch, on any device: one rank. Private to the adapter of LibTorch.
//
// It finds the stage of a call, runs the call at the border (RankGuard: the thread is prepared, LibTorch's
// exceptions become a Status that names the job), and leaves the work to those that keep the state:
//
//   HeldStage (held_stage.h)      weights, optimizer state and gradient sums of one stage
//   StagePasses (stage_passes.h)  its forwards and backwards, and what waits between them
//   StageFiles (stage_files.h)    initial weights, and checkpoints, of all stages
//   DataFeed (data_feed.h)        the run's data
//   stage_packing.h               a stage's state, from rank to rank
//
// Memory, arithmetic on flat buffers and the order of work are the device's (rank_device.h). No job waits for
// the device: where that is not the host itself, losses and norms are reported to it, and all results of a
// job are there once the job has been done.
//
// Threads: RankCompute's. A forward and a backward at the same time share the weights, which both only read;
// the table of passes and the spare weights of a stage, and its versions, each under a lock of its own; the
// data feed; and the allocators, which have their own. A pass belongs to the job that found it, without the
// lock. Only backwards touch gradient sums, only forwards the tally of bytes; updates run beside neither.
#ifndef WEFT_WORKER_SHELL_TORCH_TORCH_RANK_H_
#define WEFT_WORKER_SHELL_TORCH_TORCH_RANK_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "run/run_schedule.h"
#include "schedules/schedule.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/data/data.h"
#include "worker/shell/torch/data_feed.h"
#include "worker/shell/torch/held_stage.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/stage_files.h"
#include "worker/shell/torch/stage_passes.h"
#include "worker/shell/torch/torch_context.h"
#include "worker/shell/torch/torch_guard.h"

namespace weft {

class TorchRank final : public RankCompute {
 public:
  // `prepare_thread` is called on every thread that computes, before it does.
  TorchRank(const ScheduledRun& run, Rank rank, PreparedRun prepared, std::unique_ptr<Dataset> data,
            std::unique_ptr<RankDevice> device, std::function<void()> prepare_thread);

  // RankCompute.
  void BeginJob(const Job& job, bool overlapped) override;
  std::shared_ptr<LaunchedJob> EndJob() override;
  absl::StatusOr<Tensor> ToHost(Tensor tensor) override;
  absl::StatusOr<std::shared_ptr<void>> MemoryToReceive(size_t bytes) override;
  BytesByClass live_bytes() const override;
  BytesByClass peak_bytes() const override;
  int64_t most_bytes() const override;
  std::optional<JobBytes> job_bytes() const override;
  absl::Status CheckBudget() const override;

  // RankPasses.
  absl::StatusOr<ForwardResult> Forward(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                        int version) override;
  absl::StatusOr<ForwardResult> ForwardOnly(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                            int version) override;
  absl::Status TakePass(const Job& job, std::vector<Tensor> inputs) override;
  absl::StatusOr<BackwardResult> Backward(const Job& job, std::vector<Tensor> output_gradients,
                                          Tensor weights, int version, bool hand_out) override;

  // RankUpdates.
  absl::Status Accumulate(const Job& job, int microbatch, const Tensor& slice, int part, int parts) override;
  absl::StatusOr<Tensor> AddToSum(const Job& job, const Tensor& before, Tensor gradient) override;
  absl::StatusOr<Tensor> TakeSum(const Job& job, int part, int parts) override;
  absl::StatusOr<Tensor> SumSquares(const Job& job, const Tensor& sum, int part, int parts,
                                    const std::vector<Tensor>& others) override;
  absl::Status Update(const Job& job, const std::vector<Tensor>& sums, const Tensor& norm,
                      bool keep) override;
  absl::Status InstallWeights(const Job& job, const Tensor& weights, bool keep) override;

  // RankWeights.
  absl::Status AddStage(int stage, const StageRole& role) override;
  int64_t stage_elements(int stage) const override { return stages_.at(stage)->held.layout().elements; }
  absl::StatusOr<Tensor> Weights(int stage, int version) override;
  void DropWeights(int stage, int version) override;
  absl::StatusOr<Tensor> GatherWeights(const Job& job, const std::vector<Tensor>& slices,
                                       int version) override;
  absl::StatusOr<Tensor> RoomForWeights(const Job& job) override;
  absl::Status BeginState(const Job& job) override;
  absl::Status InstallState(const Job& job, Tensor state) override;
  absl::StatusOr<Tensor> GiveState(const Job& job) override;
  bool HasState(int stage) const override;

  // RankFiles.
  absl::Status Save(int stage, const std::string& folder) override;
  absl::Status BeginSnapshot(int stage, SnapshotMemory& memory) override;
  absl::Status BeginSave(int stage, const std::string& folder) override;
  absl::StatusOr<std::shared_ptr<const StageSnapshot>> Snapshot(int stage, SnapshotMemory& memory) override;
  size_t SnapshotBytes(int stage) const override;
  absl::Status SaveInitial(int stage, const std::string& folder) override;
  absl::Status BeginFrom(int stage, const std::shared_ptr<const KeptStage>& kept) override;

 private:
  struct Stage {
    Stage(const PassModel& model, int index, const StageRole& role, DataFeed& data, RankDevice& device)
        : held(model.run, index, role, device), passes(model, held, data, device) {}

    HeldStage held;
    StagePasses passes;
  };

  absl::StatusOr<Stage*> StageOf(int stage);
  absl::StatusOr<Stage*> HeldStageOf(int stage);
  // Run `f` on a stage, which is one of the rank's, or of which it holds something, as one call of the rank.
  template <typename What, typename F>
  auto InStage(int stage, What what, F f) -> decltype(f(std::declval<Stage&>()));
  template <typename What, typename F>
  auto InHeldStage(int stage, What what, F f) -> decltype(f(std::declval<Stage&>()));
  absl::Status DoAddStage(int stage, const StageRole& role);
  absl::Status PrepareLayers(const StageLayout& layout);
  absl::StatusOr<Stage*> StageWithState(const Job& job, bool has_state, const char* invariant);

  const PreparedRun prepared_;
  const ScheduledRun run_;
  const std::unique_ptr<RankDevice> device_;
  const RankGuard guard_;
  const PassModel model_;
  StageFiles files_;
  std::map<int, std::unique_ptr<Stage>> stages_;
  DataFeed data_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_TORCH_RANK_H_
