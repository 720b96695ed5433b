#include "worker/shell/torch/held_stage.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "worker/shell/torch/job_inputs.h"

namespace weft {

HeldStage::HeldStage(const RunSpec& run, int stage, const StageRole& role, RankDevice& device)
    : device_(device),
      layout_(LayOutStage(run, stage)),
      role_(role),
      held_(SliceOf(layout_.elements, role.part, role.parts)),
      precision_(run.precision),
      optimizer_(run, layout_, held_, device),
      sums_(device, layout_.elements, run.train.microbatches),
      spare_(layout_, device, run.precision),
      norm_(run, layout_, device) {
  if (role.sums_own) sums_.SumWhatComes();
}

absl::StatusOr<std::shared_ptr<StageWeights>> HeldStage::NewVersion() {
  absl::StatusOr<Tensor> flat = device_.NewFlat(held_elements(), MemoryClass::kWeights);
  if (!flat.ok()) return flat.status();
  device_.math().Zero(flat->data, flat->bytes);
  std::shared_ptr<StageWeights> weights = NewHeldWeights();
  weights->Bind(*std::move(flat));
  return weights;
}

// Makes room, without memory yet, for the held weights. A slice has no parameters of its own: it begins and
// ends within them.
std::shared_ptr<StageWeights> HeldStage::NewHeldWeights() {
  if (role_.parts == 1) return spare_.Take();
  StageLayout slice = layout_;
  slice.slots.clear();
  slice.elements = held_elements();
  return std::make_shared<StageWeights>(slice, device_, precision_);
}

// Returns the memory for the next version: over the newest, or, if that one stays or is in use, beside it.
absl::StatusOr<std::shared_ptr<StageWeights>> HeldStage::NextVersion(bool keep) {
  const std::shared_ptr<StageWeights> newest = versions_.newest();
  if (!keep && !newest->in_use()) return newest;
  absl::StatusOr<Tensor> flat = device_.NewFlat(held_elements(), MemoryClass::kWeights);
  if (!flat.ok()) return flat.status();
  std::shared_ptr<StageWeights> next = NewHeldWeights();
  next->Bind(*std::move(flat));
  return next;
}

absl::StatusOr<Tensor> HeldStage::Share(int version) const {
  std::shared_ptr<StageWeights> held = versions_.At(version);
  if (held == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrFormat("this rank does not hold version %d of the weights of stage %d any more, or not yet",
                        version, layout_.stage));
  }
  Tensor weights = held->memory();
  weights.owner = StageWeights::Use(std::move(held));
  return weights;
}

void HeldStage::Drop(int version) {
  std::shared_ptr<StageWeights> dropped = versions_.Drop(version);
  // Nobody can begin to use these weights any more, and a user keeps them alive. A next version takes the
  // leaves over.
  if (dropped.use_count() != 1 || role_.parts > 1) return;
  dropped->Unbind();
  spare_.Give(std::move(dropped));
}

absl::StatusOr<Tensor> HeldStage::Gather(const std::vector<Tensor>& slices, int version) {
  const int parts = static_cast<int>(slices.size());
  absl::StatusOr<Tensor> whole = device_.NewFlat(layout_.elements, MemoryClass::kBuffers);
  if (!whole.ok()) return whole.status();
  const std::shared_ptr<StageWeights> held = versions_.At(version);
  for (int part = 0; part < parts; ++part) {
    const bool own = slices[part].empty() && held != nullptr && role_.part == part && role_.parts == parts;
    const absl::StatusOr<Tensor> slice = own ? held->memory() : OnDevice(device_, slices[part]);
    if (!slice.ok()) return slice.status();
    const Tensor place = Slice(*whole, part, parts);
    const int64_t elements = static_cast<int64_t>(place.bytes / sizeof(float));
    if (absl::Status status = CheckFlat("slices of the weights", *slice, elements); !status.ok())
      return status;
    if (elements > 0) device_.math().Copy(place.data, slice->data, place.bytes);
  }
  return whole;
}

