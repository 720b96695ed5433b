// Implements TorchRank's stages, gradient sums and updates.
#include "worker/shell/torch/torch_rank.h"

#include <ATen/ops/full.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "run/learning_rate.h"
#include "worker/shell/compute/non_finite.h"
#include "worker/shell/compute/stage_update.h"
#include "worker/shell/compute/sum_of_squares.h"
#include "worker/shell/torch/torch_guard.h"

namespace weft {
namespace {

std::optional<Schedule> KnownSchedule(const RunSpec& run) {
  if (run.schedule.name.empty()) return std::nullopt;
  absl::StatusOr<Schedule> schedule = ScheduleOf(run);
  if (!schedule.ok()) return std::nullopt;
  return *std::move(schedule);
}

bool IsCapturable(const RunSpec& run) {
  const std::optional<Schedule> schedule = KnownSchedule(run);
  return !schedule.has_value() || schedule->MostStaleness() == 0;
}

bool SplitsBackward(const RunSpec& run) {
  const std::optional<Schedule> schedule = KnownSchedule(run);
  return schedule.has_value() && schedule->split_backward;
}

// Returns the pieces of the data that the forwards of a rank read, by step; nothing if the run has no
// schedule.
DataPrefetch::OfStep PiecesOf(const RunSpec& run, Rank rank) {
  std::optional<Schedule> known = KnownSchedule(run);
  if (!known.has_value()) return [](int) { return std::vector<DataPiece>(); };
  std::vector<int> readers;
  for (int s = 0; s < run.stages(); ++s) {
    if (LayOutStage(run, s).reads_data) readers.push_back(s);
  }
  return [schedule = *std::move(known), readers, rank](int step) {
    std::vector<DataPiece> pieces;
    const auto runs = [&](int stage, int b) {
      return schedule.compute(Job::Compute(step, stage, b, JobKind::kForward)) == rank;
    };
    for (int b = 0; b < schedule.microbatches; ++b) {
      for (const int stage : readers) {
        if (runs(stage, b)) pieces.push_back({step, b, false});
      }
      if (runs(schedule.stages - 1, b)) pieces.push_back({step, b, true});
    }
    return pieces;
  };
}

}  // namespace

TorchRank::TorchRank(const RunSpec& run, Rank rank, std::unique_ptr<Dataset> data,
                     std::unique_ptr<RankDevice> device, std::function<void()> prepare_thread)
    : run_(run),
      data_(std::move(data)),
      layers_(BuildLayers(run.model)),
      capturable_(device->captures() && IsCapturable(run)),
      split_backward_(SplitsBackward(run)),
      device_(std::move(device)),
      prepare_thread_(std::move(prepare_thread)),
      loss_gradient_(at::full({}, 1.0f / static_cast<float>(run.train.microbatches),
                              c10::TensorOptions().dtype(c10::kFloat).device(device_->torch_device()))),
      prefetch_(device_->is_host() ? nullptr
                                   : std::make_unique<DataPrefetch>(
                                         [this](const DataPiece& piece) { return SendPiece(piece); },
                                         PiecesOf(run, rank), run.end_step())) {}

BytesByClass TorchRank::live_bytes() const { return device_->live_bytes(); }
BytesByClass TorchRank::peak_bytes() const { return device_->peak_bytes(); }

void TorchRank::BeginJob(const Job& job, bool beside) {
  prepare_thread_();
  device_->BeginJob(job, beside);
}

std::shared_ptr<LaunchedJob> TorchRank::EndJob() { return device_->EndJob(); }

absl::StatusOr<Tensor> TorchRank::ToHost(Tensor tensor) {
  if (device_->is_host() || tensor.place == MemoryPlace::kHost) return tensor;
  return Compute([] { return "copying a tensor to the host"; },
                 [&] { return device_->ToHost(tensor, HostUse::kTransfer); });
}

// Brings a job's input from others to the device, in the order of the job's work.
absl::StatusOr<Tensor> TorchRank::Here(Tensor tensor) {
  if (device_->is_host() || tensor.bytes == 0) return tensor;
  if (tensor.place == MemoryPlace::kDevice) return device_->Await(std::move(tensor));
  absl::StatusOr<Tensor> copy = device_->ToDevice(tensor, MemoryClass::kBuffers);
  if (!copy.ok()) return copy;
  return device_->Await(*std::move(copy));
}

absl::StatusOr<std::vector<Tensor>> TorchRank::AllHere(std::vector<Tensor> tensors) {
  if (device_->is_host()) return tensors;
  for (Tensor& tensor : tensors) {
    absl::StatusOr<Tensor> here = Here(std::move(tensor));
    if (!here.ok()) return here.status();
    tensor = *std::move(here);
  }
  return tensors;
}

absl::StatusOr<TorchRank::Stage*> TorchRank::StageOf(int stage) {
  const auto found = stages_.find(stage);
  if (found == stages_.end()) {
    return absl::FailedPreconditionError(absl::StrFormat("stage %d is not on this rank", stage));
  }
  return found->second.get();
}

absl::StatusOr<TorchRank::Stage*> TorchRank::HeldStage(int stage) {
  absl::StatusOr<Stage*> found = StageOf(stage);
  if (found.ok() && !(*found)->versions.held()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("this rank does not hold the weights of stage %d", stage));
  }
  return found;
}

