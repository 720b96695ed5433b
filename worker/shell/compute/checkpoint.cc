#include "worker/shell/compute/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/safetensors.h"

namespace weft {

std::string StageFileName(int stage) { return absl::StrFormat("stage%02d.safetensors", stage); }
std::string StateFileName(int stage) { return absl::StrFormat("state/stage%02d.safetensors", stage); }

namespace {

constexpr absl::string_view kNewest = "newest";

std::string SlicePath(const std::string& folder, int stage, int part, int parts) {
  return absl::StrFormat("%s/stage%02d.%dof%d.slice", folder, stage, part + 1, parts);
}

// Of all buffers of a stage: the newest weights, then the others.
std::vector<std::string> AllBuffers(const StateRule& rule, int64_t version) {
  std::vector<std::string> names = StateBuffers(rule, version);
  names.insert(names.begin(), std::string(kNewest));
  return names;
}

// Puts the slices of that part at their places in `flats`, which are as AllBuffers names them.
absl::Status ReadSliceFile(const std::string& path, int part, int parts, const std::string& version,
                           const std::vector<std::string>& names, std::vector<std::vector<float>>* flats) {
  absl::StatusOr<SafetensorsFile> file = ReadSafetensors(path);
  if (!file.ok()) return file.status();
  if (file->header.metadata["version"] != version) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s is a slice of version %s, not %s: does another "
                        "run write into the same folder?",
                        path, file->header.metadata["version"], version));
  }
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
                            int64_t version, int part, int parts, const float* newest,
                            const std::vector<const float*>& buffers) {
  if (absl::Status s = MakeCheckpointFolder(folder); !s.ok()) return s;
  const SliceBounds bounds = SliceOf(layout.elements, part, parts);
  const std::vector<std::string> names = AllBuffers(rule, version);
  std::vector<SafetensorsSource> tensors;
  for (size_t i = 0; i < names.size(); ++i) {
    tensors.push_back(
        {names[i], DataType::kFloat32, {bounds.end - bounds.begin}, i == 0 ? newest : buffers.at(i - 1)});
  }
  return WriteSafetensors(SlicePath(folder, layout.stage, part, parts), tensors,
                          {{"version", absl::StrCat(version)}});
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
  for (int part = 0; part < parts; ++part) {
    const absl::Status s = ReadSliceFile(SlicePath(folder, layout.stage, part, parts), part, parts,
                                         absl::StrCat(version), names, &flats);
    if (absl::IsNotFound(s)) return absl::OkStatus();  // another joined them
    if (!s.ok()) return s;
  }
  std::vector<SlotPointers> buffers;
  for (size_t i = 1; i < flats.size(); ++i) buffers.push_back(SlotsOf(layout, flats[i].data()));
  const absl::Status written =
      WriteTrainingState(folder, layout, rule, version, SlotsOf(layout, flats[0].data()), buffers);
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
                            const std::vector<const float*>& values, int64_t version) {
  if (absl::Status s = MakeCheckpointFolder(folder); !s.ok()) return s;
  std::vector<SafetensorsSource> tensors;
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const ParameterSlot& slot = layout.slots[i];
    tensors.push_back(
        {CheckpointName(layout.stage, slot), DataType::kFloat32, slot.parameter.size, values.at(i)});
  }
  return WriteSafetensors(absl::StrCat(folder, "/", StageFileName(layout.stage)), tensors,
                          {{"format", "pt"}, {"version", absl::StrCat(version)}});
}

// Adds the file of the stage's training state to `files` if it is there. FailedPrecondition if it is of
// another version than the weights.
static absl::Status FindState(const std::string& folder, int stage, const std::string& version,
                              std::vector<std::string>* files) {
  if (version == "0") return absl::OkStatus();
  const std::string file = StateFileName(stage);
  absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(absl::StrCat(folder, "/", file));
  if (absl::IsNotFound(header.status())) return absl::OkStatus();
  if (!header.ok()) return header.status();
  files->push_back(file);
  if (header->metadata["version"] == version) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("the checkpoint %s mixes versions: the weights of stage %d have %s, its state has %s",
                      folder, stage, version, header->metadata["version"]));
}

absl::Status WriteCheckpointIndex(const std::string& folder, const RunSpec& run) {
  nlohmann::json weight_map = nlohmann::json::object();
  std::vector<std::string> state;
  std::string version;
  uint64_t bytes = 0;
  for (int stage = 0; stage < run.stages(); ++stage) {
    const std::string file = StageFileName(stage);
    absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(absl::StrCat(folder, "/", file));
    if (!header.ok()) {
      return absl::Status(header.status().code(),
                          absl::StrCat("the checkpoint stays without an index: ", header.status().message()));
    }
    const std::string& own = header->metadata["version"];
    if (stage == 0) version = own;
    if (own != version) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "the checkpoint %s mixes versions: stage 0 has %s, stage %d has %s", folder, version, stage, own));
    }
    if (absl::Status s = FindState(folder, stage, version, &state); !s.ok()) return s;
    for (const ParameterSlot& slot : LayOutStage(run, stage).slots) {
      const std::string name = CheckpointName(stage, slot);
      const SafetensorsEntry* entry = header->Find(name);
      if (entry == nullptr || entry->shape != slot.parameter.size) {
        return absl::DataLossError(
            absl::StrFormat("%s/%s does not hold %s as the model has it", folder, file, name));
      }
      weight_map[name] = file;
      bytes += entry->end - entry->begin;
    }
  }
  nlohmann::json index = {{"metadata", {{"total_size", bytes}, {"run", run.name}, {"version", version}}},
                          {"weight_map", weight_map}};
  // Who finds them named can go on from here.
  if (static_cast<int>(state.size()) == run.stages()) index["metadata"]["state"] = state;
  return WriteFileAtomically(absl::StrCat(folder, "/", std::string(kCheckpointIndex)), index.dump(1) + "\n");
}

}  // namespace weft