absl::Status HeldStage::Accumulate(int step, int microbatch, const Tensor& slice, int part, int parts) {
  const absl::StatusOr<Tensor> here = OnDevice(device_, slice);
  return here.ok() ? sums_.Add(step, microbatch, *here, part, parts) : here.status();
}

absl::StatusOr<Tensor> HeldStage::AddToSum(const Tensor& before, const Tensor& gradient) {
  absl::Status s = CheckFlat("summed gradients", before, layout_.elements);
  if (s.ok()) s = CheckFlat("gradients", gradient, layout_.elements);
  if (!s.ok()) return s;
  const absl::StatusOr<Tensor> others = OnDevice(device_, before);
  if (!others.ok()) return others.status();
  absl::StatusOr<Tensor> sum = OnDevice(device_, gradient);
  if (!sum.ok()) return sum;
  // The bits are the same either way round.
  device_.math().Add(static_cast<float*>(sum->data), static_cast<const float*>(others->data),
                     layout_.elements);
  return sum;
}

// Returns the parts of the summed gradients on the device, checked.
absl::StatusOr<std::vector<Tensor>> HeldStage::SummedGradients(const std::vector<Tensor>& parts) {
  const int count = static_cast<int>(parts.size());
  absl::StatusOr<std::vector<Tensor>> gradients = AllOnDevice(device_, parts);
  if (!gradients.ok()) return gradients;
  for (int i = 0; i < count; ++i) {
    const SliceBounds bounds = SliceOf(held_elements(), i, count);
    absl::Status s = CheckFlat("summed gradients", parts[i], bounds.end - bounds.begin);
    if (!s.ok()) return s;
  }
  return gradients;
}

// Makes the next version equal to the newest; the optimizer's state and steps stay.
absl::Status HeldStage::Repeat(bool keep) {
  const std::shared_ptr<StageWeights> newest = versions_.newest();
  absl::StatusOr<std::shared_ptr<StageWeights>> next = NextVersion(keep);
  if (!next.ok()) return next.status();
  if (*next != newest) {
    device_.math().Copy((*next)->data(), newest->data(), newest->memory().bytes);
    (*next)->Changed();
  }
  versions_.Add(*std::move(next), keep);
  return absl::OkStatus();
}

absl::Status HeldStage::Update(int step, const std::vector<Tensor>& parts, const Tensor& norm, bool keep) {
  if (role_.holding == StageRole::Holding::kInstalled) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "stage %d is updated by another rank; this one installs its versions", layout_.stage));
  }
  const absl::StatusOr<std::vector<Tensor>> gradients = SummedGradients(parts);
  if (!gradients.ok()) return gradients.status();
  const absl::StatusOr<bool> skips = norm_.SkipsUpdate(norm);
  if (!skips.ok()) return skips.status();
  if (*skips) return Repeat(keep);
  const absl::StatusOr<Tensor> factor = norm_.ClipFactor(norm);
  if (!factor.ok()) return factor.status();
  const std::shared_ptr<StageWeights> newest = versions_.newest();
  absl::StatusOr<std::shared_ptr<StageWeights>> made = NextVersion(keep);
  if (!made.ok()) return made.status();
  std::shared_ptr<StageWeights> next = *std::move(made);
  optimizer_.Step(step, *gradients, static_cast<const float*>(factor->data), newest->data(), next->data());
  if (absl::Status s = norm_.CheckUpdate(held_, *gradients, next->data()); !s.ok()) return s;
  next->Changed();
  versions_.Add(std::move(next), keep);
  return absl::OkStatus();
}

absl::Status HeldStage::Install(const Tensor& weights, bool keep) {
  if (absl::Status s = CheckFlat("weights", weights, layout_.elements); !s.ok()) return s;
  const absl::StatusOr<Tensor> made = OnDevice(device_, weights);
  if (!made.ok()) return made.status();
  absl::StatusOr<std::shared_ptr<StageWeights>> next = NextVersion(keep);
  if (!next.ok()) return next.status();
  device_.math().Copy((*next)->data(), made->data, made->bytes);
  (*next)->Changed();
  versions_.Add(*std::move(next), keep);
  return absl::OkStatus();
}

}  // namespace weft
