// CpuRank: stages, gradient sums, updates and files.
#include "worker/shell/compute/cpu_rank.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/run/learning_rate.h"
#include "proto/run/run_schedule.h"
#include "worker/shell/compute/checkpoint.h"
#include "worker/shell/compute/elementwise.h"
#include "worker/shell/compute/memory_scope.h"
#include "worker/shell/compute/stage_update.h"
#include "worker/shell/compute/sum_of_squares.h"
#include "worker/shell/compute/torch_guard.h"
#include "worker/shell/compute/training_state.h"

namespace weft {
namespace {

BytesByClass WithHost(BytesByClass bytes, const BytesByClass& host) {
  constexpr int kHost = static_cast<int>(MemoryClass::kHost);
  bytes[kHost] = host[kHost];
  return bytes;
}

}  // namespace

CpuRank::CpuRank(const RunSpec& run, std::unique_ptr<Dataset> data, MemorySource& memory)
    : run_(run),
      data_(std::move(data)),
      layers_(BuildLayers(run.model)),
      memory_(SegmentAllocator::Create(memory)),
      host_(SegmentAllocator::Create(host_memory_)),
      loss_gradient_(at::full({}, 1.0f / static_cast<float>(run.train.microbatches), c10::kFloat)) {}

BytesByClass CpuRank::live_bytes() const { return WithHost(memory_->live_bytes(), host_->live_bytes()); }
BytesByClass CpuRank::peak_bytes() const { return WithHost(memory_->peak_bytes(), host_->peak_bytes()); }

absl::StatusOr<CpuRank::Stage*> CpuRank::StageOf(int stage) {
  const auto found = stages_.find(stage);
  if (found == stages_.end()) {
    return absl::FailedPreconditionError(absl::StrFormat("stage %d is not on this rank", stage));
  }
  return found->second.get();
}

absl::StatusOr<CpuRank::Stage*> CpuRank::HeldStage(int stage) {
  absl::StatusOr<Stage*> found = StageOf(stage);
  if (found.ok() && !(*found)->versions.held()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("this rank does not hold the weights of stage %d", stage));
  }
  return found;
}

absl::StatusOr<Tensor> CpuRank::NewZeros(int64_t elements, MemoryClass memory_class) {
  absl::StatusOr<Tensor> flat = NewFlat(*memory_, elements, memory_class);
  if (flat.ok()) std::memset(flat->data, 0, flat->bytes);
  return flat;
}

absl::Status CpuRank::AddStage(int stage, bool holds_weights) {
  return Guarded(
      [&] { return absl::StrCat("building stage ", stage); },
      [&] { return DoAddStage(stage, holds_weights ? Holding::kUpdated : Holding::kNothing, 0, 1); });
}

absl::Status CpuRank::AddSlicedStage(int stage, int part, int parts) {
  return Guarded([&] { return absl::StrFormat("building slice %d of %d of stage %d", part, parts, stage); },
                 [&] { return DoAddStage(stage, Holding::kUpdated, part, parts); });
}

absl::Status CpuRank::AddAdoptedStage(int stage) {
  return Guarded(
      [&] { return absl::StrCat("building stage ", stage, ", whose versions come from elsewhere"); },
      [&] { return DoAddStage(stage, Holding::kAdopted, 0, 1); });
}

absl::Status CpuRank::DoAddStage(int stage, Holding holding, int part, int parts) {
  if (stage < 0 || stage >= run_.stages() || stages_.count(stage) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the run has stages 0..%d, and each is added once", run_.stages() - 1));
  }
  if (part < 0 || part >= parts) {
    return absl::InvalidArgumentError(absl::StrFormat("there is no part %d among %d", part, parts));
  }
  MemoryScope scope(memory_.get(), MemoryClass::kWeights);
  auto made = std::make_unique<Stage>(run_, stage, *memory_);
  made->part = part;
  made->parts = parts;
  made->adopted = holding == Holding::kAdopted;
  if (holding != Holding::kNothing) {
    if (absl::Status s = Hold(*made); !s.ok()) return s;
  }
  stages_[stage] = std::move(made);
  return absl::OkStatus();
}

