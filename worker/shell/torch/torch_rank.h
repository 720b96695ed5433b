// Implements RankCompute through LibTorch, on any device: the state of one rank. Private to the adapter of
// LibTorch.
//
// torch_rank.cc has stages and updates, torch_rank_files.cc initial weights and checkpoints, torch_passes.cc
// the forwards and backwards, torch_rank_state.cc the state of a stage that comes and goes. Memory,
// arithmetic on flat buffers and the order of work are the device's (rank_device.h). No job waits for the
// device: where that is not the host itself, losses and norms are reported to it, and all results of a job
// are there once the job has been done.
//
// A forward and a backward at the same time share the weights, which both only read; the passes and the spare
// weights of a stage, under its lock; its versions, under theirs; the allocators, which have their own. A
// pass belongs to the job that found it, without the lock. Only backwards touch gradient sums, only forwards
// the tally of bytes; updates run beside neither.
#ifndef WEFT_WORKER_SHELL_TORCH_TORCH_RANK_H_
#define WEFT_WORKER_SHELL_TORCH_TORCH_RANK_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "run/run_schedule.h"
#include "schedules/schedule.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/gradient_sum.h"
#include "worker/shell/compute/optimizer.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/compute/training_state.h"
#include "worker/shell/data/data.h"
#include "worker/shell/data/data_prefetch.h"
#include "worker/shell/torch/rank_device.h"
#include "worker/shell/torch/torch_graphs.h"
#include "worker/shell/torch/torch_guard.h"
#include "worker/shell/torch/torch_layers.h"
#include "worker/shell/torch/torch_stage.h"
#include "worker/shell/torch/weight_versions.h"

namespace weft {

class TorchRank final : public RankCompute {
 public:
  // `prepare_thread` is called on every thread that computes, before it does.
  TorchRank(const RunSpec& run, Rank rank, std::unique_ptr<Dataset> data, std::unique_ptr<RankDevice> device,
            std::function<void()> prepare_thread);

  void BeginJob(const Job& job, bool beside) override;
  std::shared_ptr<LaunchedJob> EndJob() override;
  absl::StatusOr<Tensor> ToHost(Tensor tensor) override;
  absl::Status AddStage(int stage, bool holds_weights) override;
  absl::Status AddSlicedStage(int stage, int part, int parts) override;
  absl::Status AddAdoptedStage(int stage) override;
  absl::Status SumOwnGradients(int stage) override;
  absl::Status BeginState(const Job& job) override;
  absl::Status AdoptState(const Job& job, Tensor state) override;
  absl::StatusOr<Tensor> GiveState(const Job& job) override;
  bool HasState(int stage) const override;
  int64_t stage_elements(int stage) const override { return stages_.at(stage)->layout.elements; }
  absl::StatusOr<Tensor> GatherWeights(const Job& job, const std::vector<Tensor>& slices,
                                       int version) override;
  absl::StatusOr<Tensor> RoomForWeights(const Job& job) override;
  absl::StatusOr<ForwardResult> Forward(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                        int version) override;
  absl::StatusOr<ForwardResult> ForwardOnly(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                            int version) override;
  absl::Status AdoptPass(const Job& job, std::vector<Tensor> inputs) override;
  absl::StatusOr<BackwardResult> Backward(const Job& job, std::vector<Tensor> output_gradients,
                                          Tensor weights, int version, bool hand_out) override;
  absl::Status Accumulate(const Job& job, int microbatch, const Tensor& slice, int part, int parts) override;
  absl::StatusOr<Tensor> AddToSum(const Job& job, const Tensor& before, Tensor gradient) override;
  absl::StatusOr<Tensor> TakeSum(const Job& job, int part, int parts) override;
  absl::StatusOr<Tensor> SumSquares(const Job& job, const Tensor& sum, int part, int parts,
                                    const std::vector<Tensor>& others) override;
  absl::Status Update(const Job& job, const std::vector<Tensor>& sums, const Tensor& norm,
                      bool keep) override;
  absl::Status Adopt(const Job& job, const Tensor& weights, bool keep) override;
  absl::StatusOr<Tensor> Weights(int stage, int version) override;
  void DropWeights(int stage, int version) override;
  absl::Status Save(int stage, const std::string& folder) override;
  absl::StatusOr<std::shared_ptr<const StageSnapshot>> Snapshot(int stage) override;
  absl::Status SaveInitial(int stage, const std::string& folder) override;
  BytesByClass live_bytes() const override;
  BytesByClass peak_bytes() const override;

