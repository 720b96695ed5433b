#include "client/files/exported_folder.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "run/exported_model.h"
#include "run/graphs_text.h"
#include "run/json_text.h"
#include "run/precision.h"

namespace weft {

namespace fs = std::filesystem;

absl::Status EmbedGraphs(const std::string& folder, nlohmann::json& run) {
  nlohmann::json& model = run["model"];
  if (!model.is_object() || !model.contains("exported") || !model["exported"].is_string())
    return absl::OkStatus();
  const fs::path path = fs::absolute(fs::path(folder) / std::string(model["exported"])).lexically_normal();
  absl::Status wrong;  // the parser says it
  const Precision precision = ReadPrecision(run.value("precision", nlohmann::json()), "precision", wrong);
  const bool narrow = precision == Precision::kBFloat16;
  const std::string file = (path / std::string(GraphsFile(narrow))).string();
  std::error_code error;
  if (narrow && fs::exists(path / std::string(GraphsFile(/*narrow=*/false)), error) &&
      !fs::exists(file, error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path.string(), " was exported for float32 alone; export it with precisions=(\"float32\", \"bf16\")"));
  }
  const uintmax_t bytes = fs::file_size(file, error);
  std::ifstream in(file, std::ios::binary);
  if (error || !in) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read ", file, "; weft.export in Python writes such a folder"));
  }
  if (bytes > kMaxGraphsBytes)
    return absl::InvalidArgumentError(
        absl::StrCat(file, " has ", bytes, " bytes; a run's model may have ", kMaxGraphsBytes));
  std::stringstream text;
  text << in.rdbuf();
  const absl::StatusOr<nlohmann::json> graphs = ParseJson(text.str());
  if (!graphs.ok()) return absl::InvalidArgumentError(absl::StrCat(file, " ", graphs.status().message()));
  model["exported"] = {{"folder", path.string()}, {"graphs", PackGraphs(*graphs)}};
  return absl::OkStatus();
}

}  // namespace weft
