#include "worker/shell/torch/stage_files.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "worker/shell/checkpoint/packed_snapshot.h"
#include "worker/shell/checkpoint/unnamed_file.h"
#include "worker/shell/compute/segment_allocator.h"
#include "worker/shell/memory/fence.h"
#include "worker/shell/memory/streaming_copy.h"
#include "worker/shell/torch/torch_guard.h"
#include "worker/shell/torch/torch_layers.h"

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
absl::Status StageFiles::Fill(const Tensor& flat, const std::function<void(float*)>& write) {
  if (device_.is_host()) {
    write(static_cast<float*>(flat.data));
    return absl::OkStatus();
  }
  std::vector<float> values(flat.bytes / sizeof(float));
  write(values.data());
  return device_.Load(flat.data, values.data(), flat.bytes);
}

absl::Status StageFiles::Begin(HeldStage* stage) {
  const bool comes_later = run_.spec.resume.copies && kept_.count(stage->layout().stage) == 0;
  if (comes_later) return absl::OkStatus();
  if (stage->role().holding != StageRole::Holding::kInstalled) {
    if (absl::Status s = stage->optimizer().Begin(); !s.ok()) return s;
  }
  if (run_.spec.first_step() > 0) return Restore(stage);
  absl::StatusOr<std::shared_ptr<StageWeights>> initial = stage->NewVersion();
  if (!initial.ok()) return initial.status();
  if (absl::Status s = MakeInitial(*stage, **initial); !s.ok()) return s;
  stage->versions().Begin(0, *std::move(initial));
  return absl::OkStatus();
}

// Initializes the held weights. A parameter's initial values depend on all of it, so one that a slice holds
// in part is made whole and cut.
absl::Status StageFiles::MakeInitial(const HeldStage& stage, StageWeights& weights) {
  const Charged charged(device_, MemoryClass::kBuffers);
  const SliceBounds held = stage.held();
  for (const ParameterSlot& slot : stage.layout().slots) {
    if (stage.role().parts == 1 && device_.is_host()) {
      const at::Tensor flat = Wrap(weights.memory(), device_.torch_device());
      absl::Status made =
          Initialize(slot.parameter, run_.spec.train.seed, slot.layer,
                     flat.narrow(0, slot.offset, slot.parameter.elements()).view(slot.parameter.size));
      if (!made.ok()) return made;
      continue;
    }
    const int64_t begin = std::max(held.begin, slot.offset);
    const int64_t end = std::min(held.end, slot.offset + slot.parameter.elements());
    if (begin >= end) continue;
    const at::Tensor whole = at::empty(slot.parameter.size, c10::kFloat);
    absl::Status made = Initialize(slot.parameter, run_.spec.train.seed, slot.layer, whole);
    if (!made.ok()) return made;
    absl::Status loaded = device_.Load(weights.data() + (begin - held.begin),
                                       whole.const_data_ptr<float>() + (begin - slot.offset),
                                       static_cast<size_t>(end - begin) * sizeof(float));
    if (!loaded.ok()) return loaded;
  }
  weights.Changed();
  return absl::OkStatus();
}

absl::Status StageFiles::Restore(HeldStage* stage) {
  const StateRule& rule = rules_.at(stage->layout().stage);
  if (run_.spec.resume.copies) {
    const std::shared_ptr<const KeptStage> kept = std::exchange(kept_[stage->layout().stage], nullptr);
    return RestoreFrom(*kept, rule, stage);
  }
  const absl::StatusOr<SavedStage> saved = SavedStage::Read(run_.spec, rule, stage->layout().stage);
  return saved.ok() ? RestoreFrom(*saved, rule, stage) : saved.status();
}

// Holds the versions that the run goes on from: every version that its first steps may read.
absl::Status StageFiles::RestoreFrom(const KeptStage& kept, const StateRule& rule, HeldStage* stage) {
  const int saved = run_.spec.first_step(), oldest = static_cast<int>(rule.OldestRead(saved));
  const int newest = saved - stage->role().installs_late;
  for (int version = oldest; version <= newest; ++version) {
    absl::StatusOr<std::shared_ptr<StageWeights>> weights = stage->NewVersion();
    if (!weights.ok()) return weights.status();
    absl::Status loaded = Fill((*weights)->memory(), [&](float* flat) {
      if (version == saved) {
        kept.CopyNewest(stage->held(), flat);
      } else {
        kept.CopyBuffer(absl::StrCat("version", version), stage->held(), flat);
      }
    });
    if (!loaded.ok()) return loaded;
    (*weights)->Changed();
    if (version == oldest) {
      stage->versions().Begin(version, *std::move(weights));
    } else {
      stage->versions().Add(*std::move(weights), /*keep=*/true);
    }
  }
  const std::vector<const char*> names = stage->optimizer().state_names();
  const std::vector<Tensor>& buffers = stage->optimizer().buffers();
  for (size_t i = 0; i < buffers.size(); ++i) {
    absl::Status loaded =
        Fill(buffers[i], [&](float* flat) { kept.CopyBuffer(names[i], stage->held(), flat); });
    if (!loaded.ok()) return loaded;
  }
  stage->optimizer().Resume(kept.optimizer_steps());
  return absl::OkStatus();
}

