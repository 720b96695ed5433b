#include "client/commands/compare_command.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/commands/compare_measured.h"
#include "client/commands/contestants.h"
#include "client/files/predicted_run.h"
#include "client/files/run_file.h"
#include "coordinator/record/idle_shares.h"
#include "nlohmann/json.hpp"
#include "run/run_schedule.h"
#include "schedules/drawing/drawing.h"

namespace weft {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The prediction of one schedule, or the reason why there is none.
struct Row {
  std::string schedule;
  bool chosen = false;  // true for the run file's own schedule
  bool valid = false;   // true if it can run with these sizes
  bool fits = false;
  std::string reason;               // reason why it is not valid or does not fit
  std::optional<double> would_fit;  // bytes a rank with which it would fit, where it does not
  int ranks = 0, stages = 0, microbatches = 0;
  int staleness = 0;  // most updates by which the weights that it reads are old
  double time = 0;    // time of a step in steady state
  double idle = 0;
  IdleShares idle_by_cause;
  double peak_bytes = 0, sent_bytes = 0;  // bytes of the rank that has most; of all ranks in a step
  int peak_activations = 0;
  double rank_time() const { return time * ranks; }
};

// Returns the reason without what the table says already, and without advice on one schedule, where there are
// others.
std::string ReasonOf(const absl::Status& status, const std::string& schedule) {
  absl::string_view reason = status.message();
  absl::ConsumePrefix(&reason, "memory: ");
  absl::ConsumePrefix(&reason, "does not fit: ");
  absl::ConsumePrefix(&reason, absl::StrCat(schedule.substr(0, schedule.find(',')), ": "));
  return std::string(reason.substr(0, reason.find("; give it more memory")));
}

Row Predict(const Contestant& contestant, const RunCosts& costs) {
  Row row;
  row.schedule = contestant.schedule;
  row.chosen = contestant.chosen;
  const auto refuse = [&](const absl::Status& status) {
    row.reason = ReasonOf(status, row.schedule);
    row.valid = contestant.run.ok() && IsAboutMemory(status);
    return row;
  };
  if (!contestant.run.ok()) return refuse(contestant.run.status());
  auto prepared = PrepareRun(*contestant.run, costs);
  if (!prepared.ok()) return refuse(prepared.status());
  prepared->costs.steps = kPredictedSteps;
  const auto result = SimulateRun(*prepared);
  if (!result.ok()) return refuse(result.status());
  row.valid = row.fits = true;
  row.ranks = prepared->schedule.scheme.ranks;
  row.stages = contestant.run->placed_stages();
  row.microbatches = prepared->schedule.scheme.microbatches;
  row.staleness = prepared->schedule.scheme.MaxStaleness();
  row.time = result->period;
  row.idle = result->bubble_ratio;
  row.idle_by_cause = PredictedIdle(*result);
  for (const RankStats& r : result->ranks) {
    row.peak_bytes = std::max(row.peak_bytes, r.held_bytes + r.peak_activation_bytes);
    row.peak_activations = std::max(row.peak_activations, r.peak_activations);
    row.sent_bytes += r.bytes_sent / kPredictedSteps;
  }
  return row;
}

// A row, and the contestant of which it is.
using Predicted = std::pair<Row, const Contestant*>;

// Rows that fit come first, by time, those that train on old weights behind the others; then those that do
// not fit, then those that these sizes do not allow.
bool ComesBefore(const Predicted& a, const Predicted& b) {
  const auto place = [](const Row& row) {
    return std::make_tuple(!row.fits, !row.valid, row.staleness > 0, row.time, row.ranks);
  };
  return place(a.first) < place(b.first);
}

// Keeps the best of each choice, and of the forms for slow links those that are faster than what they deepen.
void DropTheWorse(bool varies, std::vector<Predicted>* rows) {
  std::map<std::string, double> best;
  for (const auto& [row, contestant] : *rows) {
    if (row.fits) best.emplace(contestant->choice, row.time);
  }
  constexpr double kFaster = 1 - 1e-9;
  std::set<std::string> kept;
  const auto is_worse = [&](const Predicted& predicted) {
    const auto& [row, contestant] = predicted;
    const bool first = kept.insert(contestant->choice).second;
    if (row.chosen) return false;
    if (varies && (!first || (!row.fits && !row.valid))) return true;
    if (contestant->deepens.empty()) return false;
    const auto plain = best.find(contestant->deepens);
    return !row.fits || (plain != best.end() && row.time >= plain->second * kFaster);
  };
  rows->erase(std::remove_if(rows->begin(), rows->end(), is_worse), rows->end());
}

std::vector<Row> PredictAll(const std::vector<Contestant>& contestants, const RunCosts& costs, bool varies) {
  std::vector<Predicted> predicted;
  predicted.reserve(contestants.size());
  for (const Contestant& contestant : contestants) {
    predicted.emplace_back(Predict(contestant, costs), &contestant);
  }
  std::stable_sort(predicted.begin(), predicted.end(), ComesBefore);
  DropTheWorse(varies, &predicted);
  std::vector<Row> rows;
  for (auto& [row, contestant] : predicted) {
    if (row.valid && !row.fits) row.would_fit = MemoryThatFits(*contestant->run, costs);
    rows.push_back(std::move(row));
  }
  return rows;
}

// Quotes a word if a shell would read more into it.
std::string Quoted(const std::string& word) {
  const bool plain = std::all_of(word.begin(), word.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("_-./,=:", absl::string_view(&c, 1));
  });
  return plain ? word : absl::StrCat("'", word, "'");
}

