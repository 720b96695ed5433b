#include "run/weight_decay.h"

#include <fnmatch.h>

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "run/model_layers.h"

namespace weft {
namespace {

std::vector<std::string> TrainedNames(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const LayerSpec& layer : DescribeLayers(model)) {
    for (const ParameterSpec& p : layer.parameters) {
      if (p.kind == ParameterSpec::Kind::kTrained) names.push_back(NameInModel(layer.name, p));
    }
  }
  return names;
}

bool FitsPattern(const std::string& name, const std::string& pattern) {
  return fnmatch(pattern.c_str(), name.c_str(), /*flags=*/0) == 0;
}

}  // namespace

const std::vector<std::string>& NoDecayOf(const OptimizerSpec& optimizer) {
  return std::visit([](const auto& o) -> const std::vector<std::string>& { return o.no_decay; }, optimizer);
}

bool FitsAny(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return FitsPattern(name, pattern); });
}

std::vector<std::string> ReadNoDecay(FileSection& optimizer, const ModelSpec& model) {
  if (!optimizer.ok() || !optimizer.Has("no_decay")) return {};
  const nlohmann::json& given = optimizer.At("no_decay");
  const nlohmann::json list = given.is_array() ? given : nlohmann::json::array({given});
  const std::vector<std::string> names = TrainedNames(model);
  std::vector<std::string> patterns;
  for (const nlohmann::json& entry : list) {
    if (!entry.is_string()) {
      optimizer.Fail("no_decay", "must be a list of patterns of names, as [\"*.bias\", \"*norm*\"]");
      return {};
    }
    patterns.push_back(entry.get<std::string>());
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return FitsPattern(name, patterns.back()); }))
      continue;
    optimizer.Fail("no_decay", absl::StrCat("no parameter has a name like ", patterns.back(),
                                            "; the model has ", names.front(), " to ", names.back()));
    return {};
  }
  return patterns;
}

}  // namespace weft
