#include "worker/shell/torch/torch_rank.h"

#include <ATen/ops/full.h>

#include <cstdio>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/require.h"
#include "run/received_copies.h"
#include "worker/shell/torch/stage_packing.h"

namespace weft {
namespace {

// Returns the pieces of the data that the forwards of a rank read, by step; nothing if the run has no
// schedule.
DataPrefetch::OfStep PiecesOf(const ScheduledRun& run, Rank rank) {
  if (run.schedule == nullptr) return [](int) { return std::vector<DataPiece>(); };
  std::vector<int> readers;
  const bool has_targets = !std::holds_alternative<ExportedSpec>(run.spec.model);
  for (int s = 0; s < run.spec.stages(); ++s) {
    if (LayOutStage(run.spec, s).reads_data) readers.push_back(s);
  }
  return [schedule = run.schedule, readers, has_targets, rank](int step) {
    std::vector<DataPiece> pieces;
    const auto runs = [&](int stage, int b) {
      return schedule->scheme.compute(Job::Compute(step, stage, b, JobKind::kForward)) == rank;
    };
    for (int b = 0; b < schedule->scheme.microbatches; ++b) {
      for (const int stage : readers) {
        if (runs(stage, b)) pieces.push_back({step, b, false});
      }
      if (has_targets && runs(schedule->scheme.stages - 1, b)) pieces.push_back({step, b, true});
    }
    return pieces;
  };
}

// Returns true if passes may be captured. A captured pass keeps its rooms and the gradients of all parameters
// as long as it lives. Measured buffers have no room for that, and a run that is admitted by them ends where
// a rank has more than its budget (CheckBudget).
bool Captures(const ScheduledRun& run, Rank rank, const RankDevice& device) {
  const bool stale = run.schedule != nullptr && run.schedule->scheme.MaxStaleness() > 0;
  if (!device.captures() || stale) return false;
  if (run.spec.memory == 0 || !run.spec.buffers.has_value()) return true;
  std::fprintf(stderr,
               "weft: rank %d runs without graphs, with the same bits: the run has a memory budget with "
               "measured buffers, and these do not count what captured passes keep\n",
               rank);
  return false;
}

// Returns the words for a failure of a job.
auto Naming(const Job& job) {
  return [&job] { return Describe(job); };
}

}  // namespace

TorchRank::TorchRank(const ScheduledRun& run, Rank rank, PreparedRun prepared, std::unique_ptr<Dataset> data,
                     std::unique_ptr<RankDevice> device, std::function<void()> prepare_thread)
    : prepared_(std::move(prepared)),
      run_(run),
      device_(std::move(device)),
      guard_(*device_, std::move(prepare_thread)),
      model_{run_.spec,
             BuildLayers(run.spec.model),
             at::full({}, 1.0f / static_cast<float>(run.spec.train.microbatches),
                      c10::TensorOptions().dtype(c10::kFloat).device(device_->torch_device())),
             std::make_unique<LossCounts>(run_.spec),
             /*capturable=*/Captures(run_, rank, *device_),
             /*split_backward=*/run.schedule != nullptr && run.schedule->scheme.split_backward},
      files_(run_, *device_),
      data_(run_.spec, std::move(data), *device_, guard_, PiecesOf(run_, rank)) {}

// ---- The rank's calls.

absl::StatusOr<TorchRank::Stage*> TorchRank::StageOf(int stage) {
  const auto found = stages_.find(stage);
  if (found == stages_.end()) {
    return absl::FailedPreconditionError(absl::StrFormat("stage %d is not on this rank", stage));
  }
  return found->second.get();
}

absl::StatusOr<TorchRank::Stage*> TorchRank::HeldStageOf(int stage) {
  absl::StatusOr<Stage*> found = StageOf(stage);
  if (found.ok() && !(*found)->held.holds()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("this rank does not hold the weights of stage %d", stage));
  }
  return found;
}

template <typename What, typename F>
auto TorchRank::InStage(int stage, What what, F f) -> decltype(f(std::declval<Stage&>())) {
  return guard_.Run(what, [&]() -> decltype(f(std::declval<Stage&>())) {
    const absl::StatusOr<Stage*> found = StageOf(stage);
    if (!found.ok()) return found.status();
    return f(**found);
  });
}