// What the rank holds of the stage when the run begins, and, if it updates that, the optimizer's state for
// it.
absl::Status CpuRank::Hold(Stage& stage) {
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
  InitializeHeld(stage, **initial);
  stage.versions.Begin(0, *std::move(initial));
  return absl::OkStatus();
}

// As the checkpoint has it that the run goes on from: every version that its first steps may read.
absl::Status CpuRank::HoldSaved(Stage& stage) {
  const absl::StatusOr<std::vector<StateRule>> rules = StateRulesOf(run_);
  if (!rules.ok()) return rules.status();
  const StateRule& rule = rules->at(stage.layout.stage);
  const absl::StatusOr<SavedStage> saved = SavedStage::Read(run_, rule, stage.layout.stage);
  if (!saved.ok()) return saved.status();
  const int newest = run_.first_step(), oldest = static_cast<int>(rule.OldestRead(newest));
  for (int version = oldest; version <= newest; ++version) {
    absl::StatusOr<std::shared_ptr<StageWeights>> weights = NewVersion(stage);
    if (!weights.ok()) return weights.status();
    float* flat = (*weights)->data();
    if (version == newest) {
      saved->CopyNewest(stage.held(), flat);
    } else {
      saved->CopyBuffer(absl::StrCat("version", version), stage.held(), flat);
    }
    if (version == oldest) {
      stage.versions.Begin(version, *std::move(weights));
    } else {
      stage.versions.Add(*std::move(weights), /*keep=*/true);
    }
  }
  const std::vector<const char*> names = stage.optimizer.state_names();
  for (size_t i = 0; i < stage.optimizer_state.size(); ++i)
    saved->CopyBuffer(names[i], stage.held(), static_cast<float*>(stage.optimizer_state[i].data));
  stage.optimizer.Resume(newest);
  return absl::OkStatus();
}

// Room for a version of what the rank holds, zeros.
absl::StatusOr<std::shared_ptr<StageWeights>> CpuRank::NewVersion(Stage& stage) {
  absl::StatusOr<Tensor> flat = NewZeros(stage.held().end - stage.held().begin, MemoryClass::kWeights);
  if (!flat.ok()) return flat.status();
  std::shared_ptr<StageWeights> weights = NewHeldWeights(stage);
  weights->Bind(*std::move(flat));
  return weights;
}

// Room, without memory yet, for what the rank holds. A slice has no parameters of its own: it begins and ends
// within them.
std::shared_ptr<StageWeights> CpuRank::NewHeldWeights(Stage& stage) {
  if (stage.parts == 1) return stage.TakeSpare();
  StageLayout slice = stage.layout;
  slice.slots.clear();
  slice.elements = stage.held().end - stage.held().begin;
  return std::make_shared<StageWeights>(slice);
}

// A parameter's initial values depend on all of it, so one that a slice holds in part is made whole and cut.
void CpuRank::InitializeHeld(const Stage& stage, StageWeights& weights) const {
  MemoryScope scope(memory_.get(), MemoryClass::kBuffers);
  const SliceBounds held = stage.held();
  for (size_t i = 0; i < stage.layout.slots.size(); ++i) {
    const ParameterSlot& slot = stage.layout.slots[i];
    if (stage.parts == 1) {
      Initialize(slot.parameter, run_.train.seed, slot.layer, weights.parameters()[i]);
      continue;
    }
    const int64_t begin = std::max(held.begin, slot.offset);
    const int64_t end = std::min(held.end, slot.offset + slot.parameter.elements());
    if (begin >= end) continue;
    const at::Tensor whole = at::empty(slot.parameter.size, c10::kFloat);
    Initialize(slot.parameter, run_.train.seed, slot.layer, whole);
    std::memcpy(weights.data() + (begin - held.begin), whole.const_data_ptr<float>() + (begin - slot.offset),
                static_cast<size_t>(end - begin) * sizeof(float));
  }
}

absl::StatusOr<Tensor> CpuRank::GatherWeights(const Job& job, const std::vector<Tensor>& slices,
                                              int version) {
  return Guarded([&] { return absl::StrCat("gathering the weights for ", Describe(job)); },
                 [&] { return DoGather(job.stage, slices, version); });
}