absl::StatusOr<Tensor> TorchRank::NewZeros(int64_t elements, MemoryClass memory_class) {
  absl::StatusOr<Tensor> flat = device_->NewFlat(elements, memory_class);
  if (flat.ok()) device_->math().Zero(flat->data, flat->bytes);
  return flat;
}

absl::Status TorchRank::AddStage(int stage, bool holds_weights) {
  return Compute(
      [&] { return absl::StrCat("building stage ", stage); },
      [&] { return DoAddStage(stage, holds_weights ? Holding::kUpdated : Holding::kNothing, 0, 1); });
}

absl::Status TorchRank::AddSlicedStage(int stage, int part, int parts) {
  return Compute([&] { return absl::StrFormat("building slice %d of %d of stage %d", part, parts, stage); },
                 [&] { return DoAddStage(stage, Holding::kUpdated, part, parts); });
}

absl::Status TorchRank::AddAdoptedStage(int stage) {
  return Compute(
      [&] { return absl::StrCat("building stage ", stage, ", whose versions come from elsewhere"); },
      [&] { return DoAddStage(stage, Holding::kAdopted, 0, 1); });
}

absl::Status TorchRank::DoAddStage(int stage, Holding holding, int part, int parts) {
  if (stage < 0 || stage >= run_.stages() || stages_.count(stage) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the run has stages 0..%d, and each is added once", run_.stages() - 1));
  }
  if (part < 0 || part >= parts) {
    return absl::InvalidArgumentError(absl::StrFormat("there is no part %d among %d", part, parts));
  }
  const Charged charged(*device_, MemoryClass::kWeights);
  auto made = std::make_unique<Stage>(run_, stage, *device_);
  made->part = part;
  made->parts = parts;
  made->adopted = holding == Holding::kAdopted;
  if (holding != Holding::kNothing) {
    if (absl::Status s = Hold(*made); !s.ok()) return s;
  }
  stages_[stage] = std::move(made);
  return absl::OkStatus();
}

// Makes the weights that the rank holds of the stage when the run begins, and, if it updates them, the
// optimizer's state for them.
absl::Status TorchRank::Hold(Stage& stage) {
  const int64_t elements = stage.held().end - stage.held().begin;
  const int buffers = stage.adopted ? 0 : stage.optimizer.state_buffers();
  for (int i = 0; i < buffers; ++i) {
    absl::StatusOr<Tensor> state = NewZeros(elements, MemoryClass::kOptimizer);
    if (!state.ok()) return state.status();
    stage.optimizer_state.push_back(*std::move(state));
  }
  if (run_.first_step() > 0) return HoldSaved(stage);
  absl::StatusOr<std::shared_ptr<StageWeights>> initial = NewVersion(stage);
  if (!initial.ok()) return initial.status();
  if (absl::Status s = InitializeHeld(stage, **initial); !s.ok()) return s;
  stage.versions.Begin(0, *std::move(initial));
  return absl::OkStatus();
}

