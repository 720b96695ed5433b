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

namespace {

constexpr absl::string_view kSliceTensor = "slice";

std::string SlicePath(const std::string& folder, int stage, int part, int parts) {
  return absl::StrFormat("%s/stage%02d.%dof%d.slice", folder, stage, part + 1, parts);
}

absl::Status MakeFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat("cannot make the folder %s: %s", folder, error.message()));
}

// Puts the slice of that part at its place in `flat`.
absl::Status ReadSliceFile(const std::string& path, int part, int parts, const std::string& version,
                           std::vector<float>* flat) {
  absl::StatusOr<SafetensorsFile> file = ReadSafetensors(path);
  if (!file.ok()) return file.status();
  const SliceBounds bounds = SliceOf(static_cast<int64_t>(flat->size()), part, parts);
  const SafetensorsEntry* entry = file->header.Find(kSliceTensor);
  if (entry == nullptr || entry->type != DataType::kFloat32 ||
      entry->shape != std::vector<int64_t>{bounds.end - bounds.begin}) {
    return absl::DataLossError(absl::StrFormat("%s does not hold the slice that the model has there", path));
  }
  if (file->header.metadata["version"] != version) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s is a slice of version %s, not %s: does another "
                        "run write into the same folder?",
                        path, file->header.metadata["version"], version));
  }
  if (!file->data.empty()) std::memcpy(flat->data() + bounds.begin, file->data.data(), file->data.size());
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteSliceFile(const std::string& folder, int stage, int part, int parts, const Tensor& slice,
                            int64_t version) {
  if (absl::Status s = MakeFolder(folder); !s.ok()) return s;
  const std::vector<int64_t> shape{static_cast<int64_t>(slice.bytes / sizeof(float))};
  return WriteSafetensors(SlicePath(folder, stage, part, parts),
                          {{std::string(kSliceTensor), DataType::kFloat32, shape, slice.data}},
                          {{"version", absl::StrCat(version)}});
}

absl::Status JoinSliceFiles(const std::string& folder, const StageLayout& layout, int parts,
                            int64_t version) {
  for (int part = 0; part < parts; ++part) {
    std::error_code error;
    if (!std::filesystem::exists(SlicePath(folder, layout.stage, part, parts), error))
      return absl::OkStatus();
  }
  std::vector<float> flat(static_cast<size_t>(layout.elements));
  for (int part = 0; part < parts; ++part) {
    const absl::Status s = ReadSliceFile(SlicePath(folder, layout.stage, part, parts), part, parts,
                                         absl::StrCat(version), &flat);
    if (absl::IsNotFound(s)) return absl::OkStatus();  // another joined them
    if (!s.ok()) return s;
  }
  std::vector<const float*> values;
  for (const ParameterSlot& slot : layout.slots) values.push_back(flat.data() + slot.offset);
  if (absl::Status s = WriteStageFile(folder, layout, values, version); !s.ok()) return s;
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
  if (absl::Status s = MakeFolder(folder); !s.ok()) return s;
  std::vector<SafetensorsSource> tensors;
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const ParameterSlot& slot = layout.slots[i];
    tensors.push_back(
        {CheckpointName(layout.stage, slot), DataType::kFloat32, slot.parameter.size, values.at(i)});
  }
  return WriteSafetensors(absl::StrCat(folder, "/", StageFileName(layout.stage)), tensors,
                          {{"format", "pt"}, {"version", absl::StrCat(version)}});
}

absl::Status WriteCheckpointIndex(const std::string& folder, const RunSpec& run) {
  nlohmann::json weight_map = nlohmann::json::object();
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
  const nlohmann::json index = {
      {"metadata", {{"total_size", bytes}, {"run", run.name}, {"version", version}}},
      {"weight_map", weight_map}};
  return WriteFileAtomically(absl::StrCat(folder, "/", std::string(kCheckpointIndex)), index.dump(1) + "\n");
}

}  // namespace weft
