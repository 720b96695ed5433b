#include "coordinator/replanning/pipeline_order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "schedules/job.h"

namespace weft {
namespace {

constexpr double kTicks = 1e6;  // of the longest job

double At(const std::vector<double>& by_stage, size_t stage) {
  return by_stage.empty() ? 0 : by_stage.size() == 1 ? by_stage[0] : by_stage[stage];
}

double TimeOf(const SimulationOptions& costs, JobKind kind, size_t stage) {
  const std::vector<double>& speeds = costs.network.speeds;
  const double time = At(costs.duration[static_cast<int>(kind)], stage) + costs.dispatch;
  return time / (speeds.empty() ? 1 : speeds[stage]);
}

// Returns the rows of actions (schedules/simulator/actions.h), which have the same letters.
std::string RowsOf(const SplitOrder& order) {
  std::string rows;
  for (size_t stage = 0; stage < order.size(); ++stage) {
    std::vector<std::string> cells;
    std::array<int, 256> next{};  // micro-batch by letter
    for (const char job : order[stage])
      cells.push_back(absl::StrCat(stage, std::string(1, job), next[static_cast<unsigned char>(job)]++));
    absl::StrAppend(&rows, absl::StrJoin(cells, ","), "\n");
  }
  return rows;
}

}  // namespace

SplitPipeline SplitPipelineOf(const SimulationOptions& costs, int stages, int microbatches,
                              const std::vector<double>& room) {
  const auto count = static_cast<size_t>(stages);
  double longest = 0;
  for (size_t s = 0; s < count; ++s) {
    for (const JobKind kind : {JobKind::kForward, JobKind::kBackwardInput, JobKind::kBackwardWeight})
      longest = std::max(longest, TimeOf(costs, kind, s));
  }
  const auto ticks = [&](double duration) {
    return longest > 0 ? static_cast<int64_t>(std::llround(duration / longest * kTicks)) : 0;
  };
  SplitPipeline pipeline;
  pipeline.microbatches = microbatches;
  for (size_t s = 0; s < count; ++s) {
    SplitStage stage;
    stage.forward = ticks(TimeOf(costs, JobKind::kForward, s));
    stage.backward_input = ticks(TimeOf(costs, JobKind::kBackwardInput, s));
    stage.backward_weight = ticks(TimeOf(costs, JobKind::kBackwardWeight, s));
    stage.update = ticks(TimeOf(costs, JobKind::kReduce, s) + TimeOf(costs, JobKind::kUpdate, s));
    stage.activation_bytes = stage.weight_bytes = std::llround(At(costs.activation, s));
    if (!room.empty()) stage.room = std::max<int64_t>(1, std::llround(std::floor(room[s])));
    pipeline.stages.push_back(stage);
    if (s + 1 == count) break;
    const double bytes = At(costs.output.empty() ? costs.activation : costs.output, s);
    pipeline.transfer.push_back(ticks(costs.latency + (costs.bandwidth > 0 ? bytes / costs.bandwidth : 0)));
  }
  return pipeline;
}

Candidate OrderedCandidate(const SplitOrder& order) {
  return {"file", {{"path", kPlannedOrder}, {"actions", RowsOf(order)}}};
}

}  // namespace weft
