#include "worker/shell/torch/stage_packing.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "worker/shell/compute/stage_state.h"

namespace weft {
namespace {

// Copies a part of the state into a block of its own.
absl::StatusOr<Tensor> CopyPart(RankDevice& device, const Tensor& state, int64_t offset, int64_t elements,
                                MemoryClass memory_class) {
  absl::StatusOr<Tensor> part = device.NewFlat(elements, memory_class);
  if (part.ok()) device.math().Copy(part->data, static_cast<const float*>(state.data) + offset, part->bytes);
  return part;
}

// The parts of a state that leaves, each in its own block.
struct Parts {
  WeightVersions::Numbered versions;
  StageSums::Part sum;
  std::vector<Tensor> optimizer;
};

absl::StatusOr<Parts> TakeParts(HeldStage* stage) {
  absl::StatusOr<StageSums::Part> sum = stage->sums().TakePart();
  if (!sum.ok()) return sum.status();
  Parts parts{stage->versions().Release(), *std::move(sum), stage->optimizer().Release()};
  for (const auto& [number, weights] : parts.versions) {
    if (weights->in_use()) return absl::FailedPreconditionError("a pass still uses its weights");
  }
  return parts;
}

StageState Describe(const HeldStage& stage, const Parts& parts) {
  StageState state;
  state.stage = stage.layout().stage;
  state.elements = stage.layout().elements;
  for (const auto& [number, weights] : parts.versions) state.versions.push_back(number);
  state.sum_step = parts.sum.step;
  state.sum_next = parts.sum.next;
  state.optimizer_steps = stage.optimizer().steps();
  state.optimizer_buffers = static_cast<int>(parts.optimizer.size());
  return state;
}

}  // namespace

absl::Status UnpackState(const Tensor& state, RankDevice& device, HeldStage* stage) {
  const int64_t elements = stage->layout().elements;
  const absl::StatusOr<StageState> head =
      ReadHead(state, stage->layout().stage, elements, stage->optimizer().state_buffers());
  if (!head.ok()) return head.status();
  WeightVersions::Numbered versions;
  for (size_t i = 0; i < head->versions.size(); ++i) {
    absl::StatusOr<Tensor> flat =
        CopyPart(device, state, head->version_offset(i), elements, MemoryClass::kWeights);
    if (!flat.ok()) return flat.status();
    std::shared_ptr<StageWeights> weights = stage->spare().Take();
    weights->Bind(*std::move(flat));
    weights->Changed();
    versions.emplace_back(head->versions[i], std::move(weights));
  }
  if (head->sum_next > 0) {
    absl::StatusOr<Tensor> sum =
        CopyPart(device, state, head->sum_offset(), elements, MemoryClass::kGradients);
    if (!sum.ok()) return sum.status();
    stage->sums().Resume({head->sum_step, head->sum_next, *std::move(sum)});
  }
  std::vector<Tensor> buffers;
  for (int i = 0; i < head->optimizer_buffers; ++i) {
    absl::StatusOr<Tensor> buffer =
        CopyPart(device, state, head->optimizer_offset(i), elements, MemoryClass::kOptimizer);
    if (!buffer.ok()) return buffer.status();
    buffers.push_back(*std::move(buffer));
  }
  stage->optimizer().Resume(head->optimizer_steps, std::move(buffers));
  stage->versions().Install(std::move(versions));
  return absl::OkStatus();
}

absl::StatusOr<Tensor> PackState(RankDevice& device, HeldStage* stage) {
  absl::StatusOr<Parts> parts = TakeParts(stage);
  if (!parts.ok()) return parts.status();
  const StageState state = Describe(*stage, *parts);
  absl::StatusOr<Tensor> flat = device.NewFlat(state.total_elements(), MemoryClass::kBuffers);
  if (!flat.ok()) return flat;
  float* const begin = static_cast<float*>(flat->data);
  const size_t bytes = static_cast<size_t>(state.elements) * sizeof(float);
  const auto put = [&](const void* part, int64_t offset) { device.math().Copy(begin + offset, part, bytes); };
  WriteHead(state, begin);
  for (size_t i = 0; i < parts->versions.size(); ++i) {
    StageWeights& weights = *parts->versions[i].second;
    put(weights.data(), state.version_offset(i));
    weights.Unbind();
    stage->spare().Give(std::move(parts->versions[i].second));
  }
  if (state.sum_next > 0) put(parts->sum.sum.data, state.sum_offset());
  for (size_t i = 0; i < parts->optimizer.size(); ++i)
    put(parts->optimizer[i].data, state.optimizer_offset(static_cast<int>(i)));
  return flat;
}

}  // namespace weft