// Makes room for a version of the held weights, zeros.
absl::StatusOr<std::shared_ptr<StageWeights>> TorchRank::NewVersion(Stage& stage) {
  absl::StatusOr<Tensor> flat = NewZeros(stage.held().end - stage.held().begin, MemoryClass::kWeights);
  if (!flat.ok()) return flat.status();
  std::shared_ptr<StageWeights> weights = NewHeldWeights(stage);
  weights->Bind(*std::move(flat));
  return weights;
}

// Makes room, without memory yet, for the held weights. A slice has no parameters of its own: it begins and
// ends within them.
std::shared_ptr<StageWeights> TorchRank::NewHeldWeights(Stage& stage) {
  if (stage.parts == 1) return stage.TakeSpare();
  StageLayout slice = stage.layout;
  slice.slots.clear();
  slice.elements = stage.held().end - stage.held().begin;
  return std::make_shared<StageWeights>(slice, stage.device, stage.precision);
}

absl::StatusOr<Tensor> TorchRank::GatherWeights(const Job& job, const std::vector<Tensor>& slices,
                                                int version) {
  return Compute([&] { return absl::StrCat("gathering the weights for ", Describe(job)); },
                 [&] { return DoGather(job.stage, slices, version); });
}

absl::StatusOr<Tensor> TorchRank::DoGather(int stage, const std::vector<Tensor>& slices, int version) {
  absl::StatusOr<Stage*> found = StageOf(stage);
  if (!found.ok()) return found.status();
  const Stage& s = **found;
  const int parts = static_cast<int>(slices.size());
  absl::StatusOr<Tensor> whole = device_->NewFlat(s.layout.elements, MemoryClass::kBuffers);
  if (!whole.ok()) return whole.status();
  const std::shared_ptr<StageWeights> held = s.versions.At(version);
  for (int part = 0; part < parts; ++part) {
    const bool own = slices[part].empty() && held != nullptr && s.part == part && s.parts == parts;
    const absl::StatusOr<Tensor> slice = own ? held->memory() : Here(slices[part]);
    if (!slice.ok()) return slice.status();
    const Tensor place = Slice(*whole, part, parts);
    const int64_t elements = static_cast<int64_t>(place.bytes / sizeof(float));
    if (absl::Status status = CheckFlat("slices of the weights", *slice, elements); !status.ok())
      return status;
    if (elements > 0) device_->math().Copy(place.data, slice->data, place.bytes);
  }
  return whole;
}

absl::StatusOr<Tensor> TorchRank::RoomForWeights(const Job& job) {
  return Compute([&] { return absl::StrCat("making room for the weights for ", Describe(job)); },
                 [&]() -> absl::StatusOr<Tensor> {
                   absl::StatusOr<Stage*> stage = StageOf(job.stage);
                   if (!stage.ok()) return stage.status();
                   return device_->NewFlat((*stage)->layout.elements, MemoryClass::kBuffers);
                 });
}

absl::Status TorchRank::Accumulate(const Job& job, int microbatch, const Tensor& slice, int part, int parts) {
  auto what = [&] { return absl::StrFormat("adding micro-batch %d in %s", microbatch, Describe(job)); };
  return Compute(what, [&]() -> absl::Status {
    absl::StatusOr<Stage*> stage = HeldStage(job.stage);
    if (!stage.ok()) return stage.status();
    const absl::StatusOr<Tensor> here = Here(slice);
    return here.ok() ? (*stage)->sums.Add(job.step, microbatch, *here, part, parts) : here.status();
  });
}

absl::StatusOr<Tensor> TorchRank::AddToSum(const Job& job, const Tensor& before, Tensor gradient) {
  return Compute([&] { return Describe(job); },
                 [&]() -> absl::StatusOr<Tensor> {
                   absl::StatusOr<Stage*> stage = StageOf(job.stage);
                   return stage.ok() ? DoAddToSum(**stage, before, gradient) : stage.status();
                 });
}

