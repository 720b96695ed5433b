#include "worker/shell/compute/initial_weights.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/run_files.h"
#include "nlohmann/json.hpp"
#include "run/json_text.h"
#include "run/model_layers.h"
#include "worker/shell/checkpoint/checkpoint_index.h"
#include "worker/shell/compute/exported_weights.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kOneFile = "model.safetensors";
constexpr uint64_t kMaxIndexBytes = uint64_t{1} << 30;
constexpr size_t kNamesShown = 3;

// Returns the name without the `stage<ss>.` of a checkpoint.
std::string WithoutStage(const std::string& name) {
  const size_t dot = name.find('.');
  const bool staged = absl::StartsWith(name, "stage") && dot != std::string::npos && dot > 5 &&
                      std::all_of(name.begin() + 5, name.begin() + static_cast<std::ptrdiff_t>(dot),
                                  [](char c) { return absl::ascii_isdigit(c); });
  return staged ? name.substr(dot + 1) : name;
}

// Returns the float32 of a float16's bits.
float WidenHalf(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, exponent = (half >> 10) & 0x1f,
                 fraction = half & 0x3ff;
  if (exponent == 0) {  // zero, or too small for the exponent: so many times 2^-24
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 0x1f ? 0xff : exponent + (127 - 15);
  const uint32_t bits = sign | wide << 23 | fraction << 13;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Widens `n` numbers that lie at the end of `out`, of half its size, in their order.
void WidenInPlace(const std::string& type, int64_t n, float* out) {
  const char* const narrow = reinterpret_cast<const char*>(out) + n * int64_t{sizeof(uint16_t)};
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, narrow + i * int64_t{sizeof(bits)}, sizeof(bits));
    const uint32_t shifted = uint32_t{bits} << 16;
    float value = WidenHalf(bits);
    if (type == "BF16") std::memcpy(&value, &shifted, sizeof(value));
    std::memcpy(out + i, &value, sizeof(value));
  }
}

// Returns "a, b, c and 5 more".
std::string Some(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamesShown);
  const std::string some =
      absl::StrJoin(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", ");
  return names.size() > shown ? absl::StrCat(some, " and ", names.size() - shown, " more") : some;
}

// Tensors that a model wants from a file, with their sizes; frozen parameters, all or none of them; and names
// that may be there too.
struct Wanted {
  std::map<std::string, std::vector<int64_t>> tensors, frozen;
  std::set<std::string> ignored;
};

Wanted WantedBy(const ModelSpec& model) {
  Wanted wanted;
  for (const LayerSpec& layer : DescribeLayers(model)) {
    for (const ParameterSpec& p : layer.parameters) wanted.tensors[NameInModel(layer.name, p)] = p.size;
  }
  const auto* exported = std::get_if<ExportedSpec>(&model);
  if (exported == nullptr) return wanted;
  const ExportedModel& graphs = *exported->model;
  for (const ExportedLayer* const layer : AllGraphs(graphs)) {
    for (const ExportedConstant& constant : layer->constants) {
      if (constant.is_frozen_parameter) {
        wanted.frozen[constant.name] = constant.sizes;
      } else {
        wanted.ignored.insert(constant.name);
      }
    }
  }
  wanted.ignored.insert(graphs.unread.begin(), graphs.unread.end());
  wanted.ignored.insert(graphs.elsewhere.begin(), graphs.elsewhere.end());
  for (const auto& [alias, name] : graphs.aliases) wanted.ignored.insert(alias);
  return wanted;
}

