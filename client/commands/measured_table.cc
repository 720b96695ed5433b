#include "client/commands/measured_table.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "schedules/drawing/drawing.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

int Largest(const std::vector<int>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// Returns "4 (3)": the measured value, and the simulated one if it differs.
std::string WithSimulated(const std::string& measured, const std::string& simulated) {
  return measured == simulated ? measured : absl::StrCat(measured, " (", simulated, ")");
}

std::string BytesText(const std::vector<double>& bytes) {
  constexpr size_t kShown = 4;
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  std::string from = FormatBytes(*least);
  const std::string to = FormatBytes(*most);
  if (bytes.size() == 1) return from;
  if (from == to) return from + " each";
  if (bytes.size() > kShown) return absl::StrCat(from, " to ", to);
  std::vector<std::string> words;
  words.reserve(bytes.size());
  for (const double b : bytes) words.push_back(FormatBytes(b));
  return absl::StrJoin(words, ", ");
}

// Returns "1.5 MiB each", or one after another; of more ranks than fit a cell, the least and the most. The
// JSON has each. A rank of which no bytes are known counts as unknown, never as 0.
std::string ByRank(const ClassesByRank& ranks, const char* name) {
  std::vector<double> bytes;
  for (const auto& classes : ranks) {
    const auto found = classes.find(name);
    if (found != classes.end()) bytes.push_back(found->second);
  }
  if (bytes.empty()) return "-";
  const size_t unknown = ranks.size() - bytes.size();
  if (unknown == 0) return BytesText(bytes);
  return absl::StrCat(BytesText(bytes), "; ", unknown, unknown == 1 ? " rank" : " ranks", " unknown");
}

std::string Name(const MeasuredRow& row) { return absl::StrCat(row.schedule, row.chosen ? " *" : ""); }

std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

// Returns "1.21 - 1.40 s" for several trainings.
std::string Spread(const std::vector<double>& seconds) {
  if (seconds.size() < 2) return "-";
  return absl::StrCat(FormatSeconds(seconds.front()), " - ", FormatSeconds(seconds.back()));
}

std::string Overview(const std::vector<const MeasuredRow*>& rows, bool repeated, const TextStyle& style) {
  std::vector<std::string> header = {"schedule", "stages", "ranks", "processes", "time a step"};
  if (repeated) header.push_back("spread");
  header.insert(header.end(), {"predicted", "idle", "act. of a rank", "act. of all", "bytes of all",
                               "versions", "comm. steps"});
  std::vector<std::vector<std::string>> cells;
  for (const MeasuredRow* row : rows) {
    const std::string versions =
        row->weight_versions.empty() ? "-" : absl::StrCat(Largest(row->weight_versions));
    cells.push_back({Name(*row), absl::StrCat(row->stages), absl::StrCat(row->ranks),
                     absl::StrCat(row->processes), FormatSeconds(row->step_seconds)});
    if (repeated) cells.back().push_back(Spread(row->step_seconds_of_repeats));
    for (const std::string& cell :
         {FormatSeconds(row->predicted_step_seconds),
          WithSimulated(Percent(Sum(row->idle)), Percent(Sum(row->predicted_idle))),
          WithSimulated(absl::StrCat(Largest(row->peak_activations)),
                        absl::StrCat(Largest(row->simulated_peak_activations))),
          WithSimulated(absl::StrCat(row->live_activations), absl::StrCat(row->simulated_live_activations)),
          FormatBytes(row->live_bytes),
          WithSimulated(versions, absl::StrCat(Largest(row->simulated_weight_versions))),
          row->communication.has_value() ? absl::StrCat(row->communication->most) : std::string("-")}) {
      cells.back().push_back(cell);
    }
  }
  return FormatTable(header, cells, style);
}

// Returns the measured shares, and in brackets the simulator's.
std::string IdleByCause(const std::vector<const MeasuredRow*>& rows, const TextStyle& style) {
  std::vector<std::string> causes, header = {"idle for"};
  const auto share = [](const IdleShares& shares, const std::string& cause) {
    const auto found = shares.find(cause);
    return found == shares.end() ? 0 : found->second;
  };
  for (int c = 0; c < kIdleCauses; ++c) {
    const std::string cause(IdleCauseName(static_cast<IdleCause>(c)));
    const bool there = std::any_of(rows.begin(), rows.end(), [&](const MeasuredRow* row) {
      return std::max(share(row->idle, cause), share(row->predicted_idle, cause)) >= 0.0005;
    });
    if (there) causes.push_back(cause);
  }
  header.insert(header.end(), causes.begin(), causes.end());
  std::vector<std::vector<std::string>> cells;
  for (const MeasuredRow* row : rows) {
    cells.push_back({Name(*row)});
    for (const std::string& cause : causes) {
      cells.back().push_back(
          WithSimulated(Percent(share(row->idle, cause)), Percent(share(row->predicted_idle, cause))));
    }
  }
  return FormatTable(header, cells, style);
}

std::string MemoryByRank(const std::vector<const MeasuredRow*>& rows, const TextStyle& style) {
  std::vector<std::vector<std::string>> cells;
  cells.reserve(rows.size());
  for (const MeasuredRow* row : rows) {
    cells.push_back({Name(*row), ByRank(row->peak_bytes, "activations"), ByRank(row->peak_bytes, "weights")});
  }
  return FormatTable({"peak by rank", "activations", "weights"}, cells, style);
}

std::string SentByClass(const std::vector<const MeasuredRow*>& rows, const TextStyle& style) {
  std::set<std::string> classes;
  for (const MeasuredRow* row : rows) {
    for (const auto& [name, bytes] : row->sent_bytes) classes.insert(name);
    for (const auto& [name, bytes] : row->simulated_sent_bytes) classes.insert(name);
  }
  std::vector<std::string> header = {"sent a step"};
  header.insert(header.end(), classes.begin(), classes.end());
  std::vector<std::vector<std::string>> cells;
  const auto shown = [](const std::map<std::string, double>& sent, const std::string& name) {
    const auto found = sent.find(name);
    return FormatBytes(found == sent.end() ? 0 : found->second);
  };
  for (const MeasuredRow* row : rows) {
    cells.push_back({Name(*row)});
    for (const std::string& name : classes) {
      cells.back().push_back(
          WithSimulated(shown(row->sent_bytes, name), shown(row->simulated_sent_bytes, name)));
    }
  }
  return FormatTable(header, cells, style);
}

Json ByRankJson(const MeasuredRow& row) {
  Json ranks = Json::array();
  const auto at = [](const auto& list, size_t r) { return r < list.size() ? Json(list[r]) : Json(); };
  for (size_t r = 0; r < static_cast<size_t>(row.ranks); ++r) {
    const auto bytes = [&](const std::vector<double>& list) {
      return r < list.size() ? Json(std::llround(list[r])) : Json();
    };
    Json classes = Json::object();
    if (r < row.peak_bytes.size()) {
      for (const auto& [name, peak] : row.peak_bytes[r]) classes[name] = std::llround(peak);
    }
    ranks.push_back({{"rank", r},
                     {"peak_activations", at(row.peak_activations, r)},
                     {"peak_weight_versions", at(row.weight_versions, r)},
                     {"peak_bytes", std::move(classes)},
                     {"simulated",
                      {{"peak_activations", at(row.simulated_peak_activations, r)},
                       {"peak_weight_versions", at(row.simulated_weight_versions, r)},
                       {"activation_bytes", bytes(row.simulated_activation_bytes)},
                       {"weight_bytes", bytes(row.simulated_weight_bytes)}}}});
  }
  return ranks;
}

Json RowJson(const MeasuredRow& row) {
  Json json = {{"schedule", row.schedule}, {"chosen", row.chosen}, {"ran", row.ran}};
  if (!row.ran) {
    json["reason"] = row.reason;
    return json;
  }
  const auto whole = [](const std::map<std::string, double>& sent) {
    Json classes = Json::object();
    for (const auto& [name, bytes] : sent) classes[name] = std::llround(bytes);
    return classes;
  };
  json["ranks"] = row.ranks;
  json["processes"] = row.processes;
  json["stages"] = row.stages;
  json["step_seconds"] = row.step_seconds;
  json["step_seconds_of_repeats"] = row.step_seconds_of_repeats;
  json["predicted_step_seconds"] = row.predicted_step_seconds;
  json["idle_share"] = {{"measured", row.idle}, {"predicted", row.predicted_idle}};
  json["live_activations"] = row.live_activations;
  json["live_bytes"] = std::llround(row.live_bytes);
  json["bytes_sent"] = whole(row.sent_bytes);
  json["simulated"] = {{"live_activations", row.simulated_live_activations},
                       {"live_bytes", std::llround(row.simulated_live_bytes)},
                       {"bytes_sent", whole(row.simulated_sent_bytes)}};
  const auto counted = [&](auto CommunicationSteps::*field) {
    return row.communication.has_value() ? Json((*row.communication).*field) : Json();
  };
  json["communication_steps"] = counted(&CommunicationSteps::most);
  json["communication_chain"] = counted(&CommunicationSteps::chain);
  json["messages"] = counted(&CommunicationSteps::messages);
  json["rank_stats"] = ByRankJson(row);
  return json;
}

}  // namespace

