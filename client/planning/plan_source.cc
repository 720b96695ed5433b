#include "client/planning/plan_source.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/files/run_file.h"
#include "client/files/schedule_file.h"
#include "client/files/text_file.h"
#include "nlohmann/json.hpp"
#include "planner/chain.h"
#include "run/model_layers.h"
#include "run/received_copies.h"
#include "run/run_memory.h"
#include "run/run_schedule.h"
#include "run/schedule_spec.h"
#include "run/stage_cut.h"
#include "schedules/check/check.h"
#include "schedules/families/leading_stages.h"
#include "schedules/simulator/simulate.h"

namespace weft {
namespace {

// Checks that the profile is of the layers of the run's model.
absl::Status CheckLayers(const PlanSourceOptions& options, const Profile& profile, const RunSpec& run) {
  if (!profile.of_stages) return CheckSameModel(options.profile, profile, run);
  return absl::InvalidArgumentError(absl::StrCat(options.profile,
                                                 " is of stages, and layers are planned; measure them with "
                                                 "weft profile ",
                                                 options.file));
}

absl::StatusOr<Profile> ReadHashedProfile(const std::string& path, std::string* hash) {
  auto profile = ReadProfile(path);
  if (!profile.ok()) return profile;
  const auto text = ReadTextFile(path, kMaxProfileBytes, "a profile");
  if (!text.ok()) return text.status();
  *hash = ProfileHash(*text);
  return profile;
}

// Sets the machine: a flag goes before the run file, and that before the profile.
absl::Status ReadMachine(const PlanSourceOptions& options, const std::optional<NetworkSpec>& of_run,
                         PlanSource* source) {
  const auto take = [source](const NetworkSpec& network, const std::string& file) {
    source->network = network;
    source->network_file = file;
    if (network.bandwidth > 0) source->profile.bandwidth = network.bandwidth;
    if (network.latency > 0) source->profile.latency = network.latency;
  };
  if (source->profile.network.has_value())
    take(*source->profile.network, options.profile.empty() ? options.file : options.profile);
  if (!options.network.empty()) {
    const auto network = ReadNetworkFile(options.network);
    if (!network.ok()) return network.status();
    take(*network, options.network);
  } else if (of_run.has_value()) {
    take(*of_run, options.file);
  }
  if (options.memory > 0) source->memory = options.memory;
  if (options.bandwidth > 0) source->profile.bandwidth = options.bandwidth;
  if (options.latency > 0) source->profile.latency = options.latency;
  if (options.host_bandwidth > 0) source->profile.host_bandwidth = options.host_bandwidth;
  return absl::OkStatus();
}

// Predicts a run of kPredictedSteps.
absl::StatusOr<PlanPrediction> Simulated(PreparedRun run) {
  run.costs.steps = kPredictedSteps;
  const auto result = SimulateRun(run);
  if (!result.ok()) return result.status();
  const Schedule& scheme = run.schedule.scheme;
  PlanPrediction prediction;
  prediction.step = result->period;
  prediction.ranks = scheme.ranks;
  prediction.staleness = scheme.MaxStaleness();
  prediction.guesses_pairs = Graph(run.schedule).has_pairs() && run.costs.overlapped == 0;
  for (const RankStats& stats : result->ranks) {
    prediction.held_bytes.push_back(stats.held_bytes);
    prediction.peak_bytes.push_back(prediction.held_bytes.back() + stats.peak_activation_bytes);
  }
  return prediction;
}

absl::StatusOr<PreparedRun> Prepare(const PlanSource& source, const RunCosts& costs, PlanChoice choice) {
  choice.layers_of_stage = source.CutOfLayers(std::move(choice.layers_of_stage));
  return PrepareRun(RunUnder(*source.run, choice), costs);
}

absl::StatusOr<PlanPrediction> PredictRun(const PlanSource& source, const RunCosts& costs,
                                          const PlanChoice& choice) {
  auto prepared = Prepare(source, costs, choice);
  if (!prepared.ok()) return prepared.status();
  return Simulated(*std::move(prepared));
}

// Returns the schedule of a choice under a profile alone, and sets its costs, without a limit of memory.
absl::StatusOr<RunSchedule> ScheduleOfProfile(const PlanSource& source, const PlanChoice& choice,
                                              SimulationOptions* costs) {
  auto schedule = MakeSchedule(choice.schedule, choice.stages(), choice.microbatches);
  if (!schedule.ok()) return schedule.status();
  const std::vector<int> layers =
      source.profile.of_stages ? std::vector<int>() : source.CutOfLayers(choice.layers_of_stage);
  if (absl::Status s = ApplyToSchedule(source.profile, layers, &*schedule, costs); !s.ok()) return s;
  costs->hidden = 0;
  if (source.network.has_value()) costs->network = source.network->network;
  return schedule;
}

absl::StatusOr<PlanPrediction> PredictProfile(const PlanSource& source, const PlanChoice& choice,
                                              double memory) {
  SimulationOptions costs;
  const auto schedule = ScheduleOfProfile(source, choice, &costs);
  if (!schedule.ok()) return schedule.status();
  if (absl::Status sound = CheckSchedule(*schedule); !sound.ok()) return sound;
  costs.memory = memory;
  auto prediction = Simulated({*schedule, costs, {}, std::nullopt});
  if (!prediction.ok() || memory == 0) return prediction;
  const double most = *std::max_element(prediction->peak_bytes.begin(), prediction->peak_bytes.end());
  if (most <= memory) return prediction;
  return absl::FailedPreconditionError(absl::StrFormat("a rank has %.0f bytes at its peak", most));
}

// Returns what the wanted schedule says of a key; nothing where it leaves that open.
std::optional<std::string> NamedSetting(const std::string& schedule, absl::string_view key) {
  for (const std::string& part : SplitAtCommas(schedule)) {
    absl::string_view value = part;
    if (absl::ConsumePrefix(&value, key) && absl::ConsumePrefix(&value, "=")) return std::string(value);
  }
  return std::nullopt;
}

// OutOfRange where a plan for a profile alone is to have what only runs have.
absl::Status CheckNoSettings(const PlanSourceOptions& options) {
  for (const auto& [key, fixed] : {std::pair("activations", "retain"), std::pair("reduction", "ordered")}) {
    if (NamedSetting(options.schedule, key).value_or(fixed) == fixed) continue;
    return absl::OutOfRangeError(absl::StrCat("--schedule: a plan for a profile alone has `", key, ": ",
                                              fixed, "`; give a run file and --profile"));
  }
  return absl::OkStatus();
}

// OutOfRange where the wanted schedule names activations whose times the profile does not have.
absl::Status CheckNamedActivations(const PlanSource& source, const Profile& profile, const RunSpec& run) {
  const std::string& named = run.schedule.activations;
  const std::string& measured = profile.activations;
  if (!source.names_activations || measured.empty() || profile.is_of_retaining() || named == measured)
    return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      "--schedule: `activations: ", named, "` cannot be planned, because ", source.options.profile,
      " was measured under ", measured, "; measure a profile under `retain`"));
}

