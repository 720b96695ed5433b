#include "worker/shell/checkpoint/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/shell/checkpoint/safetensors.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/memory/fence.h"

namespace weft {

std::string StageFileName(int stage) { return absl::StrFormat("stage%02d.safetensors", stage); }
std::string StateFileName(int stage) { return absl::StrFormat("state/stage%02d.safetensors", stage); }

namespace {

constexpr absl::string_view kNewest = "newest";

std::string SlicePath(const std::string& folder, int stage, int part, int parts) {
  return absl::StrFormat("%s/stage%02d.%dof%d.slice", folder, stage, part + 1, parts);
}

// Returns the names of all buffers of a stage: the newest weights, then the others.
std::vector<std::string> AllBuffers(const StateRule& rule, int64_t version) {
  std::vector<std::string> names = StateBuffers(rule, version);
  names.insert(names.begin(), std::string(kNewest));
  return names;
}

// Puts the slices of that part at their places in `flats`, which are as AllBuffers names them.
absl::Status ReadSliceFile(const std::string& path, int part, int parts, const std::string& version,
                           const std::vector<std::string>& names, std::vector<std::vector<float>>* flats,
                           int64_t* optimizer_steps) {
  absl::StatusOr<SafetensorsFile> file = ReadSafetensors(path);
  if (!file.ok()) return file.status();
  if (file->header.metadata["version"] != version) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s is a slice of version %s, not %s: does another "
                        "run write into the same folder?",
                        path, file->header.metadata["version"], version));
  }
  *optimizer_steps = OptimizerStepsOf(file->header);
  const SliceBounds bounds = SliceOf(static_cast<int64_t>(flats->front().size()), part, parts);
  for (size_t i = 0; i < names.size(); ++i) {
    const SafetensorsEntry* entry = file->header.Find(names[i]);
    if (entry == nullptr || entry->type != DataType::kFloat32 ||
        entry->shape != std::vector<int64_t>{bounds.end - bounds.begin}) {
      return absl::DataLossError(
          absl::StrFormat("%s does not hold the slice of %s that the model has there", path, names[i]));
    }
    const uint64_t bytes = entry->end - entry->begin;
    if (bytes > 0) std::memcpy((*flats)[i].data() + bounds.begin, file->data.data() + entry->begin, bytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeCheckpointFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat("cannot make the folder %s: %s", folder, error.message()));
}

absl::Status WriteSliceFile(const std::string& folder, const StageLayout& layout, const StateRule& rule,
                            int64_t version, int64_t optimizer_steps, int part, int parts,
                            const float* newest, const std::vector<const float*>& buffers) {
  if (absl::Status s = MakeCheckpointFolder(folder); !s.ok()) return s;
  const SliceBounds bounds = SliceOf(layout.elements, part, parts);
  const std::vector<std::string> names = AllBuffers(rule, version);
  std::vector<SafetensorsSource> tensors;
  for (size_t i = 0; i < names.size(); ++i) {
    tensors.push_back(
        {names[i], DataType::kFloat32, {bounds.end - bounds.begin}, i == 0 ? newest : buffers.at(i - 1)});
  }
  return WriteSafetensors(
      SlicePath(folder, layout.stage, part, parts), tensors,
      {{"version", absl::StrCat(version)}, {kOptimizerSteps, absl::StrCat(optimizer_steps)}});
}