std::string MeasuredTable(const RunSpec& run, const Measuring& measuring,
                          const std::vector<MeasuredRow>& rows) {
  std::vector<const MeasuredRow*> ran;
  std::string others;
  int ranks = 0;
  for (const MeasuredRow& row : rows) {
    if (row.ran) {
      ran.push_back(&row);
      ranks = std::max(ranks, row.ranks);
    } else {
      absl::StrAppend(&others, WrapText(absl::StrCat(Name(row), ": ", row.reason), measuring.style.width, 4),
                      "\n");
    }
  }
  std::string out =
      absl::StrFormat("%s: %s; measured over %d steps on %s", run.name, measuring.sizes, measuring.steps,
                      measuring.fleet ? "workers of the coordinator" : "this machine");
  if (measuring.repeats > 1)
    absl::StrAppendFormat(&out, ", %d times in turn: the median run, and the spread", measuring.repeats);
  out = WrapText(out, measuring.style.width) + "\n\n";
  if (!ran.empty()) {
    absl::StrAppend(&out, Overview(ran, measuring.repeats > 1, measuring.style), "\n",
                    IdleByCause(ran, measuring.style),
                    CoresNote(ranks, measuring.cores == 0 ? ranks : measuring.cores), "\n",
                    MemoryByRank(ran, measuring.style), "\n", SentByClass(ran, measuring.style));
  }
  if (!others.empty()) absl::StrAppend(&out, ran.empty() ? "" : "\n", "did not run\n", others);
  return absl::StrCat(
      out, "\n",
      WrapText(
          "* the run file's schedule; (in brackets) what the simulator says where that is another number; "
          "predicted: by the simulator from the run's own job times, were every rank a machine of its own; "
          "comm. steps: most between two ticks (docs/guide/command_line.md)",
          measuring.style.width),
      "\n");
}

Json MeasuredJson(const RunSpec& run, const Measuring& measuring, const std::vector<MeasuredRow>& rows) {
  Json json = {{"run", run.name},
               {"stages", run.placed_stages()},
               {"microbatches", run.train.microbatches},
               {"steps", measuring.steps},
               {"repeats", measuring.repeats},
               {"cores", measuring.cores == 0 ? Json(nullptr) : Json(measuring.cores)},
               {"schedules", Json::array()}};
  for (const MeasuredRow& row : rows) json["schedules"].push_back(RowJson(row));
  return json;
}

}  // namespace weft