// OutOfRange for a flag that could change nothing.
absl::Status CheckHostBandwidth(const PlanSource& source) {
  if (source.options.host_bandwidth <= 0) return absl::OkStatus();
  if (!source.run.has_value()) {
    return absl::OutOfRangeError(
        "--host-bandwidth has no effect, because a plan for a profile alone retains all activations; "
        "give a run file and --profile");
  }
  if (source.MayOffload()) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("--host-bandwidth has no effect, because no stage of ",
                                            source.options.file,
                                            " may offload without a limit of memory; give --memory"));
}

}  // namespace

bool PlanSource::slow_links() const {
  return profile.bandwidth > 0 || profile.latency > 0 || (network.has_value() && network->slow_links());
}

absl::Status PlanSource::CheckRanksOfNetwork(int ranks) const {
  if (!network.has_value()) return absl::OkStatus();
  const absl::Status sound = CheckNetwork(network->network, ranks);
  if (!sound.ok()) return absl::InvalidArgumentError(absl::StrCat(network_file, ": ", sound.message()));
  const std::vector<double> speeds = network->network.FirstRanks(ranks).speeds;
  for (size_t r = 0; r < speeds.size(); ++r) {
    if (speeds[r] >= kLeastPlannedSpeed && speeds[r] <= 1 / kLeastPlannedSpeed) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: network: speeds: rank %d has the speed %g; a plan takes %g to %g", network_file,
                        r, speeds[r], kLeastPlannedSpeed, 1 / kLeastPlannedSpeed));
  }
  return absl::OkStatus();
}

bool PlanSource::LacksHostBandwidth() const {
  return run.has_value() && Offloads(run->schedule) && profile.is_of_retaining() &&
         profile.host_bandwidth == 0;
}

