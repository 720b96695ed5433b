// CpuRank: stages, gradient sums, updates and files.
#include "worker/shell/compute/cpu_rank.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/run/run_schedule.h"
#include "worker/shell/compute/checkpoint.h"
#include "worker/shell/compute/memory_scope.h"
#include "worker/shell/compute/torch_guard.h"

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
      activations_(ActivationsOf(run.schedule)),
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
  return Guarded([&] { return absl::StrCat("building stage ", stage); },
                 [&] { return DoAddStage(stage, holds_weights, 0, 1); });
}

absl::Status CpuRank::AddSlicedStage(int stage, int part, int parts) {
  return Guarded([&] { return absl::StrFormat("building slice %d of %d of stage %d", part, parts, stage); },
                 [&] { return DoAddStage(stage, true, part, parts); });
}

absl::Status CpuRank::DoAddStage(int stage, bool holds_weights, int part, int parts) {
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
  if (holds_weights) {
    if (absl::Status s = Hold(*made); !s.ok()) return s;
  }
  stages_[stage] = std::move(made);
  return absl::OkStatus();
}

// Version 0 of what the rank holds of the stage, and the optimizer's state for it.
absl::Status CpuRank::Hold(Stage& stage) {
  const int64_t elements = stage.held().end - stage.held().begin;
  absl::StatusOr<Tensor> flat = NewZeros(elements, MemoryClass::kWeights);
  if (!flat.ok()) return flat.status();
  std::shared_ptr<StageWeights> initial = NewHeldWeights(stage);
  initial->Bind(*std::move(flat));
  InitializeHeld(stage, *initial);
  stage.versions.Begin(std::move(initial));
  for (int i = 0; i < stage.optimizer.state_buffers(); ++i) {
    absl::StatusOr<Tensor> state = NewZeros(elements, MemoryClass::kOptimizer);
    if (!state.ok()) return state.status();
    stage.optimizer_state.push_back(*std::move(state));
  }
  return absl::OkStatus();
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

absl::StatusOr<Tensor> CpuRank::TakeSum(const Job& job, int part, int parts) {
  return Guarded([&] { return Describe(job); },
                 [&]() -> absl::StatusOr<Tensor> {
                   absl::StatusOr<Stage*> stage = HeldStage(job.stage);
                   return stage.ok() ? (*stage)->sums.Take(job.step, part, parts) : stage.status();
                 });
}

absl::Status CpuRank::Update(const Job& job, const std::vector<Tensor>& sums, bool keep) {
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
                   return ApplyUpdate(**stage, parts, keep);
                 });
}

absl::Status CpuRank::ApplyUpdate(Stage& stage, const std::vector<Tensor>& parts, bool keep) {
  const int64_t elements = stage.held().end - stage.held().begin;
  const int count = static_cast<int>(parts.size());
  for (int i = 0; i < count; ++i) {
    const SliceBounds bounds = SliceOf(elements, i, count);
    if (absl::Status s = CheckFlat("summed gradients", parts[i], bounds.end - bounds.begin); !s.ok())
      return s;
  }
  const std::shared_ptr<StageWeights> newest = stage.versions.newest();
  std::shared_ptr<StageWeights> next = newest;
  if (keep || newest->in_use()) {
    absl::StatusOr<Tensor> flat = NewFlat(*memory_, elements, MemoryClass::kWeights);
    if (!flat.ok()) return flat.status();
    next = NewHeldWeights(stage);
    next->Bind(*std::move(flat));
  }
  stage.optimizer.Begin();
  for (int i = 0; i < count; ++i) {
    const SliceBounds bounds = SliceOf(elements, i, count);
    Optimizer::State state{};
    for (size_t k = 0; k < stage.optimizer_state.size(); ++k) {
      state[k] = static_cast<float*>(stage.optimizer_state[k].data) + bounds.begin;
    }
    stage.optimizer.Apply(newest->data() + bounds.begin, next->data() + bounds.begin,
                          static_cast<const float*>(parts[i].data), state, bounds.end - bounds.begin);
  }
  stage.versions.Add(std::move(next), keep);
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
  const Stage& held = **found;
  if (held.parts > 1) {
    return Guarded([&] { return absl::StrCat("saving stage ", stage); },
                   [&] { return SaveSlice(held, folder); });
  }
  const std::shared_ptr<StageWeights> weights = held.versions.newest();
  std::vector<const float*> values;
  for (const ParameterSlot& slot : held.layout.slots) values.push_back(weights->data() + slot.offset);
  return WriteStageFile(folder, held.layout, values, held.versions.newest_version());
}

absl::Status CpuRank::SaveInitial(int stage, const std::string& folder) {
  absl::StatusOr<Stage*> found = StageOf(stage);
  if (!found.ok()) return found.status();
  return Guarded([&] { return absl::StrCat("saving stage ", stage); },
                 [&] { return WriteInitial(**found, folder); });
}

absl::Status CpuRank::SaveSlice(const Stage& stage, const std::string& folder) const {
  const int version = stage.versions.newest_version();
  if (version == 0) return stage.part == 0 ? WriteInitial(stage, folder) : absl::OkStatus();
  const int index = stage.layout.stage;
  const absl::Status written =
      WriteSliceFile(folder, index, stage.part, stage.parts, stage.versions.newest()->memory(), version);
  return written.ok() ? JoinSliceFiles(folder, stage.layout, stage.parts, version) : written;
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