absl::Status JoinSliceFiles(const std::string& folder, const StageLayout& layout, const StateRule& rule,
                            int64_t version, int parts) {
  for (int part = 0; part < parts; ++part) {
    std::error_code error;
    if (!std::filesystem::exists(SlicePath(folder, layout.stage, part, parts), error))
      return absl::OkStatus();
  }
  const std::vector<std::string> names = AllBuffers(rule, version);
  std::vector<std::vector<float>> flats(names.size(), std::vector<float>(layout.elements));
  int64_t optimizer_steps = version;
  for (int part = 0; part < parts; ++part) {
    absl::Status s = ReadSliceFile(SlicePath(folder, layout.stage, part, parts), part, parts,
                                   absl::StrCat(version), names, &flats, &optimizer_steps);
    if (absl::IsNotFound(s)) return absl::OkStatus();  // another process joined them
    if (!s.ok()) return s;
  }
  std::vector<SlotPointers> buffers;
  for (size_t i = 1; i < flats.size(); ++i) buffers.push_back(SlotsOf(layout, flats[i].data()));
  absl::Status written = WriteTrainingState(folder, layout, rule, version, optimizer_steps,
                                            SlotsOf(layout, flats[0].data()), buffers);
  if (!written.ok()) return written;
  for (int part = 0; part < parts; ++part) {
    if (absl::Status s = DiscardSlice(folder, layout.stage, part, parts); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status DiscardSlice(const std::string& folder, int stage, int part, int parts) {
  std::error_code error;
  const std::string path = SlicePath(folder, stage, part, parts);
  std::filesystem::remove(path, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat("cannot remove %s: %s", path, error.message()));
}

absl::Status WriteStageFile(const std::string& folder, const StageLayout& layout,
                            const std::vector<const float*>& values, int64_t version,
                            const std::string& training) {
  if (absl::Status s = MakeCheckpointFolder(folder); !s.ok()) return s;
  std::vector<SafetensorsSource> tensors;
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const ParameterSlot& slot = layout.slots[i];
    tensors.push_back(
        {CheckpointName(layout.stage, slot), DataType::kFloat32, slot.parameter.size, values.at(i)});
  }
  std::map<std::string, std::string> metadata = {{"format", "pt"}, {"version", absl::StrCat(version)}};
  if (!training.empty()) metadata["training"] = training;
  return WriteSafetensors(absl::StrCat(folder, "/", StageFileName(layout.stage)), tensors, metadata);
}

absl::Status JoinAllSlices(const std::string& folder, const ScheduledRun& run, int64_t version) {
  const std::vector<StateRule> rules = StateRulesOf(run);
  for (int stage = 0; stage < run.spec.stages(); ++stage) {
    const std::string prefix = absl::StrFormat("stage%02d.1of", stage);
    std::error_code error;
    int parts = 0;
    for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
         it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (name.rfind(prefix, 0) == 0 && it->path().extension() == ".slice")
        parts = std::atoi(name.c_str() + prefix.size());
    }
    if (parts == 0) continue;
    absl::Status joined = JoinSliceFiles(folder, LayOutStage(run.spec, stage), rules[stage], version, parts);
    if (!joined.ok()) return joined;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> IsThere(const StageSnapshot& snapshot) {
  for (const Tensor& flat : snapshot.flats) {
    if (flat.ready == nullptr) continue;
    absl::StatusOr<bool> reached = flat.ready->Reached();
    if (!reached.ok() || !*reached) return reached;
  }
  return true;
}

absl::Status WriteSnapshot(const std::string& folder, const StageSnapshot& s) {
  std::vector<const float*> flats;
  for (const Tensor& flat : s.flats) flats.push_back(static_cast<const float*>(flat.data));
  const float* const newest = flats.front();
  flats.erase(flats.begin());
  if (s.parts > 1) {
    const absl::Status written = WriteSliceFile(folder, s.layout, s.rule, s.version, s.optimizer_steps,
                                                s.part, s.parts, newest, flats);
    return written.ok() ? JoinSliceFiles(folder, s.layout, s.rule, s.version, s.parts) : written;
  }
  std::vector<SlotPointers> slots;
  slots.reserve(flats.size());
  for (const float* flat : flats) slots.push_back(SlotsOf(s.layout, flat));
  return WriteTrainingState(folder, s.layout, s.rule, s.version, s.optimizer_steps, SlotsOf(s.layout, newest),
                            slots);
}

// Adds the file of the stage's training state if it is there. FailedPrecondition if it is of another version
// or training than the weights.
static absl::Status AddState(const std::string& folder, int stage, const std::string& training,
                             CheckpointIndex* index) {
  if (index->version == 0) return absl::OkStatus();
  const std::string file = StateFileName(stage);
  absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(absl::StrCat(folder, "/", file));
  if (absl::IsNotFound(header.status())) return absl::OkStatus();
  if (!header.ok()) return header.status();
  if (header->metadata["version"] != absl::StrCat(index->version) ||
      header->metadata["training"] != training) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the checkpoint %s mixes versions: the weights of stage %d have %d (training %s), its state has %s "
        "(training %s)",
        folder, stage, index->version, training, header->metadata["version"], header->metadata["training"]));
  }
  index->state.push_back(file);
  index->files[file] = {header->metadata["crc32"], header->data_begin + header->data_bytes, header->checksum};
  return absl::OkStatus();
}

static absl::Status AddStage(const std::string& folder, const RunSpec& run, int stage,
                             CheckpointIndex* index) {
  const std::string file = StageFileName(stage);
  absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(absl::StrCat(folder, "/", file));
  if (!header.ok()) {
    return absl::Status(header.status().code(),
                        absl::StrCat("the checkpoint stays without an index: ", header.status().message()));
  }
  const std::string& version = header->metadata["version"];
  const std::string& training = header->metadata["training"];
  if (stage == 0) {
    if (!absl::SimpleAtoi(version, &index->version) || index->version < 0)
      return absl::DataLossError(absl::StrFormat("%s/%s does not say its version", folder, file));
    index->training = training;
  }
  if (version != absl::StrCat(index->version) || training != index->training) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the checkpoint %s mixes versions: stage 0 has %d (training %s), stage %d has %s (training %s)",
        folder, index->version, index->training, stage, version, training));
  }
  index->files[file] = {header->metadata["crc32"], header->data_begin + header->data_bytes, header->checksum};
  for (const ParameterSlot& slot : LayOutStage(run, stage).slots) {
    const std::string name = CheckpointName(stage, slot);
    const SafetensorsEntry* entry = header->Find(name);
    if (entry == nullptr || entry->shape != slot.parameter.size) {
      return absl::DataLossError(
          absl::StrFormat("%s/%s does not hold %s as the model has it", folder, file, name));
    }
    index->weight_map[name] = file;
    index->total_size += entry->end - entry->begin;
  }
  return AddState(folder, stage, training, index);
}

absl::Status WriteCheckpointIndex(const std::string& folder, const RunSpec& run,
                                  const CheckpointIdentity& identity, int64_t sealed_ms) {
  CheckpointIndex index;
  index.run = run.name;
  index.identity = identity;
  const int64_t now = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  index.sealed_ms = std::max(now, sealed_ms);
  for (int stage = 0; stage < run.stages(); ++stage) {
    if (absl::Status s = AddStage(folder, run, stage, &index); !s.ok()) return s;
  }
  if (static_cast<int>(index.state.size()) != run.stages()) index.state.clear();
  return index.Write(folder);
}

absl::Status WriteCheckpointIndex(const std::string& folder, const RunSpec& run) {
  return WriteCheckpointIndex(folder, run, {});
}

}  // namespace weft