// Returns the buffer as the host can read it: itself, or a copy for which this waits.
absl::StatusOr<Tensor> StageFiles::ReadOut(const Tensor& flat) {
  if (device_.is_host()) return flat;
  if (flat.place == MemoryPlace::kHost) {  // a copy that was begun in a job
    for (;;) {
      const absl::StatusOr<bool> there = flat.ready == nullptr ? true : flat.ready->Reached();
      if (!there.ok()) return there.status();
      if (*there) return flat;
      absl::SleepFor(absl::Microseconds(100));
    }
  }
  absl::StatusOr<Tensor> copy = NewOutside(flat);
  if (!copy.ok()) return copy;
  const absl::Status read = device_.ReadBack(copy->data, flat.data, flat.bytes);
  if (!read.ok()) return read;
  return copy;
}

// Copies a buffer behind the job's work. A device with memory of its own makes the copy beside the job, and
// does nothing more on the rank's own stream before: the next update writes over the copied memory.
absl::StatusOr<Tensor> StageFiles::CopyBehindJob(const Tensor& flat) {
  if (flat.place == MemoryPlace::kHost) return flat;  // begun before
  absl::StatusOr<Tensor> copy = device_.ToHost(flat, HostUse::kOffload);
  if (!copy.ok()) return copy;
  Tensor copied = flat;
  copied.ready = copy->ready;
  device_.Await(std::move(copied));
  return copy;
}

// Returns the buffers that the files hold of the stage: the newest weights, older ones that later steps read,
// and the optimizer's buffers.
absl::StatusOr<std::vector<Tensor>> StageFiles::BuffersOf(const HeldStage& stage,
                                                          const StateRule& rule) const {
  const WeightVersions& versions = stage.versions();
  std::vector<Tensor> flats = {versions.newest()->memory()};
  const int newest = versions.newest_version();
  for (int64_t v = rule.OldestRead(newest); v < newest; ++v) {
    const std::shared_ptr<StageWeights> older = versions.At(static_cast<int>(v));
    const auto replaced = replaced_.find(stage.layout().stage);
    if (older == nullptr && replaced != replaced_.end() && replaced->second.version == v) {
      flats.push_back(replaced->second.flat);
      continue;
    }
    if (older == nullptr) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "this rank holds version %d of the weights of stage %d no more, and later steps read it", v,
          stage.layout().stage));
    }
    flats.push_back(older->memory());
  }
  const std::vector<Tensor>& optimizer = stage.optimizer().buffers();
  flats.insert(flats.end(), optimizer.begin(), optimizer.end());
  return flats;
}

absl::StatusOr<std::shared_ptr<StageSnapshot>> StageFiles::TakeSnapshot(const HeldStage& stage,
                                                                        const ReadBuffer& read) {
  if (stage.role().holding == StageRole::Holding::kInstalled) {
    return absl::FailedPreconditionError(
        absl::StrFormat("stage %d is saved by the rank that updates it, with the optimizer's state; this one "
                        "installs its versions",
                        stage.layout().stage));
  }
  auto snapshot = std::make_shared<StageSnapshot>();
  snapshot->layout = stage.layout();
  snapshot->rule = rules_.at(stage.layout().stage);
  snapshot->version = stage.versions().newest_version();
  snapshot->optimizer_steps = stage.optimizer().steps();
  snapshot->part = stage.role().part;
  snapshot->parts = stage.role().parts;
  const absl::StatusOr<std::vector<Tensor>> flats = BuffersOf(stage, snapshot->rule);
  if (!flats.ok()) return flats.status();
  for (const Tensor& flat : *flats) {
    absl::StatusOr<Tensor> readable = read(flat);
    if (!readable.ok()) return readable.status();
    snapshot->flats.push_back(*std::move(readable));
  }
  return snapshot;
}

bool StageFiles::NeedsReplaced(const HeldStage& stage) const {
  const int version = stage.versions().newest_version();
  return rules_.at(stage.layout().stage).OldestRead(version + 1) <= version;
}

// Takes the memory of a snapshot of the version: of all its flats, with a head before them, so that it can be
// sent as it is.
absl::StatusOr<Tensor> StageFiles::TakeBlock(const HeldStage& stage, int64_t version,
                                             SnapshotMemory& memory) const {
  const size_t flats = 1 + StateBuffers(rules_.at(stage.layout().stage), version).size();
  return memory.Take(kSnapshotHeadBytes + flats * stage.versions().newest()->memory().bytes);
}

