// Runs a schedule on a virtual clock: the same job graph and the same dispatch, greedy or strict, as the
// workers, with given durations and links.
//
// A rank executes one job at a time, but for overlapped pairs (OrderMark of schedule.h): a forward and a
// backward that start at the same instant take the pair's time together, and both end with it; a backward
// that is ready later starts beside the forward that is in flight and takes its own time. Transfers run
// beside compute: a tensor leaves when its job ends, queues on the links that it shares (network.h), and
// arrives after bytes / bandwidth + latency. All completions of an instant are taken before any dispatch;
// jobs of no duration are taken at once. An activation is alive from the start of its forward to the end of
// its backward (or backward_weight); where these are on different ranks, each rank has one from the start to
// the end of its own.
//
// Beyond its duration a job is charged by the operations that the protocol of its stage gives for it
// (sync/protocol.h): tensors have the bytes of a slice or of the whole by what makes or takes them, and the
// gradients of micro-batches that it adds to a sum take their time, though a worker adds some before. The
// first forward of a step on a rank has the extra time of its micro-batch (`cold`).
//
// A reduce that is a joint operation (joint_order.h) starts on all members when the last of them can, runs
// beside what they compute, and takes the time of a ring among them: its duration, if one is given, and 2 (n
// - 1) / n of the stage's bytes over each link of the ring; half of that where each gets its slice. A gather
// of weights moves each slice over the link from its holder, as messages do.
//
// Every instant of a rank is busy, or idle for the cause that a worker would name there (timeline.h).
// Recovery is never one, and neither is dispatch: its time (`SimulationOptions::dispatch`) is a part of each
// job.
//
// Memory does not grow with the number of steps (but for `step_end`, and what is recorded). Pure;
// deterministic. Failure: InvalidArgument for options that do not fit the schedule; FailedPrecondition when
// the schedule does not fit the memory, naming stage, micro-batch, rank and bytes, or cannot go on for
// another reason.
#ifndef WEFT_SCHEDULES_SIMULATOR_SIMULATE_H_
#define WEFT_SCHEDULES_SIMULATOR_SIMULATE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "schedules/graph/graph.h"
#include "schedules/simulator/network.h"
#include "schedules/timeline.h"

namespace weft {

struct StepTables;

struct SimulationOptions {
  int steps = 1;
  // Durations by kind and stage, in any one unit; size 1 (every stage) or S. Reduce and update take no time
  // unless given.
  std::array<std::vector<double>, kJobKinds> duration = {{{1}, {1}, {1}, {1}, {0}, {0}}};
  // Time to add the gradient of a micro-batch, that of all parameters of the stage, to a sum, by stage; size
  // 1 or S. Counts where a gradient leaves the job that made it: a backward's own sum is part of the
  // backward.
  std::vector<double> accumulate = {0};
  // Time that the first micro-batch of a step on a rank takes longer, by stage; size 1 or S: the update has
  // put other bytes into the processor's caches.
  std::vector<double> cold = {0};
  // Idle time of a rank before each job that is ready, but joint operations. `overlapped` contains it.
  double dispatch = 0;
  // Duration of a forward and a backward that run as an overlapped pair from the same instant; 0 means the
  // longer of the two plus the part of the shorter that is not `hidden` (0 to 1) by it.
  double overlapped = 0, hidden = 1;
  // Bytes by stage; size 1 or S. `activation`: alive on the rank for each micro-batch. `output`: of the
  // tensor to the next stage; empty means `activation`. `weight`: of the stage's parameters (and of their
  // gradient).
  // `state`: what a holder keeps beside the weights (gradients, moments of the optimizer).
  std::vector<double> activation = {0}, output = {}, weight = {0}, state = {0};
  // Budget of each rank, in bytes; a forward starts only if its activation fits beside what the rank holds
  // (memory.h). 0 means no budget.
  double memory = 0;
  double bandwidth = 0;  // bytes per unit of time of each link; 0 means infinite
  double latency = 0;    // of a transfer
  Network network;       // what the links are, and how fast the ranks
  bool record_jobs = false;
  bool record_waits = false;  // intervals of idleness, and of transfers
};

struct SimulatedJob {
  Job job;
  Rank rank = 0;
  double start = 0, end = 0;
  int weights_version = 0;
};

struct RankStats {
  double busy = 0, idle = 0;
  std::array<double, kIdleCauses> idle_by_cause{};  // the sum is `idle`
  int peak_activations = 0;
  double peak_activation_bytes = 0;
  double held_bytes = 0;  // beside the activations
  int peak_weight_versions = 0;
  int64_t activation_receives = 0;  // activations that came from another rank
  int64_t gradient_receives = 0;    // gradients of a stage's input that came from another rank
  int64_t weight_fetches = 0;       // jobs whose weights live on another rank
  double bytes_received = 0, bytes_sent = 0;
  std::array<double, kTensorKinds> sent_by_kind{};
};

struct SimulationResult {
  double makespan = 0;
  // Time per step in steady state: between two steps that both end before the final drain; where the run has
  // no two of them, of a longer run. The makespan of one step.
  double period = 0;
  double bubble_ratio = 0;
  double throughput_per_rank = 0;
  // Bound by the activations, where each rank has one stage and each stage one rank; else 1.
  double throughput_bound = 0;
  int peak_live_activations = 0;  // over all ranks at a time
  double peak_live_bytes = 0;
  std::vector<RankStats> ranks;
  std::vector<double> step_end;  // end of each step's last update
  // The start of the final drain: the time at which the first rank starts its last forward of the run. The
  // makespan where every step drains, since none reads old weights.
  double drain_start = 0;
  std::vector<SimulatedJob> jobs;  // by start time, if recorded
  // If recorded: of each rank in order; transfers by the time at which they were sent, without activations
  // and their gradients that take no time.
  std::vector<IdleInterval> idle;
  std::vector<TransferInterval> transfers;
  std::array<double, kIdleCauses> IdleByCause() const;  // of all ranks together
};

// Simulates the run. Forwards of a limited stage are admitted in claim order, as by workers, where another
// order could deadlock (NeedsClaimOrder in claim_order.h).
// `tables` are the graph's; null to make them.
absl::StatusOr<SimulationResult> Simulate(const Graph& graph, const SimulationOptions& options,
                                          std::shared_ptr<const StepTables> tables = nullptr);

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_SIMULATE_H_