 private:
  // Keeps buffers for data that are narrowed before they go to the device: one for each thread that reads at
  // once, kept for the next that does, since fresh pages cost more than the narrowing.
  class WideRooms {
   public:
    at::Tensor Take(at::IntArrayRef sizes);
    void Give(at::Tensor room);

   private:
    Mutex mutex_;
    std::vector<at::Tensor> idle_ ABSL_GUARDED_BY(mutex_);  // all of one size
  };

  struct Stage {
    Stage(const RunSpec& run, int index, RankDevice& rank_device)
        : device(rank_device),
          layout(LayOutStage(run, index)),
          activations(ActivationsOf(run.schedule, index)),
          precision(run.precision),
          optimizer(run.train.optimizer),
          sums(device, layout.elements, run.train.microbatches),
          graphs(device) {}

    // True if the rank holds all the weights, so that a job needs none to come with it.
    bool holds_whole() const { return versions.held() && parts == 1; }
    // True if its micro-batches' gradients are summed here as they are made.
    bool sums_whole() const { return holds_whole() || sums.sums_what_comes(); }
    // Returns the place of the held weights in the stage's flat buffer.
    SliceBounds held() const { return SliceOf(layout.elements, part, parts); }

    RankDevice& device;
    const StageLayout layout;
    const ActivationPolicy activations;
    const Precision precision;
    int part = 0, parts = 1;  // slice that the rank holds, if it holds any
    bool adopted = false;     // true if another rank updates it
    WeightVersions versions;
    Optimizer optimizer;
    std::vector<Tensor> optimizer_state;

    StageSums sums;
    StageGraphs graphs;

    // Returns the pass, which stays until Erase; null if there is none.
    Pass* Find(const Job& job);
    // Inserts a pass that Find has not found.
    void Insert(const Job& job, Pass pass);
    void Erase(const Job& job);
    std::shared_ptr<StageWeights> TakeSpare();
    void GiveSpare(std::shared_ptr<StageWeights> unbound);

   private:
    Mutex mutex_;
    // Passes by step and micro-batch.
    absl::flat_hash_map<std::pair<int, int>, std::unique_ptr<Pass>> passes_ ABSL_GUARDED_BY(mutex_);
    // Unbound weights, for the next fetched copies.
    std::vector<std::shared_ptr<StageWeights>> spare_ ABSL_GUARDED_BY(mutex_);
  };

  // Runs `f` as Guarded does, prepared for the device, and says more where memory is out.
  template <typename What, typename F>
  auto Compute(What what, F f) -> decltype(f()) {
    decltype(f()) result = Guarded(what, [&] {
      prepare_thread_();
      return f();
    });
    if (absl::IsResourceExhausted(StatusOf(result)))
      return WithMemory(StatusOf(result), device_->live_bytes());
    return result;
  }