absl::Status StageFiles::BeginSnapshot(const HeldStage& stage, SnapshotMemory& memory) {
  if (!NeedsReplaced(stage)) return absl::OkStatus();
  Replaced replaced{stage.versions().newest_version(), stage.versions().newest()->memory(), {}};
  if (device_.is_host()) {
    // It is the last of the older versions, which come behind the newest.
    const StateRule& rule = rules_.at(stage.layout().stage);
    const int64_t version = replaced.version + 1, older = version - rule.OldestRead(version);
    const absl::StatusOr<Tensor> block = TakeBlock(stage, version, memory);
    if (!block.ok()) return block.status();
    const Tensor newest = replaced.flat;
    replaced.block = *block;
    replaced.flat.data = static_cast<char*>(block->data) + kSnapshotHeadBytes + older * newest.bytes;
    replaced.flat.owner = block->owner;
    replaced.flat.place = MemoryPlace::kHost;
    replaced.flat.ready = nullptr;
    StreamingCopy(replaced.flat.data, newest.data, newest.bytes);
  } else {
    absl::StatusOr<Tensor> copy = CopyBehindJob(replaced.flat);
    if (!copy.ok()) return copy.status();
    replaced.flat = *std::move(copy);
  }
  replaced_[stage.layout().stage] = std::move(replaced);
  return absl::OkStatus();
}

absl::Status StageFiles::BeginSave(const HeldStage& stage, const std::string& folder) {
  if (!NeedsReplaced(stage)) return absl::OkStatus();
  const Tensor newest = stage.versions().newest()->memory();
  absl::StatusOr<Tensor> copy = device_.is_host() ? CopyToFile(newest, folder) : CopyBehindJob(newest);
  if (!copy.ok()) return copy.status();
  replaced_[stage.layout().stage] = {stage.versions().newest_version(), *std::move(copy), {}};
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const StageSnapshot>> StageFiles::Snapshot(const HeldStage& stage,
                                                                          SnapshotMemory& memory) {
  const auto replaced = replaced_.find(stage.layout().stage);
  const bool begun = replaced != replaced_.end();
  const absl::Cleanup forget = [&] {
    if (begun) replaced_.erase(replaced);
  };
  if (!device_.is_host())
    return TakeSnapshot(stage, [this](const Tensor& flat) { return CopyBehindJob(flat); });
  const absl::StatusOr<Tensor> block =
      begun ? replaced->second.block : TakeBlock(stage, stage.versions().newest_version(), memory);
  if (!block.ok()) return block.status();
  char* next = static_cast<char*>(block->data) + kSnapshotHeadBytes;
  auto snapshot = TakeSnapshot(stage, [&](const Tensor& flat) -> absl::StatusOr<Tensor> {
    Tensor copy = flat;
    copy.data = std::exchange(next, next + flat.bytes);
    if (copy.data == flat.data) return flat;  // taken before the update
    copy.owner = block->owner;
    copy.place = MemoryPlace::kHost;
    copy.ready = nullptr;
    StreamingCopy(copy.data, flat.data, flat.bytes);
    return copy;
  });
  if (snapshot.ok()) (*snapshot)->block = *block;
  return snapshot;
}

size_t StageFiles::SnapshotBytes(const HeldStage& stage) const {
  if (!device_.is_host() || !stage.holds()) return 0;
  constexpr int64_t kLate = 1 << 30;  // a version that has as many before it as later steps read
  const size_t flats = 1 + StateBuffers(rules_.at(stage.layout().stage), kLate).size();
  return kSnapshotHeadBytes + flats * static_cast<size_t>(stage.held_elements()) * sizeof(float);
}

absl::Status StageFiles::Save(const HeldStage& stage, const std::string& folder) {
  if (stage.versions().newest_version() > 0) {
    const auto snapshot = TakeSnapshot(stage, [this](const Tensor& flat) { return ReadOut(flat); });
    return snapshot.ok() ? WriteSnapshot(folder, **snapshot) : snapshot.status();
  }
  const StageRole& role = stage.role();
  if (role.parts > 1) return role.part == 0 ? SaveInitial(stage.layout(), folder) : absl::OkStatus();
  const absl::StatusOr<Tensor> weights = ReadOut(stage.versions().newest()->memory());
  if (!weights.ok()) return weights.status();
  return WriteStageFile(folder, stage.layout(),
                        SlotsOf(stage.layout(), static_cast<const float*>(weights->data)), 0);
}

// Writes the stage's first weights once more, whole: they need no other rank.
absl::Status StageFiles::SaveInitial(const StageLayout& layout, const std::string& folder) {
  const Charged charged(device_, MemoryClass::kBuffers);
  std::vector<at::Tensor> parameters;
  std::vector<const float*> values;
  for (const ParameterSlot& slot : layout.slots) {
    parameters.push_back(at::empty(slot.parameter.size, c10::kFloat));
    absl::Status made = Initialize(slot.parameter, run_.spec.train.seed, slot.layer, parameters.back());
    if (!made.ok()) return made;
    values.push_back(parameters.back().const_data_ptr<float>());
  }
  return WriteStageFile(folder, layout, values, 0);
}

}  // namespace weft