absl::StatusOr<Tensor> CpuRank::DoGather(int stage, const std::vector<Tensor>& slices, int version) {
  absl::StatusOr<Stage*> found = StageOf(stage);
  if (!found.ok()) return found.status();
  const Stage& s = **found;
  const int parts = static_cast<int>(slices.size());
  absl::StatusOr<Tensor> whole = NewFlat(*memory_, s.layout.elements, MemoryClass::kBuffers);
  if (!whole.ok()) return whole.status();
  const std::shared_ptr<StageWeights> held = s.versions.At(version);
  for (int part = 0; part < parts; ++part) {
    const bool own = slices[part].empty() && held != nullptr && s.part == part && s.parts == parts;
    const Tensor& slice = own ? held->memory() : slices[part];
    const Tensor place = Slice(*whole, part, parts);
    const int64_t elements = static_cast<int64_t>(place.bytes / sizeof(float));
    if (absl::Status status = CheckFlat("slices of the weights", slice, elements); !status.ok())
      return status;
    if (elements > 0) std::memcpy(place.data, slice.data, place.bytes);
  }
  return whole;
}

absl::Status CpuRank::Accumulate(const Job& job, int microbatch, const Tensor& slice, int part, int parts) {
  auto what = [&] { return absl::StrFormat("adding micro-batch %d in %s", microbatch, Describe(job)); };
  return Guarded(what, [&]() -> absl::Status {
    absl::StatusOr<Stage*> stage = HeldStage(job.stage);
    return stage.ok() ? (*stage)->sums.Add(job.step, microbatch, slice, part, parts) : stage.status();
  });
}

absl::StatusOr<Tensor> CpuRank::AddToSum(const Job& job, const Tensor& before, Tensor gradient) {
  return Guarded([&] { return Describe(job); },
                 [&]() -> absl::StatusOr<Tensor> {
                   absl::StatusOr<Stage*> stage = StageOf(job.stage);
                   if (!stage.ok()) return stage.status();
                   const int64_t elements = (*stage)->layout.elements;
                   absl::Status s = CheckFlat("summed gradients", before, elements);
                   if (s.ok()) s = CheckFlat("gradients", gradient, elements);
                   if (!s.ok()) return s;
                   // The same bits either way round.
                   AddInPlace(static_cast<float*>(gradient.data), static_cast<const float*>(before.data),
                              elements);
                   return std::move(gradient);
                 });
}

absl::StatusOr<Tensor> CpuRank::TakeSum(const Job& job, int part, int parts) {
  return Guarded([&] { return Describe(job); },
                 [&]() -> absl::StatusOr<Tensor> {
                   absl::StatusOr<Stage*> stage = HeldStage(job.stage);
                   return stage.ok() ? (*stage)->sums.Take(job.step, part, parts) : stage.status();
                 });
}

absl::StatusOr<Tensor> CpuRank::SumSquares(const Job& job, const Tensor& sum, int part, int parts,
                                           const std::vector<Tensor>& others) {
  return Guarded([&] { return Describe(job); },
                 [&]() -> absl::StatusOr<Tensor> {
                   absl::StatusOr<Stage*> stage = HeldStage(job.stage);
                   return stage.ok() ? DoSumSquares(**stage, sum, part, parts, others) : stage.status();
                 });
}

absl::StatusOr<Tensor> CpuRank::DoSumSquares(const Stage& stage, const Tensor& sum, int part, int parts,
                                             const std::vector<Tensor>& others) const {
  const SliceBounds bounds = SliceOf(stage.layout.elements, part, parts);
  const int64_t elements = bounds.end - bounds.begin;
  if (absl::Status s = CheckFlat("summed gradients", sum, elements); !s.ok()) return s;
  SumOfSquares squares;
  if (!AddSquares(stage.layout, bounds.begin, elements, static_cast<const float*>(sum.data), &squares))
    return NoNormError(stage.layout.stage);
  for (const Tensor& other : others) {
    absl::StatusOr<SumOfSquares> more = SumOfSquares::FromTensor(other);
    if (!more.ok()) return more.status();
    squares.Add(*more);
  }
  return squares.ToTensor();
}

absl::StatusOr<float> CpuRank::ClipFactorOf(const Tensor& norm) const {
  if (run_.train.clip_norm == 0) return 1.0f;
  const absl::StatusOr<SumOfSquares> squares = SumOfSquares::FromTensor(norm);
  if (!squares.ok()) return squares.status();
  return ClipFactor(squares->Norm(), run_.train.clip_norm);
}

