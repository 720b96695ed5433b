#include "coordinator/record/run_view.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "coordinator/record/loss_watch.h"
#include "nlohmann/json.hpp"
#include "schedules/drawing/drawing.h"

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

// Returns the names under which any rank has a number worth a column.
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

// Returns seconds since 1970, or null for an event that has not happened.
Json Seconds(int64_t unix_ns) { return unix_ns == 0 ? Json() : Json(static_cast<double>(unix_ns) * 1e-9); }

std::string Loss(const RunInfo& run) { return run.has_loss ? LossText(run.loss) : "-"; }

// Returns both tables as one where that is narrow enough, else one below the other. The first column of each
// is the key of both.
std::string SideBySide(const TextCells& first, const TextCells& second, const TextStyle& style) {
  TextCells both = first;
  both.header.insert(both.header.end(), second.header.begin() + 1, second.header.end());
  for (size_t r = 0; r < both.rows.size(); ++r)
    both.rows[r].insert(both.rows[r].end(), second.rows[r].begin() + 1, second.rows[r].end());
  TextStyle any = style;
  any.width = 1 << 20;
  any.colour = false;
  const std::string wide = FormatTable(both.header, both.rows, any);
  size_t width = 0;
  for (const absl::string_view line : absl::StrSplit(wide, '\n')) width = std::max(width, TextColumns(line));
  if (width <= static_cast<size_t>(style.width) || second.header.size() == 1)
    return FormatTable(both.header, both.rows, style);
  return absl::StrCat(FormatTable(first.header, first.rows, style), "\n",
                      FormatTable(second.header, second.rows, style));
}

// Returns "rank 3", "ranks 0 to 3", or "ranks 0, 2, 3".
std::string RanksText(const std::vector<Rank>& ranks) {
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks[0]);
  if (ranks.back() - ranks.front() + 1 == static_cast<Rank>(ranks.size()))
    return absl::StrCat("ranks ", ranks.front(), " to ", ranks.back());
  return absl::StrCat("ranks ", absl::StrJoin(ranks, ", "));
}

// Returns one line for each process: its name, and its ranks.
std::string MembersText(const RunInfo& run) {
  std::string out;
  const size_t members = run.members.size();
  std::vector<std::vector<Rank>> ranks(members);
  for (size_t rank = 0; rank < run.member_of_rank.size(); ++rank)
    ranks[run.member_of_rank[rank]].push_back(static_cast<Rank>(rank));
  for (size_t m = 0; m < std::min(members, kRanksShown); ++m) {
    absl::StrAppend(&out, m == 0 ? "workers    " : "           ", run.members[m],
                    ranks[m].empty() ? "" : absl::StrCat(": ", RanksText(ranks[m])), "\n");
  }
  if (members > kRanksShown) absl::StrAppend(&out, "           .. and ", members - kRanksShown, " more\n");
  return out;
}

// Returns "0.84 s: fence 0.10 s, state 0.51 s, first job 0.02 s, step 0.21 s".
std::string RecoveryText(const RecoveryTimes& times) {
  std::vector<std::string> phases;
  double all = 0;
  for (int p = 0; p < kRecoveryPhases; ++p) {
    const double seconds = 1e-9 * static_cast<double>(times[p]);
    all += seconds;
    const std::string name(RecoveryPhaseName(static_cast<RecoveryPhase>(p)));
    phases.push_back(absl::StrFormat("%s %.2f s", absl::StrReplaceAll(name, {{"_", " "}}), seconds));
  }
  return absl::StrFormat("%.2f s: %s", all, absl::StrJoin(phases, ", "));
}

std::string Steps(const RunInfo& run) { return absl::StrCat(run.steps_done, "/", run.steps); }

}  // namespace

