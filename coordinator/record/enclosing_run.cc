#include "coordinator/record/enclosing_run.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/run_files.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Returns true for names that a run gives to what it makes and removes in its folder.
bool IsOfRun(const std::string& name) {
  return name == "former" || name == "checkpoint" || absl::StartsWith(name, "checkpoint-") ||
         absl::StartsWith(name, "replacement");
}

// Returns the name of the run whose folder it is; "" if it is none.
std::string NameOfRunIn(const fs::path& folder) {
  std::ifstream file = RunFileToRead(folder / "run.json");
  if (!file) return "";
  const nlohmann::json run = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!run.is_object() || !run.contains("steps_done")) return "";
  const auto name = run.find("name");
  return name != run.end() && name->is_string() ? name->get<std::string>() : "";
}

}  // namespace

absl::Status CheckOutsideOfRuns(const std::string& path, const std::string& shown) {
  std::error_code error;
  fs::path whole = fs::weakly_canonical(fs::absolute(path, error), error);
  if (!whole.has_filename()) whole = whole.parent_path();
  for (fs::path at = whole; at.has_relative_path(); at = at.parent_path()) {
    if (!IsOfRun(at.filename())) continue;
    const std::string name = NameOfRunIn(at.parent_path());
    if (name.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(shown, " is within ", at.string(), ", which the run ", name,
                     " makes and removes; give a folder outside of it with --out"));
  }
  return absl::OkStatus();
}

}  // namespace weft
