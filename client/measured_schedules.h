// What a short training measured, and what the simulator says about the same run.
//
// Simulated figures take the run's own job times and sizes, so that what differs is what the simulator leaves
// out: transfers, dispatch, and ranks that share a core. Pure.
#ifndef WEFT_CLIENT_MEASURED_SCHEDULES_H_
#define WEFT_CLIENT_MEASURED_SCHEDULES_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/trace_file.h"
#include "coordinator/record/idle_shares.h"
#include "nlohmann/json.hpp"
#include "proto/run/run_spec.h"
#include "schedules/communication.h"
#include "schedules/simulate.h"

namespace weft {

struct MeasuredRun {
  nlohmann::json summary;  // summary.json (docs/guide/outputs.md)
  Trace trace;
};

// What the simulator needs to say what the run did: the mean duration of each kind of job on each stage, and
// what a forward leaves there, as measured; sizes of weights and of what goes between stages, as counted.
// Links take no time.
SimulationOptions MeasuredCosts(const RunSpec& run, const MeasuredRun& measured);

// Bytes of each memory class, by rank.
using ClassesByRank = std::vector<std::map<std::string, double>>;

// What one schedule did.
struct MeasuredRow {
  std::string schedule;
  bool chosen = false;  // by the run file
  bool ran = false;
  std::string reason;  // why it did not
  int stages = 0, ranks = 0, processes = 0;
  double step_seconds = 0, predicted_step_seconds = 0;
  std::vector<double> step_seconds_of_repeats;  // ascending
  IdleShares idle, predicted_idle;              // by cause
  // By rank.
  std::vector<int> peak_activations, simulated_peak_activations;
  ClassesByRank peak_bytes;
  std::vector<double> simulated_activation_bytes;  // the most alive
  std::vector<double> simulated_weight_bytes;      // every version that may be read, and a fetched copy
  std::vector<int> weight_versions, simulated_weight_versions;  // the former empty if not told
  // Over all ranks at a time.
  int live_activations = 0, simulated_live_activations = 0;
  double live_bytes = 0, simulated_live_bytes = 0;
  // Of a step, all ranks together, by class.
  std::map<std::string, double> sent_bytes, simulated_sent_bytes;
  std::optional<CommunicationSteps> communication;  // none where counting it would take longer than the run
};

// What was measured of the run under `run.schedule`, and what the simulator says about it.
absl::StatusOr<MeasuredRow> RowOf(const RunSpec& run, const MeasuredRun& measured);

// Of several trainings under one schedule, the one whose steps took the median time; of an even number the
// faster of the two in the middle. It knows the times of all. Requires at least one.
MeasuredRow MedianRow(std::vector<MeasuredRow> repeats);

}  // namespace weft

#endif  // WEFT_CLIENT_MEASURED_SCHEDULES_H_
