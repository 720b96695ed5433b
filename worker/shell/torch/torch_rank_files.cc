// Implements TorchRank's initial weights, and checkpoints, written and gone on from. Only calls in this file
// wait for the device, and none in a job; a snapshot is taken in a job, and does not wait.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "run/run_schedule.h"
#include "worker/shell/checkpoint/checkpoint.h"
#include "worker/shell/compute/segment_allocator.h"
#include "worker/shell/compute/training_state.h"
#include "worker/shell/torch/torch_rank.h"

namespace weft {
namespace {

// Makes ordinary host memory, of no rank's: it may outlive them all.
absl::StatusOr<Tensor> NewOutside(const Tensor& like) {
  Tensor copy = like;
  copy.data = SegmentAllocator::AllocateOutside(like.bytes);
  if (copy.data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("no memory for a copy of %d bytes of the stage's state", like.bytes));
  }
  copy.owner = std::shared_ptr<void>(copy.data, &SegmentAllocator::Free);
  copy.place = MemoryPlace::kHost;
  copy.ready = nullptr;
  return copy;
}

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

const absl::StatusOr<std::vector<StateRule>>& TorchRank::StateRules() {
  std::call_once(rules_once_, [this] { rules_ = StateRulesOf(run_); });
  return rules_;
}

// Holds the versions of the checkpoint that the run goes on from: every version that its first steps may
// read.
absl::Status TorchRank::HoldSaved(Stage& stage) {
  const absl::StatusOr<std::vector<StateRule>>& rules = StateRules();
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
  stage.optimizer.Resume(saved->optimizer_steps());
  return absl::OkStatus();
}

// Initializes the held weights. A parameter's initial values depend on all of it, so one that a slice holds
// in part is made whole and cut. The host makes them, for every device: its generator's numbers are the
// run's.
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

// Returns the buffer as the host can read it: itself, or a copy for which this waits.
absl::StatusOr<Tensor> TorchRank::ReadOut(const Tensor& flat) {
  if (device_->is_host()) return flat;
  absl::StatusOr<Tensor> copy = NewOutside(flat);
  if (!copy.ok()) return copy;
  const absl::Status read = device_->ReadBack(copy->data, flat.data, flat.bytes);
  if (!read.ok()) return read;
  return copy;
}

// Copies a buffer behind the job's work. A device with memory of its own makes the copy beside the job, and
// does nothing more on the rank's own stream before: the next update writes over the copied memory.
absl::StatusOr<Tensor> TorchRank::CopyForSnapshot(const Tensor& flat) {
  if (!device_->is_host()) {
    absl::StatusOr<Tensor> copy = device_->ToHost(flat, HostUse::kOffload);
    if (!copy.ok()) return copy;
    Tensor copied = flat;
    copied.ready = copy->ready;
    device_->Await(std::move(copied));
    return copy;
  }
  absl::StatusOr<Tensor> copy = NewOutside(flat);
  if (copy.ok()) device_->math().Copy(copy->data, flat.data, flat.bytes);
  return copy;
}

absl::StatusOr<std::shared_ptr<const StageSnapshot>> TorchRank::Snapshot(int stage) {
  absl::StatusOr<Stage*> found = HeldStage(stage);
  if (!found.ok()) return found.status();
  return Compute([&] { return absl::StrCat("taking a snapshot of stage ", stage); },
                 [&] { return DoSnapshot(**found, &TorchRank::CopyForSnapshot); });
}

absl::StatusOr<std::shared_ptr<const StageSnapshot>> TorchRank::DoSnapshot(
    const Stage& stage, absl::StatusOr<Tensor> (TorchRank::*host)(const Tensor& flat)) {
  if (stage.adopted) {
    return absl::FailedPreconditionError(
        absl::StrFormat("stage %d is saved by the rank that updates it, with the optimizer's state; this one "
                        "adopts its versions",
                        stage.layout.stage));
  }
  const absl::StatusOr<std::vector<StateRule>>& rules = StateRules();
  if (!rules.ok()) return rules.status();
  auto snapshot = std::make_shared<StageSnapshot>();
  snapshot->layout = stage.layout;
  snapshot->rule = rules->at(stage.layout.stage);
  snapshot->version = stage.versions.newest_version();
  snapshot->optimizer_steps = stage.optimizer.steps();
  snapshot->part = stage.part;
  snapshot->parts = stage.parts;
  std::vector<Tensor> flats = {stage.versions.newest()->memory()};
  for (int64_t v = snapshot->rule.OldestRead(snapshot->version); v < snapshot->version; ++v) {
    const std::shared_ptr<StageWeights> older = stage.versions.At(static_cast<int>(v));
    if (older == nullptr) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "this rank holds version %d of the weights of stage %d no more, and later steps read it", v,
          stage.layout.stage));
    }
    flats.push_back(older->memory());
  }
  flats.insert(flats.end(), stage.optimizer_state.begin(), stage.optimizer_state.end());
  for (const Tensor& flat : flats) {
    absl::StatusOr<Tensor> readable = (this->*host)(flat);
    if (!readable.ok()) return readable.status();
    snapshot->flats.push_back(*std::move(readable));
  }
  return snapshot;
}

absl::Status TorchRank::DoSave(const Stage& stage, const std::string& folder) {
  if (stage.versions.newest_version() == 0) {
    if (stage.parts > 1) return stage.part == 0 ? WriteInitial(stage, folder) : absl::OkStatus();
    const absl::StatusOr<Tensor> weights = ReadOut(stage.versions.newest()->memory());
    if (!weights.ok()) return weights.status();
    return WriteStageFile(folder, stage.layout,
                          SlotsOf(stage.layout, static_cast<const float*>(weights->data)), 0);
  }
  const auto snapshot = DoSnapshot(stage, &TorchRank::ReadOut);
  return snapshot.ok() ? WriteSnapshot(folder, **snapshot) : snapshot.status();
}

absl::Status TorchRank::SaveInitial(int stage, const std::string& folder) {
  absl::StatusOr<Stage*> found = StageOf(stage);
  if (!found.ok()) return found.status();
  return Compute([&] { return absl::StrCat("saving stage ", stage); },
                 [&] { return WriteInitial(**found, folder); });
}

// Writes the stage's first weights once more, whole: they need no other rank.
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