template <typename What, typename F>
auto TorchRank::InHeldStage(int stage, What what, F f) -> decltype(f(std::declval<Stage&>())) {
  return guard_.Run(what, [&]() -> decltype(f(std::declval<Stage&>())) {
    const absl::StatusOr<Stage*> found = HeldStageOf(stage);
    if (!found.ok()) return found.status();
    return f(**found);
  });
}

void TorchRank::BeginJob(const Job& job, bool overlapped) {
  guard_.PrepareThread();
  device_->BeginJob(job, overlapped);
}

std::shared_ptr<LaunchedJob> TorchRank::EndJob() { return device_->EndJob(); }

absl::StatusOr<Tensor> TorchRank::ToHost(Tensor tensor) {
  if (device_->is_host() || tensor.place == MemoryPlace::kHost) return tensor;
  return guard_.Run([] { return "copying a tensor to the host"; },
                    [&] { return device_->ToHost(tensor, HostUse::kTransfer); });
}

absl::StatusOr<std::shared_ptr<void>> TorchRank::MemoryToReceive(size_t bytes) {
  const RunSpec& spec = run_.spec;
  if (spec.memory > 0 && !IsCopied(spec, static_cast<int64_t>(bytes))) {
    return absl::FailedPreconditionError(
        absl::StrFormat("a copy of %d bytes (class received) is not in the memory budget of %d bytes: the "
                        "processes share no memory, or this process cannot read the memory of the one that "
                        "made the tensor; set separate_memory: true in the run file",
                        bytes, spec.memory));
  }
  // The transport has memory of the device, and of the host for what is copied there (job_inputs.h).
  if (!device_->is_host()) return nullptr;
  absl::StatusOr<Tensor> room =
      device_->NewFlat(static_cast<int64_t>(bytes), MemoryClass::kReceived, DataType::kUInt8);
  if (!room.ok()) return room.status();
  return std::move(room->owner);
}

BytesByClass TorchRank::live_bytes() const { return device_->live_bytes(); }
BytesByClass TorchRank::peak_bytes() const { return device_->peak_bytes(); }
int64_t TorchRank::most_bytes() const { return device_->most_bytes(); }
std::optional<JobBytes> TorchRank::job_bytes() const { return device_->job_bytes(); }

absl::Status TorchRank::CheckBudget() const {
  const RunSpec& spec = run_.spec;
  if (spec.memory == 0 || !spec.buffers.has_value() || most_bytes() <= spec.memory) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "the rank had %d bytes at a time, more than the memory budget of %d bytes, because its "
      "jobs took more than the measured `buffers` of the run say; measure them on this machine "
      "with weft profile, or leave `buffers` out",
      most_bytes(), spec.memory));
}

// ---- Passes.

absl::StatusOr<ForwardResult> TorchRank::Forward(const Job& job, std::vector<Tensor> inputs, Tensor weights,
                                                 int version) {
  return InStage(job.stage, Naming(job), [&](Stage& stage) {
    return stage.passes.Forward(job, std::move(inputs), std::move(weights), version, /*leaves_pass=*/true);
  });
}

absl::StatusOr<ForwardResult> TorchRank::ForwardOnly(const Job& job, std::vector<Tensor> inputs,
                                                     Tensor weights, int version) {
  return InStage(job.stage, Naming(job), [&](Stage& stage) {
    return stage.passes.Forward(job, std::move(inputs), std::move(weights), version, /*leaves_pass=*/false);
  });
}

absl::Status TorchRank::TakePass(const Job& job, std::vector<Tensor> inputs) {
  return InStage(job.stage, Naming(job), [&](Stage& stage) { return stage.passes.TakePass(job, inputs); });
}

absl::StatusOr<BackwardResult> TorchRank::Backward(const Job& job, std::vector<Tensor> output_gradients,
                                                   Tensor weights, int version, bool hand_out) {
  return InStage(job.stage, Naming(job), [&](Stage& stage) {
    return stage.passes.Backward(job, output_gradients, std::move(weights), version, hand_out);
  });
}

// ---- Gradient sums and updates.

absl::Status TorchRank::Accumulate(const Job& job, int microbatch, const Tensor& slice, int part, int parts) {
  const auto what = [&] { return absl::StrFormat("adding micro-batch %d in %s", microbatch, Describe(job)); };
  return InHeldStage(job.stage, what, [&](Stage& stage) {
    return stage.held.Accumulate(job.step, microbatch, slice, part, parts);
  });
}

