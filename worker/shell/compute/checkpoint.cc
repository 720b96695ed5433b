#include "worker/shell/compute/checkpoint.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/safetensors.h"

namespace weft {

std::string StageFileName(int stage) { return absl::StrFormat("stage%02d.safetensors", stage); }

absl::Status WriteStageFile(const std::string& folder, const StageLayout& layout,
                            const std::vector<const float*>& values, int64_t version) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(absl::StrFormat("cannot make the folder %s: %s", folder, error.message()));
  }
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