absl::StatusOr<Tensor> TorchRank::DoAddToSum(const Stage& stage, const Tensor& before,
                                             const Tensor& gradient) {
  const int64_t elements = stage.layout.elements;
  absl::Status s = CheckFlat("summed gradients", before, elements);
  if (s.ok()) s = CheckFlat("gradients", gradient, elements);
  if (!s.ok()) return s;
  const absl::StatusOr<Tensor> others = Here(before);
  if (!others.ok()) return others.status();
  absl::StatusOr<Tensor> sum = Here(gradient);
  if (!sum.ok()) return sum;
  // The bits are the same either way round.
  device_->math().Add(static_cast<float*>(sum->data), static_cast<const float*>(others->data), elements);
  return sum;
}

absl::Status TorchRank::SumOwnGradients(int stage) {
  absl::StatusOr<Stage*> held = HeldStage(stage);
  if (!held.ok()) return held.status();
  (*held)->sums.SumWhatComes();
  return absl::OkStatus();
}

absl::StatusOr<Tensor> TorchRank::TakeSum(const Job& job, int part, int parts) {
  return Compute([&] { return Describe(job); },
                 [&]() -> absl::StatusOr<Tensor> {
                   absl::StatusOr<Stage*> stage = HeldStage(job.stage);
                   return stage.ok() ? (*stage)->sums.Take(job.step, part, parts) : stage.status();
                 });
}

absl::StatusOr<Tensor> TorchRank::SumSquares(const Job& job, const Tensor& sum, int part, int parts,
                                             const std::vector<Tensor>& others) {
  return Compute([&] { return Describe(job); },
                 [&]() -> absl::StatusOr<Tensor> {
                   absl::StatusOr<Stage*> stage = HeldStage(job.stage);
                   return stage.ok() ? DoSumSquares(**stage, sum, part, parts, others) : stage.status();
                 });
}

// Makes a sum of no squares.
absl::StatusOr<Tensor> TorchRank::NewZeroLimbs() {
  absl::StatusOr<Tensor> squares =
      device_->NewFlat(SumOfSquares::kLimbs, MemoryClass::kBuffers, DataType::kInt64);
  if (squares.ok()) device_->math().Zero(squares->data, squares->bytes);
  return squares;
}

absl::StatusOr<Tensor> TorchRank::DoSumSquares(const Stage& stage, const Tensor& sum, int part, int parts,
                                               const std::vector<Tensor>& others) {
  const SliceBounds bounds = SliceOf(stage.layout.elements, part, parts);
  const int64_t elements = bounds.end - bounds.begin;
  if (absl::Status s = CheckFlat("summed gradients", sum, elements); !s.ok()) return s;
  const FlatMath& math = device_->math();
  absl::StatusOr<Tensor> squares = NewZeroLimbs();
  if (!squares.ok()) return squares.status();
  auto* const limbs = static_cast<uint64_t*>(squares->data);
  const absl::StatusOr<Tensor> summed = Here(sum);
  if (!summed.ok()) return summed.status();
  AddSquares(math, stage.layout, bounds.begin, elements, static_cast<const float*>(summed->data), limbs);
  for (const Tensor& other : others) {
    if (absl::Status s = SumOfSquares::CheckShape(other); !s.ok()) return s;
    const absl::StatusOr<Tensor> more = Here(other);
    if (!more.ok()) return more.status();
    math.AddSums(limbs, static_cast<const uint64_t*>(more->data));
  }
  if (!device_->is_host()) {
    device_->ReportSquares(*squares);
    return squares;
  }
  const absl::StatusOr<SumOfSquares> made = SumOfSquares::FromTensor(*squares);
  if (!made.ok()) return made.status();
  // Others that stop have not sent a sum without a norm.
  if (made->has_norm() || run_.train.non_finite != NonFinite::kStop) return squares;
  return NonFiniteGradient(stage.layout, bounds.begin, elements, static_cast<const float*>(sum.data));
}

// Returns true if the step's gradients have no norm, and the run leaves its updates out. Only on the host:
// other devices do not know it in time (torch_device.cc refuses such runs).
absl::StatusOr<bool> TorchRank::Skips(const Tensor& norm) const {
  if (run_.train.non_finite != NonFinite::kSkip) return false;
  const absl::StatusOr<SumOfSquares> total = SumOfSquares::FromTensor(norm);
  if (!total.ok()) return total.status();
  return !total->has_norm();
}