// Returns the command that draws the row.
std::string PictureOf(const Row& row, const RunSpec& run, const CompareOptions& options) {
  std::string command = absl::StrCat("weft simulate ", Quoted(options.file));
  if (!row.chosen) absl::StrAppend(&command, " --schedule ", Quoted(row.schedule));
  if (row.stages != run.placed_stages()) absl::StrAppend(&command, " --stages ", row.stages);
  if (row.microbatches != run.train.microbatches) {
    absl::StrAppend(&command, " --microbatches ", row.microbatches);
  }
  if (!options.profile.empty()) absl::StrAppend(&command, " --profile ", Quoted(options.profile));
  if (options.flops != CostOptions().flops) absl::StrAppendFormat(&command, " --flops %.15g", options.flops);
  if (options.memory > 0) absl::StrAppendFormat(&command, " --memory %.0f", options.memory);
  if (options.bandwidth > 0) absl::StrAppendFormat(&command, " --bandwidth %.6g", options.bandwidth);
  if (options.latency > 0) absl::StrAppendFormat(&command, " --latency %.6g", options.latency);
  if (!options.network.empty()) absl::StrAppend(&command, " --network ", Quoted(options.network));
  if (options.host_bandwidth > 0)
    absl::StrAppendFormat(&command, " --host-bandwidth %.6g", options.host_bandwidth);
  return command + " -o svg > picture.svg";
}

// Returns which weights a schedule reads.
std::string WeightsText(int staleness) {
  if (staleness == 0) return "newest";
  return staleness == 1 ? "1 step old" : absl::StrCat("up to ", staleness, " steps old");
}

std::string UnitText(const CompareOptions& options, const RunCosts& costs) {
  if (!costs.profiled()) return absl::StrCat("units of ", costs.UnitOf());
  return costs.UnitOf() == "s" ? "seconds" : absl::StrCat("the unit of ", options.profile);
}

// Returns a line that says how less memory may do, where a schedule does not fit.
std::string HintOfBuffers(const RunSpec& run, const CompareOptions& options, const RunCosts& costs,
                          const std::vector<Row>& rows) {
  const auto lacks_memory = [](const Row& row) { return row.valid && !row.fits; };
  if (!costs.LeavesBuffers(run) || std::none_of(rows.begin(), rows.end(), lacks_memory)) return "";
  return absl::StrCat("less memory may do if the run file says `buffers: ` and the path of ", options.profile,
                      "\n");
}

