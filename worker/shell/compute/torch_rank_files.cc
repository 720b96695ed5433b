// TorchRank: initial weights, and checkpoints, written and gone on from. What waits for the device is here
// alone, and in no job.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/run/run_schedule.h"
#include "worker/shell/compute/checkpoint.h"
#include "worker/shell/compute/torch_rank.h"
#include "worker/shell/compute/training_state.h"

namespace weft {
namespace {

// Flat buffers of a device as the host reads them: its own, or copies.
class ReadableBuffers {
 public:
  explicit ReadableBuffers(RankDevice& device) : device_(device) {}

  // Valid as long as this and the tensor are.
  absl::StatusOr<const float*> Of(const Tensor& flat) {
    if (device_.is_host()) return static_cast<const float*>(flat.data);
    std::vector<float>& copy = copies_.emplace_back(flat.bytes / sizeof(float));
    const absl::Status read = device_.ReadBack(copy.data(), flat.data, flat.bytes);
    if (!read.ok()) return read;
    return copy.data();
  }

 private:
  RankDevice& device_;
  std::deque<std::vector<float>> copies_;
};

}  // namespace

// Lets `write` fill the buffer in host memory: its own, or one that is then loaded.
absl::Status TorchRank::Fill(const Tensor& flat, const std::function<void(float*)>& write) {
  if (device_->is_host()) {
    write(static_cast<float*>(flat.data));
    return absl::OkStatus();
  }
  std::vector<float> values(flat.bytes / sizeof(float));
  write(values.data());
  return device_->Load(flat.data, values.data(), flat.bytes);
}

// As the checkpoint has it that the run goes on from: every version that its first steps may read.
absl::Status TorchRank::HoldSaved(Stage& stage) {
  const absl::StatusOr<std::vector<StateRule>> rules = StateRulesOf(run_);
  if (!rules.ok()) return rules.status();
  const StateRule& rule = rules->at(stage.layout.stage);
  const absl::StatusOr<SavedStage> saved = SavedStage::Read(run_, rule, stage.layout.stage);
  if (!saved.ok()) return saved.status();
  const int newest = run_.first_step(), oldest = static_cast<int>(rule.OldestRead(newest));
  for (int version = oldest; version <= newest; ++version) {
    absl::StatusOr<std::shared_ptr<StageWeights>> weights = NewVersion(stage);
    if (!weights.ok()) return weights.status();
    absl::Status loaded = Fill((*weights)->memory(), [&](float* flat) {
      if (version == newest) {
        saved->CopyNewest(stage.held(), flat);
      } else {
        saved->CopyBuffer(absl::StrCat("version", version), stage.held(), flat);
      }
    });
    if (!loaded.ok()) return loaded;
    (*weights)->Changed();
    if (version == oldest) {
      stage.versions.Begin(version, *std::move(weights));
    } else {
      stage.versions.Add(*std::move(weights), /*keep=*/true);
    }
  }
  const std::vector<const char*> names = stage.optimizer.state_names();
  for (size_t i = 0; i < stage.optimizer_state.size(); ++i) {
    absl::Status loaded =
        Fill(stage.optimizer_state[i], [&](float* flat) { saved->CopyBuffer(names[i], stage.held(), flat); });
    if (!loaded.ok()) return loaded;
  }
  stage.optimizer.Resume(newest);
  return absl::OkStatus();
}

// A parameter's initial values depend on all of it, so one that a slice holds in part is made whole and cut.
// The host makes them, for every device: its generator's numbers are the run's.
absl::Status TorchRank::InitializeHeld(const Stage& stage, StageWeights& weights) {
  const Charged charged(*device_, MemoryClass::kBuffers);
  const SliceBounds held = stage.held();
  for (const ParameterSlot& slot : stage.layout.slots) {
    if (stage.parts == 1 && device_->is_host()) {
      const at::Tensor flat = Wrap(weights.memory(), device_->torch_device());
      Initialize(slot.parameter, run_.train.seed, slot.layer,
                 flat.narrow(0, slot.offset, slot.parameter.elements()).view(slot.parameter.size));
      continue;
    }
    const int64_t begin = std::max(held.begin, slot.offset);
    const int64_t end = std::min(held.end, slot.offset + slot.parameter.elements());
    if (begin >= end) continue;
    const at::Tensor whole = at::empty(slot.parameter.size, c10::kFloat);
    Initialize(slot.parameter, run_.train.seed, slot.layer, whole);
    const absl::Status loaded = device_->Load(weights.data() + (begin - held.begin),
                                              whole.const_data_ptr<float>() + (begin - slot.offset),
                                              static_cast<size_t>(end - begin) * sizeof(float));
    if (!loaded.ok()) return loaded;
  }
  weights.Changed();
  return absl::OkStatus();
}

absl::Status TorchRank::Save(int stage, const std::string& folder) {
  absl::StatusOr<Stage*> found = HeldStage(stage);
  if (!found.ok()) return found.status();
  return Compute([&] { return absl::StrCat("saving stage ", stage); },
                 [&] { return DoSave(**found, folder); });
}

absl::Status TorchRank::DoSave(const Stage& stage, const std::string& folder) {
  const std::shared_ptr<StageWeights> newest = stage.versions.newest();
  const int version = stage.versions.newest_version();
  ReadableBuffers readable(*device_);
  const absl::StatusOr<const float*> weights = readable.Of(newest->memory());
  if (!weights.ok()) return weights.status();
  if (version == 0) {
    if (stage.parts > 1) return stage.part == 0 ? WriteInitial(stage, folder) : absl::OkStatus();
    return WriteStageFile(folder, stage.layout, SlotsOf(stage.layout, *weights), 0);
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
  std::vector<Tensor> flats;  // as StateBuffers names them
  for (int v = static_cast<int>(rule.OldestRead(version)); v < version; ++v) {
    older.push_back(stage.versions.At(v));
    if (older.back() == nullptr) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "this rank holds version %d of the weights of stage %d no more, and later steps read it", v,
          stage.layout.stage));
    }
    flats.push_back(older.back()->memory());
  }
  flats.insert(flats.end(), stage.optimizer_state.begin(), stage.optimizer_state.end());
  std::vector<const float*> buffers;
  for (const Tensor& flat : flats) {
    const absl::StatusOr<const float*> values = readable.Of(flat);
    if (!values.ok()) return values.status();
    buffers.push_back(*values);
  }
  if (stage.parts > 1) {
    const absl::Status written =
        WriteSliceFile(folder, stage.layout, rule, version, stage.part, stage.parts, *weights, buffers);
    return written.ok() ? JoinSliceFiles(folder, stage.layout, rule, version, stage.parts) : written;
  }
  std::vector<SlotPointers> slots;
  for (const float* flat : buffers) slots.push_back(SlotsOf(stage.layout, flat));
  return WriteTrainingState(folder, stage.layout, rule, version, SlotsOf(stage.layout, *weights), slots);
}

absl::Status TorchRank::SaveInitial(int stage, const std::string& folder) {
  absl::StatusOr<Stage*> found = StageOf(stage);
  if (!found.ok()) return found.status();
  return Compute([&] { return absl::StrCat("saving stage ", stage); },
                 [&] { return WriteInitial(**found, folder); });
}

// The stage's first weights once more, whole: they need no other rank.
absl::Status TorchRank::WriteInitial(const Stage& stage, const std::string& folder) {
  const Charged charged(*device_, MemoryClass::kBuffers);
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
