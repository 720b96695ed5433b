// Makes devices whose ranks compute through LibTorch: the CPU, one thread a kernel, and those of a backend.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "run/model_layers.h"
#include "run/run_schedule.h"
#include "schedules/sync/catalogue.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/data/data.h"
#include "worker/shell/reference/evaluate.h"
#include "worker/shell/torch/cpu_rank_device.h"
#include "worker/shell/torch/graph_layer.h"
#include "worker/shell/torch/host_offload.h"
#include "worker/shell/torch/memory_scope.h"
#include "worker/shell/torch/torch_context.h"
#include "worker/shell/torch/torch_guard.h"
#include "worker/shell/torch/torch_rank.h"

namespace weft {
namespace {

// Opens the run's data, if its stages are the model's.
absl::StatusOr<std::unique_ptr<Dataset>> OpenData(const RunSpec& run) {
  int layers = 0;
  for (int n : run.layers_of_stage) layers += n;
  const int described = static_cast<int>(DescribeLayers(run.model).size());
  if (layers != described) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the stages have %d layers, the model has %d", layers, described));
  }
  if (absl::Status s = CheckGraphs(run); !s.ok()) return s;
  return Dataset::Open(run);
}

absl::StatusOr<Evaluation> ValidateOnHost(const RunSpec& run, const std::string& folder,
                                          const EvaluationProgress& on_progress) {
  const absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(folder, run.model);
  if (!checkpoint.ok()) return checkpoint.status();
  return EvaluateHeldOut(run, *checkpoint, on_progress);
}

class CpuDevice final : public Device {
 public:
  absl::string_view name() const override { return "cpu"; }

  absl::StatusOr<Evaluation> Validate(const RunSpec& run, const std::string& folder,
                                      const EvaluationProgress& on_progress) override {
    return ValidateOnHost(run, folder, on_progress);
  }

  absl::StatusOr<std::unique_ptr<RankCompute>> CreateRank(const ScheduledRun& run, Rank rank,
                                                          MemorySource& memory) override {
    auto what = [&] { return absl::StrCat("rank ", rank); };
    return Guarded(what, [&]() -> absl::StatusOr<std::unique_ptr<RankCompute>> {
      const absl::StatusOr<PreparedRun> prepared = PrepareRun(run.spec);
      if (!prepared.ok()) return prepared.status();
      absl::StatusOr<std::unique_ptr<Dataset>> data = OpenData(run.spec);
      if (!data.ok()) return data.status();
      return std::unique_ptr<RankCompute>(new TorchRank(run, rank, *prepared, *std::move(data),
                                                        std::make_unique<CpuRankDevice>(memory), [] {}));
    });
  }
};

// Refuses migrating states. A state has a head that its next rank reads on the host, in the job that takes it
// over; where the device's memory is not the host's, that would wait for the device in every job.
absl::Status CheckNothingMigrates(const ScheduledRun& run, absl::string_view device) {
  if (run.schedule == nullptr || !IsMigrating(*run.schedule->scheme.sync)) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrFormat("the schedule %s moves the states of stages from rank to rank, which %s cannot do: use "
                      "--device cpu, or choose a schedule whose weights stay on their ranks",
                      run.spec.schedule.name, device));
}

// Refuses skipped updates. The host counts the optimizer's steps, and would have to wait in each update for
// the device's earlier findings.
absl::Status CheckNothingSkips(const RunSpec& run, const std::string& device) {
  if (run.train.non_finite != NonFinite::kSkip) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrFormat(
      "train.non_finite: skip works on the CPU only, and this rank is on %s; use stop or continue, "
      "or run it with --device cpu",
      device));
}

class TorchDevice final : public Device {
 public:
  explicit TorchDevice(std::unique_ptr<DeviceBackend> backend) : backend_(std::move(backend)) {}

  absl::string_view name() const override { return backend_->name(); }
  absl::string_view uuid() const override { return backend_->uuid(); }
  CommunicationLibrary* communication() override { return backend_->communication(); }
  void PrepareThread() override { backend_->PrepareThread(); }
  absl::Status Health() override { return backend_->Health(); }
  absl::StatusOr<Evaluation> Validate(const RunSpec& run, const std::string& folder,
                                      const EvaluationProgress& on_progress) override {
    return ValidateOnHost(run, folder, on_progress);
  }
  int launch_ahead() const override {
    // The device has one job that computes, and one that it can begin without asking the host.
    constexpr int kLaunchAhead = 2;
    return kLaunchAhead;
  }

  absl::StatusOr<std::unique_ptr<RankCompute>> CreateRank(const ScheduledRun& run, Rank rank,
                                                          MemorySource& memory) override {
    auto what = [&] { return absl::StrCat("rank ", rank, " on ", backend_->name()); };
    return Guarded(what, [&]() -> absl::StatusOr<std::unique_ptr<RankCompute>> {
      backend_->PrepareThread();
      if (absl::Status s = CheckNothingMigrates(run, backend_->name()); !s.ok()) return s;
      if (absl::Status s = CheckNothingSkips(run.spec, backend_->name()); !s.ok()) return s;
      const absl::StatusOr<PreparedRun> prepared = PrepareRun(run.spec);
      if (!prepared.ok()) return prepared.status();
      absl::StatusOr<std::unique_ptr<Dataset>> data = OpenData(run.spec);
      if (!data.ok()) return data.status();
      absl::StatusOr<std::unique_ptr<RankDevice>> device = backend_->CreateRankDevice(rank, memory);
      if (!device.ok()) return device.status();
      return std::unique_ptr<RankCompute>(new TorchRank(
          run, rank, *prepared, *std::move(data), *std::move(device), [this] { backend_->PrepareThread(); }));
    });
  }

 private:
  const std::unique_ptr<DeviceBackend> backend_;
};

}  // namespace

std::unique_ptr<Device> CreateCpuDevice() {
  PrepareProcess();
  InstallTorchAllocator();
  InstallOffloadEngine();
  return std::make_unique<CpuDevice>();
}

std::unique_ptr<Device> CreateTorchDevice(std::unique_ptr<DeviceBackend> backend) {
  PrepareProcess();
  InstallOffloadEngine();
  return std::make_unique<TorchDevice>(std::move(backend));
}

}  // namespace weft
