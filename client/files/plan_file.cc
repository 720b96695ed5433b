#include "client/files/plan_file.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "schedules/byte_text.h"

namespace weft {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Periods are sums of times over a number of windows: 840 ticks divide by every number up to eight.
constexpr double kTicksOfFraction = 840;
constexpr double kMaxTicks = 1e12;        // of all layers together
constexpr double kTicksOfMeasured = 1e6;  // of the longest layer
constexpr int kMaxDenominator = 1000;

// Returns the ticks of a unit of time under which all times are whole numbers, or as near as it takes.
double TicksPerUnit(const std::vector<double>& times) {
  const double longest = *std::max_element(times.begin(), times.end());
  const double sum = std::accumulate(times.begin(), times.end(), 0.0);
  if (longest <= 0) return 1;
  for (int denominator = 1; denominator <= kMaxDenominator; ++denominator) {
    const double ticks = denominator * kTicksOfFraction;
    if (sum * ticks > kMaxTicks) break;
    const bool whole = std::all_of(times.begin(), times.end(), [&](double time) {
      return std::abs(time * denominator - std::round(time * denominator)) <= 1e-9 * std::max(1.0, time);
    });
    if (whole) return ticks;
  }
  return kTicksOfMeasured / longest;
}

// A layer that keeps bytes occupies its rank at least for a tick.
int64_t TicksOf(double time, double ticks_per_unit, bool keeps) {
  const auto ticks = static_cast<int64_t>(std::ceil(time * ticks_per_unit - 1e-6));
  return std::max<int64_t>(ticks, keeps ? 1 : 0);
}

int64_t BytesOf(double bytes) { return static_cast<int64_t>(std::ceil(std::min(bytes, 4e18))); }

std::vector<double> TimesOf(const Profile& profile) {
  std::vector<double> times;
  for (const ProfilePart& part : profile.parts) times.insert(times.end(), {part.forward, part.backward});
  if (profile.bandwidth <= 0) return times;
  for (const ProfilePart& part : profile.parts) times.push_back(part.output_bytes / profile.bandwidth);
  return times;
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

double PeriodOf(const PlanReport& report, int64_t window) {
  return static_cast<double>(window) / report.ticks_per_unit / report.plan.batches;
}

double GapOf(const PlanReport& report) {
  const auto bound = static_cast<double>(report.plan.lower_bound);
  return (static_cast<double>(report.plan.pattern.period) - bound) / bound;
}

std::string UnitText(const PlanReport& report) {
  return report.unit.empty() ? "" : absl::StrCat(" ", report.unit);
}

}  // namespace

absl::StatusOr<TickedChain> ChainOf(const Profile& profile, int ranks, double memory) {
  TickedChain ticked;
  ticked.ticks_per_unit = TicksPerUnit(TimesOf(profile));
  PlannedChain& chain = ticked.chain;
  chain.ranks = ranks;
  if (memory > 0) chain.memory = static_cast<int64_t>(std::min(memory, 4e18));
  chain.latency = TicksOf(profile.latency, ticked.ticks_per_unit, false);
  for (const ProfilePart& part : profile.parts) {
    ChainLayer layer;
    layer.kept = BytesOf(part.activation_bytes);
    layer.resident = BytesOf(part.weight_bytes + part.state_bytes);
    layer.forward = TicksOf(part.forward, ticked.ticks_per_unit, layer.kept > 0);
    layer.backward = TicksOf(part.backward, ticked.ticks_per_unit, layer.kept > 0);
    layer.output = BytesOf(part.output_bytes);
    if (profile.bandwidth > 0) {
      layer.transfer = TicksOf(part.output_bytes / profile.bandwidth, ticked.ticks_per_unit, false);
      layer.sync = TicksOf(part.weight_bytes / profile.bandwidth, ticked.ticks_per_unit, false);
    }
    chain.layers.push_back(layer);
  }
  if (absl::Status sound = CheckChain(chain); !sound.ok()) return sound;
  return ticked;
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

OrderedJson PlanJson(const PlanReport& report) {
  const Plan& plan = report.plan;
  OrderedJson stages = OrderedJson::array(), replicas = OrderedJson::array();
  for (const ContiguousStage& stage : report.pipedream.stages) {
    stages.push_back(stage.layers);
    replicas.push_back(stage.replicas);
  }
  OrderedJson pattern = OrderedJson::object();
  for (const auto& [name, value] : ScheduleOfPlan(plan).parameters) pattern[name] = value;
  OrderedJson json = {{"schedule", "periodic"},
                      {"k", plan.batches},
                      {"period", PeriodOf(report, plan.pattern.period)},
                      {"lower_bound", PeriodOf(report, plan.lower_bound)},
                      {"gap", GapOf(report)},
                      {"optimal", plan.proven()},
                      {"stages", plan.stage_layers},
                      {"rank_of_stage", plan.rank_of_stage},
                      {"peak_bytes", report.peak_bytes},
                      {"step", report.step},
                      {"fits", true},
                      {"unit", report.unit.empty() ? OrderedJson() : OrderedJson(report.unit)},
                      {"pattern", {{"periodic", pattern}}},
                      {"pipedream",
                       {{"period", report.pipedream.period / report.ticks_per_unit},
                        {"stages", stages},
                        {"replicas", replicas},
                        {"batches_in_flight", report.pipedream.batches_in_flight}}},
                      {"source", report.source}};
  if (report.microbatches > 0) json["microbatches"] = report.microbatches;
  return json;
}

std::string PlanYaml(const PlanReport& report) {
  const Plan& plan = report.plan;
  std::string text =
      absl::StrFormat("# Planned for %d layers of %s: period %.6g%s a micro-batch, not below %.6g%s.\n",
                      report.layers, report.source, PeriodOf(report, plan.pattern.period), UnitText(report),
                      PeriodOf(report, plan.lower_bound), plan.proven() ? " (proven)" : "");
  absl::StrAppend(
      &text, "# Most bytes of the ranks: ",
      absl::StrJoin(report.peak_bytes, ", ",
                    [](std::string* out, double bytes) { absl::StrAppendFormat(out, "%.0f", bytes); }),
      ".\nschedule:\n  periodic:\n");
  for (const auto& [name, value] : ScheduleOfPlan(plan).parameters) {
    absl::StrAppend(&text, "    ", name, ": \"", value, "\"\n");
  }
  absl::StrAppend(&text, "stages: [", absl::StrJoin(plan.stage_layers, ", "), "]\n");
  return text;
}

std::string PlanTable(const PlanReport& report) {
  const Plan& plan = report.plan;
  const std::string unit = UnitText(report);
  std::string text = absl::StrFormat("period       %.6g%s a micro-batch, %d in a window\n",
                                     PeriodOf(report, plan.pattern.period), unit, plan.batches);
  absl::StrAppendFormat(
      &text, "lower bound  %.6g%s: %s\n", PeriodOf(report, plan.lower_bound), unit,
      plan.proven() ? "the plan is the best one"
                    : absl::StrFormat("the plan is at most %.1f %% from the best", 100 * GapOf(report)));
  if (report.microbatches > 0) {
    absl::StrAppendFormat(&text, "step         %.6g%s of %d micro-batches, simulated\n", report.step, unit,
                          report.microbatches);
  }
  absl::StrAppendFormat(
      &text, "PipeDream    %.6g%s with contiguous stages of %s layers\n\n",
      report.pipedream.period / report.ticks_per_unit, unit,
      absl::StrJoin(report.pipedream.stages, ", ", [](std::string* out, const ContiguousStage& stage) {
        absl::StrAppend(out, stage.layers);
        if (stage.replicas > 1) absl::StrAppend(out, " (on ", stage.replicas, " ranks)");
      }));
  std::vector<std::vector<std::string>> of_rank(report.peak_bytes.size());
  int first = 0;
  for (size_t stage = 0; stage < plan.stage_layers.size(); ++stage) {
    const int last = first + plan.stage_layers[stage] - 1;
    of_rank[plan.rank_of_stage[stage]].push_back(first == last ? absl::StrCat(first)
                                                               : absl::StrCat(first, "-", last));
    first = last + 1;
  }
  text += "rank  peak        layers\n";
  for (size_t rank = 0; rank < of_rank.size(); ++rank) {
    absl::StrAppendFormat(&text, "%4d  %-10s  %s\n", rank, FormatBytes(report.peak_bytes[rank]),
                          absl::StrJoin(of_rank[rank], ", "));
  }
  return text;
}

}  // namespace weft
