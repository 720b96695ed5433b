#include "client/files/run_folder.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/run_files.h"
#include "client/files/run_file.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

nlohmann::json ReadJsonFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

absl::StatusOr<RunSpec> ReadRunOfFolder(const std::string& folder, absl::string_view otherwise) {
  for (const char* name : {"run.json", "summary.json"}) {
    const std::string file = (std::filesystem::path(folder) / name).string();
    const nlohmann::json json = ReadJsonFile(file);
    if (!json.is_object() || !json.contains("run")) continue;
    auto spec = ParseRunSpec(json["run"]);
    if (spec.ok()) return spec;
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", spec.status().message()));
  }
  const nlohmann::json run = ReadJsonFile(std::filesystem::path(folder) / "run.json");
  if (run.is_object() && run.contains("file") && run["file"].is_string()) {
    const std::string file = run["file"];
    if (!file.empty()) return ReadRunFile(file, RunFileData::kIgnored);
  }
  for (const char* inside : {"", "/run.json", "/summary.json"}) {
    const absl::Status readable = CheckReadable(absl::StrCat(folder, inside));
    if (!readable.ok()) return readable;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(folder, " has no summary.json and no run.json that say which run it is of; ", otherwise));
}

}  // namespace weft
