#include "client/simulation_json.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// Bytes are whole numbers in the contract; the simulator counts in doubles.
int64_t Whole(double bytes) { return std::llround(bytes); }

Json RankJson(int rank, const RankStats& s) {
  return {{"rank", rank},
          {"busy", s.busy},
          {"idle", s.idle},
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

// `reduce` and `update` have no micro-batch; they belong to one member of the stage's replicas.
Json JobJson(const SimulatedJob& j) {
  Json json = {{"step", j.job.step}, {"stage", j.job.stage}};
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

}  // namespace

std::string SimulationJson(const Schedule& schedule, int steps, const SimulationResult& result, bool jobs,
                           const std::optional<CommunicationSteps>& communication) {
  Json json = {{"schedule", schedule.name},
               {"stages", schedule.stages},
               {"microbatches", schedule.microbatches},
               {"steps", steps},
               {"ranks", schedule.ranks},
               {"makespan", result.makespan},
               {"period", result.period},
               {"bubble_ratio", result.bubble_ratio},
               {"throughput_per_rank", result.throughput_per_rank},
               {"throughput_bound", result.throughput_bound},
               {"peak_live_activations", result.peak_live_activations},
               {"peak_live_bytes", Whole(result.peak_live_bytes)},
               {"rank_stats", Json::array()}};
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    json["rank_stats"].push_back(RankJson(static_cast<int>(r), result.ranks[r]));
  }
  if (communication.has_value()) {
    json["communication_steps"] = communication->most;
    json["communication_chain"] = communication->chain;
    json["messages"] = communication->messages;
  }
  std::string text = json.dump();
  if (jobs) {
    // Written job by job: a tree of millions of jobs would take a hundred times the memory of its text.
    text.pop_back();
    absl::StrAppend(&text, ",\"jobs\":[");
    for (size_t i = 0; i < result.jobs.size(); ++i) {
      absl::StrAppend(&text, i > 0 ? ",\n" : "\n", JobJson(result.jobs[i]).dump());
    }
    absl::StrAppend(&text, "]}");
  }
  return text + "\n";
}

}  // namespace weft
