#include "schedules/simulator/simulate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "schedules/dispatch/claim_order.h"
#include "schedules/dispatch/memory.h"
#include "schedules/simulator/fixed_order_run.h"
#include "schedules/simulator/simulation.h"
#include "schedules/simulator/simulation_summary.h"

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
  for (const auto& [values, name] : {std::pair{&options.accumulate, "accumulate"},
                                     {&options.cold, "cold"},
                                     {&options.activation, "activation"},
                                     {&options.weight, "weight"},
                                     {&options.state, "state"}}) {
    absl::Status s = CheckPerStage(*values, schedule.stages, name);
    if (!s.ok()) return s;
  }
  if (!options.output.empty()) {
    absl::Status s = CheckPerStage(options.output, schedule.stages, "output");
    if (!s.ok()) return s;
  }
  if (options.bandwidth < 0 || options.latency < 0 || options.overlapped < 0 || options.dispatch < 0) {
    return absl::InvalidArgumentError(
        "bandwidth, latency, dispatch and the time of an overlapped pair must not be negative");
  }
  if (absl::Status s = CheckNetwork(options.network, schedule.ranks); !s.ok()) return s;
  const bool by_pair = (options.bandwidth > 0 || !options.network.pairs.empty()) &&
                       options.network.links != LinkSharing::kPort;
  if (by_pair && schedule.ranks > kMaxLinkedRanks) {
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

// All stages admit micro-batches in one order if these could wait for one another.
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
  if (!NeedsClaimOrder(graph, admission.memory)) return admission;
  const auto order = ClaimOrder(graph, tables, admission.memory);
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

// Runs the simulation, without its period.
absl::StatusOr<SimulationResult> RunOnce(const Graph& any_run, const SimulationOptions& options,
                                         std::shared_ptr<const StepTables> tables) {
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

// Returns the period of a run of more steps, of which many end before the final drain.
double PeriodOfLongerRun(const Graph& graph, const SimulationOptions& options, const SimulationResult& run,
                         int cycle, std::shared_ptr<const StepTables> tables) {
  SimulationOptions longer = options;
  longer.record_jobs = longer.record_waits = false;
  longer.steps += 32 * cycle;
  const auto more = RunOnce(graph, longer, std::move(tables));
  const std::optional<double> period = more.ok() ? SteadyPeriod(*more, cycle) : std::nullopt;
  return period.value_or((run.step_end.back() - run.step_end.front()) / (options.steps - 1));
}

}  // namespace

absl::StatusOr<SimulationResult> Simulate(const Graph& graph, const SimulationOptions& options,
                                          std::shared_ptr<const StepTables> tables) {
  if (absl::Status s = CheckOptions(graph.schedule(), options); !s.ok()) return s;
  auto run = RunOnce(graph, options, tables);
  if (!run.ok()) return run;
  if (options.steps == 1) {
    run->period = run->makespan;
  } else {
    const int cycle = graph.schedule().MaxStaleness() + 1;
    const std::optional<double> period = SteadyPeriod(*run, cycle);
    run->period =
        period.has_value() ? *period : PeriodOfLongerRun(graph, options, *run, cycle, std::move(tables));
  }
  return run;
}

}  // namespace weft