std::vector<std::string> PlanSource::Policies() const {
  if (!run.has_value()) return {"retain"};
  const std::string& own = run->schedule.activations;
  if (names_activations) return {own};
  // A profile has to say under which policy it was made; and without a limit, retaining is fastest.
  const bool chosen = memory > 0 && profile.is_of_retaining();
  if (chosen && profile.host_bandwidth > 0) return {"retain", "recompute", "offload"};
  if (chosen) return {"retain", "recompute"};
  const bool uniform = own.find('/') == std::string::npos;
  return {uniform ? own : "retain"};
}

bool PlanSource::MayOffload() const {
  const std::vector<std::string> policies = Policies();
  return std::find(policies.begin(), policies.end(), "offload") != policies.end();
}

PlanSource PlanSource::WithMemory(double bytes) const {
  PlanSource source = *this;
  source.memory = bytes;
  if (costs.has_value()) source.costs = costs->WithMemory(bytes);
  return source;
}

Profile PlanSource::ProfileUnder(const std::string& activations) const {
  Profile under = profile;
  if (!run.has_value()) return under;
  RunSpec single = *run;
  single.layers_of_stage.assign(profile.parts.size(), 1);
  single.tied_stages = 0;
  single.schedule.activations = activations;
  const std::vector<StageMemory> counted = CountStages(single);
  for (size_t l = 0; l < profile.parts.size(); ++l) {
    ProfilePart& part = under.parts[l];
    const StageMemory& stage = counted[l];
    part.activation_bytes = static_cast<double>(stage.activation_bytes);
    if (IsCopied(*run, stage.output)) part.copied_bytes = static_cast<double>(stage.output);
    if (!profile.is_of_retaining()) continue;
    if (activations == "recompute") part.backward += part.forward;
    if (activations == "offload" && profile.host_bandwidth > 0) {
      const double copies = static_cast<double>(stage.offloaded) / profile.host_bandwidth;
      part.forward += copies;
      part.backward += copies;
    }
  }
  return under;
}

Profile PlanSource::ChainOf(const Profile& of_layers) const {
  Profile chain = of_layers;
  if (tied_layers == 0) return chain;
  chain.parts.erase(chain.parts.begin(), chain.parts.begin() + tied_layers);
  ProfilePart& first = chain.parts[0];
  for (int l = 0; l < tied_layers; ++l) {
    for (double ProfilePart::*field : kSummedOfParts) first.*field += of_layers.parts[l].*field;
  }
  return chain;
}

std::vector<int> PlanSource::CutOfLayers(std::vector<int> of_chain) const {
  if (!of_chain.empty()) of_chain[0] += tied_layers;
  return of_chain;
}

absl::StatusOr<PlanSource> PlanSourceOf(const PlanSourceOptions& options, RunSpec run) {
  PlanSource source;
  source.options = options;
  if (const auto named = NamedSetting(options.schedule, "activations"); named.has_value()) {
    run.schedule.activations = *named;
    source.names_activations = true;
  }
  run.schedule.reduction = NamedSetting(options.schedule, "reduction").value_or(run.schedule.reduction);
  const std::vector<LayerCount> layers = CountLayers(run.model, run.precision);
  const std::vector<LayerCount> chain = JoinTiedLayers(layers);
  source.tied_layers = TiedLayers(layers);
  if (!StageInputs(chain, std::vector<int>(chain.size(), 1)).empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.file, ": the stages of its model are no chain; only chains can be planned"));
  }
  if (options.microbatches > 0 && options.microbatches != run.train.microbatches) {
    return absl::OutOfRangeError(
        absl::StrFormat("%s has %d micro-batches in a step; --microbatches is for profiles, and --vary "
                        "microbatches tries other numbers",
                        options.file, run.train.microbatches));
  }
  source.profile = CountedProfile(run, options.flops);
  if (!options.profile.empty()) {
    auto profile = ReadHashedProfile(options.profile, &source.profile_hash);
    if (!profile.ok()) return profile.status();
    if (absl::Status same = CheckLayers(options, *profile, run); !same.ok()) return same;
    if (absl::Status known = CheckNamedActivations(source, *profile, run); !known.ok()) return known;
    source.profile = *std::move(profile);
    if (!run.buffers.has_value())
      run.buffers = source.profile.buffers;  // the run's own count, as in training
    if (source.profile.samples > 0)
      source.profile = WithSamples(source.profile, run.microbatch_samples(), source.tied_layers);
  }
  source.memory = static_cast<double>(run.memory);
  source.microbatches = run.train.microbatches;
  if (absl::Status read = ReadMachine(options, run.network, &source); !read.ok()) return read;
  run.memory = 0;  // what fits is the planner's to find
  auto made = RunCosts::Make({options.profile, options.flops, source.memory, options.bandwidth,
                              options.latency, options.network, options.host_bandwidth},
                             run);
  if (!made.ok()) return made.status();
  source.costs = *std::move(made);
  source.run = std::move(run);
  if (absl::Status useful = CheckHostBandwidth(source); !useful.ok()) return useful;
  return source;
}

