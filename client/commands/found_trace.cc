#include "client/commands/found_trace.h"

#include <filesystem>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/files/run_folder.h"
#include "nlohmann/json.hpp"

namespace weft {

namespace fs = std::filesystem;

std::optional<uint64_t> RunNumber(const std::string& place) {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(place, &number) || fs::exists(place)) return std::nullopt;
  return number;
}

FoundTrace ReadFoundTrace(const std::string& place, absl::string_view otherwise) {
  const bool is_folder = fs::is_directory(place) || !fs::exists(place);
  const std::string file = is_folder ? (fs::path(place) / "trace.json").string() : place;
  const std::string folder = is_folder ? place : fs::path("." / fs::path(place)).parent_path().string();
  return {file, folder, "", ReadTrace(file), ReadRunOfFolder(folder, otherwise)};
}

absl::StatusOr<FoundTrace> FetchTrace(RunsClient& client, uint64_t run) {
  absl::StatusOr<RunTrace> fetched = client.Trace(run);
  if (!fetched.ok()) return fetched.status();
  std::istringstream text(fetched->trace);
  const std::string name = absl::StrCat("run ", run);
  absl::StatusOr<Trace> trace = ParseTrace(text, name);
  if (!trace.ok()) return trace.status();
  absl::StatusOr<RunSpec> spec =
      ParseRunSpec(nlohmann::json::parse(fetched->run, nullptr, /*allow_exceptions=*/false));
  if (!spec.ok()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", spec.status().message()));
  return FoundTrace{name, "", std::move(fetched->trace), std::move(trace), std::move(spec)};
}

}  // namespace weft
