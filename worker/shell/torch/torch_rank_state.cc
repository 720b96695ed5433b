// Implements TorchRank's state of a stage that comes with a job and goes on with it.
//
// Each part of the state lies in a block of its own while it is here, charged to its class, and all of them
// are copied together when they leave; so a rank's bytes by class are true while it computes. The host reads
// the head of a state: states migrate where the device is the host (torch_device.cc refuses others).
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/require.h"
#include "worker/shell/compute/stage_state.h"
#include "worker/shell/torch/torch_rank.h"

namespace weft {
namespace {

void Require(bool condition, const Job& job, const char* invariant) {
  if (!condition) BrokenInvariant(absl::StrCat(invariant, ", at ", Describe(job)).c_str());
}

}  // namespace

// Copies a part of the state into a block of its own.
absl::StatusOr<Tensor> TorchRank::CopyPart(const Tensor& state, int64_t offset, int64_t elements,
                                           MemoryClass memory_class) {
  absl::StatusOr<Tensor> part = device_->NewFlat(elements, memory_class);
  if (part.ok())
    device_->math().Copy(part->data, static_cast<const float*>(state.data) + offset, part->bytes);
  return part;
}

bool TorchRank::HasState(int stage) const {
  const auto found = stages_.find(stage);
  return found != stages_.end() && found->second->versions.held();
}

absl::Status TorchRank::BeginState(const Job& job) {
  absl::StatusOr<Stage*> stage = StageOf(job.stage);
  if (!stage.ok()) return stage.status();
  Require(!(*stage)->versions.held(), job, "a state begins on a rank that has it");
  return Compute([&] { return absl::StrCat("beginning the state of stage ", job.stage); },
                 [&] {
                   const Charged charged(*device_, MemoryClass::kWeights);
                   return Hold(**stage);
                 });
}

absl::Status TorchRank::AdoptState(const Job& job, Tensor state) {
  absl::StatusOr<Stage*> stage = StageOf(job.stage);
  if (!stage.ok()) return stage.status();
  Require(!(*stage)->versions.held(), job, "a state comes to a rank that has it");
  return Compute([&] { return absl::StrCat("taking over the state of the stage for ", Describe(job)); },
                 [&] { return DoAdoptState(**stage, state); });
}

absl::Status TorchRank::DoAdoptState(Stage& stage, const Tensor& state) {
  const int64_t elements = stage.layout.elements;
  const absl::StatusOr<StageState> head =
      ReadHead(state, stage.layout.stage, elements, stage.optimizer.state_buffers());
  if (!head.ok()) return head.status();
  WeightVersions::Numbered versions;
  for (size_t i = 0; i < head->versions.size(); ++i) {
    absl::StatusOr<Tensor> flat = CopyPart(state, head->version_offset(i), elements, MemoryClass::kWeights);
    if (!flat.ok()) return flat.status();
    std::shared_ptr<StageWeights> weights = stage.TakeSpare();
    weights->Bind(*std::move(flat));
    weights->Changed();
    versions.emplace_back(head->versions[i], std::move(weights));
  }
  if (head->sum_next > 0) {
    absl::StatusOr<Tensor> sum = CopyPart(state, head->sum_offset(), elements, MemoryClass::kGradients);
    if (!sum.ok()) return sum.status();
    stage.sums.Resume({head->sum_step, head->sum_next, *std::move(sum)});
  }
  for (int i = 0; i < head->optimizer_buffers; ++i) {
    absl::StatusOr<Tensor> buffer =
        CopyPart(state, head->optimizer_offset(i), elements, MemoryClass::kOptimizer);
    if (!buffer.ok()) return buffer.status();
    stage.optimizer_state.push_back(*std::move(buffer));
  }
  stage.optimizer.Resume(head->optimizer_steps);
  stage.versions.Adopt(std::move(versions));
  return absl::OkStatus();
}

absl::StatusOr<Tensor> TorchRank::GiveState(const Job& job) {
  absl::StatusOr<Stage*> stage = StageOf(job.stage);
  if (!stage.ok()) return stage.status();
  Require((*stage)->versions.held(), job, "a state leaves a rank that does not have it");
  return Compute([&] { return absl::StrCat("handing on the state of the stage after ", Describe(job)); },
                 [&] { return DoGiveState(**stage); });
}

absl::StatusOr<Tensor> TorchRank::DoGiveState(Stage& stage) {
  const int64_t elements = stage.layout.elements;
  absl::StatusOr<StageSums::Part> sum = stage.sums.TakePart();
  if (!sum.ok()) return sum.status();
  WeightVersions::Numbered versions = stage.versions.Release();
  const std::vector<Tensor> buffers = std::exchange(stage.optimizer_state, {});
  StageState state;
  state.stage = stage.layout.stage;
  state.elements = elements;
  for (const auto& [number, weights] : versions) {
    if (weights->in_use()) return absl::FailedPreconditionError("a pass still uses its weights");
    state.versions.push_back(number);
  }
  state.sum_step = sum->step;
  state.sum_next = sum->next;
  state.optimizer_steps = stage.optimizer.steps();
  state.optimizer_buffers = static_cast<int>(buffers.size());
  absl::StatusOr<Tensor> flat = device_->NewFlat(state.total_elements(), MemoryClass::kBuffers);
  if (!flat.ok()) return flat.status();
  float* const begin = static_cast<float*>(flat->data);
  const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
  const auto put = [&](const void* part, int64_t offset) {
    device_->math().Copy(begin + offset, part, bytes);
  };
  WriteHead(state, begin);
  for (size_t i = 0; i < versions.size(); ++i) {
    StageWeights& weights = *versions[i].second;
    put(weights.data(), state.version_offset(i));
    weights.Unbind();
    stage.GiveSpare(std::move(versions[i].second));
  }
  if (state.sum_next > 0) put(sum->sum.data, state.sum_offset());
  for (size_t i = 0; i < buffers.size(); ++i)
    put(buffers[i].data, state.optimizer_offset(static_cast<int>(i)));
  return flat;
}

}  // namespace weft