// Makes the next version equal to the newest; the optimizer's state and steps stay.
absl::Status TorchRank::SkipUpdate(Stage& stage, bool keep) {
  const std::shared_ptr<StageWeights> newest = stage.versions.newest();
  absl::StatusOr<std::shared_ptr<StageWeights>> next = NextWeights(stage, keep);
  if (!next.ok()) return next.status();
  if (*next != newest) {
    device_->math().Copy((*next)->data(), newest->data(), newest->memory().bytes);
    (*next)->Changed();
  }
  stage.versions.Add(*std::move(next), keep);
  return absl::OkStatus();
}

// Checks that the weights that an update made of `gradients` are finite; a device with memory of its own
// reports that with the job.
absl::Status TorchRank::CheckUpdate(const Stage& stage, const std::vector<Tensor>& gradients,
                                    const float* weights) {
  const SliceBounds held = stage.held();
  const int64_t elements = held.end - held.begin;
  if (run_.train.non_finite == NonFinite::kContinue || elements == 0) return absl::OkStatus();
  if (!device_->is_host()) {
    const absl::StatusOr<Tensor> squares = NewZeroLimbs();
    if (!squares.ok()) return squares.status();
    device_->math().AddSquares(static_cast<uint64_t*>(squares->data), weights, elements);
    device_->ReportSquares(*squares);
    return absl::OkStatus();
  }
  const int count = static_cast<int>(gradients.size());
  for (int i = 0; i < count; ++i) {
    const SliceBounds part = SliceOf(elements, i, count);
    absl::Status s = CheckUpdated(run_, stage.layout, held.begin + part.begin, part.end - part.begin,
                                  weights + part.begin, static_cast<const float*>(gradients[i].data));
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

// Returns one float of the device, by which the gradients of a step with this norm are multiplied; empty for
// 1.
absl::StatusOr<Tensor> TorchRank::ClipFactorOf(const Tensor& norm) {
  if (run_.train.clip_norm == 0) return Tensor();
  if (absl::Status s = SumOfSquares::CheckShape(norm); !s.ok()) return s;
  const absl::StatusOr<Tensor> limbs = Here(norm);
  if (!limbs.ok()) return limbs.status();
  absl::StatusOr<Tensor> factor = device_->NewFlat(1, MemoryClass::kBuffers);
  if (!factor.ok()) return factor.status();
  device_->math().ClipFactor(static_cast<float*>(factor->data), static_cast<const uint64_t*>(limbs->data),
                             run_.train.clip_norm);
  return factor;
}

absl::Status TorchRank::Update(const Job& job, const std::vector<Tensor>& sums, const Tensor& norm,
                               bool keep) {
  std::vector<Tensor> parts = sums;
  if (parts.empty()) {
    absl::StatusOr<Tensor> own = TakeSum(job, 0, 1);
    if (!own.ok()) return own.status();
    parts.push_back(*std::move(own));
  }
  return Compute([&] { return Describe(job); },
                 [&]() -> absl::Status {
                   absl::StatusOr<Stage*> stage = HeldStage(job.stage);
                   if (!stage.ok()) return stage.status();
                   return ApplyUpdate(**stage, job.step, parts, norm, keep);
                 });
}

// Returns the memory for the next version: over the newest, or, if that one stays or is in use, beside it.
absl::StatusOr<std::shared_ptr<StageWeights>> TorchRank::NextWeights(Stage& stage, bool keep) {
  const std::shared_ptr<StageWeights> newest = stage.versions.newest();
  if (!keep && !newest->in_use()) return newest;
  const int64_t elements = stage.held().end - stage.held().begin;
  absl::StatusOr<Tensor> flat = device_->NewFlat(elements, MemoryClass::kWeights);
  if (!flat.ok()) return flat.status();
  std::shared_ptr<StageWeights> next = NewHeldWeights(stage);
  next->Bind(*std::move(flat));
  return next;
}

absl::Status TorchRank::ApplyUpdate(Stage& stage, int step, const std::vector<Tensor>& parts,
                                    const Tensor& norm, bool keep) {
  if (stage.adopted) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "stage %d is updated by another rank; this one adopts its versions", stage.layout.stage));
  }
  const int64_t elements = stage.held().end - stage.held().begin;
  const int count = static_cast<int>(parts.size());
  const absl::StatusOr<std::vector<Tensor>> gradients = AllHere(parts);
  if (!gradients.ok()) return gradients.status();
  for (int i = 0; i < count; ++i) {
    const SliceBounds bounds = SliceOf(elements, i, count);
    if (absl::Status s = CheckFlat("summed gradients", parts[i], bounds.end - bounds.begin); !s.ok())
      return s;
  }
  const absl::StatusOr<bool> skips = Skips(norm);
  if (!skips.ok()) return skips.status();
  if (*skips) return SkipUpdate(stage, keep);
  const absl::StatusOr<Tensor> factor = ClipFactorOf(norm);
  if (!factor.ok()) return factor.status();
  const std::shared_ptr<StageWeights> newest = stage.versions.newest();
  absl::StatusOr<std::shared_ptr<StageWeights>> made = NextWeights(stage, keep);
  if (!made.ok()) return made.status();
  std::shared_ptr<StageWeights> next = *std::move(made);
  stage.optimizer.Begin(LearningRateAt(run_.train, step));
  for (int i = 0; i < count; ++i) {
    const SliceBounds bounds = SliceOf(elements, i, count);
    Optimizer::State state{};
    for (size_t k = 0; k < stage.optimizer_state.size(); ++k) {
      state[k] = static_cast<float*>(stage.optimizer_state[k].data) + bounds.begin;
    }
    UpdateRange(device_->math(), stage.optimizer, stage.layout, run_.train.microbatches,
                stage.held().begin + bounds.begin, bounds.end - bounds.begin, newest->data() + bounds.begin,
                next->data() + bounds.begin, static_cast<const float*>((*gradients)[i].data), state,
                static_cast<const float*>(factor->data));
  }
  if (absl::Status s = CheckUpdate(stage, *gradients, next->data()); !s.ok()) return s;
  next->Changed();
  stage.versions.Add(std::move(next), keep);
  return absl::OkStatus();
}