absl::Status CpuRank::Update(const Job& job, const std::vector<Tensor>& sums, const Tensor& norm, bool keep) {
  std::vector<Tensor> parts = sums;
  if (parts.empty()) {
    absl::StatusOr<Tensor> own = TakeSum(job, 0, 1);
    if (!own.ok()) return own.status();
    parts.push_back(*std::move(own));
  }
  return Guarded([&] { return Describe(job); },
                 [&]() -> absl::Status {
                   absl::StatusOr<Stage*> stage = HeldStage(job.stage);
                   if (!stage.ok()) return stage.status();
                   return ApplyUpdate(**stage, job.step, parts, norm, keep);
                 });
}

// Where the next version goes: over the newest, or, if that one stays or is in use, beside it.
absl::StatusOr<std::shared_ptr<StageWeights>> CpuRank::NextWeights(Stage& stage, bool keep) {
  const std::shared_ptr<StageWeights> newest = stage.versions.newest();
  if (!keep && !newest->in_use()) return newest;
  const int64_t elements = stage.held().end - stage.held().begin;
  absl::StatusOr<Tensor> flat = NewFlat(*memory_, elements, MemoryClass::kWeights);
  if (!flat.ok()) return flat.status();
  std::shared_ptr<StageWeights> next = NewHeldWeights(stage);
  next->Bind(*std::move(flat));
  return next;
}

absl::Status CpuRank::ApplyUpdate(Stage& stage, int step, const std::vector<Tensor>& parts,
                                  const Tensor& norm, bool keep) {
  if (stage.adopted) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "stage %d is updated by another rank; this one adopts its versions", stage.layout.stage));
  }
  const int64_t elements = stage.held().end - stage.held().begin;
  const int count = static_cast<int>(parts.size());
  for (int i = 0; i < count; ++i) {
    const SliceBounds bounds = SliceOf(elements, i, count);
    if (absl::Status s = CheckFlat("summed gradients", parts[i], bounds.end - bounds.begin); !s.ok())
      return s;
  }
  const absl::StatusOr<float> factor = ClipFactorOf(norm);
  if (!factor.ok()) return factor.status();
  const std::shared_ptr<StageWeights> newest = stage.versions.newest();
  absl::StatusOr<std::shared_ptr<StageWeights>> made = NextWeights(stage, keep);
  if (!made.ok()) return made.status();
  std::shared_ptr<StageWeights> next = *std::move(made);
  stage.optimizer.Begin(LearningRateAt(run_.train, step), *factor);
  for (int i = 0; i < count; ++i) {
    const SliceBounds bounds = SliceOf(elements, i, count);
    Optimizer::State state{};
    for (size_t k = 0; k < stage.optimizer_state.size(); ++k) {
      state[k] = static_cast<float*>(stage.optimizer_state[k].data) + bounds.begin;
    }
    UpdateRange(stage.optimizer, stage.layout, run_.train.microbatches, stage.held().begin + bounds.begin,
                bounds.end - bounds.begin, newest->data() + bounds.begin, next->data() + bounds.begin,
                static_cast<const float*>(parts[i].data), state);
  }
  stage.versions.Add(std::move(next), keep);
  return absl::OkStatus();
}

absl::Status CpuRank::Adopt(const Job& job, const Tensor& weights, bool keep) {
  return Guarded([&] { return Describe(job); },
                 [&]() -> absl::Status {
                   absl::StatusOr<Stage*> stage = HeldStage(job.stage);
                   return stage.ok() ? DoAdopt(**stage, weights, keep) : stage.status();
                 });
}

// A copy, so that what came is given back at once: it may be another process's memory.
absl::Status CpuRank::DoAdopt(Stage& stage, const Tensor& weights, bool keep) {
  if (absl::Status s = CheckFlat("weights", weights, stage.layout.elements); !s.ok()) return s;
  absl::StatusOr<std::shared_ptr<StageWeights>> next = NextWeights(stage, keep);
  if (!next.ok()) return next.status();
  if (weights.bytes > 0) std::memcpy((*next)->data(), weights.data, weights.bytes);
  stage.versions.Add(*std::move(next), keep);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> CpuRank::Weights(int stage, int version) {
  absl::StatusOr<Stage*> found = HeldStage(stage);
  if (!found.ok()) return found.status();
  std::shared_ptr<StageWeights> held = (*found)->versions.At(version);
  if (held == nullptr) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "this rank holds version %d of the weights of stage %d no more, or not yet", version, stage));
  }
  Tensor weights = held->memory();
  weights.owner = StageWeights::Use(std::move(held));
  return weights;
}

