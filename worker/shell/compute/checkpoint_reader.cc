#include "worker/shell/compute/checkpoint_reader.h"

#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "worker/shell/compute/checkpoint.h"
#include "worker/shell/compute/parameters.h"
#include "worker/shell/compute/safetensors.h"

namespace weft {
namespace {

// The files by the names of what they hold, from the index.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::NotFoundError(absl::StrFormat(
        "there is no checkpoint: no file %s; a training writes it last, so what lies there is not whole",
        path));
  }
  const nlohmann::json index = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  std::map<std::string, std::string> files;
  if (index.is_object() && index.contains("weight_map") && index["weight_map"].is_object()) {
    for (const auto& [name, file] : index["weight_map"].items()) {
      // A name of a neighbour: an index must not lead elsewhere.
      const std::string neighbour = file.is_string() ? file.get<std::string>() : std::string();
      if (neighbour.empty() || neighbour.find('/') != std::string::npos) {
        files.clear();
        break;
      }
      files[name] = neighbour;
    }
  }
  if (files.empty()) {
    return absl::DataLossError(absl::StrFormat(
        "%s is damaged: it is no index of a checkpoint's tensors and files; copy the checkpoint again",
        path));
  }
  return files;
}

// "block0.norm1.weight" of "stage01.block0.norm1.weight".
std::string WithoutStage(const std::string& name) { return name.substr(name.find('.') + 1); }

// What the model has, by name.
std::map<std::string, std::vector<int64_t>> SizesOf(const ModelSpec& model) {
  std::map<std::string, std::vector<int64_t>> sizes;
  for (const LayerSpec& layer : DescribeLayers(model)) {
    for (const ParameterSpec& p : layer.parameters) sizes[absl::StrCat(layer.name, ".", p.name)] = p.size;
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
  const std::string index = absl::StrCat(folder, "/", std::string(kCheckpointIndex));
  const auto files = ReadIndex(index);
  if (!files.ok()) return files.status();
  std::map<std::string, std::vector<std::string>> names_of;  // by file
  for (const auto& [name, file] : *files) names_of[file].push_back(name);
  const std::map<std::string, std::vector<int64_t>> sizes = SizesOf(model);
  Checkpoint checkpoint;
  for (const auto& [name, names] : names_of) {
    const std::string path = absl::StrCat(folder, "/", name);
    absl::StatusOr<SafetensorsFile> file = ReadSafetensors(path);
    if (!file.ok()) return file.status();
    const std::string version = file->header.metadata["version"];
    if (checkpoint.parameters.empty()) checkpoint.version = version;
    if (version != checkpoint.version) {
      return absl::DataLossError(absl::StrFormat("%s has version %s, another stage of the checkpoint has %s",
                                                 path, version, checkpoint.version));
    }
    for (const std::string& tensor : names) {
      if (absl::Status s = TakeParameter(path, *file, tensor, sizes, &checkpoint); !s.ok()) return s;
    }
  }
  for (const auto& [name, size] : sizes) {
    if (checkpoint.parameters.count(name) != 0) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s names no %s, which the run file's model has; the checkpoint is of another model", index, name));
  }
  return checkpoint;
}

}  // namespace weft