std::string Table(const RunSpec& run, const CompareOptions& options, const RunCosts& costs,
                  const std::vector<Row>& rows) {
  std::string out = absl::StrCat(run.name, ": ", SizesText(run, {{}, options.ranks, options.stages}),
                                 "; time in ", UnitText(options, costs), "\n\n");
  const auto time = [&](double value) {
    return costs.time() == DrawnTime::kSeconds ? FormatSeconds(value) : absl::StrFormat("%.5g", value);
  };
  std::vector<std::vector<std::string>> fitting;
  std::vector<std::string> columns = {"schedule",         "stages",       "ranks", "time a step",
                                      "of best",          "time x ranks", "idle",  "peak act.",
                                      "memory of a rank", "sent a step"};
  const bool old =
      std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.fits && row.staleness > 0; });
  if (options.vary.microbatches) columns.emplace_back("micro-batches");
  if (old) columns.emplace_back("weights");
  std::string others;
  for (const Row& row : rows) {
    const std::string name = absl::StrCat(row.schedule, row.chosen ? " *" : "");
    if (row.fits) {
      fitting.push_back({name, absl::StrCat(row.stages), absl::StrCat(row.ranks), time(row.time),
                         absl::StrFormat("%.2f", row.time / rows.front().time), time(row.rank_time()),
                         absl::StrFormat("%.1f %%", 100 * row.idle), absl::StrCat(row.peak_activations),
                         FormatBytes(row.peak_bytes), FormatBytes(row.sent_bytes)});
      if (options.vary.microbatches) fitting.back().push_back(absl::StrCat(row.microbatches));
      if (old) fitting.back().push_back(WeightsText(row.staleness));
      continue;
    }
    std::string why =
        absl::StrCat(name, ": ", row.valid ? "does not fit" : "not with these sizes", ": ", row.reason);
    if (row.would_fit.has_value())
      absl::StrAppend(&why, "; --memory ", ByteFlag(*row.would_fit), " would do");
    absl::StrAppend(&others, WrapText(why, OutputStyle().width, 4), "\n");
  }
  if (!fitting.empty()) {
    absl::StrAppend(&out, FormatTable(columns, fitting, OutputStyle()));
  }
  if (!others.empty()) absl::StrAppend(&out, fitting.empty() ? "" : "\n", others);
  absl::StrAppend(&out, "\n* the run file's schedule");
  if (old)
    absl::StrAppend(&out, "; schedules that read old weights train otherwise, and stand behind the others");
  if (!costs.has_own_bytes()) absl::StrAppend(&out, "; memory is counted as `memory:` of a run file is");
  absl::StrAppend(&out, "\n", HintOfBuffers(run, options, costs, rows));
  if (!fitting.empty())
    absl::StrAppend(&out, "the first as a picture: ", PictureOf(rows.front(), run, options), "\n");
  return out;
}

OrderedJson ToJson(const RunSpec& run, const CompareOptions& options, const RunCosts& costs,
                   const std::vector<Row>& rows) {
  OrderedJson json = {
      {"run", run.name},
      {"stages", options.stages > 0 ? options.stages : run.placed_stages()},
      {"microbatches", run.train.microbatches},
      {"ranks", options.ranks > 0 ? OrderedJson(options.ranks) : OrderedJson(nullptr)},
      {"memory", std::llround(costs.MemoryOf(run))},
      {"profile", options.profile.empty() ? OrderedJson(nullptr) : OrderedJson(options.profile)},
      {"time_unit", costs.UnitOf().empty() ? OrderedJson(nullptr) : OrderedJson(costs.UnitOf())},
      {"schedules", OrderedJson::array()}};
  for (const Row& row : rows) {
    OrderedJson entry = {{"schedule", row.schedule}, {"chosen", row.chosen}, {"fits", row.fits}};
    if (row.fits) {
      entry["stages"] = row.stages;
      entry["microbatches"] = row.microbatches;
      entry["ranks"] = row.ranks;
      entry["staleness"] = row.staleness;
      entry["step_time"] = row.time;
      entry["rank_time"] = row.rank_time();
      entry["bubble_ratio"] = row.idle;
      entry["idle_share"] = row.idle_by_cause;
      entry["peak_activations"] = row.peak_activations;
      entry["peak_bytes"] = std::llround(row.peak_bytes);
      entry["bytes_sent"] = std::llround(row.sent_bytes);
    } else {
      entry["valid"] = row.valid;
      entry["reason"] = row.reason;
      if (row.would_fit.has_value()) entry["memory_that_fits"] = std::llround(*row.would_fit);
    }
    json["schedules"].push_back(entry);
  }
  return json;
}

