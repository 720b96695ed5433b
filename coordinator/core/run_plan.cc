#include "coordinator/core/run_plan.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "schedules/check.h"
#include "schedules/simulate.h"

namespace weft {

namespace {

// Step by step: a job's predecessors are in its step or before, so an order that is consistent within each
// step is consistent.
absl::StatusOr<std::vector<std::vector<std::vector<Job>>>> OrderOfPeriod(const Graph& graph) {
  const int period = graph.schedule().period;
  std::vector<std::vector<std::vector<Job>>> order(period);
  if (period == 1) {
    absl::StatusOr<std::vector<std::vector<Job>>> of_step = ClaimOrder(graph);
    if (!of_step.ok()) return of_step.status();
    order[0] = *std::move(of_step);
    return order;
  }
  SimulationOptions nominal;
  nominal.duration[static_cast<int>(JobKind::kBackward)] = {2};
  nominal.steps = period;
  nominal.record_jobs = true;
  const absl::StatusOr<SimulationResult> run = Simulate(graph, nominal);
  if (!run.ok()) return run.status();
  for (auto& of_step : order) of_step.resize(graph.schedule().ranks);
  for (const SimulatedJob& j : run->jobs) order[j.job.step][j.rank].push_back(j.job);
  return order;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const RunPlan>> MakeRunPlan(std::string name, std::string schedule_text,
                                                           Schedule schedule, int32_t steps) {
  if (steps <= 0)
    return absl::InvalidArgumentError(absl::StrCat("a run needs at least one step, not ", steps));
  if (absl::Status s = CheckSchedule(schedule); !s.ok()) return s;
  if (absl::Status s = CheckTrainable(schedule); !s.ok()) return s;
  Graph graph(std::move(schedule));
  auto order = OrderOfPeriod(graph);
  if (!order.ok()) return order.status();
  return std::make_shared<const RunPlan>(
      RunPlan{std::move(name), std::move(schedule_text), steps, std::move(graph), *std::move(order)});
}

}  // namespace weft
