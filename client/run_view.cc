#include "client/run_view.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "schedules/drawing.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kRanksShown = 32;

template <typename Number>
Number Sum(const std::map<std::string, Number>& by_name) {
  Number sum = 0;
  for (const auto& [name, number] : by_name) sum += number;
  return sum;
}

// The names under which any rank has a number worth a column.
template <typename Number>
std::vector<std::string> Columns(const std::vector<RankReport>& reports,
                                 std::map<std::string, Number> RankReport::*field, double least) {
  std::set<std::string> names;
  for (const RankReport& report : reports) {
    for (const auto& [name, number] : report.*field) {
      if (static_cast<double>(number) > least) names.insert(name);
    }
  }
  return {names.begin(), names.end()};
}

template <typename Number>
Number At(const std::map<std::string, Number>& by_name, const std::string& name) {
  const auto found = by_name.find(name);
  return found == by_name.end() ? 0 : found->second;
}

std::string Percent(double part, double whole) {
  return whole > 0 ? absl::StrFormat("%.1f %%", 100 * part / whole) : "-";
}

// Seconds since 1970, or null for what has not happened.
Json Seconds(int64_t unix_ns) { return unix_ns == 0 ? Json() : Json(static_cast<double>(unix_ns) * 1e-9); }

// How long the run has been going on, or went on.
std::string Duration(const RunInfo& run, int64_t now_ns) {
  if (run.started_ns == 0) return "-";
  const int64_t end = run.ended_ns == 0 ? now_ns : run.ended_ns;
  return FormatSeconds(std::max(0.0, static_cast<double>(end - run.started_ns) * 1e-9));
}

std::string Loss(const RunInfo& run) { return run.has_loss ? absl::StrFormat("%.4f", run.loss) : "-"; }

std::string Steps(const RunInfo& run) { return absl::StrCat(run.steps_done, "/", run.steps); }

}  // namespace

std::string RankTable(const std::vector<RankReport>& reports) {
  double longest = 0;
  for (const RankReport& r : reports) longest = std::max(longest, r.wall_seconds);
  const auto causes = Columns(reports, &RankReport::idle_seconds, longest * 5e-4);
  const auto classes = Columns(reports, &RankReport::peak_bytes, 0);
  std::vector<std::string> header = {"rank", "busy"};
  for (const std::string& cause : causes) header.push_back(cause);
  for (const std::string& name : classes) header.push_back(absl::StrCat("peak ", name));
  std::vector<std::vector<std::string>> rows;
  for (const RankReport& r : reports) {
    if (rows.size() == kRanksShown) break;
    std::vector<std::string> row = {absl::StrCat(r.rank), Percent(Sum(r.busy_seconds), r.wall_seconds)};
    for (const std::string& cause : causes) row.push_back(Percent(At(r.idle_seconds, cause), r.wall_seconds));
    for (const std::string& name : classes)
      row.push_back(FormatBytes(static_cast<double>(At(r.peak_bytes, name))));
    rows.push_back(std::move(row));
  }
  std::string table = FormatTable(header, rows);
  if (reports.size() > rows.size()) {
    absl::StrAppend(&table, ".. and ", reports.size() - rows.size(), " more ranks, in summary.json\n");
  }
  return table;
}

std::string GpuText(const std::map<std::string, double>& gpu) {
  std::vector<std::string> parts;
  const auto say = [&](const char* name, double factor, absl::string_view unit) {
    const auto found = gpu.find(name);
    if (found != gpu.end()) parts.push_back(absl::StrFormat("%.0f %s", factor * found->second, unit));
  };
  say("utilization", 100, "% busy");
  say("temperature_celsius", 1, "\u00b0C");
  say("power_watts", 1, "W");
  constexpr absl::string_view kThrottled = "throttled_";
  for (const auto& [name, value] : gpu) {
    if (absl::StartsWith(name, kThrottled) && value > 0)
      parts.push_back(absl::StrCat("throttled (", absl::string_view(name).substr(kThrottled.size()), ")"));
  }
  return parts.empty() ? "" : absl::StrCat("GPU ", absl::StrJoin(parts, ", "));
}

Json RunJson(const RunInfo& run) {
  Json json = {{"run", run.id},
               {"name", run.name},
               {"schedule", run.schedule},
               {"state", std::string(RunStateName(run.state))},
               {"reason", run.reason},
               {"reduction", run.reduction},
               {"ranks", run.ranks},
               {"processes", run.processes},
               {"steps", run.steps},
               {"steps_done", run.steps_done},
               {"loss", run.has_loss ? Json(run.loss) : Json()},
               {"submitted", Seconds(run.submitted_ns)},
               {"started", Seconds(run.started_ns)},
               {"ended", Seconds(run.ended_ns)}};
  json["rank_reports"] = Json::array();
  for (const RankReport& r : run.reports) {
    Json report = {{"rank", r.rank},
                   {"wall_seconds", r.wall_seconds},
                   {"peak_activations", r.peak_activations},
                   {"peak_weight_versions", r.peak_weight_versions}};
    report["busy_seconds"] = r.busy_seconds;
    report["idle_seconds"] = r.idle_seconds;
    report["live_bytes"] = r.live_bytes;
    report["peak_bytes"] = r.peak_bytes;
    report["bytes_sent"] = r.bytes_sent;
    report["bytes_received"] = r.bytes_received;
    if (!r.gpu.empty()) report["gpu"] = r.gpu;
    json["rank_reports"].push_back(std::move(report));
  }
  return json;
}

std::string RunsTable(const std::vector<RunInfo>& runs, int64_t now_ns) {
  std::vector<std::vector<std::string>> rows;
  for (const RunInfo& r : runs) {
    rows.push_back({absl::StrCat(r.id), r.name, std::string(RunStateName(r.state)), r.schedule,
                    absl::StrCat(r.ranks), absl::StrCat(r.processes), Steps(r), Loss(r),
                    Duration(r, now_ns)});
  }
  return FormatTable({"run", "name", "state", "schedule", "ranks", "processes", "steps", "loss", "time"},
                     rows);
}

std::string RunText(const RunInfo& run, int64_t now_ns) {
  std::string out = absl::StrCat("run        ", run.id, "\nname       ", run.name, "\nstate      ",
                                 RunStateName(run.state), "\n");
  if (!run.reason.empty()) absl::StrAppend(&out, "reason     ", run.reason, "\n");
  absl::StrAppend(&out, "schedule   ", run.schedule, ": ", run.ranks, " ranks on ", run.processes,
                  " processes\n");
  if (!run.reduction.empty()) absl::StrAppend(&out, "reduction  ", run.reduction, "\n");
  absl::StrAppend(&out, "steps      ", Steps(run), "\nloss       ", Loss(run), "\ntime       ",
                  Duration(run, now_ns), "\n");
  return run.reports.empty() ? out : absl::StrCat(out, "\n", RankTable(run.reports));
}

}  // namespace weft
