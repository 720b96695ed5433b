#include "coordinator/shell/status_pages.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/record/run_view.h"
#include "coordinator/record/status_page.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;
using Overview = CoordinatorServer::Overview;

constexpr char kHtml[] = "text/html; charset=utf-8", kJson[] = "application/json";

HttpPage Problem(const absl::Status& status, bool json) {
  const std::string message(status.message());
  if (json) return {kJson, Json{{"error", message}}.dump() + "\n"};
  return {kHtml, ProblemPage(message)};
}

HttpPage AllRuns(const absl::StatusOr<Overview>& overview, bool json) {
  if (!overview.ok()) return Problem(overview.status(), json);
  if (!json) return {kHtml, StatusPage(overview->runs, overview->workers, overview->now_ns)};
  Json all = {{"runs", Json::array()}, {"workers", Json::array()}};
  for (const RunInfo& run : overview->runs) all["runs"].push_back(RunJson(run));
  for (const WorkerInfo& worker : overview->workers) all["workers"].push_back(WorkerJson(worker));
  return {kJson, all.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"};
}

std::optional<HttpPage> OneRun(const StatusSources& sources, uint64_t id, bool json) {
  const absl::StatusOr<Overview> overview = sources.look_around(id);
  if (!overview.ok()) return Problem(overview.status(), json);
  if (overview->runs.empty()) return std::nullopt;
  RunInfo run = overview->runs[0];
  const std::optional<RunRecords::Look> look = sources.look_at(id);
  if (!json) return HttpPage{kHtml, RunPage(run, look, overview->now_ns)};
  if (look.has_value() && !IsFinal(run.state)) run.reports = look->run.reports;
  return HttpPage{kJson, RunJson(run).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"};
}

}  // namespace

HttpPages StatusPages(StatusSources sources) {
  return [sources = std::move(sources)](const std::string& path) -> std::optional<HttpPage> {
    if (path == "/status.js") return HttpPage{"text/javascript; charset=utf-8", StatusScript()};
    if (path == "/" || path == "/status.json")
      return AllRuns(sources.look_around(std::nullopt), path == "/status.json");
    absl::string_view run = path;
    if (!absl::ConsumePrefix(&run, "/runs/")) return std::nullopt;
    const bool json = absl::ConsumeSuffix(&run, ".json");
    uint64_t id = 0;
    if (!absl::SimpleAtoi(run, &id)) return std::nullopt;
    return OneRun(sources, id, json);
  };
}

}  // namespace weft
