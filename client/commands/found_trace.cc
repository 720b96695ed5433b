#include "client/commands/found_trace.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/files/run_folder.h"
#include "coordinator/record/output_folder.h"
#include "nlohmann/json.hpp"

namespace weft {

namespace fs = std::filesystem;

std::optional<uint64_t> RunNumber(const std::string& place) {
  uint64_t number = 0;
  std::error_code error;
  if (!absl::SimpleAtoi(place, &number) || fs::exists(place, error)) return std::nullopt;
  return number;
}

namespace {

// Returns the address of the training that writes into the folder; "" if none does that can be asked.
std::string CoordinatorOf(const std::string& folder) {
  if (!OutputInUse(folder)) return "";
  std::ifstream file(fs::path(folder) / "run.json", std::ios::binary);
  const nlohmann::json run = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const bool known = run.is_object() && run.contains("coordinator") && run["coordinator"].is_string();
  return known ? run["coordinator"].get<std::string>() : "";
}

// Unavailable if the training in the folder has ended meanwhile.
absl::StatusOr<FoundTrace> AskTraining(const std::string& folder, const std::string& address) {
  constexpr uint64_t kItsRun = 1;
  auto client = RunsClient::Create(address);
  if (!client.ok()) return client.status();
  absl::StatusOr<FoundTrace> found = FetchTrace(**client, kItsRun);
  if (!found.ok())
    return absl::Status(found.status().code(), absl::StrCat(folder, ": ", found.status().message()));
  found->name = folder;
  return found;
}

}  // namespace

FoundTrace ReadFoundTrace(const std::string& place, absl::string_view otherwise) {
  if (const std::string address = CoordinatorOf(place); !address.empty()) {
    absl::StatusOr<FoundTrace> asked = AskTraining(place, address);
    if (asked.ok()) return *std::move(asked);
    if (!absl::IsUnavailable(asked.status()))
      return {place, place, "", asked.status(), ReadRunOfFolder(place, otherwise)};
  }
  std::error_code error;
  const bool is_folder = fs::is_directory(place, error) || !fs::exists(place, error);
  const std::string file = is_folder ? (fs::path(place) / "trace.json").string() : place;
  const std::string folder = is_folder ? place : fs::path("." / fs::path(place)).parent_path().string();
  absl::StatusOr<Trace> trace = ReadTrace(file);
  if (!trace.ok() && is_folder && !fs::exists(file, error) && OutputInUse(place)) {
    trace = absl::FailedPreconditionError(
        absl::StrCat(place,
                     " has no trace.json yet, since its run goes on; give the number that weft ls shows "
                     "for it in place of the folder, and its coordinator tells the trace so far"));
  }
  return {file, folder, "", std::move(trace), ReadRunOfFolder(folder, otherwise)};
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
  return FoundTrace{
      name, "", std::move(fetched->trace), std::move(trace), std::move(spec), std::move(fetched->summary)};
}

ExitCode FailToFetch(RunsClient& client, uint64_t run, const absl::Status& status) {
  if (!absl::IsFailedPrecondition(status)) return Fail(status);
  const absl::StatusOr<RunInfo> now = client.Get(run);
  return Fail(now.ok() && IsFinal(now->state) ? kExitFailed : kExitTryAgain, status.message());
}

ExitCode FailToRead(const absl::Status& status) {
  return Fail(absl::IsFailedPrecondition(status) ? kExitTryAgain : kExitBadConfiguration, status.message());
}

}  // namespace weft