  bool last(const Stage& stage) const { return stage.layout.stage + 1 == run_.stages(); }
  absl::StatusOr<Stage*> StageOf(int stage);
  absl::StatusOr<Stage*> HeldStage(int stage);
  absl::StatusOr<Tensor> NewZeros(int64_t elements, MemoryClass memory_class);
  absl::StatusOr<Tensor> CopyPart(const Tensor& state, int64_t offset, int64_t elements,
                                  MemoryClass memory_class);
  absl::StatusOr<Tensor> Here(Tensor tensor);
  absl::StatusOr<std::vector<Tensor>> AllHere(std::vector<Tensor> tensors);
  enum class Holding : uint8_t { kNothing, kAdopted, kUpdated };
  absl::Status DoAddStage(int stage, Holding holding, int part, int parts);
  absl::Status Hold(Stage& stage);
  static std::shared_ptr<StageWeights> NewHeldWeights(Stage& stage);
  absl::Status InitializeHeld(const Stage& stage, StageWeights& weights);
  absl::Status Fill(const Tensor& flat, const std::function<void(float*)>& write);
  absl::StatusOr<Tensor> DoGather(int stage, const std::vector<Tensor>& slices, int version);
  absl::Status HoldSaved(Stage& stage);
  absl::StatusOr<std::shared_ptr<StageWeights>> NewVersion(Stage& stage);
  absl::Status DoSave(const Stage& stage, const std::string& folder);
  const absl::StatusOr<std::vector<StateRule>>& StateRules();
  absl::StatusOr<Tensor> CopyForSnapshot(const Tensor& flat);
  absl::StatusOr<Tensor> ReadOut(const Tensor& flat);
  absl::StatusOr<std::shared_ptr<const StageSnapshot>> DoSnapshot(
      const Stage& stage, absl::StatusOr<Tensor> (TorchRank::*host)(const Tensor& flat));
  absl::Status WriteInitial(const Stage& stage, const std::string& folder);
  absl::Status DoAdoptState(Stage& stage, const Tensor& state);
  absl::StatusOr<Tensor> DoGiveState(Stage& stage);
  absl::Status CheckBoundary(const char* what, const Stage& stage, const std::vector<int64_t>& sample,
                             const Tensor& tensor) const;
  absl::Status CheckInputs(const Stage& stage, const std::vector<Tensor>& inputs) const;
  absl::StatusOr<Tensor> AlignedWeights(const Stage& stage, Tensor fetched);
  absl::StatusOr<std::shared_ptr<StageWeights>> HeldWeights(const Stage& stage, int version) const;
  absl::Status ChooseWeights(Stage& stage, Tensor fetched, int version, Pass* pass);
  at::Tensor WrapAligned(const Tensor& tensor) const;
  std::vector<at::Tensor> WrapAll(const std::vector<Tensor>& tensors) const;
  absl::StatusOr<at::Tensor> ReadPiece(const DataPiece& piece);
  absl::StatusOr<Tensor> SendPiece(const DataPiece& piece);
  absl::StatusOr<at::Tensor> Data(const DataPiece& piece);
  absl::Status AppendData(const Stage& stage, const Job& job, std::vector<at::Tensor>* inputs);
  absl::StatusOr<at::Tensor> Targets(const Stage& stage, const Job& job);
  absl::StatusOr<ForwardResult> DoForward(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                          int version, bool leaves_pass);
  MaskKey KeyOf(const Job& job) const;
  absl::StatusOr<PassOutput> RunPass(Stage& stage, const Job& job, const std::vector<at::Tensor>& inputs,
                                     Pass* pass);
  absl::StatusOr<PassOutput> RunOnce(const Stage& stage, const Job& job,
                                     const std::vector<at::Tensor>& inputs, Pass* pass);
  absl::Status Recompute(Stage& stage, const Job& job, Tensor weights, int version, Pass* pass);
  absl::Status DoAdoptPass(const Job& job, const std::vector<Tensor>& inputs);
  absl::StatusOr<BackwardResult> DoBackward(const Job& job, std::vector<Tensor> output_gradients,
                                            Tensor weights, int version, bool hand_out);
  absl::StatusOr<at::Tensor> OutputGradient(const Stage& stage, const Pass& pass, PassHalf half,
                                            const std::vector<Tensor>& given);
  absl::Status KeepGradient(Stage& stage, const Job& job, const std::vector<at::Tensor>& parameters,
                            bool hand_out, BackwardResult* result);
  absl::Status Rebind(const Stage& stage, Tensor fetched, int version, Pass* pass);
  absl::StatusOr<std::shared_ptr<StageWeights>> NextWeights(Stage& stage, bool keep);
  absl::StatusOr<Tensor> DoAddToSum(const Stage& stage, const Tensor& before, const Tensor& gradient);
  absl::StatusOr<Tensor> DoSumSquares(const Stage& stage, const Tensor& sum, int part, int parts,
                                      const std::vector<Tensor>& others);
  absl::StatusOr<Tensor> NewZeroLimbs();
  absl::StatusOr<Tensor> ClipFactorOf(const Tensor& norm);
  absl::StatusOr<bool> Skips(const Tensor& norm) const;
  absl::Status SkipUpdate(Stage& stage, bool keep);
  absl::Status CheckUpdate(const Stage& stage, const std::vector<Tensor>& gradients, const float* weights);
  absl::Status ApplyUpdate(Stage& stage, int step, const std::vector<Tensor>& parts, const Tensor& norm,
                           bool keep);
  absl::Status DoAdopt(Stage& stage, const Tensor& weights, bool keep);

  const RunSpec run_;
  const std::unique_ptr<Dataset> data_;
  const std::vector<std::unique_ptr<Layer>> layers_;
  // True if passes may be captured: weights stay in their place.
  const bool capturable_;
  const bool split_backward_;
  const std::unique_ptr<RankDevice> device_;
  const std::function<void()> prepare_thread_;
  const at::Tensor loss_gradient_;  // gradient of the step's loss by one micro-batch's
  std::once_flag rules_once_;
  absl::StatusOr<std::vector<StateRule>> rules_ = std::vector<StateRule>();
  std::map<int, std::unique_ptr<Stage>> stages_;
  WideRooms wide_rooms_;
  const std::unique_ptr<DataPrefetch> prefetch_;  // null where the device is the host
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_TORCH_RANK_H_
