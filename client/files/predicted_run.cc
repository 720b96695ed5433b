#include "client/files/predicted_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "run/file_section.h"
#include "run/model_layers.h"
#include "run/run_memory.h"
#include "run/run_schedule.h"
#include "run/schedule_spec.h"
#include "run/stage_cut.h"
#include "schedules/graph/graph.h"

namespace weft {
namespace {

constexpr double kMaxMemory = 1e18;
constexpr int kTries = 12;                 // each try halves the unknown part of the budget
constexpr int64_t kMaxTriedJobs = 20'000;  // most forwards of a step: trying more is not worth the time
constexpr double kCloseEnough = 1.02;

// Returns the run with its budget where the schedule looks for it. A profile of stages has its own bytes, and
// simulates with them. The network of a file is checked when it is simulated; the run's own then says
// nothing.
RunSpec UnderBudget(const RunSpec& run, const RunCosts& costs, double memory) {
  RunSpec with = run;
  with.memory = 0;  // no limit
  if (!costs.has_own_bytes() && memory > 0)
    with.memory = static_cast<int64_t>(std::clamp(memory, 1.0, kMaxMemory));
  if (!costs.options().network.empty()) with.network.reset();
  return with;
}

bool Fits(const RunSpec& run, const RunCosts& costs, double memory) {
  if (!costs.has_own_bytes()) return CheckedScheduleOf(UnderBudget(run, costs, memory)).ok();
  auto prepared = PrepareRun(run, costs);
  if (!prepared.ok()) return false;
  prepared->costs.memory = memory;
  return SimulateRun(*prepared).ok();
}

}  // namespace

absl::StatusOr<RunCosts> RunCosts::Make(const CostOptions& options, const RunSpec& run) {
  RunCosts costs;
  costs.options_ = options;
  if (!options.network.empty()) {
    auto network = ReadNetworkFile(options.network);
    if (!network.ok()) return network.status();
    costs.network_ = *std::move(network);
  }
  if (options.profile.empty()) return costs;
  auto profile = ReadProfile(options.profile);
  if (!profile.ok()) return profile.status();
  if (absl::Status same = CheckSameModel(options.profile, *profile, run); !same.ok()) return same;
  costs.profile_ = *std::move(profile);
  if (options.host_bandwidth > 0 && !costs.profile_->is_of_retaining()) {
    return absl::OutOfRangeError(
        absl::StrCat("--host-bandwidth has no effect, because the times of ", options.profile,
                     " are not of `activations: retain`, and no copies are added to them; leave it out, or ",
                     "measure a profile under that policy"));
  }
  return costs;
}

RunCosts RunCosts::WithMemory(double memory) const {
  RunCosts costs = *this;
  costs.options_.memory = memory;
  return costs;
}

double RunCosts::MemoryOf(const RunSpec& run) const {
  return options_.memory > 0 ? options_.memory : static_cast<double>(run.memory);
}

const NetworkSpec* RunCosts::NetworkOf(const RunSpec& run) const {
  if (network_.has_value()) return &*network_;
  if (run.network.has_value()) return &*run.network;
  return profile_.has_value() && profile_->network.has_value() ? &*profile_->network : nullptr;
}

double RunCosts::HostBandwidth() const {
  if (options_.host_bandwidth > 0) return options_.host_bandwidth;
  return profile_.has_value() ? profile_->host_bandwidth : 0;
}

std::string RunCosts::UnitOf() const {
  return profile_.has_value() ? profile_->unit : absl::StrFormat("%.4g FLOPs", options_.flops);
}

namespace {

// Adds what the policies for activations cost: the second forward of a stage that recomputes to the start of
// its backward; and of one that offloads, the copies to the host to its forward, and those back to its
// backward. A profile has that already, unless it says that the profiled run retained.
void AddPolicies(const RunSpec& run, double host_bandwidth, SimulationOptions* costs) {
  if (!CheckActivationsOfStages(run.schedule, run.placed_stages()).ok()) return;  // refused with its schedule
  const bool copies = host_bandwidth > 0 && Offloads(run.schedule);
  const std::vector<StageMemory> counted = copies ? CountStages(run) : std::vector<StageMemory>();
  for (int s = 0; s < run.stages(); ++s) {
    const ActivationPolicy policy = ActivationsOf(run, s);
    double& forward = costs->duration[static_cast<int>(JobKind::kForward)][s];
    double more = 0;
    if (policy == ActivationPolicy::kRecompute) more = forward;
    if (policy == ActivationPolicy::kOffload && copies) {
      more = static_cast<double>(counted[s].offloaded) / host_bandwidth;
      forward += more;
    }
    for (const JobKind kind : {JobKind::kBackward, JobKind::kBackwardInput})
      costs->duration[static_cast<int>(kind)][s] += more;
  }
}

}  // namespace

absl::StatusOr<SimulationOptions> RunCosts::Of(const RunSpec& run) const {
  SimulationOptions costs;
  const absl::StatusOr<Profile> profile =
      profile_.has_value() ? ProfileFor(*profile_, run) : CountedProfile(run, options_.flops);
  const absl::Status applied =
      profile.ok() ? ApplyProfile(*profile, run.stages(), run.layers_of_stage, &costs) : profile.status();
  if (!applied.ok()) {
    if (options_.profile.empty()) return applied;
    return absl::InvalidArgumentError(absl::StrCat(options_.profile, ": ", applied.message()));
  }
  if (profile->is_of_retaining()) AddPolicies(run, HostBandwidth(), &costs);
  costs.memory = MemoryOf(run);
  // A pair hides transfers; that its two halves compute faster together has to be measured.
  costs.hidden = 0;
  if (const NetworkSpec* network = NetworkOf(run); network != nullptr) ApplyNetwork(*network, &costs);
  if (options_.bandwidth > 0) costs.bandwidth = options_.bandwidth;
  if (options_.latency > 0) costs.latency = options_.latency;
  return costs;
}

// Prepares the run with the memory counts that would refuse it, so that a run that fits here can be trained.
absl::StatusOr<PreparedRun> PrepareRun(const RunSpec& run, const RunCosts& costs) {
  auto of_run = costs.Of(run);
  if (!of_run.ok()) return of_run.status();
  PreparedRun prepared;
  prepared.costs = *std::move(of_run);
  const RunSpec under = UnderBudget(run, costs, prepared.costs.memory);
  auto schedule = CheckedScheduleOf(under);
  if (!schedule.ok()) return schedule.status();
  prepared.schedule = *std::move(schedule);
  if (costs.has_own_bytes()) return prepared;
  const RunMemory counted = CountRun(under, prepared.schedule);
  prepared.costs.memory = 0;  // the run's terms have the budget
  prepared.costs.activation = counted.BytesOfForwards();
  prepared.counted = counted.ranks;
  prepared.spec = under;
  return prepared;
}

absl::StatusOr<SimulationResult> SimulateRun(const PreparedRun& run) {
  auto result = Simulate(Graph(run.schedule), run.costs);
  if (!result.ok()) return result;
  for (size_t r = 0; r < run.counted.size(); ++r) {
    RankStats& rank = result->ranks[r];
    rank.held_bytes = run.counted[r].BesideActivations(run.spec->memory, rank.peak_activation_bytes);
  }
  return result;
}

absl::StatusOr<std::vector<PeakBytes>> PeaksOf(const PreparedRun& run) {
  if (!run.spec.has_value()) return std::vector<PeakBytes>();
  const Schedule& scheme = run.schedule.scheme;
  if (int64_t{scheme.stages} * scheme.microbatches > kMaxTriedJobs) return std::vector<PeakBytes>();
  SimulationOptions costs = run.costs;
  costs.record_jobs = true;
  // Every step behind these is like the one before it.
  costs.steps = std::min(run.spec->train.steps, 2 + scheme.MaxStaleness());
  const auto simulated = Simulate(Graph(run.schedule), costs);
  if (!simulated.ok()) return simulated.status();
  return CountPeaks(*run.spec, run.schedule, simulated->jobs);
}

bool Offloads(const ScheduleSpec& schedule) {
  const std::vector<std::string> policies = SplitActivations(schedule);
  return std::find(policies.begin(), policies.end(), "offload") != policies.end();
}

absl::StatusOr<RunSpec> Recut(const RunSpec& run, int stages) {
  if (stages == run.placed_stages()) return run;
  const std::vector<LayerCount> layers = CountLayers(run.model, run.precision);
  if (stages > MostStages(layers)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d stages are more than the model's %d layers%s", stages, MostStages(layers),
                        TiedLayers(layers) > 0 ? ", without tied parameters" : ""));
  }
  RunSpec cut = run;
  StageCut anew = CutBesideTied(layers, stages);
  cut.layers_of_stage = std::move(anew.layers_of_stage);
  cut.tied_stages = anew.tied_stages;
  return cut;
}

std::optional<double> MemoryThatFits(const RunSpec& run, const RunCosts& costs) {
  if (int64_t{run.stages()} * run.train.microbatches > kMaxTriedJobs) return std::nullopt;
  double least = costs.MemoryOf(run), most = least;
  if (least <= 0) return std::nullopt;
  do {
    most *= 4;
    if (most > kMaxMemory) return std::nullopt;
  } while (!Fits(run, costs, most));
  least = most / 4;
  for (int i = 0; i < kTries && most > least * kCloseEnough; ++i) {
    const double middle = std::sqrt(least * most);
    (Fits(run, costs, middle) ? most : least) = middle;
  }
  return most;
}

std::string ByteFlag(double bytes) {
  // Rounding up 16 KiB and more adds a sixteenth at most.
  constexpr double kMiB = 1 << 20;
  return bytes >= 16 * kMiB ? absl::StrFormat("%.0fMiB", std::ceil(bytes / kMiB))
                            : absl::StrFormat("%.0fKiB", std::ceil(bytes / 1024));
}

bool IsAboutMemory(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kFailedPrecondition) return true;
  const auto path = status.GetPayload(kPathPayload);
  return path.has_value() && *path == "memory";
}

}  // namespace weft
