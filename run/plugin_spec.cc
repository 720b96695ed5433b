#include "run/plugin_spec.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "run/exported_operations.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxPlugins = 16;
constexpr const char* kExample = "plugins: [{library: librope.so, sha256: 9f86..}]";

PluginSpec ReadPlugin(const Json& json, const std::string& path, absl::Status& status) {
  FileSection section(json, path, {"library", "sha256"}, status);
  section.Require("library", kExample);
  section.Require("sha256", kExample);
  PluginSpec plugin;
  section.Read("library", plugin.library);
  section.Read("sha256", plugin.sha256);
  if (section.ok() && plugin.library.empty()) section.Fail("library", "must be the path of a library");
  if (section.ok() && !IsSha256(plugin.sha256))
    section.Fail("sha256", "must be the 64 digits that sha256sum prints for the library");
  return plugin;
}

// Returns the first operation that LibTorch does not have by itself; null if there is none.
const GraphOperation* ForeignOperation(const ExportedModel& model) {
  for (const ExportedLayer* const graph : AllGraphs(model)) {
    for (const GraphOperation& operation : graph->operations) {
      if (IsForeignOperation(operation.name)) return &operation;
    }
  }
  return nullptr;
}

}  // namespace

bool IsSha256(absl::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

void ReadPlugins(const FileSection& file, RunSpec& spec, absl::Status& status) {
  const Json& list = file.At("plugins");
  auto* const exported = std::get_if<ExportedSpec>(&spec.model);
  if (!status.ok()) return;
  if (!list.is_null() && exported == nullptr) {
    status =
        ErrorAt("plugins", "are libraries of an exported model's operations, and this model is built in");
    return;
  }
  if (!list.is_null() && (!list.is_array() || list.empty() || list.size() > kMaxPlugins)) {
    status =
        ErrorAt("plugins", absl::StrCat("must be a list of 1 to ", kMaxPlugins, " libraries, as ", kExample));
    return;
  }
  for (const Json& json : list)
    exported->plugins.push_back(
        ReadPlugin(json, absl::StrCat("plugins[", exported->plugins.size(), "]"), status));
  if (exported == nullptr || !exported->plugins.empty() || !status.ok()) return;
  const GraphOperation* const foreign = ForeignOperation(*exported->model);
  if (foreign == nullptr) return;
  status =
      ErrorAt("model.exported",
              absl::StrCat("calls ", foreign->name, foreign->place.empty() ? "" : ", in ", foreign->place,
                           ", which LibTorch does not have; name its library as ", kExample));
}

Json ToJson(const std::vector<PluginSpec>& plugins) {
  Json list = Json::array();
  for (const PluginSpec& plugin : plugins)
    list.push_back({{"library", plugin.library}, {"sha256", plugin.sha256}});
  return list;
}

}  // namespace weft
