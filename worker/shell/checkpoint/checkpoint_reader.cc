#include "worker/shell/checkpoint/checkpoint_reader.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "run/model_layers.h"
#include "worker/shell/checkpoint/checkpoint_index.h"
#include "worker/shell/checkpoint/safetensors.h"

namespace weft {
namespace {

// Returns "block0.norm1.weight" for "stage01.block0.norm1.weight".
std::string WithoutStage(const std::string& name) { return name.substr(name.find('.') + 1); }

// Returns the sizes of the model's parameters, by name.
std::map<std::string, std::vector<int64_t>> SizesOf(const ModelSpec& model) {
  std::map<std::string, std::vector<int64_t>> sizes;
  for (const LayerSpec& layer : DescribeLayers(model)) {
    for (const ParameterSpec& p : layer.parameters) sizes[NameInModel(layer.name, p)] = p.size;
  }
  return sizes;
}

absl::Status TakeParameter(const std::string& path, const SafetensorsFile& file, const std::string& name,
                           const std::map<std::string, std::vector<int64_t>>& sizes, Checkpoint* checkpoint) {
  const SafetensorsEntry* entry = file.header.Find(name);
  if (entry == nullptr) {
    return absl::DataLossError(absl::StrFormat("%s does not hold %s, which its index says", path, name));
  }
  const auto wanted = sizes.find(WithoutStage(name));
  if (wanted == sizes.end() || wanted->second != entry->shape || entry->type != DataType::kFloat32) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s holds %s of size [%s], the run file's model has %s; the checkpoint is of another model", path,
        name, absl::StrJoin(entry->shape, ", "),
        wanted == sizes.end() ? "none of that name"
                              : absl::StrCat("[", absl::StrJoin(wanted->second, ", "), "]")));
  }
  std::vector<float> values((entry->end - entry->begin) / sizeof(float));
  std::memcpy(values.data(), file.data.data() + entry->begin, entry->end - entry->begin);
  if (!checkpoint->parameters.emplace(wanted->first, std::move(values)).second) {
    return absl::DataLossError(absl::StrFormat("%s holds %s, as another stage does too", path, name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& folder, const ModelSpec& model) {
  const absl::StatusOr<CheckpointIndex> index = CheckpointIndex::Read(folder);
  if (!index.ok()) return index.status();
  std::map<std::string, std::vector<std::string>> names_of;  // names by file
  for (const auto& [name, file] : index->weight_map) names_of[file].push_back(name);
  const std::map<std::string, std::vector<int64_t>> sizes = SizesOf(model);
  Checkpoint checkpoint;
  for (const auto& [name, names] : names_of) {
    const std::string path = absl::StrCat(folder, "/", name);
    absl::StatusOr<SafetensorsFile> file = ReadSafetensors(path);
    if (!file.ok()) return file.status();
    const std::string version = file->header.metadata["version"];
    checkpoint.version = absl::StrCat(index->version);
    if (version != checkpoint.version) {
      return absl::DataLossError(
          absl::StrFormat("the checkpoint mixes versions: %s has version %s, its index %s", path, version,
                          checkpoint.version));
    }
    if (absl::Status s = index->Check(folder, name, file->header); !s.ok()) return s;
    for (const std::string& tensor : names) {
      if (absl::Status s = TakeParameter(path, *file, tensor, sizes, &checkpoint); !s.ok()) return s;
    }
  }
  for (const auto& [name, size] : sizes) {
    if (checkpoint.parameters.count(name) != 0) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s names no %s, which the run file's model has; the checkpoint is of another model", folder, name));
  }
  return checkpoint;
}

}  // namespace weft
