// Puts the measurements of a short training beside the simulator's figures for the same run.
//
// Simulated figures take the run's own job times and sizes, so that a difference shows what the simulator
// leaves out: transfers, dispatch, and ranks that share a core. Pure.
#ifndef WEFT_CLIENT_COMMANDS_MEASURED_SCHEDULES_H_
#define WEFT_CLIENT_COMMANDS_MEASURED_SCHEDULES_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/files/trace_file.h"
#include "coordinator/record/idle_shares.h"
#include "nlohmann/json.hpp"
#include "run/run_spec.h"
#include "schedules/simulator/communication.h"
#include "schedules/simulator/simulate.h"

namespace weft {

struct MeasuredRun {
  nlohmann::json
      summary;  // summary.json (docs/guide/outputs.md); no object if a coordinator does not tell it
  Trace trace;
  // Label of each rank's worker (worker_info.h); empty for a training on this machine.
  std::vector<std::string> workers = {};
};

// Returns the costs with which the simulator repeats the run: the mean duration of each kind of job on each
// stage, and the bytes that a forward keeps there, as measured; sizes of weights and of tensors between
// stages, as counted. Links take no time.
SimulationOptions MeasuredCosts(const RunSpec& run, const MeasuredRun& measured);

// Bytes of each memory class, by rank.
using ClassesByRank = std::vector<std::map<std::string, double>>;

// The figures of one schedule.
struct MeasuredRow {
  std::string schedule;
  bool chosen = false;  // true for the run file's own schedule
  bool ran = false;
  std::string reason;  // why it did not run
  int stages = 0, ranks = 0, processes = 0;
  double step_seconds = 0, predicted_step_seconds = 0;
  std::vector<double> step_seconds_of_repeats;  // step times of the repeats, ascending
  IdleShares idle, predicted_idle;              // shares by cause
  // Figures by rank.
  std::vector<int> peak_activations, simulated_peak_activations;
  ClassesByRank peak_bytes;
  std::vector<double> simulated_activation_bytes;  // most bytes alive
  std::vector<double> simulated_weight_bytes;      // every version that may be read, and a fetched copy
  std::vector<int> weight_versions, simulated_weight_versions;  // the former is empty if not reported
  // Figures over all ranks at a time.
  int live_activations = 0, simulated_live_activations = 0;
  double live_bytes = 0, simulated_live_bytes = 0;
  // Bytes of a step, all ranks together, by class.
  std::map<std::string, double> sent_bytes, simulated_sent_bytes;
  std::optional<CommunicationSteps> communication;  // empty where counting it would take longer than the run
};

// Returns the measurements of the run under `run.schedule`, and the simulator's figures for it.
// `schedule` is the run's, checked.
absl::StatusOr<MeasuredRow> RowOf(const RunSpec& run, const RunSchedule& schedule,
                                  const MeasuredRun& measured);

// Returns the training, of several under one schedule, whose steps took the median time; of an even number
// the faster of the two in the middle. It holds the times of all. Requires at least one.
MeasuredRow MedianRow(std::vector<MeasuredRow> repeats);

}  // namespace weft

#endif  // WEFT_CLIENT_COMMANDS_MEASURED_SCHEDULES_H_