TextCells RankTimeCells(const std::vector<RankReport>& reports) {
  double longest = 0;
  for (const RankReport& r : reports) longest = std::max(longest, r.wall_seconds);
  const auto causes = Columns(reports, &RankReport::idle_seconds, longest * 5e-4);
  TextCells cells = {{"rank", "busy"}, {}};
  cells.header.insert(cells.header.end(), causes.begin(), causes.end());
  for (const RankReport& r : reports) {
    if (cells.rows.size() == kRanksShown) break;
    auto& row = cells.rows.emplace_back();
    row = {absl::StrCat(r.rank), Percent(Sum(r.busy_seconds), r.wall_seconds)};
    for (const std::string& cause : causes) row.push_back(Percent(At(r.idle_seconds, cause), r.wall_seconds));
  }
  return cells;
}

TextCells RankByteCells(const std::vector<RankReport>& reports) {
  const auto classes = Columns(reports, &RankReport::peak_bytes, 0);
  TextCells cells = {{"rank"}, {}};
  for (const std::string& name : classes) cells.header.push_back(absl::StrCat("peak ", name));
  cells.header.emplace_back("most at a time");
  for (const RankReport& r : reports) {
    if (cells.rows.size() == kRanksShown) break;
    auto& row = cells.rows.emplace_back();
    row = {absl::StrCat(r.rank)};
    for (const std::string& name : classes) {
      const auto known = r.peak_bytes.find(name);
      row.push_back(known == r.peak_bytes.end() ? "-" : FormatBytes(static_cast<double>(known->second)));
    }
    row.push_back(r.most_bytes == 0 ? "-" : FormatBytes(static_cast<double>(r.most_bytes)));
  }
  return cells;
}

std::string DurationText(const RunInfo& run, int64_t now_ns) {
  if (run.started_ns == 0) return "-";
  const int64_t end = run.ended_ns == 0 ? now_ns : run.ended_ns;
  return FormatSeconds(std::max(0.0, static_cast<double>(end - run.started_ns) * 1e-9));
}

std::string RanksOnProcesses(const RunInfo& run) {
  return absl::StrCat(run.ranks, run.ranks == 1 ? " rank" : " ranks", " on ", run.processes,
                      run.processes == 1 ? " process" : " processes");
}

std::string FiguresText(const Validation& validation) {
  std::string text = absl::StrCat("loss ", LossText(validation.loss));
  for (const auto& [name, value] : validation.metrics)
    absl::StrAppendFormat(&text, ", %s %s", name, MetricText(value));
  return text;
}

std::string MetricText(double value) {
  if (std::isnan(value)) return "nan";  // without the sign that a printed one may have
  const double size = std::abs(value);
  return size == 0 || (size >= 1e-3 && size < 1e4) ? absl::StrFormat("%.4f", value)
                                                   : absl::StrFormat("%.6g", value);
}

std::string ValidatedText(const Validation& validation) {
  return absl::StrCat(FiguresText(validation), " after step ", validation.step);
}

std::string RankTable(const std::vector<RankReport>& reports, const TextStyle& style) {
  const TextCells times = RankTimeCells(reports), bytes = RankByteCells(reports);
  std::string table = SideBySide(times, bytes, style);
  if (reports.size() > times.rows.size()) {
    absl::StrAppend(&table, ".. and ", reports.size() - times.rows.size(), " more ranks, in summary.json\n");
  }
  return table;
}

