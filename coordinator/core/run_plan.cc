#include "coordinator/core/run_plan.h"

#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "schedules/check/check.h"
#include "schedules/dispatch/claim_order.h"
#include "schedules/graph/size.h"
#include "schedules/sync/protocol.h"

namespace weft {

absl::StatusOr<std::shared_ptr<const RunPlan>> MakeRunPlan(std::string name, std::string schedule_text,
                                                           RunSchedule schedule, int32_t steps,
                                                           int32_t first_step, ReductionMode reduction,
                                                           const CheckpointRule& checkpoint,
                                                           std::shared_ptr<const RunSpec> spec) {
  if (first_step < 0 || steps <= first_step)
    return absl::InvalidArgumentError(
        absl::StrCat("a run needs at least one step, not ", steps - first_step));
  auto tables = CheckedTables(schedule);
  if (!tables.ok()) return tables.status();
  std::shared_ptr<const RunPlan> fast;
  std::string unsound;
  if (reduction == ReductionMode::kFast) {
    RunSchedule other = schedule;
    other.terms.reduction = reduction;
    if (Graph(other).joint_order().any()) {
      auto plan = MakeRunPlan(name, schedule_text, std::move(other), steps, first_step,
                              ReductionMode::kOrdered, checkpoint);
      if (plan.ok()) {
        fast = *std::move(plan);
      } else {
        unsound = std::string(plan.status().message());
      }
    }
  }
  const int64_t bytes = SizeOf(schedule.scheme).bytes() + (fast != nullptr ? fast->bytes : 0);
  Graph graph(std::move(schedule), steps, first_step);
  *tables = TablesOf(graph, *tables);
  auto order = ClaimOrder(graph, *tables);
  if (!order.ok()) return order.status();
  using Order = std::remove_reference_t<decltype(*order)>;
  return std::make_shared<const RunPlan>(
      RunPlan{std::move(name), std::move(schedule_text), steps, std::move(graph),
              std::make_shared<const Order>(*std::move(order)), first_step, reduction, std::move(fast),
              std::move(unsound), bytes, checkpoint, *std::move(tables), std::move(spec)});
}

std::shared_ptr<const RunPlan> PlanFrom(const RunPlan& plan, int32_t first_step) {
  auto later = std::make_shared<RunPlan>(plan);
  later->graph = plan.graph.ForSteps(plan.steps, first_step);
  later->first_step = first_step;
  // The edges are others now if they depend on the run's steps.
  if (later->graph.depends_on_steps()) later->tables = TablesOf(later->graph, nullptr);
  if (plan.fast != nullptr) later->fast = PlanFrom(*plan.fast, first_step);
  return later;
}

}  // namespace weft