absl::StatusOr<Tensor> TorchRank::AddToSum(const Job& job, const Tensor& before, Tensor gradient) {
  return InStage(job.stage, Naming(job), [&](Stage& stage) { return stage.held.AddToSum(before, gradient); });
}

absl::StatusOr<Tensor> TorchRank::TakeSum(const Job& job, int part, int parts) {
  return InHeldStage(job.stage, Naming(job),
                     [&](Stage& stage) { return stage.held.sums().Take(job.step, part, parts); });
}

absl::StatusOr<Tensor> TorchRank::SumSquares(const Job& job, const Tensor& sum, int part, int parts,
                                             const std::vector<Tensor>& others) {
  return InHeldStage(job.stage, Naming(job),
                     [&](Stage& stage) { return stage.held.norm().SumSquares(sum, part, parts, others); });
}

absl::Status TorchRank::Update(const Job& job, const std::vector<Tensor>& sums, const Tensor& norm,
                               bool keep) {
  return InHeldStage(job.stage, Naming(job), [&](Stage& stage) -> absl::Status {
    if (!sums.empty()) return stage.held.Update(job.step, sums, norm, keep);
    absl::StatusOr<Tensor> own = stage.held.sums().Take(job.step, 0, 1);
    return own.ok() ? stage.held.Update(job.step, {*std::move(own)}, norm, keep) : own.status();
  });
}

absl::Status TorchRank::InstallWeights(const Job& job, const Tensor& weights, bool keep) {
  return InHeldStage(job.stage, Naming(job), [&](Stage& stage) { return stage.held.Install(weights, keep); });
}

// ---- Weights and states of stages.

absl::Status TorchRank::AddStage(int stage, const StageRole& role) {
  const auto what = [&] {
    const std::string slice =
        absl::StrFormat("building slice %d of %d of stage %d", role.part, role.parts, stage);
    return role.parts > 1 ? slice : absl::StrCat("building stage ", stage);
  };
  return guard_.Run(what, [&] { return DoAddStage(stage, role); });
}