std::string GpuText(const std::map<std::string, double>& gpu, const TextStyle& style) {
  std::vector<std::string> parts;
  const auto say = [&](const char* name, double factor, absl::string_view unit) {
    const auto found = gpu.find(name);
    if (found != gpu.end()) parts.push_back(absl::StrFormat("%.0f %s", factor * found->second, unit));
  };
  say("utilization", 100, "% busy");
  say("temperature_celsius", 1, style.unicode ? "\u00b0C" : "C");
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
               {"file", run.file},
               {"out", run.output},
               {"reason", run.reason},
               {"reduction", run.reduction},
               {"ranks", run.ranks},
               {"processes", run.processes},
               {"priority", run.terms.priority},
               {"pool", run.terms.pool},
               {"owner", run.terms.owner},
               {"run_id", run.run_id},
               {"steps", run.steps},
               {"steps_done", run.steps_done},
               {"loss", run.has_loss ? Json(run.loss) : Json()},
               {"submitted", Seconds(run.submitted_ns)},
               {"started", Seconds(run.started_ns)},
               {"ended", Seconds(run.ended_ns)}};
  if (!run.output_failure.empty()) json["output_failure"] = run.output_failure;
  if (run.restarts > 0) json["restarts"] = run.restarts;
  if (run.non_finite_steps > 0) json["non_finite_steps"] = run.non_finite_steps;
  if (!run.restart_reason.empty()) {
    json["restart_reason"] = run.restart_reason;
    for (int p = 0; run.recovery_ns.has_value() && p < kRecoveryPhases; ++p)
      json["recovery_seconds"][RecoveryPhaseName(static_cast<RecoveryPhase>(p))] =
          1e-9 * static_cast<double>((*run.recovery_ns)[p]);
  }
  if (run.validation.has_value()) {
    Json& validation = json["validation"];
    validation = {{"step", run.validation->step}, {"loss", run.validation->loss}};
    for (const auto& [name, value] : run.validation->metrics) validation[name] = value;
    validation["samples"] = run.validation->samples;
  }
  json["members"] = Json::array();
  for (const std::string& member : run.members) json["members"].push_back(member);
  json["member_of_rank"] = run.member_of_rank;
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
    report["most_bytes"] = r.most_bytes;
    report["bytes_sent"] = r.bytes_sent;
    report["bytes_received"] = r.bytes_received;
    if (!r.gpu.empty()) report["gpu"] = r.gpu;
    json["rank_reports"].push_back(std::move(report));
  }
  return json;
}

TextCells RunsCells(const std::vector<RunInfo>& runs, int64_t now_ns) {
  TextCells cells = {{"run", "name", "state", "schedule", "ranks", "processes", "steps", "loss", "time"}, {}};
  // A column is of interest only if a run has a value for it.
  const auto any = [&](const auto& has) { return std::any_of(runs.begin(), runs.end(), has); };
  const bool owners = any([](const RunInfo& r) { return !r.terms.owner.empty(); });
  const bool pools = any([](const RunInfo& r) { return !r.terms.pool.empty(); });
  const bool priorities = any([](const RunInfo& r) { return r.terms.priority != 0; });
  if (owners) cells.header.push_back("owner");
  if (pools) cells.header.push_back("pool");
  if (priorities) cells.header.push_back("priority");
  for (const RunInfo& r : runs) {
    std::vector<std::string> row = {absl::StrCat(r.id),
                                    r.name,
                                    std::string(RunStateName(r.state)),
                                    r.schedule,
                                    absl::StrCat(r.ranks),
                                    absl::StrCat(r.processes),
                                    Steps(r),
                                    Loss(r),
                                    DurationText(r, now_ns)};
    if (owners) row.push_back(r.terms.owner.empty() ? "-" : r.terms.owner);
    if (pools) row.push_back(r.terms.pool.empty() ? "-" : r.terms.pool);
    if (priorities) row.push_back(absl::StrCat(r.terms.priority));
    cells.rows.push_back(std::move(row));
  }
  return cells;
}

std::string RunsTable(const std::vector<RunInfo>& runs, int64_t now_ns, const TextStyle& style) {
  const TextCells cells = RunsCells(runs, now_ns);
  std::string table = FormatTable(cells.header, cells.rows, style);
  for (const RunInfo& r : runs) {
    if (r.state != RunState::kWaiting || r.reason.empty()) continue;
    absl::StrAppend(&table, "run ", r.id, " waits: ", r.reason, "\n");
  }
  return table;
}

