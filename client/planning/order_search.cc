#include "client/planning/order_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/files/predicted_run.h"
#include "planner/split_order.h"
#include "planner/split_order_search.h"
#include "planner/zero_bubble_order.h"
#include "run/run_schedule.h"
#include "schedules/schedule.h"

namespace weft {
namespace {

constexpr double kTicks = 1e6;  // of the longest job
constexpr int kRounds = 4;      // with less and less room, where the prediction counts more than the planner
constexpr int64_t kMovesOfACut = 20'000;  // that a search tries for the order of another cut

double At(const std::vector<double>& by_stage, size_t stage) {
  return by_stage.empty() ? 0 : by_stage.size() == 1 ? by_stage[0] : by_stage[stage];
}

// `beside`: bytes of each rank that are no activations.
SplitPipeline PipelineOf(const SimulationOptions& costs, const PlanChoice& choice,
                         const std::vector<double>& beside, double memory) {
  const auto stages = static_cast<size_t>(choice.stages());
  const auto time = [&](JobKind kind, size_t s) {
    const std::vector<double>& speeds = costs.network.speeds;
    return At(costs.duration[static_cast<int>(kind)], s) / (speeds.empty() ? 1 : speeds[s]);
  };
  double longest = 0;
  for (size_t s = 0; s < stages; ++s) {
    for (const JobKind kind : {JobKind::kForward, JobKind::kBackwardInput, JobKind::kBackwardWeight})
      longest = std::max(longest, time(kind, s));
  }
  const auto ticks = [&](double duration) {
    return longest > 0 ? static_cast<int64_t>(std::llround(duration / longest * kTicks)) : 0;
  };
  SplitPipeline pipeline;
  pipeline.microbatches = choice.microbatches;
  for (size_t s = 0; s < stages; ++s) {
    SplitStage stage;
    stage.forward = ticks(time(JobKind::kForward, s));
    stage.backward_input = ticks(time(JobKind::kBackwardInput, s));
    stage.backward_weight = ticks(time(JobKind::kBackwardWeight, s));
    stage.update = ticks(time(JobKind::kReduce, s) + time(JobKind::kUpdate, s));
    stage.activation_bytes = stage.weight_bytes = std::llround(At(costs.activation, s));
    if (memory > 0) stage.room = std::max<int64_t>(1, std::llround(std::floor(memory - beside[s])));
    pipeline.stages.push_back(stage);
    if (s + 1 == stages) break;
    const double bytes = At(costs.output.empty() ? costs.activation : costs.output, s);
    pipeline.transfer.push_back(ticks(costs.latency + (costs.bandwidth > 0 ? bytes / costs.bandwidth : 0)));
  }
  return pipeline;
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

PlanChoice WithOrder(const PlanChoice& choice, const SplitOrder& order) {
  PlanChoice ordered = choice;
  ordered.schedule.name = "file";
  ordered.schedule.parameters = {{"path", kPlannedOrder}, {"actions", RowsOf(order)}};
  return ordered;
}

// Returns the choice under an order for equal stages. Its bytes are those of any order with split backwards.
PlanChoice WithSomeOrder(const PlanChoice& choice) {
  SplitPipeline equal;
  equal.stages.resize(choice.stages());
  equal.transfer.resize(choice.stages() - 1);
  equal.microbatches = choice.microbatches;
  return WithOrder(choice, ZeroBubbleOrders(equal).front());
}

class OrderSearch {
 public:
  OrderSearch(const StageCosts& costs, const PredictPlan& predict, const OrderSearchOptions& options)
      : costs_(costs), predict_(predict), options_(options) {}

  std::optional<PredictedChoice> Run(const PredictedChoice& pipeline) {
    std::optional<PredictedChoice> best =
        OrderOf(pipeline.choice, pipeline.prediction.held_bytes, SplitSearchLimits().moves);
    while (best.has_value() && MoveLayer(&*best)) {
    }
    return best;
  }

 private:
  std::optional<PredictedChoice> OrderOf(const PlanChoice& choice, std::vector<double> beside,
                                         int64_t moves) {
    for (int round = 0; round < kRounds && !options_.stop(); ++round) {
      const auto costs = costs_(WithSomeOrder(choice));
      if (!costs.ok()) return std::nullopt;
      const auto found =
          FindSplitOrder(PipelineOf(*costs, choice, beside, options_.memory), {moves, options_.stop});
      if (!found.has_value()) return std::nullopt;
      PredictedChoice ordered{WithOrder(choice, found->order), {}};
      auto prediction = predict_(ordered.choice);
      if (prediction.ok()) {
        ordered.prediction = *std::move(prediction);
        return ordered;
      }
      if (!IsAboutMemory(prediction.status())) return std::nullopt;
      for (double& bytes : beside) bytes += (options_.memory - bytes) / 8;
    }
    return std::nullopt;
  }

  // Moves one layer over a cut if that makes the step shorter.
  bool MoveLayer(PredictedChoice* best) {
    for (int s = 0; s + 1 < best->choice.stages(); ++s) {
      for (const int by : {1, -1}) {
        PlanChoice changed = best->choice;
        changed.layers_of_stage[s] += by;
        changed.layers_of_stage[s + 1] -= by;
        if (changed.layers_of_stage[s] < 1 || changed.layers_of_stage[s + 1] < 1 || options_.stop()) continue;
        auto moved = OrderOf(changed, HeldBytesOf(changed, *best), kMovesOfACut);
        if (!moved.has_value() || moved->prediction.step >= best->prediction.step * kBetter) continue;
        *best = *std::move(moved);
        return true;
      }
    }
    return false;
  }

  // Returns what the ranks hold under the cut, where that can be predicted with the same order; else what
  // they held before.
  std::vector<double> HeldBytesOf(const PlanChoice& changed, const PredictedChoice& before) const {
    const auto prediction = predict_(changed);
    return prediction.ok() ? prediction->held_bytes : before.prediction.held_bytes;
  }

  const StageCosts& costs_;
  const PredictPlan& predict_;
  const OrderSearchOptions& options_;
};

}  // namespace

bool IsPipeline(const PredictedChoice& choice) {
  const int stages = choice.choice.stages();
  if (choice.prediction.ranks != stages || stages < 2 || choice.prediction.staleness > 0) return false;
  const auto schedule = MakeSchedule(choice.choice.schedule, stages, choice.choice.microbatches);
  if (!schedule.ok()) return false;
  const Schedule& scheme = schedule->scheme;
  for (int s = 0; s < stages; ++s) {
    for (int b = 0; b < choice.choice.microbatches; ++b) {
      if (scheme.compute(Job::Compute(0, s, b, JobKind::kForward)) != s) return false;
    }
  }
  return true;
}

std::optional<PredictedChoice> SearchOrder(const PredictedChoice& pipeline, const StageCosts& costs,
                                           const PredictPlan& predict, const OrderSearchOptions& options) {
  return OrderSearch(costs, predict, options).Run(pipeline);
}

}  // namespace weft