absl::Status CheckWanted(const InitialWeights& weights, const std::string& path, Wanted wanted) {
  const bool any_frozen = std::any_of(wanted.frozen.begin(), wanted.frozen.end(),
                                      [&](const auto& frozen) { return weights.Has(frozen.first); });
  if (any_frozen) wanted.tensors.merge(wanted.frozen);
  std::vector<std::string> missing, unknown;
  for (const auto& [name, size] : wanted.tensors) {
    if (!weights.Has(name)) missing.push_back(name);
  }
  for (const auto& [name, place] : weights.places()) {
    if (wanted.tensors.count(name) == 0 && wanted.ignored.count(name) == 0) unknown.push_back(name);
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " lacks ", missing.size(), " of the model's ", wanted.tensors.size(), " tensors: ",
        Some(missing), unknown.empty() ? "" : absl::StrCat("; it has ", Some(unknown), " instead")));
  }
  if (!unknown.empty())
    return absl::InvalidArgumentError(
        absl::StrCat(path, " holds what the model does not have: ", Some(unknown)));
  for (const auto& [name, size] : wanted.tensors) {
    if (absl::Status s = weights.Check(name, size); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InitialWeights> InitialWeights::Open(const std::string& path) {
  InitialWeights weights;
  weights.path_ = path;
  std::error_code error;
  const absl::Status read =
      fs::is_directory(path, error) ? weights.AddFolder(path) : weights.AddFile(path, /*of_weft=*/false);
  if (!read.ok()) return read;
  return weights;
}

absl::Status InitialWeights::AddFolder(const std::string& folder) {
  const std::string index = absl::StrCat(folder, "/", std::string(kCheckpointIndex));
  const absl::StatusOr<std::string> text = ReadWholeFile(index, kMaxIndexBytes);
  if (absl::IsNotFound(text.status())) {
    const std::string file = absl::StrCat(folder, "/", kOneFile);
    std::error_code error;
    if (fs::exists(file, error)) return AddFile(file, /*of_weft=*/false);
    return absl::NotFoundError(
        absl::StrCat(folder, " holds neither ", std::string(kCheckpointIndex), " nor ", kOneFile));
  }
  if (absl::IsDataLoss(text.status()))
    return absl::DataLossError(absl::StrCat(index, " is no index of weights, which is a file of JSON"));
  if (!text.ok()) return text.status();
  const absl::StatusOr<Json> json = ParseJson(*text);
  if (!json.ok() || !json->is_object() || !json->contains("weight_map") || !(*json)["weight_map"].is_object())
    return absl::DataLossError(absl::StrCat(index, " has no weight_map; copy the folder again"));
  const bool of_weft = json->contains("metadata") && (*json)["metadata"].is_object() &&
                       (*json)["metadata"].contains("training");
  std::set<std::string> files;
  for (const auto& [name, file] : (*json)["weight_map"].items()) {
    if (!file.is_string() || absl::StrContains(file.get_ref<const std::string&>(), '/'))
      return absl::DataLossError(absl::StrCat(index, " names a file outside of its folder"));
    files.insert(file.get<std::string>());
  }
  for (const std::string& file : files) {
    if (absl::Status s = AddFile(absl::StrCat(folder, "/", file), of_weft); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status InitialWeights::AddFile(const std::string& file, bool of_weft) {
  absl::StatusOr<SafetensorsHeader> header = ReadWeightsHeader(file);
  if (!header.ok()) return header.status();
  for (SafetensorsEntry& entry : header->entries) {
    const std::string name = of_weft ? WithoutStage(entry.name) : entry.name;
    if (!places_.emplace(name, Place{file, header->data_begin, std::move(entry)}).second)
      return absl::InvalidArgumentError(absl::StrCat(path_, " holds ", name, " twice"));
  }
  return absl::OkStatus();
}

absl::Status InitialWeights::Check(const std::string& name, const std::vector<int64_t>& size) const {
  const auto found = places_.find(name);
  if (found == places_.end()) return absl::InvalidArgumentError(absl::StrCat(path_, " lacks ", name));
  const SafetensorsEntry& entry = found->second.entry;
  if (entry.shape != size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s holds %s with the sizes [%s], and the model has it with [%s]", found->second.file,
                        name, absl::StrJoin(entry.shape, ", "), absl::StrJoin(size, ", ")));
  }
  if (entry.dtype == "F32" || entry.dtype == "BF16" || entry.dtype == "F16") return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s holds %s as %s; weights are F32, BF16 or F16",
                                                    found->second.file, name, entry.dtype));
}

absl::Status InitialWeights::Read(const std::string& name, const std::vector<int64_t>& size,
                                  float* out) const {
  if (absl::Status s = Check(name, size); !s.ok()) return s;
  const Place& place = places_.at(name);
  const uint64_t bytes = place.entry.end - place.entry.begin;
  int64_t n = 1;
  for (const int64_t s : size) n *= s;
  std::ifstream in = RunFileToRead(place.file);
  in.seekg(static_cast<std::streamoff>(place.data_begin + place.entry.begin));
  char* const end = reinterpret_cast<char*>(out + n);
  in.read(end - bytes, static_cast<std::streamsize>(bytes));
  if (!in) return absl::DataLossError(absl::StrFormat("%s: cannot read %s", place.file, name));
  if (place.entry.dtype != "F32") WidenInPlace(place.entry.dtype, n, out);
  return absl::OkStatus();
}

absl::Status CheckInitialWeights(const RunSpec& run) {
  if (run.weights.empty()) return absl::OkStatus();
  const absl::StatusOr<InitialWeights> weights = InitialWeights::Open(run.weights);
  const absl::Status fits =
      weights.ok() ? CheckWanted(*weights, run.weights, WantedBy(run.model)) : weights.status();
  return fits.ok() ? fits : absl::InvalidArgumentError(absl::StrCat("weights: ", fits.message()));
}

}  // namespace weft