absl::Status TorchRank::Adopt(const Job& job, const Tensor& weights, bool keep) {
  return Compute([&] { return Describe(job); },
                 [&]() -> absl::Status {
                   absl::StatusOr<Stage*> stage = HeldStage(job.stage);
                   return stage.ok() ? DoAdopt(**stage, weights, keep) : stage.status();
                 });
}

// Adopts a copy, so that the arrived tensor is given back at once: it may be another process's memory.
absl::Status TorchRank::DoAdopt(Stage& stage, const Tensor& weights, bool keep) {
  if (absl::Status s = CheckFlat("weights", weights, stage.layout.elements); !s.ok()) return s;
  const absl::StatusOr<Tensor> made = Here(weights);
  if (!made.ok()) return made.status();
  absl::StatusOr<std::shared_ptr<StageWeights>> next = NextWeights(stage, keep);
  if (!next.ok()) return next.status();
  device_->math().Copy((*next)->data(), made->data, made->bytes);
  (*next)->Changed();
  stage.versions.Add(*std::move(next), keep);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> TorchRank::Weights(int stage, int version) {
  absl::StatusOr<Stage*> found = HeldStage(stage);
  if (!found.ok()) return found.status();
  std::shared_ptr<StageWeights> held = (*found)->versions.At(version);
  if (held == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrFormat("this rank does not hold version %d of the weights of stage %d any more, or not yet",
                        version, stage));
  }
  Tensor weights = held->memory();
  weights.owner = StageWeights::Use(std::move(held));
  return weights;
}

void TorchRank::DropWeights(int stage, int version) {
  const auto found = stages_.find(stage);
  if (found == stages_.end()) return;
  std::shared_ptr<StageWeights> dropped = found->second->versions.Drop(version);
  // Nobody can begin to use these weights any more, and a user keeps them alive. A next version takes the
  // leaves over.
  if (dropped.use_count() != 1 || found->second->parts > 1) return;
  dropped->Unbind();
  found->second->GiveSpare(std::move(dropped));
}

}  // namespace weft