// Fails if the network of the flag, or of the profile, has fewer ranks than each of the schedules. That of
// the run file is checked when the file is read.
absl::Status CheckRanksOfNetwork(const std::vector<Contestant>& contestants, const RunSpec& run,
                                 const CompareOptions& options, const NetworkSpec* network) {
  if (network == nullptr || (options.network.empty() && run.network.has_value())) return absl::OkStatus();
  absl::Status first;
  for (const Contestant& contestant : contestants) {
    if (!contestant.run.ok()) continue;
    const RunSpec& under = *contestant.run;
    const auto made = MakeSchedule(under.schedule, under.placed_stages(), under.train.microbatches);
    if (!made.ok()) continue;
    const absl::Status has = CheckNetwork(network->network, made->scheme.ranks);
    if (has.ok()) return has;
    first.Update(has);
  }
  const std::string& file = options.network.empty() ? options.profile : options.network;
  return first.ok() ? first : absl::InvalidArgumentError(absl::StrCat(file, ": ", first.message()));
}

}  // namespace

ExitCode RunCompare(const CompareOptions& options) {
  ContestantOptions asked = {options.schedules, options.ranks, options.stages,
                             options.bandwidth > 0 || options.latency > 0, options.vary};
  if (const absl::Status named = CheckNamed(asked); !named.ok()) return Fail(kExitUsage, named.message());
  if (options.measure) return RunMeasuredCompare(options);
  if (options.vary.activations && !options.profile.empty()) {
    return Fail(
        kExitUsage,
        "--vary activations: a profile has the times of the policy under which it was made; leave one of the "
        "two out");
  }
  const auto run = ReadRunFile(options.file, RunFileData::kIgnored);
  if (!run.ok()) return Fail(kExitBadConfiguration, run.status().message());
  if (const absl::Status cut = CheckStages(*run, asked); !cut.ok()) return Fail(kExitUsage, cut.message());
  const auto costs = RunCosts::Make({options.profile, options.flops, options.memory, options.bandwidth,
                                     options.latency, options.network, options.host_bandwidth},
                                    *run);
  if (absl::IsOutOfRange(costs.status())) return Fail(kExitUsage, costs.status().message());
  if (!costs.ok()) return Fail(kExitBadConfiguration, costs.status().message());
  const NetworkSpec* const network = costs->NetworkOf(*run);
  asked.slow_links = asked.slow_links || (network != nullptr && network->slow_links());
  if (options.stages == 0 && options.ranks == 0) {
    const auto of_run = costs->Of(*run);
    if (!of_run.ok()) return Fail(kExitBadConfiguration, of_run.status().message());
  }
  const std::vector<Contestant> contestants = ContestantsToPredict(*run, asked);
  if (absl::Status has = CheckRanksOfNetwork(contestants, *run, options, network); !has.ok())
    return Fail(kExitBadConfiguration, has.message());
  const bool offloads = std::any_of(contestants.begin(), contestants.end(), [](const Contestant& contestant) {
    return contestant.run.ok() && Offloads(contestant.run->schedule);
  });
  if (options.host_bandwidth > 0 && !offloads) {
    return Fail(kExitUsage,
                "--host-bandwidth has no effect, because no schedule here has `activations: offload`");
  }
  const std::vector<Row> rows = PredictAll(contestants, *costs, options.vary.any());
  const ExitCode printed = options.json ? PrintJson(ToJson(*run, options, *costs, rows))
                                        : PrintData(Table(*run, options, *costs, rows));
  if (printed != kExitOk) return printed;
  if (rows.front().fits) return kExitOk;
  return Fail(kExitFailed, rows.front().valid
                               ? "no schedule fits; give more memory or more, smaller micro-batches"
                               : "no schedule can be had with these sizes; the reasons are above");
}

}  // namespace weft
