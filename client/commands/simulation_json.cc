#include "client/commands/simulation_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Rounds bytes: they are whole numbers in the contract, and the simulator counts in doubles. Those that no
// whole number of 64 bits can hold stay as they are.
OrderedJson Whole(double bytes) {
  constexpr double kMostWhole = 9e18;
  return std::abs(bytes) <= kMostWhole ? OrderedJson(int64_t{std::llround(bytes)}) : OrderedJson(bytes);
}

// Lists the causes for which a simulation can idle; dispatch and recovery are of real runs.
OrderedJson CausesJson(const std::array<double, kIdleCauses>& by_cause) {
  OrderedJson json = OrderedJson::object();
  for (int c = 0; c < kIdleCauses; ++c) {
    const auto cause = static_cast<IdleCause>(c);
    if (cause == IdleCause::kDispatch || cause == IdleCause::kRecovery) continue;
    json[std::string(IdleCauseName(cause))] = by_cause[c];
  }
  return json;
}

OrderedJson RankJson(int rank, const RankStats& s) {
  return {{"rank", rank},
          {"busy", s.busy},
          {"idle", s.idle},
          {"idle_by_cause", CausesJson(s.idle_by_cause)},
          {"peak_activations", s.peak_activations},
          {"peak_activation_bytes", Whole(s.peak_activation_bytes)},
          {"peak_weight_versions", s.peak_weight_versions},
          {"held_bytes", Whole(s.held_bytes)},
          {"activation_receives", s.activation_receives},
          {"gradient_receives", s.gradient_receives},
          {"weight_fetches", s.weight_fetches},
          {"bytes_received", Whole(s.bytes_received)},
          {"bytes_sent", Whole(s.bytes_sent)}};
}

// Lists the classes as summary.json of a run does.
OrderedJson ClassesJson(const ClassBytes& bytes) {
  return {{"weights", bytes.weights},         {"gradients", bytes.gradients}, {"optimizer", bytes.optimizer},
          {"activations", bytes.activations}, {"buffers", bytes.buffers},     {"received", bytes.received}};
}

// Describes a job. `reduce` and `update` have no micro-batch; they belong to one member of the stage's
// replicas.
OrderedJson JobJson(const SimulatedJob& j) {
  OrderedJson json = {{"step", j.job.step}, {"stage", j.job.stage}};
  if (HasMicrobatch(j.job.kind)) {
    json["microbatch"] = j.job.microbatch;
  } else {
    json["member"] = j.job.member;
  }
  json["kind"] = std::string(JobKindName(j.job.kind));
  json["rank"] = j.rank;
  json["start"] = j.start;
  json["end"] = j.end;
  json["weights_version"] = j.weights_version;
  return json;
}

OrderedJson IdleJson(const IdleInterval& i) {
  return {
      {"rank", i.rank}, {"cause", std::string(IdleCauseName(i.cause))}, {"start", i.start}, {"end", i.end}};
}

OrderedJson TransferJson(const TransferInterval& t) {
  OrderedJson json = {{"from", t.from},
                      {"to", t.to},
                      {"tensor", std::string(TensorKindName(t.tensor))},
                      {"step", t.consumer.step},
                      {"stage", t.consumer.stage}};
  if (HasMicrobatch(t.consumer.kind)) json["microbatch"] = t.consumer.microbatch;
  json["kind"] = std::string(JobKindName(t.consumer.kind));
  json["start"] = t.start;
  json["end"] = t.end;
  json["bytes"] = Whole(t.bytes);
  return json;
}

// Appends the list one by one: a tree of millions would take a hundred times the memory of its text.
template <typename List, typename ToJson>
void AppendList(const char* key, const List& list, ToJson to_json, std::string* text) {
  absl::StrAppend(text, ",\"", key, "\":[");
  for (size_t i = 0; i < list.size(); ++i)
    absl::StrAppend(text, i > 0 ? ",\n" : "\n", to_json(list[i]).dump());
  absl::StrAppend(text, "]");
}

// Lists the durations of the kinds that the schedule has: one value for every stage, or one a stage.
OrderedJson DurationsJson(const Schedule& schedule, const SimulationOptions& costs) {
  OrderedJson json = OrderedJson::object();
  const bool split = schedule.split_backward;
  for (int k = 0; k < kJobKinds; ++k) {
    const auto kind = static_cast<JobKind>(k);
    if (split ? kind == JobKind::kBackward
              : kind == JobKind::kBackwardInput || kind == JobKind::kBackwardWeight) {
      continue;
    }
    json[std::string(JobKindName(kind))] = costs.duration[k];
  }
  // Only profiles have these.
  for (const auto& [name, times] : {std::pair{"accumulate", &costs.accumulate}, {"cold", &costs.cold}}) {
    if (std::any_of(times->begin(), times->end(), [](double time) { return time > 0; })) json[name] = *times;
  }
  if (costs.dispatch > 0) json["dispatch"] = costs.dispatch;
  return json;
}

}  // namespace

std::string SimulationJson(const PreparedRun& run, const std::string& unit, const SimulationResult& result,
                           bool jobs, const std::optional<CommunicationSteps>& communication) {
  const Schedule& schedule = run.schedule.scheme;
  OrderedJson json = {{"schedule", schedule.name},
                      {"stages", schedule.stages},
                      {"microbatches", schedule.microbatches},
                      {"steps", run.costs.steps},
                      {"ranks", schedule.ranks},
                      {"time_unit", unit.empty() ? OrderedJson(nullptr) : OrderedJson(unit)},
                      {"durations", DurationsJson(schedule, run.costs)},
                      {"makespan", result.makespan},
                      {"period", result.period},
                      {"bubble_ratio", result.bubble_ratio},
                      {"idle_by_cause", CausesJson(result.IdleByCause())},
                      {"throughput_per_rank", result.throughput_per_rank},
                      {"throughput_bound", result.throughput_bound},
                      {"peak_live_activations", result.peak_live_activations},
                      {"peak_live_bytes", Whole(result.peak_live_bytes)},
                      {"rank_stats", OrderedJson::array()}};
  const auto peaks = PeaksOf(run);
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    json["rank_stats"].push_back(RankJson(static_cast<int>(r), result.ranks[r]));
    if (!peaks.ok() || peaks->empty()) continue;
    json["rank_stats"].back()["peak_bytes"] = ClassesJson((*peaks)[r].most);
    json["rank_stats"].back()["certain_peak_bytes"] = ClassesJson((*peaks)[r].least);
  }
  if (communication.has_value()) {
    json["communication_steps"] = communication->most;
    json["communication_chain"] = communication->chain;
    json["messages"] = communication->messages;
  }
  std::string text = json.dump();
  if (jobs) {
    text.pop_back();
    AppendList("jobs", result.jobs, JobJson, &text);
    AppendList("idle_intervals", result.idle, IdleJson, &text);
    AppendList("transfers", result.transfers, TransferJson, &text);
    text += "}";
  }
  return text + "\n";
}

}  // namespace weft
