// Predicts a run under a schedule, by counts of its model or by a profile. `weft simulate FILE` and `weft
// compare` both take times, bytes and memory from here, so that they agree.
//
// Without a profile, times are the layers' counted FLOPs; with one, they are the profile's. Memory is counted
// as for the admission of the run (run_memory.h), so that what fits here is trained. Only a profile of stages
// has bytes of its own, which then count.
//
// Failure: InvalidArgument for a profile that cannot be read, is of another model or does not fit the run;
// OutOfRange for an option that the profile leaves without effect; else as CheckedScheduleOf and Simulate.
#ifndef WEFT_CLIENT_FILES_PREDICTED_RUN_H_
#define WEFT_CLIENT_FILES_PREDICTED_RUN_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/files/network_file.h"
#include "client/files/profile.h"
#include "run/run_memory.h"
#include "run/run_peaks.h"
#include "run/run_spec.h"
#include "schedules/drawing/drawing.h"
#include "schedules/run_terms.h"
#include "schedules/simulator/simulate.h"

namespace weft {

// The default number of simulated steps: enough that the second half is the steady state.
inline constexpr int kPredictedSteps = 4;

// The options that are given beside the run.
struct CostOptions {
  std::string profile;       // file; empty: counted FLOPs
  double flops = 1e9;        // FLOPs per unit of time, for counted FLOPs
  double memory = 0;         // bytes a rank; 0: the run's, else no budget
  double bandwidth = 0;      // bytes per unit of time; 0: the profile's, else infinite
  double latency = 0;        // units of time; 0: the profile's, else none
  std::string network = {};  // file of the network; empty: the run's, else the profile's, else a plain one
  // Bytes per unit of time of copies between a rank's memory and the host's; 0: the profile's, else infinite.
  double host_bandwidth = 0;
};

class RunCosts {
 public:
  // Returns the costs for a run, and for others of its model.
  static absl::StatusOr<RunCosts> Make(const CostOptions& options, const RunSpec& run);

  // Returns the budget of the run, or the one that the options give, in bytes; 0 for none.
  double MemoryOf(const RunSpec& run) const;
  // Returns the unit of all times: "s", or "1e+09 FLOPs", or the profile's unit, or "" where it names none.
  std::string UnitOf() const;
  DrawnTime time() const { return UnitOf() == "s" ? DrawnTime::kSeconds : DrawnTime::kUnits; }
  bool profiled() const { return profile_.has_value(); }
  // Returns true if the bytes are the profile's.
  bool has_own_bytes() const { return profiled() && profile_->of_stages; }
  // Returns true if the profile has measured buffers, and the run takes none, so that its bytes are more.
  bool LeavesBuffers(const RunSpec& run) const {
    return profiled() && profile_->buffers.has_value() && !run.buffers.has_value();
  }
  const CostOptions& options() const { return options_; }
  // Returns the same costs with another `memory` in the options.
  RunCosts WithMemory(double memory) const;

  // Returns the network of the run: that of the file, else the run's own, else the profile's; null for none.
  const NetworkSpec* NetworkOf(const RunSpec& run) const;
  // Returns the bytes per unit of time that `offload` moves; 0 where it is not known, and takes no time.
  double HostBandwidth() const;
  // Returns the times, bytes and links of the run's stages.
  absl::StatusOr<SimulationOptions> Of(const RunSpec& run) const;

 private:
  CostOptions options_;
  std::optional<Profile> profile_;
  std::optional<NetworkSpec> network_;
};

// A run under its own schedule, ready to be simulated.
struct PreparedRun {
  RunSchedule schedule;             // checked
  SimulationOptions costs;          // costs for one step, recording nothing
  std::vector<RankMemory> counted;  // by rank; empty where bytes are as simulated
  std::optional<RunSpec> spec;      // the run whose bytes are counted; absent where they are a profile's
};
absl::StatusOr<PreparedRun> PrepareRun(const RunSpec& run, const RunCosts& costs);

absl::StatusOr<SimulationResult> SimulateRun(const PreparedRun& run);

// Returns the most bytes of each rank by class, in the simulated order of the run's jobs; nothing where bytes
// are a profile's of stages, or where a step has so many forwards that it is not worth the time.
absl::StatusOr<std::vector<PeakBytes>> PeaksOf(const PreparedRun& run);

// Returns true if the schedule's policy for activations is `offload`, on one stage at least.
bool Offloads(const ScheduleSpec& schedule);

// Cuts the run anew into so many stages. InvalidArgument where its model has fewer layers.
absl::StatusOr<RunSpec> Recut(const RunSpec& run, int stages);

// Returns a budget with which the run fits under its schedule, a few percent above the least; nothing where
// no budget would do, or trying is not worth the time.
std::optional<double> MemoryThatFits(const RunSpec& run, const RunCosts& costs);

// Returns the bytes as --memory and a run file's `memory` take them, rounded up.
std::string ByteFlag(double bytes);

// Returns true if a failure of these functions is about memory: with more of it, the run might fit.
bool IsAboutMemory(const absl::Status& status);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_PREDICTED_RUN_H_
