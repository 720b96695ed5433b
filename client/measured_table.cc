#include "client/measured_table.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "schedules/drawing.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

int Most(const std::vector<int>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// "4 (3)": measured, and simulated where that is another number.
std::string Beside(const std::string& measured, const std::string& simulated) {
  return measured == simulated ? measured : absl::StrCat(measured, " (", simulated, ")");
}

// "1.5 MiB each", or one after another.
std::string Words(const std::vector<std::string>& values) {
  constexpr size_t kShown = 16;
  const bool same = std::all_of(values.begin(), values.end(), [&](const auto& v) { return v == values[0]; });
  if (values.empty()) return "-";
  if (same) return values.size() == 1 ? values[0] : values[0] + " each";
  if (values.size() <= kShown) return absl::StrJoin(values, ", ");
  return absl::StrCat(absl::StrJoin(values.begin(), values.begin() + kShown, ", "), ", ..");
}

std::string ByRank(const ClassesByRank& ranks, const char* name) {
  std::vector<std::string> words;
  for (const auto& classes : ranks) {
    const auto found = classes.find(name);
    words.push_back(FormatBytes(found == classes.end() ? 0 : found->second));
  }
  return Words(words);
}

std::string Name(const MeasuredRow& row) { return absl::StrCat(row.schedule, row.chosen ? " *" : ""); }

std::string Overview(const std::vector<const MeasuredRow*>& rows) {
  std::vector<std::vector<std::string>> cells;
  for (const MeasuredRow* row : rows) {
    const std::string versions =
        row->weight_versions.empty() ? "-" : absl::StrCat(Most(row->weight_versions));
    cells.push_back(
        {Name(*row), absl::StrCat(row->ranks), absl::StrCat(row->processes), FormatSeconds(row->step_seconds),
         FormatSeconds(row->predicted_step_seconds),
         Beside(absl::StrCat(Most(row->peak_activations)),
                absl::StrCat(Most(row->simulated_peak_activations))),
         Beside(absl::StrCat(row->live_activations), absl::StrCat(row->simulated_live_activations)),
         FormatBytes(row->live_bytes), Beside(versions, absl::StrCat(Most(row->simulated_weight_versions))),
         row->communication.has_value() ? absl::StrCat(row->communication->most) : "-"});
  }
  return FormatTable({"schedule", "ranks", "processes", "time a step", "predicted", "act. of a rank",
                      "act. of all", "bytes of all", "versions", "comm. steps"},
                     cells);
}

std::string MemoryByRank(const std::vector<const MeasuredRow*>& rows) {
  std::vector<std::vector<std::string>> cells;
  for (const MeasuredRow* row : rows) {
    cells.push_back({Name(*row), ByRank(row->peak_bytes, "activations"), ByRank(row->peak_bytes, "weights")});
  }
  return FormatTable({"peak by rank", "activations", "weights"}, cells);
}

std::string SentByClass(const std::vector<const MeasuredRow*>& rows) {
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
      cells.back().push_back(Beside(shown(row->sent_bytes, name), shown(row->simulated_sent_bytes, name)));
    }
  }
  return FormatTable(header, cells);
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
  json["step_seconds"] = row.step_seconds;
  json["predicted_step_seconds"] = row.predicted_step_seconds;
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

std::string MeasuredTable(const RunSpec& run, int steps, const std::vector<MeasuredRow>& rows) {
  std::vector<const MeasuredRow*> ran;
  std::string others;
  for (const MeasuredRow& row : rows) {
    if (row.ran) {
      ran.push_back(&row);
    } else {
      absl::StrAppend(&others, Name(row), ": ", row.reason, "\n");
    }
  }
  std::string out =
      absl::StrFormat("%s: %d stages, %d micro-batches; measured over %d steps on this machine\n\n", run.name,
                      run.stages(), run.train.microbatches, steps);
  if (!ran.empty()) absl::StrAppend(&out, Overview(ran), "\n", MemoryByRank(ran), "\n", SentByClass(ran));
  if (!others.empty()) absl::StrAppend(&out, ran.empty() ? "" : "\n", "did not run\n", others);
  return absl::StrCat(out,
                      "\n* the run file's schedule; (in brackets) what the simulator says where that is "
                      "another number; predicted: by the simulator\nfrom the run's own job times, were every "
                      "rank a machine of its own; comm. steps: most between two ticks "
                      "(docs/guide/command_line.md)\n");
}

Json MeasuredJson(const RunSpec& run, int steps, const std::vector<MeasuredRow>& rows) {
  Json json = {{"run", run.name},
               {"stages", run.stages()},
               {"microbatches", run.train.microbatches},
               {"steps", steps},
               {"schedules", Json::array()}};
  for (const MeasuredRow& row : rows) json["schedules"].push_back(RowJson(row));
  return json;
}

}  // namespace weft
