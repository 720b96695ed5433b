// Reads what a plan is made for: a run file, whose model is counted or measured by a profile, or a profile
// alone; with the machine that the flags describe.
//
// A profile that goes with a run has to be of its model: as many layers, with the same bytes of weights.
//
// Failure: InvalidArgument with one sentence that names the file, for a file that cannot be read, is of
// another model, or has no chain of layers beside tied parameters. OutOfRange where flags and the file
// contradict each other.
#ifndef WEFT_CLIENT_PLANNING_PLAN_SOURCE_H_
#define WEFT_CLIENT_PLANNING_PLAN_SOURCE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/files/network_file.h"
#include "client/files/predicted_run.h"
#include "client/files/profile.h"
#include "client/planning/plan_choice.h"
#include "run/run_spec.h"
#include "schedules/simulator/simulate.h"

namespace weft {

struct PlanSourceOptions {
  std::string file;                   // a run file (.yaml), or a profile (.json)
  std::string profile;                // for a run file: measured times; empty: counted FLOPs
  double flops = 1e9;                 // FLOPs per unit of time, for counted FLOPs
  double memory = 0;                  // bytes of each rank; 0: the run's, else no limit
  double bandwidth = 0, latency = 0;  // of each link; 0: the profile's, else infinite and none
  std::string network;                // file; empty: the run's, else the profile's, else a plain one
  int microbatches = 0;               // of a step; 0: the run's; for a profile, none
  double host_bandwidth = 0;          // of the copies of `offload`; 0: the profile's, else not known
  // Text of the one schedule that is wanted; the activations and reduction that it names go before the run's.
  std::string schedule = {};
};

struct PlanSource {
  PlanSourceOptions options;
  std::optional<RunSpec> run;  // without its budget; absent for a profile alone
  std::optional<RunCosts> costs;
  Profile profile;  // of the layers, with the links' bandwidth and latency
  std::optional<NetworkSpec> network;
  std::string network_file;  // file that says `network`: of a network, a run, or a profile
  double memory = 0;
  int microbatches = 0;
  std::string profile_hash;        // of the profile's file; empty where FLOPs are counted
  bool names_activations = false;  // true if the wanted schedule says them, so that no others are tried

  // Layers at the front that are tied parameters; the planner cuts a chain in which they are joined to the
  // one behind them.
  int tied_layers = 0;

  // Returns the layers of that chain.
  int layers() const { return static_cast<int>(profile.parts.size()) - tied_layers; }
  // Returns the costs of the chain, from those of all layers.
  Profile ChainOf(const Profile& of_layers) const;
  // Returns a cut of the chain as a run file has it, with the tied layers in the first stage.
  std::vector<int> CutOfLayers(std::vector<int> of_chain) const;
  bool slow_links() const;
  // Returns InvalidArgument with the network's file if it has fewer ranks; it may have more, of which the
  // first count.
  absl::Status CheckRanksOfNetwork(int ranks) const;
  // Returns true if the run file offloads, and the time of that is not known.
  bool LacksHostBandwidth() const;
  // Returns the policies for activations whose times and bytes are known.
  std::vector<std::string> Policies() const;
  // Returns true if stages may be planned to offload.
  bool MayOffload() const;
  // Returns the source for ranks of so many bytes.
  PlanSource WithMemory(double bytes) const;
  // Returns the layers' costs under a policy for all of them.
  Profile ProfileUnder(const std::string& activations) const;
};

absl::StatusOr<PlanSource> ReadPlanSource(const PlanSourceOptions& options);

// Returns the source for a run that has been read, whose file is `options.file`.
absl::StatusOr<PlanSource> PlanSourceOf(const PlanSourceOptions& options, RunSpec run);

// Returns how choices are predicted: a run's bytes are those that its admission counts. The source must
// outlive it.
PredictPlan PredictorOf(const PlanSource& source);

// Likewise for any memory of the ranks, in the place of the source's.
PredictWithin PredictorWithinOf(const PlanSource& source);

// Returns times and bytes of the stages of a choice, as its prediction takes them, without a limit of memory.
absl::StatusOr<SimulationOptions> CostsOf(const PlanSource& source, const PlanChoice& choice);

// Returns a time below which no step is, whatever the schedule: the work of all micro-batches, with
// `dispatch` of two jobs each, over the speed of all ranks; and one micro-batch on the fastest, without the
// halves of its backwards for the weights. Both have `cold` of each layer once. With `steps_overlap`, as for
// schedules that read old weights, the second is left out. Returns 0 where it is not known.
double LeastStep(const PlanSource& source, int ranks, int microbatches, bool steps_overlap = false);

}  // namespace weft

#endif  // WEFT_CLIENT_PLANNING_PLAN_SOURCE_H_
