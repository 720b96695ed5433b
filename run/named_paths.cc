#include "run/named_paths.h"

#include <variant>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// Adds the paths of a source, each under the key in the run file of the section.
class SourcePaths {
 public:
  SourcePaths(std::string section, std::vector<NamedPath>* paths)
      : section_(std::move(section)), paths_(*paths) {}

  void operator()(const TextData& text) { Add("text.path", text.path); }
  void operator()(const Cifar10Data& cifar10) { Add("cifar10.path", cifar10.path); }
  void operator()(const IdxData& idx) {
    Add("idx.images", idx.images);
    Add("idx.labels", idx.labels);
  }
  void operator()(const ArraysData& arrays) {
    for (const auto& [field, paths] : arrays.paths) {
      for (const std::string& path : paths) Add(absl::StrCat("arrays.", field), path);
    }
  }

 private:
  void Add(const std::string& key, const std::string& path) {
    paths_.push_back({absl::StrCat(section_, ".", key), path});
  }

  const std::string section_;
  std::vector<NamedPath>& paths_;
};

}  // namespace

std::vector<NamedPath> NamedPaths(const RunSpec& run) {
  std::vector<NamedPath> paths;
  std::visit(SourcePaths("data", &paths), run.data.source);
  if (run.validate.any()) std::visit(SourcePaths("validate.data", &paths), run.validate.data.source);
  if (!run.weights.empty()) paths.push_back({"weights", run.weights});
  if (const auto* exported = std::get_if<ExportedSpec>(&run.model); exported != nullptr) {
    paths.push_back({"model.exported", exported->folder});
    for (const PluginSpec& plugin : exported->plugins) paths.push_back({"plugins", plugin.library});
  }
  if (!run.resume.checkpoint.empty()) paths.push_back({"resume", run.resume.checkpoint});
  return paths;
}

}  // namespace weft