absl::StatusOr<PlanSource> ReadPlanSource(const PlanSourceOptions& options) {
  if (IsRunFile(options.file)) {
    const auto asked = ReadAutoSchedule(options.file);
    if (!asked.ok()) return asked.status();
    const nlohmann::json alone = PlanOnOneRank();  // the planner looks for the schedule
    auto run = ReadRunFile(options.file, RunFileData::kIgnored, asked->has_value() ? &alone : nullptr);
    if (!run.ok()) return run.status();
    return PlanSourceOf(options, *std::move(run));
  }
  if (!options.profile.empty()) {
    return absl::OutOfRangeError(absl::StrCat(options.file, " is a profile itself; leave --profile out"));
  }
  if (absl::Status settings = CheckNoSettings(options); !settings.ok()) return settings;
  PlanSource source;
  source.options = options;
  auto profile = ReadHashedProfile(options.file, &source.profile_hash);
  if (!profile.ok()) return profile.status();
  source.profile = *std::move(profile);
  source.tied_layers = source.profile.tied_layers();
  source.microbatches = options.microbatches;
  if (absl::Status read = ReadMachine(options, std::nullopt, &source); !read.ok()) return read;
  if (absl::Status useful = CheckHostBandwidth(source); !useful.ok()) return useful;
  return source;
}

PredictPlan PredictorOf(const PlanSource& source) {
  if (source.run.has_value()) {
    return [&source](const PlanChoice& choice) { return PredictRun(source, *source.costs, choice); };
  }
  return [&source](const PlanChoice& choice) { return PredictProfile(source, choice, source.memory); };
}

PredictWithin PredictorWithinOf(const PlanSource& source) {
  if (source.run.has_value()) {
    return [&source](const PlanChoice& choice, double memory) {
      return PredictRun(source, source.costs->WithMemory(memory), choice);
    };
  }
  return
      [&source](const PlanChoice& choice, double memory) { return PredictProfile(source, choice, memory); };
}

absl::StatusOr<SimulationOptions> CostsOf(const PlanSource& source, const PlanChoice& choice) {
  if (!source.run.has_value()) {
    SimulationOptions costs;
    const auto schedule = ScheduleOfProfile(source, choice, &costs);
    if (!schedule.ok()) return schedule.status();
    const int all = schedule->scheme.stages;
    return JoinLeadingStages(all - choice.stages(), all, costs);
  }
  auto prepared = Prepare(source, source.costs->WithMemory(0), choice);
  if (!prepared.ok()) return prepared.status();
  const int stages = prepared->schedule.scheme.stages;
  return JoinLeadingStages(stages - choice.stages(), stages, prepared->costs);
}

double LeastStep(const PlanSource& source, int ranks, int microbatches, bool steps_overlap) {
  if (source.profile.overlapped > 0 || microbatches == 0) return 0;
  std::vector<double> speeds(ranks, 1);
  if (source.network.has_value() && !source.network->network.speeds.empty())
    speeds = source.network->network.FirstRanks(ranks).speeds;
  if (static_cast<int>(speeds.size()) != ranks) return 0;
  double work = 0, chain = 0;  // of a micro-batch: all of it, and what comes one after the other
  double cold = 0;             // of the first micro-batch, once for each stage at least
  const bool scales = source.run.has_value() && source.profile.samples > 0;
  const Profile profile =
      scales ? WithSamples(source.profile, source.run->train.batch / microbatches, source.tied_layers)
             : source.profile;
  for (const ProfilePart& part : profile.parts) {
    work += part.forward + part.backward;
    chain += part.forward;
    cold += part.cold;
    // Nobody waits for the other half, nor for a gradient of the data.
    if (&part != &profile.parts.front()) chain += std::min(part.backward_input, part.backward);
  }
  work += 2 * profile.dispatch;  // of a single stage
  const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  const double of_work = (work * microbatches + cold) / all;
  if (steps_overlap) return of_work;
  return std::max(of_work, (chain + cold) / *std::max_element(speeds.begin(), speeds.end()));
}

}  // namespace weft
