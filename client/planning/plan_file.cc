#include "client/planning/plan_file.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "run/schedule_spec.h"
#include "schedules/byte_text.h"
#include "schedules/drawing/drawing.h"
#include "schedules/families/families.h"

namespace weft {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Periods are sums of times over a number of windows: 840 ticks divide by every number up to eight.
constexpr double kTicksOfFraction = 840;
constexpr double kMaxTicks = 1e12;  // of all times together where they are whole numbers, else of each
constexpr double kMostTicksPerUnit = 1e300;
constexpr double kTicksOfMeasured = 1e6;  // of the longest layer
constexpr int kMaxDenominator = 1000;

// Returns the ticks of a unit of time under which all times are whole numbers, or as near as it takes. The
// times of layers say how near; transfers may be far longer.
double TicksPerUnit(const std::vector<double>& layers, const std::vector<double>& transfers) {
  std::vector<double> times = layers;
  times.insert(times.end(), transfers.begin(), transfers.end());
  const double longest = *std::max_element(times.begin(), times.end());
  const double sum = std::accumulate(times.begin(), times.end(), 0.0);
  if (longest <= 0) return 1;
  for (int denominator = 1; denominator <= kMaxDenominator; ++denominator) {
    const double ticks = denominator * kTicksOfFraction;
    if (sum * ticks > kMaxTicks) break;
    const bool whole = std::all_of(times.begin(), times.end(), [&](double time) {
      const double count = time * denominator;
      return std::abs(count - std::round(count)) <= 1e-9 * count;
    });
    if (whole) return ticks;
  }
  const double longest_layer = *std::max_element(layers.begin(), layers.end());
  return std::min(kTicksOfMeasured / (longest_layer > 0 ? longest_layer : longest), kMostTicksPerUnit);
}

// A layer that keeps bytes occupies its rank at least for a tick. No plan takes a transfer of the most ticks.
int64_t TicksOf(double time, double ticks_per_unit, bool keeps) {
  const auto ticks = static_cast<int64_t>(std::min(std::ceil(time * ticks_per_unit - 1e-6), kMaxTicks));
  return std::max<int64_t>(ticks, keeps ? 1 : 0);
}

int64_t BytesOf(double bytes) { return static_cast<int64_t>(std::ceil(std::min(bytes, 4e18))); }

double TicksPerUnit(const Profile& profile) {
  std::vector<double> layers, transfers;
  for (const ProfilePart& part : profile.parts) {
    layers.insert(layers.end(), {part.forward, part.backward});
    if (profile.bandwidth > 0) transfers.push_back(part.output_bytes / profile.bandwidth);
  }
  return TicksPerUnit(layers, transfers);
}

absl::Status AddNetwork(const Network& whole, TickedChain* ticked) {
  PlannedChain& chain = ticked->chain;
  const Network network = whole.FirstRanks(chain.ranks);
  if (absl::Status sound = CheckNetwork(network, chain.ranks); !sound.ok()) return sound;
  chain.speeds = network.speeds;
  switch (network.links) {
    case LinkSharing::kPairFull:
      chain.links = LinkKind::kPairFull;
      break;
    case LinkSharing::kPairHalf:
      chain.links = LinkKind::kPairHalf;
      break;
    case LinkSharing::kPort:
      chain.links = LinkKind::kPort;
      break;
  }
  for (size_t node = 0; node < network.nodes.size(); ++node)
    chain.node.insert(chain.node.end(), network.nodes[node], static_cast<int>(node));
  chain.latency_between = TicksOf(network.latency_between, ticked->ticks_per_unit, false);
  for (ChainLayer& layer : chain.layers) {
    layer.transfer_between = 0;
    if (network.bandwidth_between <= 0) continue;
    layer.transfer_between =
        TicksOf(static_cast<double>(layer.output) / network.bandwidth_between, ticked->ticks_per_unit, false);
  }
  return absl::OkStatus();
}

// Returns the starts of the pattern's jobs with a factor that keeps jobs apart which take no time, in the
// order of the chain.
struct WrittenPattern {
  int64_t window;
  std::vector<int64_t> forward, backward;
};

WrittenPattern Written(const Plan& plan) {
  const PatternProblem& problem = plan.placed.problem;
  const bool instant = std::any_of(problem.tasks.begin(), problem.tasks.end(),
                                   [](const PatternTask& task) { return task.duration == 0; });
  const int64_t factor = instant ? static_cast<int64_t>(problem.tasks.size()) : 1;
  WrittenPattern written = {plan.pattern.period * factor, {}, {}};
  const auto start = [&](int task) { return plan.pattern.starts[task] * factor + (instant ? task : 0); };
  for (const int task : plan.placed.forward) written.forward.push_back(start(task));
  for (const int task : plan.placed.backward) written.backward.push_back(start(task));
  const int64_t least = *std::min_element(written.forward.begin(), written.forward.end());
  int64_t divisor = written.window;
  for (auto* starts : {&written.forward, &written.backward}) {
    for (int64_t& at : *starts) divisor = std::gcd(divisor, at -= least);
  }
  written.window /= divisor;
  for (auto* starts : {&written.forward, &written.backward}) {
    for (int64_t& at : *starts) at /= divisor;
  }
  return written;
}

// Returns the time of a micro-batch, and a bound on it: of a pattern in steady state, else of the step.
double PeriodOf(const PlanReport& report) {
  if (!report.pattern.has_value()) return report.step / report.choice.microbatches;
  return static_cast<double>(report.pattern->pattern.period) / report.ticks_per_unit /
         report.pattern->batches;
}

double LeastPeriodOf(const PlanReport& report) {
  if (!report.pattern.has_value()) return report.step_bound / report.choice.microbatches;
  return static_cast<double>(report.pattern->lower_bound) / report.ticks_per_unit / report.pattern->batches;
}

// Returns the bound on the step, or on the window where there is none.
double LeastStepOf(const PlanReport& report) {
  return report.microbatches > 0 ? report.step_bound : LeastPeriodOf(report) * report.pattern->batches;
}

bool IsProven(const PlanReport& report) {
  if (report.pattern.has_value()) return report.pattern->proven();
  return report.step <= report.step_bound * (1 + 1e-9);
}

double GapOf(double value, double bound) { return bound > 0 ? std::max(0.0, (value - bound) / bound) : 0; }

std::string UnitText(const PlanReport& report) {
  if (report.unit.empty()) return "";
  return absl::StrCat(absl::EndsWith(report.unit, "FLOPs") ? " units of " : " ", report.unit);
}

// Returns a time in its unit: seconds with a fitting prefix.
std::string TimeText(const PlanReport& report, double time) {
  return report.unit == "s" ? FormatSeconds(time) : absl::StrFormat("%.6g%s", time, UnitText(report));
}

std::string JoinedBytes(const std::vector<double>& bytes) {
  return absl::StrJoin(bytes, ", ",
                       [](std::string* out, double b) { absl::StrAppendFormat(out, "%.0f", std::ceil(b)); });
}

// Returns the stages and the bytes of each rank, as JSON; numbers of layers count from 0.
OrderedJson StagesJson(const PlanReport& report) {
  OrderedJson stages = OrderedJson::array();
  for (const PlacedStage& stage : report.placement.stages) {
    stages.push_back({{"layers", {stage.first_layer, stage.first_layer + stage.layers - 1}},
                      {"ranks", stage.ranks},
                      {"activations", stage.activations}});
  }
  return stages;
}

OrderedJson BytesJson(const PlanReport& report) {
  OrderedJson ranks = OrderedJson::array();
  for (int r = 0; r < report.ranks && !report.placement.bytes.empty(); ++r) {
    OrderedJson rank = OrderedJson::object();
    for (const auto& [name, bytes] : report.placement.bytes)
      rank[name] = static_cast<int64_t>(std::ceil(bytes[r]));
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

// Returns the text between quotes.
std::string QuotedText(const std::string& text) {
  return OrderedJson(text).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// Returns the objects of a list as lines of a YAML file: JSON is YAML.
std::string YamlLines(const OrderedJson& list) {
  std::string lines;
  for (const OrderedJson& entry : list) absl::StrAppend(&lines, "    - ", entry.dump(), "\n");
  return lines;
}

// Returns "2" or "2-4".
std::string LayersText(const PlacedStage& stage) {
  if (stage.layers == 1) return absl::StrCat(stage.first_layer);
  return absl::StrCat(stage.first_layer, "-", stage.first_layer + stage.layers - 1);
}

// Returns "2 (block1)" or "2-4 (block1 to block3)" where layers have names.
std::string NamedLayersText(const PlanPlacement& placement, const PlacedStage& stage) {
  const int last = stage.first_layer + stage.layers - 1;
  std::string text = LayersText(stage);
  if (placement.layer_names.empty()) return text;
  absl::StrAppend(&text, " (", placement.layer_names[stage.first_layer]);
  if (last > stage.first_layer) absl::StrAppend(&text, " to ", placement.layer_names[last]);
  return text + ")";
}

// Returns the table of the ranks: what each computes, and its bytes. Classes of which no rank has any are
// left out, and so are the policies for activations where all stages have one.
std::string RankTable(const PlanReport& report, const TextStyle& style) {
  const PlanPlacement& placement = report.placement;
  const bool mixed = SplitActivations(report.choice.schedule).size() > 1;
  std::vector<std::string> header = {"rank", "peak"};
  std::vector<const std::vector<double>*> shown;
  for (const auto& [name, bytes] : placement.bytes) {
    if (std::all_of(bytes.begin(), bytes.end(), [](double b) { return b <= 0; })) continue;
    header.push_back(name);
    shown.push_back(&bytes);
  }
  header.emplace_back("layers");
  std::vector<std::vector<std::string>> rows;
  for (Rank r = 0; r < report.ranks; ++r) {
    std::vector<const PlacedStage*> stages;
    for (const PlacedStage& stage : placement.stages) {
      if (std::find(stage.ranks.begin(), stage.ranks.end(), r) != stage.ranks.end()) stages.push_back(&stage);
    }
    std::vector<std::string> layers;
    for (const PlacedStage* stage : stages) {
      layers.push_back(stages.size() == 1 ? NamedLayersText(placement, *stage) : LayersText(*stage));
      if (mixed) absl::StrAppend(&layers.back(), " ", stage->activations);
    }
    rows.push_back({absl::StrCat(r), FormatBytes(report.peak_bytes[r])});
    for (const std::vector<double>* bytes : shown) rows.back().push_back(FormatBytes((*bytes)[r]));
    const bool all = placement.stages.size() > 1 && layers.size() == placement.stages.size();
    rows.back().push_back(all && !mixed ? "all" : absl::StrJoin(layers, ", "));
  }
  return FormatTable(header, rows, style);
}

// Returns the key `buffers`, with a line for each layer.
std::string BuffersYaml(const MeasuredBuffers& buffers) {
  const nlohmann::json json = ToJson(buffers);
  std::string text = absl::StrFormat("buffers:\n  samples: %d\n  standing: %d\n  layers:\n", buffers.samples,
                                     buffers.standing);
  for (const nlohmann::json& layer : json["layers"]) absl::StrAppend(&text, "    - ", layer.dump(), "\n");
  return text;
}

// Returns the lines about time: what was planned, and how far it may be from the best.
std::string TimeLines(const PlanReport& report) {
  std::string text;
  if (report.microbatches > 0) {
    absl::StrAppendFormat(&text, "step         %s for %d %s, simulated\n", TimeText(report, report.step),
                          report.microbatches, report.microbatches == 1 ? "micro-batch" : "micro-batches");
  }
  if (report.pattern.has_value()) {
    absl::StrAppendFormat(&text, "period       %s a micro-batch, %d in a window\n",
                          TimeText(report, PeriodOf(report)), report.pattern->batches);
  }
  if (report.microbatches > 0 && report.step_bound > 0) {
    absl::StrAppendFormat(
        &text, "lower bound  %s: no schedule takes less, so this one is at most %.1f %% from the best\n",
        TimeText(report, report.step_bound), 100 * GapOf(report.step, report.step_bound));
  } else if (report.pattern.has_value()) {
    const double bound = LeastPeriodOf(report);
    absl::StrAppendFormat(&text, "lower bound  %s a micro-batch: %s\n", TimeText(report, bound),
                          IsProven(report) ? "the pattern is the best one"
                                           : absl::StrFormat("the pattern is at most %.1f %% from the best",
                                                             100 * GapOf(PeriodOf(report), bound)));
  }
  return text;
}

// Returns "2 GiB on the fullest rank, of 4 GiB".
std::string MemoryText(const PlanReport& report) {
  const double most = *std::max_element(report.peak_bytes.begin(), report.peak_bytes.end());
  return absl::StrCat(FormatBytes(most), " on the fullest rank",
                      report.memory > 0 ? absl::StrCat(", of ", FormatBytes(report.memory)) : "");
}

// Returns the lines about what was not chosen.
std::string OtherLines(const PlanReport& report) {
  std::string text;
  for (size_t i = 0; i < report.others.size() && i < 3; ++i) {
    absl::StrAppendFormat(&text, "%-13s%s a step under %s\n", i == 0 ? "runners-up" : "",
                          TimeText(report, report.others[i].prediction.step),
                          ToText(report.others[i].choice.schedule));
  }
  absl::StrAppendFormat(
      &text,
      "PipeDream    %s a micro-batch by its planner, which knows no activations; layers of its stages: %s\n",
      TimeText(report, report.pipedream_period),
      absl::StrJoin(report.pipedream.stages, ", ", [](std::string* out, const ContiguousStage& stage) {
        absl::StrAppend(out, stage.layers);
        if (stage.replicas > 1) absl::StrAppend(out, " (on ", stage.replicas, " ranks)");
      }));
  if (report.stopped)
    text += "             the time for the search was over before all was tried (--time-limit)\n";
  return text;
}

}  // namespace

absl::StatusOr<TickedChain> ChainOf(const Profile& profile, int ranks, double memory,
                                    const NetworkSpec* network) {
  TickedChain ticked;
  ticked.ticks_per_unit = TicksPerUnit(profile);
  PlannedChain& chain = ticked.chain;
  chain.ranks = ranks;
  if (memory > 0) chain.memory = static_cast<int64_t>(std::min(memory, 4e18));
  chain.latency = TicksOf(profile.latency, ticked.ticks_per_unit, false);
  int64_t copied = 0;  // of the layer before
  for (const ProfilePart& part : profile.parts) {
    ChainLayer layer;
    layer.kept = BytesOf(part.activation_bytes);
    layer.copied = BytesOf(part.copied_bytes);
    layer.resident = BytesOf(part.weight_bytes + part.state_bytes);
    const bool keeps = layer.kept > 0 || layer.copied > 0 || copied > 0;
    copied = layer.copied;
    layer.forward = TicksOf(part.forward, ticked.ticks_per_unit, keeps);
    layer.backward = TicksOf(part.backward, ticked.ticks_per_unit, keeps);
    layer.output = BytesOf(part.output_bytes);
    if (profile.bandwidth > 0) {
      layer.transfer = TicksOf(part.output_bytes / profile.bandwidth, ticked.ticks_per_unit, false);
      layer.sync = TicksOf(part.weight_bytes / profile.bandwidth, ticked.ticks_per_unit, false);
    }
    chain.layers.push_back(layer);
  }
  if (network != nullptr) {
    if (absl::Status added = AddNetwork(network->network, &ticked); !added.ok()) return added;
  }
  if (absl::Status sound = CheckChain(chain); !sound.ok()) return sound;
  return ticked;
}

bool HasCappedTransfer(const PlannedChain& chain, const Plan& plan) {
  int last = -1;  // layer of the stage
  for (size_t s = 0; s + 1 < plan.stage_layers.size(); ++s) {
    last += plan.stage_layers[s];
    const int from = plan.rank_of_stage[s], to = plan.rank_of_stage[s + 1];
    if (from == to) continue;
    const ChainLayer& layer = chain.layers[last];
    const bool beside = chain.SameNode(from, to);
    const int64_t ticks = beside ? std::max(layer.transfer, chain.latency)
                                 : std::max(layer.transfer_between, chain.latency_between);
    if (ticks >= static_cast<int64_t>(kMaxTicks)) return true;
  }
  return false;
}

ScheduleSpec ScheduleOfPlan(const Plan& plan) {
  const WrittenPattern written = Written(plan);
  ScheduleSpec schedule;
  schedule.name = "periodic";
  schedule.parameters = {{"placement", absl::StrJoin(plan.rank_of_stage, "+")},
                         {"window", absl::StrCat(written.window)},
                         {"forward", absl::StrJoin(written.forward, "+")},
                         {"backward", absl::StrJoin(written.backward, "+")}};
  return schedule;
}

nlohmann::json PlanKeys(const PlanReport& report) {
  const ScheduleSpec& schedule = report.choice.schedule;
  nlohmann::json keys = {{"schedule", ToJson(schedule)}, {"stages", report.choice.layers_of_stage}};
  if (!report.of_run) keys["schedule"].erase("reduction");
  if (report.microbatches > 0) keys["microbatches"] = report.choice.microbatches;
  if (report.buffers.has_value()) keys["buffers"] = ToJson(*report.buffers);
  return keys;
}

OrderedJson PlanJson(const PlanReport& report) {
  OrderedJson stages = OrderedJson::array(), replicas = OrderedJson::array();
  for (const ContiguousStage& stage : report.pipedream.stages) {
    stages.push_back(stage.layers);
    replicas.push_back(stage.replicas);
  }
  const ScheduleSpec& schedule = report.choice.schedule;
  const double period = PeriodOf(report), bound = LeastPeriodOf(report);
  OrderedJson json = {{"schedule", report.pattern.has_value() ? schedule.name : ToText(schedule)},
                      {"period", period},
                      {"lower_bound", bound},
                      {"gap", GapOf(period, bound)},
                      {"optimal", IsProven(report)},
                      {"stages", report.choice.layers_of_stage},
                      {"ranks", report.ranks},
                      {"held_bytes", report.held_bytes},
                      {"peak_bytes", report.peak_bytes},
                      {"placement", StagesJson(report)},
                      {"rank_bytes", BytesJson(report)},
                      {"step", report.step},
                      {"step_lower_bound", LeastStepOf(report)},
                      {"step_gap", GapOf(report.step, LeastStepOf(report))},
                      {"fits", true},
                      {"activations", schedule.activations},
                      {"unit", report.unit.empty() ? OrderedJson() : OrderedJson(report.unit)},
                      {"run", PlanKeys(report)},
                      {"pipedream",
                       {{"period", report.pipedream_period},
                        {"stages", stages},
                        {"replicas", replicas},
                        {"batches_in_flight", report.pipedream.batches_in_flight}}},
                      {"source", report.source}};
  if (report.weight_bytes > 0) json["weight_bytes"] = report.weight_bytes;
  if (report.pattern.has_value()) {
    json["k"] = report.pattern->batches;
    json["rank_of_stage"] = report.pattern->rank_of_stage;
    OrderedJson pattern = OrderedJson::object();
    for (const auto& [name, value] : schedule.parameters) pattern[name] = value;
    json["pattern"] = {{"periodic", pattern}};
  }
  if (!report.profile_hash.empty()) {
    json["profile"] = report.profile;
    json["profile_hash"] = report.profile_hash;
  }
  if (report.microbatches > 0) {
    json["microbatches"] = report.microbatches;
    json["stopped"] = report.stopped;
    json["others"] = OrderedJson::array();
    for (const PredictedChoice& other : report.others) {
      json["others"].push_back({{"schedule", ToText(other.choice.schedule)},
                                {"stages", other.choice.layers_of_stage},
                                {"microbatches", other.choice.microbatches},
                                {"step", other.prediction.step}});
    }
  }
  return json;
}

std::string PlanYaml(const PlanReport& report) {
  std::string text = absl::StrCat("# ", PlanLine(report), "\nschedule:\n");
  const ScheduleSpec& schedule = report.choice.schedule;
  absl::StrAppend(&text, "  ", schedule.name, ":", schedule.parameters.empty() ? " {}\n" : "\n");
  for (const auto& [name, value] : schedule.parameters) {
    if (absl::EndsWith(value, "\n")) {  // rows stay rows
      const std::vector<absl::string_view> rows = absl::StrSplit(value, '\n', absl::SkipEmpty());
      absl::StrAppend(&text, "    ", name, ": |\n      ", absl::StrJoin(rows, "\n      "), "\n");
    } else {
      absl::StrAppend(&text, "    ", name, ": \"", value, "\"\n");
    }
  }
  if (schedule.rule != DefaultRule(schedule.name)) absl::StrAppend(&text, "  rule: ", schedule.rule, "\n");
  if (report.of_run) absl::StrAppend(&text, "  reduction: ", schedule.reduction, "\n");
  const std::vector<std::string> activations = SplitActivations(schedule);
  if (activations.size() > 1) {
    absl::StrAppend(&text, "  activations: [", absl::StrJoin(activations, ", "), "]\n");
  } else if (activations[0] != ScheduleSpec().activations) {
    absl::StrAppend(&text, "  activations: ", activations[0], "\n");
  }
  absl::StrAppend(&text, "stages: [", absl::StrJoin(report.choice.layers_of_stage, ", "), "]\n");
  if (report.microbatches > 0) absl::StrAppend(&text, "microbatches: ", report.choice.microbatches, "\n");
  if (report.buffers.has_value()) absl::StrAppend(&text, BuffersYaml(*report.buffers));
  absl::StrAppend(&text, "plan:\n  source: ", QuotedText(report.source), "\n");
  if (!report.profile_hash.empty()) {
    absl::StrAppend(&text, "  profile: ", QuotedText(report.profile), "\n  profile_hash: \"",
                    report.profile_hash, "\"\n");
  }
  if (report.weight_bytes > 0) absl::StrAppendFormat(&text, "  weight_bytes: %.0f\n", report.weight_bytes);
  absl::StrAppendFormat(&text, "  ranks: %d\n  step: %.9g\n", report.ranks, report.step);
  if (!report.unit.empty()) absl::StrAppend(&text, "  unit: ", QuotedText(report.unit), "\n");
  absl::StrAppendFormat(&text, "  lower_bound: %.9g\n", LeastStepOf(report));
  absl::StrAppend(&text, "  held_bytes: [", JoinedBytes(report.held_bytes), "]\n", "  peak_bytes: [",
                  JoinedBytes(report.peak_bytes), "]\n");
  if (report.placement.stages.empty()) return text;
  absl::StrAppend(&text, "  placement:\n", YamlLines(StagesJson(report)), "  rank_bytes:\n",
                  YamlLines(BytesJson(report)));
  return text;
}

std::string PlanLine(const PlanReport& report) {
  const ScheduleSpec& schedule = report.choice.schedule;
  std::string text = report.pattern.has_value()
                         ? absl::StrFormat("a planned pattern of %d stages", report.choice.stages())
                         : absl::StrFormat("%s with %d stages", ToText(schedule), report.choice.stages());
  absl::StrAppendFormat(&text, " on %d ranks", report.ranks);
  if (report.microbatches > 0) {
    absl::StrAppendFormat(&text, " and %d micro-batches: %s a step", report.microbatches,
                          TimeText(report, report.step));
    if (report.step_bound > 0)
      absl::StrAppendFormat(&text, ", at most %.1f %% from the best",
                            100 * GapOf(report.step, report.step_bound));
    if (!report.others.empty()) {
      absl::StrAppend(&text, "; next is ", ToText(report.others[0].choice.schedule), " with ",
                      TimeText(report, report.others[0].prediction.step));
    }
  } else {
    absl::StrAppend(&text, ": ", TimeText(report, PeriodOf(report)), " a micro-batch, not below ",
                    TimeText(report, LeastPeriodOf(report)));
  }
  absl::StrAppend(&text, "; ", MemoryText(report));
  if (report.timed_ranks > report.ranks) {
    absl::StrAppendFormat(&text, "; jobs were timed with %d ranks busy, and with %d they may take less",
                          report.timed_ranks, report.ranks);
  }
  return text;
}

std::string PlanTable(const PlanReport& report, const TextStyle& style) {
  const ScheduleSpec& schedule = report.choice.schedule;
  const int stages = report.choice.stages();
  std::string text = TimeLines(report);
  const std::string name = report.pattern.has_value() ? "a planned pattern" : ToText(schedule);
  absl::StrAppendFormat(&text, "schedule     %s: %d %s on %d %s, of %s layers\n", name, stages,
                        stages == 1 ? "stage" : "stages", report.ranks, report.ranks == 1 ? "rank" : "ranks",
                        absl::StrJoin(report.choice.layers_of_stage, ", "));
  absl::StrAppend(&text, "memory       ", MemoryText(report), "\n", OtherLines(report), "\n",
                  RankTable(report, style));
  return text;
}

}  // namespace weft