void CpuRank::DropWeights(int stage, int version) {
  const auto found = stages_.find(stage);
  if (found == stages_.end()) return;
  std::shared_ptr<StageWeights> dropped = found->second->versions.Drop(version);
  // Nobody can come to use them any more; who does keeps them. A next version takes the leaves over.
  if (dropped.use_count() != 1 || found->second->parts > 1) return;
  dropped->Unbind();
  found->second->GiveSpare(std::move(dropped));
}

absl::Status CpuRank::Save(int stage, const std::string& folder) {
  absl::StatusOr<Stage*> found = HeldStage(stage);
  if (!found.ok()) return found.status();
  return Guarded([&] { return absl::StrCat("saving stage ", stage); },
                 [&] { return DoSave(**found, folder); });
}

absl::Status CpuRank::DoSave(const Stage& stage, const std::string& folder) const {
  const std::shared_ptr<StageWeights> newest = stage.versions.newest();
  const int version = stage.versions.newest_version();
  if (version == 0) {
    if (stage.parts > 1) return stage.part == 0 ? WriteInitial(stage, folder) : absl::OkStatus();
    return WriteStageFile(folder, stage.layout, SlotsOf(stage.layout, newest->data()), 0);
  }
  if (stage.adopted) {
    return absl::FailedPreconditionError(
        absl::StrFormat("stage %d is saved by the rank that updates it, with the optimizer's state; this one "
                        "adopts its versions",
                        stage.layout.stage));
  }
  const absl::StatusOr<std::vector<StateRule>> rules = StateRulesOf(run_);
  if (!rules.ok()) return rules.status();
  const StateRule& rule = rules->at(stage.layout.stage);
  std::vector<std::shared_ptr<StageWeights>> older;
  std::vector<const float*> buffers;  // as StateBuffers names them
  for (int v = static_cast<int>(rule.OldestRead(version)); v < version; ++v) {
    older.push_back(stage.versions.At(v));
    if (older.back() == nullptr) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "this rank holds version %d of the weights of stage %d no more, and later steps read it", v,
          stage.layout.stage));
    }
    buffers.push_back(older.back()->data());
  }
  for (const Tensor& state : stage.optimizer_state) buffers.push_back(static_cast<const float*>(state.data));
  if (stage.parts > 1) {
    const absl::Status written =
        WriteSliceFile(folder, stage.layout, rule, version, stage.part, stage.parts, newest->data(), buffers);
    return written.ok() ? JoinSliceFiles(folder, stage.layout, rule, version, stage.parts) : written;
  }
  std::vector<SlotPointers> slots;
  for (const float* flat : buffers) slots.push_back(SlotsOf(stage.layout, flat));
  return WriteTrainingState(folder, stage.layout, rule, version, SlotsOf(stage.layout, newest->data()),
                            slots);
}

absl::Status CpuRank::SaveInitial(int stage, const std::string& folder) {
  absl::StatusOr<Stage*> found = StageOf(stage);
  if (!found.ok()) return found.status();
  return Guarded([&] { return absl::StrCat("saving stage ", stage); },
                 [&] { return WriteInitial(**found, folder); });
}

// The stage's first weights once more, whole: they need no other rank.
absl::Status CpuRank::WriteInitial(const Stage& stage, const std::string& folder) const {
  MemoryScope scope(memory_.get(), MemoryClass::kBuffers);
  std::vector<at::Tensor> parameters;
  std::vector<const float*> values;
  for (const ParameterSlot& slot : stage.layout.slots) {
    parameters.push_back(at::empty(slot.parameter.size, c10::kFloat));
    Initialize(slot.parameter, run_.train.seed, slot.layer, parameters.back());
    values.push_back(parameters.back().const_data_ptr<float>());
  }
  return WriteStageFile(folder, stage.layout, values, 0);
}

}  // namespace weft