absl::Status TorchRank::PrepareLayers(const StageLayout& layout) {
  for (int layer = layout.first_layer; layer < layout.end_layer; ++layer) {
    absl::Status s = model_.layers[layer]->Prepare(run_.spec.microbatch_samples(), device_->torch_device());
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status TorchRank::DoAddStage(int stage, const StageRole& role) {
  if (stage < 0 || stage >= run_.spec.stages() || stages_.count(stage) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the run has stages 0..%d, and each is added once", run_.spec.stages() - 1));
  }
  if (role.part < 0 || role.part >= role.parts) {
    return absl::InvalidArgumentError(absl::StrFormat("there is no part %d among %d", role.part, role.parts));
  }
  if (role.sums_own && !role.holds()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a rank that holds nothing of stage %d has no update for its gradient sum", stage));
  }
  const Charged charged(*device_, MemoryClass::kWeights);
  auto made = std::make_unique<Stage>(model_, stage, role, data_, *device_);
  if (absl::Status s = PrepareLayers(made->held.layout()); !s.ok()) return s;
  if (role.holds()) {
    if (absl::Status s = files_.Begin(&made->held); !s.ok()) return s;
  }
  stages_[stage] = std::move(made);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> TorchRank::Weights(int stage, int version) {
  const absl::StatusOr<Stage*> found = HeldStageOf(stage);
  return found.ok() ? (*found)->held.Share(version) : found.status();
}

void TorchRank::DropWeights(int stage, int version) {
  const absl::StatusOr<Stage*> found = StageOf(stage);
  if (found.ok()) (*found)->held.Drop(version);
}

absl::StatusOr<Tensor> TorchRank::GatherWeights(const Job& job, const std::vector<Tensor>& slices,
                                                int version) {
  const auto what = [&] { return absl::StrCat("gathering the weights for ", Describe(job)); };
  return InStage(job.stage, what, [&](Stage& stage) { return stage.held.Gather(slices, version); });
}

absl::StatusOr<Tensor> TorchRank::RoomForWeights(const Job& job) {
  const auto what = [&] { return absl::StrCat("making room for the weights for ", Describe(job)); };
  return InStage(job.stage, what, [&](Stage& stage) {
    return device_->NewFlat(stage.held.layout().elements, MemoryClass::kBuffers);
  });
}

// Returns the job's stage; aborts where the rank has its state and should not, or the other way round.
absl::StatusOr<TorchRank::Stage*> TorchRank::StageWithState(const Job& job, bool has_state,
                                                            const char* invariant) {
  absl::StatusOr<Stage*> stage = StageOf(job.stage);
  if (stage.ok() && (*stage)->held.holds() != has_state)
    BrokenInvariant(absl::StrCat(invariant, ", at ", Describe(job)).c_str());
  return stage;
}

absl::Status TorchRank::BeginState(const Job& job) {
  const absl::StatusOr<Stage*> stage =
      StageWithState(job, /*has_state=*/false, "a state begins on a rank that has it");
  if (!stage.ok()) return stage.status();
  return guard_.Run([&] { return absl::StrCat("beginning the state of stage ", job.stage); },
                    [&] {
                      const Charged charged(*device_, MemoryClass::kWeights);
                      return files_.Begin(&(*stage)->held);
                    });
}

absl::Status TorchRank::InstallState(const Job& job, Tensor state) {
  const absl::StatusOr<Stage*> stage =
      StageWithState(job, /*has_state=*/false, "a state comes to a rank that has it");
  if (!stage.ok()) return stage.status();
  return guard_.Run([&] { return absl::StrCat("taking over the state of the stage for ", Describe(job)); },
                    [&] { return UnpackState(state, *device_, &(*stage)->held); });
}

absl::StatusOr<Tensor> TorchRank::GiveState(const Job& job) {
  const absl::StatusOr<Stage*> stage =
      StageWithState(job, /*has_state=*/true, "a state leaves a rank that does not have it");
  if (!stage.ok()) return stage.status();
  return guard_.Run([&] { return absl::StrCat("handing on the state of the stage after ", Describe(job)); },
                    [&] { return PackState(*device_, &(*stage)->held); });
}

bool TorchRank::HasState(int stage) const {
  const auto found = stages_.find(stage);
  return found != stages_.end() && found->second->held.holds();
}

// ---- Files.

absl::Status TorchRank::Save(int stage, const std::string& folder) {
  const auto what = [&] { return absl::StrCat("saving stage ", stage); };
  return InHeldStage(stage, what, [&](Stage& s) { return files_.Save(s.held, folder); });
}

absl::Status TorchRank::BeginSnapshot(int stage, SnapshotMemory& memory) {
  const auto what = [&] { return absl::StrCat("taking a snapshot of stage ", stage); };
  return InHeldStage(stage, what, [&](Stage& s) { return files_.BeginSnapshot(s.held, memory); });
}

absl::Status TorchRank::BeginSave(int stage, const std::string& folder) {
  const auto what = [&] { return absl::StrCat("putting old weights of stage ", stage, " aside"); };
  return InHeldStage(stage, what, [&](Stage& s) { return files_.BeginSave(s.held, folder); });
}

absl::StatusOr<std::shared_ptr<const StageSnapshot>> TorchRank::Snapshot(int stage, SnapshotMemory& memory) {
  const auto what = [&] { return absl::StrCat("taking a snapshot of stage ", stage); };
  return InHeldStage(stage, what, [&](Stage& s) { return files_.Snapshot(s.held, memory); });
}

size_t TorchRank::SnapshotBytes(int stage) const {
  const auto found = stages_.find(stage);
  return found == stages_.end() ? 0 : files_.SnapshotBytes(found->second->held);
}

absl::Status TorchRank::SaveInitial(int stage, const std::string& folder) {
  const auto what = [&] { return absl::StrCat("saving stage ", stage); };
  return InStage(stage, what, [&](Stage& s) { return files_.SaveInitial(s.held.layout(), folder); });
}

absl::Status TorchRank::BeginFrom(int stage, const std::shared_ptr<const KeptStage>& kept) {
  const auto what = [&] { return absl::StrCat("beginning with the kept state of stage ", stage); };
  return InStage(stage, what, [&](Stage& s) {
    const Charged charged(*device_, MemoryClass::kWeights);
    files_.Keep(stage, kept);
    return s.held.role().holds() ? files_.Begin(&s.held) : absl::OkStatus();
  });
}

}  // namespace weft
