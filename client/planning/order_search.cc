#include "client/planning/order_search.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "client/files/predicted_run.h"
#include "client/planning/cut_moves.h"
#include "coordinator/replanning/pipeline_order.h"
#include "planner/split_order.h"
#include "planner/split_order_search.h"
#include "planner/zero_bubble_order.h"
#include "run/run_schedule.h"
#include "schedules/schedule.h"

namespace weft {
namespace {

constexpr int kRounds = 4;  // with less and less room, where the prediction counts more than the planner
constexpr int64_t kMovesOfACut = 20'000;  // that a search tries for the order of another cut

PlanChoice WithOrder(const PlanChoice& choice, const SplitOrder& order) {
  PlanChoice ordered = choice;
  const Candidate candidate = OrderedCandidate(order);
  ordered.schedule.name = candidate.name;
  ordered.schedule.parameters = candidate.parameters;
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
    const auto take = [&](const PlanChoice& changed) { return TakeIfFaster(changed, &*best); };
    while (best.has_value() && MoveLayer(best->choice, take)) {
    }
    return best;
  }

 private:
  std::optional<PredictedChoice> OrderOf(const PlanChoice& choice, std::vector<double> beside,
                                         int64_t moves) {
    const auto costs = costs_(WithSomeOrder(choice));
    if (!costs.ok()) return std::nullopt;
    for (int round = 0; round < kRounds && !options_.stop(); ++round) {
      const SplitPipeline pipeline =
          SplitPipelineOf(*costs, choice.stages(), choice.microbatches, RoomBeside(beside));
      const auto found = FindSplitOrder(pipeline, {moves, options_.stop});
      if (!found.has_value()) break;
      auto ordered = Predicted(WithOrder(choice, found->order));
      if (ordered.ok()) return *std::move(ordered);
      if (!IsAboutMemory(ordered.status())) return std::nullopt;
      for (double& bytes : beside) bytes += (options_.memory - bytes) / 8;
    }
    if (options_.memory == 0 || options_.stop()) return std::nullopt;
    return UnlimitedOrderOf(choice, *costs, moves);
  }

  // Returns the order without regard to the memory, if it is predicted to fit: what is beside the activations
  // is an upper bound.
  std::optional<PredictedChoice> UnlimitedOrderOf(const PlanChoice& choice, const SimulationOptions& costs,
                                                  int64_t moves) {
    const SplitPipeline pipeline = SplitPipelineOf(costs, choice.stages(), choice.microbatches, {});
    const auto found = FindSplitOrder(pipeline, {moves, options_.stop});
    if (!found.has_value()) return std::nullopt;
    auto ordered = Predicted(WithOrder(choice, found->order));
    if (!ordered.ok()) return std::nullopt;
    return *std::move(ordered);
  }

  absl::StatusOr<PredictedChoice> Predicted(PlanChoice choice) const {
    auto prediction = predict_(choice);
    if (!prediction.ok()) return prediction.status();
    return PredictedChoice{std::move(choice), *std::move(prediction)};
  }

  std::vector<double> RoomBeside(const std::vector<double>& bytes) const {
    std::vector<double> room;
    for (size_t r = 0; r < bytes.size() && options_.memory > 0; ++r)
      room.push_back(options_.memory - bytes[r]);
    return room;
  }

  // Takes the changed cut, with an order for it, if it is faster.
  bool TakeIfFaster(const PlanChoice& changed, PredictedChoice* best) {
    if (options_.stop()) return false;
    auto ordered = OrderOf(changed, HeldBytesOf(changed, *best), kMovesOfACut);
    if (!ordered.has_value() || ordered->prediction.step >= best->prediction.step * kBetter) return false;
    *best = *std::move(ordered);
    return true;
  }

  // Returns what the ranks hold under the cut, if that can be predicted with the same order; else what they
  // held before. Returns nothing if no memory is given, because no caller needs it then.
  std::vector<double> HeldBytesOf(const PlanChoice& changed, const PredictedChoice& before) const {
    if (options_.memory == 0) return {};
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
