#include "schedules/simulator/simulate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "schedules/dispatch/claim_order.h"
#include "schedules/dispatch/memory.h"
#include "schedules/simulator/fixed_order_run.h"
#include "schedules/simulator/simulation.h"

namespace weft {
namespace {

constexpr int kMaxLinkedRanks = 8192;

absl::Status CheckPerStage(const std::vector<double>& values, int stages, absl::string_view what) {
  if (values.size() != 1 && values.size() != static_cast<size_t>(stages)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: give one value, or one for each of the %d stages; got %d", what, stages, values.size()));
  }
  for (double v : values) {
    if (!(v >= 0) || std::isinf(v)) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: %g is not a finite number >= 0", what, v));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const Schedule& schedule, const SimulationOptions& options) {
  if (options.steps < 1) return absl::InvalidArgumentError("steps: must be at least 1");
  for (int k = 0; k < kJobKinds; ++k) {
    absl::Status s =
        CheckPerStage(options.duration[k], schedule.stages, JobKindName(static_cast<JobKind>(k)));
    if (!s.ok()) return s;
  }
  for (const auto& [values, name] : {std::pair{&options.activation, "activation"},
                                     {&options.weight, "weight"},
                                     {&options.state, "state"}}) {
    absl::Status s = CheckPerStage(*values, schedule.stages, name);
    if (!s.ok()) return s;
  }
  if (!options.output.empty()) {
    absl::Status s = CheckPerStage(options.output, schedule.stages, "output");
    if (!s.ok()) return s;
  }
  if (options.bandwidth < 0 || options.latency < 0 || options.overlapped < 0) {
    return absl::InvalidArgumentError(
        "bandwidth, latency and the time of an overlapped pair must not be negative");
  }
  if (options.bandwidth > 0 && schedule.ranks > kMaxLinkedRanks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "bandwidth: %d ranks have more links than can be kept apart; at most %d ranks can have one",
        schedule.ranks, kMaxLinkedRanks));
  }
  return absl::OkStatus();
}

// The job graph of the run, where it depends on the number of steps, and `graph` is of another.
std::optional<Graph> GraphOfRun(const Graph& graph, const SimulationOptions& options) {
  if (!graph.depends_on_steps() || graph.steps() == options.steps) return std::nullopt;
  return graph.ForSteps(options.steps);
}

// Among micro-batches of a chain those that are alive wait for later stages only. With several inputs they
// may wait for one another, unless all stages admit them in one order.
absl::StatusOr<SimulatedAdmission> AdmissionOf(const Graph& graph, const SimulationOptions& options,
                                               const std::shared_ptr<const StepTables>& tables) {
  SimulatedAdmission admission;
  const StageBytes bytes{options.activation, options.weight, options.state};
  admission.held_bytes = HeldBytes(graph, bytes);
  if (options.memory > 0) {
    auto memory = MemoryForActivations(graph, bytes, options.memory);
    if (!memory.ok()) return memory.status();
    admission.memory = *std::move(memory);
  }
  if (!graph.schedule().limit || graph.is_chain()) return admission;
  const auto order = ClaimOrder(graph, tables);
  if (!order.ok()) return order.status();
  for (const auto& of_step : *order) {
    std::vector<int32_t>& forwards = admission.order.emplace_back();
    for (const std::vector<Job>& of_rank : of_step) {
      for (const Job& job : of_rank) {
        if (job.kind == JobKind::kForward) forwards.push_back(graph.IndexOf(job));
      }
    }
  }
  return admission;
}

}  // namespace

absl::StatusOr<SimulationResult> Simulate(const Graph& any_run, const SimulationOptions& options,
                                          std::shared_ptr<const StepTables> tables) {
  if (absl::Status s = CheckOptions(any_run.schedule(), options); !s.ok()) return s;
  const std::optional<Graph> of_run = GraphOfRun(any_run, options);
  const Graph& graph = of_run.has_value() ? *of_run : any_run;
  if (tables == nullptr || of_run.has_value()) tables = std::make_shared<const StepTables>(graph);
  auto admission = AdmissionOf(graph, options, tables);
  if (!admission.ok()) return admission.status();
  if (FixedOrderRun::MayFit(graph, options)) {
    FixedOrderRun run(graph, options, admission->held_bytes, tables);
    if (run.fits()) return run.Run();
  }
  return Simulation(graph, options, *std::move(admission), std::move(tables)).Run();
}

}  // namespace weft
