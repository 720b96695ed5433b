// CpuRank: stages, gradient sums, updates and files.
#include "worker/shell/compute/cpu_rank.h"

#include <ATen/ops/full.h>

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
  if (found.ok() && (*found)->weights == nullptr) {
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
                 [&] { return DoAddStage(stage, holds_weights); });
}

absl::Status CpuRank::DoAddStage(int stage, bool holds_weights) {
  if (stage < 0 || stage >= run_.stages() || stages_.count(stage) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the run has stages 0..%d, and each is added once", run_.stages() - 1));
  }
  MemoryScope scope(memory_.get(), MemoryClass::kWeights);
  auto made = std::make_unique<Stage>(run_, stage, *memory_);
  if (holds_weights) {
    absl::StatusOr<Tensor> flat = NewZeros(made->layout.elements, MemoryClass::kWeights);
    if (!flat.ok()) return flat.status();
    made->weights = std::make_shared<StageWeights>(made->layout);
    made->weights->Bind(*std::move(flat));
    for (size_t i = 0; i < made->layout.slots.size(); ++i) {
      const ParameterSlot& slot = made->layout.slots[i];
      Initialize(slot.parameter, run_.train.seed, slot.layer, made->weights->parameters()[i]);
    }
    for (int i = 0; i < made->optimizer.state_buffers(); ++i) {
      absl::StatusOr<Tensor> state = NewZeros(made->layout.elements, MemoryClass::kOptimizer);
      if (!state.ok()) return state.status();
      made->optimizer_state.push_back(*std::move(state));
    }
  }
  stages_[stage] = std::move(made);
  return absl::OkStatus();
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

absl::Status CpuRank::Update(const Job& job, const std::vector<Tensor>& sums) {
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
                   return ApplyUpdate(**stage, parts);
                 });
}

absl::Status CpuRank::ApplyUpdate(Stage& stage, const std::vector<Tensor>& parts) {
  const int64_t elements = stage.layout.elements;
  const int count = static_cast<int>(parts.size());
  for (int i = 0; i < count; ++i) {
    const SliceBounds bounds = SliceOf(elements, i, count);
    if (absl::Status s = CheckFlat("summed gradients", parts[i], bounds.end - bounds.begin); !s.ok())
      return s;
  }
  std::shared_ptr<StageWeights> next = stage.weights;
  if (stage.weights->in_use()) {
    absl::StatusOr<Tensor> flat = NewFlat(*memory_, elements, MemoryClass::kWeights);
    if (!flat.ok()) return flat.status();
    next = std::make_shared<StageWeights>(stage.layout);
    next->Bind(*std::move(flat));
  }
  stage.optimizer.Begin();
  for (int i = 0; i < count; ++i) {
    const SliceBounds bounds = SliceOf(elements, i, count);
    Optimizer::State state{};
    for (size_t k = 0; k < stage.optimizer_state.size(); ++k) {
      state[k] = static_cast<float*>(stage.optimizer_state[k].data) + bounds.begin;
    }
    stage.optimizer.Apply(stage.weights->data() + bounds.begin, next->data() + bounds.begin,
                          static_cast<const float*>(parts[i].data), state, bounds.end - bounds.begin);
  }
  stage.weights = std::move(next);
  ++stage.version;
  return absl::OkStatus();
}

absl::StatusOr<Tensor> CpuRank::Weights(int stage) {
  absl::StatusOr<Stage*> found = HeldStage(stage);
  if (!found.ok()) return found.status();
  Tensor weights = (*found)->weights->memory();
  weights.owner = StageWeights::Use((*found)->weights);
  return weights;
}

absl::Status CpuRank::Save(int stage, const std::string& folder) {
  absl::StatusOr<Stage*> found = HeldStage(stage);
  if (!found.ok()) return found.status();
  const Stage& held = **found;
  std::vector<const float*> values;
  for (const ParameterSlot& slot : held.layout.slots) values.push_back(held.weights->data() + slot.offset);
  return WriteStageFile(folder, held.layout, values, held.version);
}

}  // namespace weft