Json WorkerJson(const WorkerInfo& worker) {
  return {{"process", worker.process},
          {"name", worker.name},
          {"host", worker.host},
          {"node", worker.node},
          {"pid", worker.pid},
          {"device", worker.device},
          {"pool", worker.pool},
          {"state", worker.state},
          {"run", worker.run == 0 ? Json() : Json(worker.run)},
          {"release", worker.release},
          {"libraries", worker.libraries},
          {"silent_seconds", static_cast<double>(worker.silent_ns) * 1e-9}};
}

TextCells WorkersCells(const std::vector<WorkerInfo>& workers) {
  TextCells cells = {{"process", "name", "host", "pid", "device", "state", "run"}, {}};
  const bool pools =
      std::any_of(workers.begin(), workers.end(), [](const WorkerInfo& w) { return !w.pool.empty(); });
  if (pools) cells.header.push_back("pool");
  for (const WorkerInfo& w : workers) {
    cells.rows.push_back({absl::StrCat(w.process), w.name, w.host, absl::StrCat(w.pid), w.device,
                          WorkerStateText(w), w.run == 0 ? "-" : absl::StrCat(w.run)});
    if (pools) cells.rows.back().push_back(w.pool.empty() ? "-" : w.pool);
  }
  return cells;
}

std::string WorkersTable(const std::vector<WorkerInfo>& workers, const TextStyle& style) {
  const TextCells cells = WorkersCells(workers);
  return FormatTable(cells.header, cells.rows, style);
}

std::string RunText(const RunInfo& run, int64_t now_ns, const TextStyle& style) {
  std::string out = absl::StrCat("run        ", run.id, "\nname       ", run.name, "\nstate      ",
                                 RunStateName(run.state), "\n");
  const auto line = [&](absl::string_view name, absl::string_view text) {
    absl::StrAppend(&out, WrapText(absl::StrCat(name, text), style.width, static_cast<int>(name.size())),
                    "\n");
  };
  if (!run.reason.empty()) line("reason     ", run.reason);
  line("schedule   ", absl::StrCat(run.schedule, ": ", RanksOnProcesses(run)));
  if (!run.reduction.empty()) line("reduction  ", run.reduction);
  if (!run.terms.owner.empty()) line("owner      ", run.terms.owner);
  if (!run.terms.pool.empty()) line("pool       ", run.terms.pool);
  if (run.terms.priority != 0) line("priority   ", absl::StrCat(run.terms.priority));
  if (!run.file.empty()) line("file       ", run.file);
  if (!run.output.empty()) line("out        ", run.output);
  if (!run.output_failure.empty()) line("results    ", run.output_failure);
  if (run.submitted_ns > 0) {
    line("submitted  ",
         absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixNanos(run.submitted_ns), absl::LocalTimeZone()));
  }
  absl::StrAppend(&out, MembersText(run));
  absl::StrAppend(&out, "steps      ", Steps(run), "\nloss       ", Loss(run), "\n");
  if (run.validation.has_value()) absl::StrAppend(&out, "validation ", ValidatedText(*run.validation), "\n");
  if (!run.validation_failure.empty()) line("validation ", run.validation_failure);
  if (run.restarts > 0) line("restarts   ", absl::StrCat(run.restarts, "; the last: ", run.restart_reason));
  if (run.non_finite_steps > 0) {
    line("given up   ", absl::StrCat(run.non_finite_steps, run.non_finite_steps == 1 ? " step" : " steps",
                                     " with a number that was not finite; the last: ", run.non_finite_step));
  }
  if (run.recovery_ns.has_value()) line("recovery   ", RecoveryText(*run.recovery_ns));
  if (run.restarts == 0 && !run.restart_reason.empty()) line("resumed    ", run.restart_reason);
  absl::StrAppend(&out, "time       ", DurationText(run, now_ns), "\n");
  return run.reports.empty() ? out : absl::StrCat(out, "\n", RankTable(run.reports, style));
}

}  // namespace weft
