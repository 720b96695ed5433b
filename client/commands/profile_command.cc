#include "client/commands/profile_command.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/measured_run.h"
#include "client/files/profile.h"
#include "client/files/run_file.h"
#include "client/training/run_data.h"
#include "client/training/scratch_folder.h"
#include "client/training/stop_signals.h"
#include "coordinator/replanning/measured_jobs.h"
#include "nlohmann/json.hpp"
#include "run/measured_buffers.h"
#include "run/model_layers.h"
#include "run/run_memory.h"
#include "run/schedule_spec.h"
#include "schedules/job_bytes.h"

namespace weft {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Returns the typical times by kind and layer.
std::array<std::vector<double>, kJobKinds> TypicalTimes(const Trace& trace, size_t layers) {
  std::array<std::vector<std::vector<double>>, kJobKinds> samples;
  for (auto& of_kind : samples) of_kind.resize(layers);
  const bool several =
      std::any_of(trace.jobs.begin(), trace.jobs.end(), [](const DrawnJob& j) { return j.job.step > 0; });
  for (const DrawnJob& j : trace.jobs) {
    if (several && j.job.step == 0) continue;  // its caches are cold, and its memory is not there yet
    if (static_cast<size_t>(j.job.stage) < layers) {
      samples[static_cast<int>(j.job.kind)][j.job.stage].push_back(j.end - j.start);
    }
  }
  std::array<std::vector<double>, kJobKinds> times;
  for (int k = 0; k < kJobKinds; ++k) {
    for (std::vector<double>& of_layer : samples[k]) times[k].push_back(MedianOf(std::move(of_layer)));
  }
  return times;
}

ExitCode Print(const std::string& text, const std::string& path) {
  if (path.empty()) return PrintData(text);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? kExitOk : Fail(kExitFailed, absl::StrCat("cannot write ", path));
}

constexpr int kBufferSteps = 2;  // each is like the other, but for what libraries make once

// What a training's jobs took, from its summary.
class JobFigures {
 public:
  explicit JobFigures(const nlohmann::json& summary) {
    if (!summary.is_object() || !summary.contains("job_bytes")) return;
    for (const nlohmann::json& job : summary["job_bytes"]) {
      figures_[{job.value("kind", ""), job.value("stage", -1)}] = {
          job.value("before", int64_t{0}), job.value("buffers", int64_t{0}), job.value("most", int64_t{0}),
          job.value("left_buffers", int64_t{0}), job.value("left", int64_t{0})};
    }
  }
  bool known() const { return !figures_.empty(); }
  JobBytes Of(JobKind kind, int stage) const {
    const auto found = figures_.find({std::string(JobKindName(kind)), stage});
    return found == figures_.end() ? JobBytes() : found->second;
  }

 private:
  std::map<std::pair<std::string, int>, JobBytes> figures_;
};

// Returns the activations of a run whose layers are stages each.
std::string ActivationsOfLayers(const RunSpec& run) {
  const std::vector<std::string> of_stages = SplitActivations(run.schedule);
  if (of_stages.size() == 1) return of_stages[0];
  std::vector<std::string> of_layers;
  for (int s = 0; s < run.stages(); ++s)
    of_layers.insert(of_layers.end(), run.layers_of_stage[s], of_stages[std::max(0, s - run.tied_stages)]);
  return absl::StrJoin(of_layers, "/");
}

}  // namespace

RunSpec ProfilingRun(const RunSpec& run, int steps) {
  RunSpec profiling = run;
  profiling.name = absl::StrCat("profile-", run.name).substr(0, 63);
  profiling.layers_of_stage.assign(CountLayers(run.model).size(), 1);
  profiling.tied_stages = 0;
  profiling.train.batch = run.microbatch_samples();
  profiling.train.microbatches = 1;
  profiling.train.steps = steps;
  profiling.schedule = ScheduleSpec();
  profiling.schedule.name = "lpp";
  profiling.schedule.parameters = {{"groups", "1"}, {"ranks", "1"}};
  profiling.schedule.activations = ActivationsOfLayers(run);
  profiling.memory = 0;
  profiling.buffers.reset();
  profiling.checkpoint = {.none = true};
  profiling.validate = {};
  profiling.replan = {};
  profiling.network.reset();
  profiling.redundancy = 0;
  return profiling;
}

RunSpec SplitProfilingRun(const RunSpec& run, int steps) {
  RunSpec profiling = ProfilingRun(run, steps);
  profiling.schedule.name = "custom";
  profiling.schedule.parameters = {{"ranks", "1"}, {"compute", "0"}, {"split_backward", "true"}};
  return profiling;
}

RunSpec LinkProfilingRun(const RunSpec& run, int steps, const RankRing& ring) {
  const auto rank = [&](int further) {
    return absl::StrCat(further == 0 ? "s" : absl::StrCat("(s + ", further, ")"), " % W");
  };
  RunSpec profiling = ProfilingRun(run, steps);
  profiling.schedule.name = "custom";
  profiling.schedule.parameters = {{"ranks", absl::StrCat(ring.ranks)},
                                   {"compute", rank(ring.first)},
                                   {"weights", rank(ring.first + ring.shift)}};
  return profiling;
}

RunSpec SpeedProfilingRun(const RunSpec& run, int steps, int ranks) {
  RunSpec profiling = ProfilingRun(run, steps);
  profiling.train.microbatches = ranks;
  profiling.train.batch = ranks * run.microbatch_samples();
  profiling.schedule.name = "ddp";
  profiling.schedule.parameters = {{"ranks", absl::StrCat(ranks)}};
  return profiling;
}

OrderedJson ProfileOf(const RunSpec& run, const Trace& whole, const Trace* split, const MeasuredLink& link) {
  const std::vector<LayerCount> layers = CountLayers(run.model);
  // Weights and tensors between layers have the sizes of their numbers, so they need no measurement.
  const Profile counted = CountedProfile(run, 1e9);
  const auto times = TypicalTimes(whole, layers.size());
  const auto time = [&](JobKind kind, size_t layer) { return times[static_cast<int>(kind)][layer]; };
  OrderedJson json = {{"name", run.name}, {"unit", "s"}, {"samples", run.microbatch_samples()}};
  if (SplitActivations(run.schedule).size() == 1) json["activations"] = run.schedule.activations;
  json["layers"] = OrderedJson::array();
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool reported = i < whole.activation_bytes.size();
    const double activation_bytes = reported ? whole.activation_bytes[i] : counted.parts[i].activation_bytes;
    json["layers"].push_back({{"name", layers[i].name},
                              {"forward", time(JobKind::kForward, i)},
                              {"backward", time(JobKind::kBackward, i)},
                              {"update", time(JobKind::kUpdate, i)},
                              {"activation_bytes", std::llround(activation_bytes)},
                              {"output_bytes", std::llround(counted.parts[i].output_bytes)},
                              {"weight_bytes", std::llround(counted.parts[i].weight_bytes)},
                              {"state_bytes", std::llround(counted.parts[i].state_bytes)}});
  }
  if (split != nullptr) {
    const auto halves = TypicalTimes(*split, layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
      json["layers"][i]["backward_input"] = halves[static_cast<int>(JobKind::kBackwardInput)][i];
      json["layers"][i]["backward_weight"] = halves[static_cast<int>(JobKind::kBackwardWeight)][i];
    }
  }
  if (link.bandwidth > 0) json["bandwidth"] = link.bandwidth;
  if (link.latency > 0) json["latency"] = link.latency;
  return json;
}

namespace {

// Adds what the jobs of each layer take while they run, from the summaries of retaining trainings.
void AddBuffers(const RunSpec& run, const nlohmann::json& whole, const nlohmann::json& split,
                OrderedJson* profile) {
  const JobFigures of_whole(whole), of_split(split);
  if (!of_whole.known() || !of_split.known()) return;         // of a worker that does not measure it
  const std::vector<StageMemory> counted = CountStages(run);  // its stages are layers
  const std::vector<LayerCount> layers = CountLayers(run.model, run.precision);
  for (size_t l = 0; l < layers.size(); ++l) {
    const int stage = static_cast<int>(l);
    int64_t input_gradients = 0;
    for (const int input : layers[l].inputs) input_gradients += counted[input].output;
    LayerBuffers buffers;
    const JobBytes forward = of_whole.Of(JobKind::kForward, stage);
    buffers.forward = std::max<int64_t>(0, forward.most - forward.left);
    buffers.backward = of_whole.Of(JobKind::kBackward, stage).buffers;
    buffers.backward_beyond = of_whole.Of(JobKind::kBackward, stage).most;
    buffers.update = of_whole.Of(JobKind::kUpdate, stage).buffers;
    const JobBytes first = of_split.Of(JobKind::kBackwardInput, stage);
    buffers.backward_input = first.buffers;
    buffers.backward_weight = of_split.Of(JobKind::kBackwardWeight, stage).buffers;
    buffers.between = std::max<int64_t>(0, first.left_buffers - input_gradients);
    buffers.between_beyond = std::max<int64_t>(0, first.left - input_gradients);
    for (const LayerBuffersField& field : kLayerBuffersFields)
      (*profile)["layers"][l][field.in_profile] = buffers.*field.bytes;
  }
  // Nothing of a micro-batch is there when the first forward of a step begins.
  const int64_t standing =
      std::max(of_whole.Of(JobKind::kForward, 0).before, of_split.Of(JobKind::kForward, 0).before);
  if (standing > 0) (*profile)["standing_buffer_bytes"] = standing;
}

// The short trainings behind a profile.
struct ProfiledRuns {
  MeasuredRun whole, split;
  // Those of which the buffers are: the same two where the run retains its activations.
  nlohmann::json whole_retained, split_retained;
  std::vector<MeasuredRun> linked;
  MeasuredRun sped;
};

// Returns the speeds of ranks that have done the same jobs, without the first step.
std::vector<double> SpeedsOf(const RunSpec& run, const Trace& trace, int ranks) {
  MeasuredJobs jobs(ranks, run.stages());
  for (const DrawnJob& j : trace.jobs) {
    if (j.job.step > 0) jobs.Add(j.rank, j.job, j.end - j.start);
  }
  return CostsOfJobs(run, jobs).speeds;
}

// Trains such that the links between processes are used: between each two workers of a fleet, else between
// two processes of this machine. A machine may have a device for one process alone: then there is none.
absl::StatusOr<std::vector<MeasuredRun>> TrainForLinks(const RunSpec& run, const ProfileOptions& options,
                                                       const TrainRun& train) {
  std::vector<MeasuredRun> linked;
  const auto layers = static_cast<int>(CountLayers(run.model).size());
  if (layers < 2) return linked;  // nothing is sent
  const bool pairs = options.fleet.wanted && options.ranks > 1;
  for (const RankRing& ring : pairs ? RingsOf(options.ranks, layers) : std::vector<RankRing>{RankRing()}) {
    auto measured = train(LinkProfilingRun(run, options.steps, ring), ring.ranks,
                          absl::StrCat("links-", ring.first, "-", ring.shift));
    if (measured.ok()) {
      linked.push_back(*std::move(measured));
    } else if (absl::IsCancelled(measured.status()) || pairs) {
      return measured.status();
    } else {
      PrintMessage(absl::StrCat("the link between two processes is not in the profile: ",
                                measured.status().message()));
    }
  }
  return linked;
}

// Trains with retained activations, unless that has been done.
absl::Status TrainForBuffers(const RunSpec& run, const TrainRun& train, ProfiledRuns* runs) {
  RunSpec retaining = run;
  retaining.schedule.activations = ScheduleSpec().activations;
  if (ActivationsOfLayers(run) == retaining.schedule.activations) {
    runs->whole_retained = runs->whole.summary;
    runs->split_retained = runs->split.summary;
    return absl::OkStatus();
  }
  const auto whole = train(ProfilingRun(retaining, kBufferSteps), 1, "buffers");
  if (!whole.ok()) return whole.status();
  const auto split = train(SplitProfilingRun(retaining, kBufferSteps), 1, "split-buffers");
  if (!split.ok()) return split.status();
  runs->whole_retained = whole->summary;
  runs->split_retained = split->summary;
  return absl::OkStatus();
}

absl::StatusOr<ProfiledRuns> TrainForProfile(const RunSpec& run, const ProfileOptions& options,
                                             const TrainRun& train) {
  ProfiledRuns runs;
  auto whole = train(ProfilingRun(run, options.steps), 1, "profile");
  if (!whole.ok()) return whole.status();
  auto split = train(SplitProfilingRun(run, options.steps), 1, "split");
  if (!split.ok()) return split.status();
  auto linked = TrainForLinks(run, options, train);
  if (!linked.ok()) return linked.status();
  runs = {*std::move(whole), *std::move(split), {}, {}, *std::move(linked), {}};
  if (absl::Status retained = TrainForBuffers(run, train, &runs); !retained.ok()) return retained;
  if (options.ranks == 0) return runs;
  auto sped = train(SpeedProfilingRun(run, options.steps, options.ranks), options.ranks, "speeds");
  if (!sped.ok()) return sped.status();
  runs.sped = *std::move(sped);
  return runs;
}

// Returns the transfers of the runs between the workers, with their places among these as ranks.
std::vector<DrawnTransfer> TransfersAmong(const std::vector<std::string>& workers,
                                          const std::vector<MeasuredRun>& runs) {
  std::map<std::string, Rank> place;
  for (size_t r = 0; r < workers.size(); ++r) place[workers[r]] = static_cast<Rank>(r);
  std::vector<DrawnTransfer> among;
  for (const MeasuredRun& run : runs) {
    for (DrawnTransfer t : run.trace.transfers) {
      const auto from = place.find(run.workers.at(t.from)), to = place.find(run.workers.at(t.to));
      if (from == place.end() || to == place.end() || from == to) continue;
      t.from = from->second;
      t.to = to->second;
      among.push_back(t);
    }
  }
  return among;
}

// Returns the link of the profile: that of any two processes.
MeasuredLink LinkOfRuns(const std::vector<MeasuredRun>& runs) {
  std::vector<DrawnTransfer> transfers;
  for (const MeasuredRun& run : runs)
    transfers.insert(transfers.end(), run.trace.transfers.begin(), run.trace.transfers.end());
  return LinkOf(transfers);
}

// Returns the network of the ranks whose speeds were measured. `client` is that of a fleet, else null.
absl::StatusOr<MeasuredNetwork> NetworkOfRuns(const RunSpec& run, const ProfileOptions& options,
                                              const ProfiledRuns& runs, RunsClient* client) {
  MeasuredNetwork network;
  if (client == nullptr) {
    network.inside = LinkOfRuns(runs.linked);
  } else {
    absl::StatusOr<std::vector<std::string>> nodes = NodesOf(*client, runs.sped.workers);
    if (!nodes.ok()) return nodes.status();
    network = NetworkOf(*std::move(nodes), TransfersAmong(runs.sped.workers, runs.linked));
  }
  network.speeds =
      SpeedsOf(SpeedProfilingRun(run, options.steps, options.ranks), runs.sped.trace, options.ranks);
  return network;
}

// Trains by `train`, and writes what that measured.
ExitCode MeasureProfile(const RunSpec& run, const ProfileOptions& options, const TrainRun& train,
                        RunsClient* client) {
  const auto runs = TrainForProfile(run, options, train);
  if (!runs.ok()) return EndMeasuring(runs.status());
  if (options.ranks > 0) {
    const auto network = NetworkOfRuns(run, options, *runs, client);
    if (!network.ok()) return EndMeasuring(network.status());
    const ExitCode code = Print(NetworkText(options.file, *network), options.network);
    if (code != kExitOk) return code;
  }
  OrderedJson json = ProfileOf(ProfilingRun(run, options.steps), runs->whole.trace, &runs->split.trace,
                               LinkOfRuns(runs->linked));
  json["name"] = run.name;
  AddBuffers(ProfilingRun(run, options.steps), runs->whole_retained, runs->split_retained, &json);
  return Print(json.dump(2) + "\n", options.output);
}

ExitCode MeasureHere(const RunSpec& run, const ProfileOptions& options, StopSignals* signals) {
  if (const absl::Status device = options.device.Check(); !device.ok()) {
    return Fail(kExitBadConfiguration, device.message());
  }
  if (const absl::Status data = CheckRunData(options.file, run); !data.ok())
    return Fail(kExitBadConfiguration, data.message());
  const auto scratch = ScratchFolder::Make();
  if (!scratch.ok()) return Fail(kExitFailed, scratch.status().message());
  const auto train = [&](const RunSpec& part, int processes, const std::string& name) {
    return TrainAndMeasure(part, processes, options.device, **scratch / name, signals);
  };
  return MeasureProfile(run, options, train, nullptr);
}

ExitCode MeasureOnFleet(const RunSpec& run, const ProfileOptions& options, StopSignals* signals) {
  const auto client = ConnectTo(options.fleet.coordinator);
  if (!client.ok()) return FailToConnect(client.status());
  const auto train = [&](const RunSpec& part, int processes, const std::string&) {
    return TrainOnFleet(**client, part, processes, options.fleet.pool, signals);
  };
  return MeasureProfile(run, options, train, client->get());
}

}  // namespace

ExitCode RunProfile(const ProfileOptions& options) {
  const auto asked = ReadAutoSchedule(options.file);
  if (!asked.ok()) return Fail(kExitBadConfiguration, asked.status().message());
  const nlohmann::json alone = PlanOnOneRank();  // layers are measured one by one
  const RunFileData data = options.fleet.wanted ? RunFileData::kElsewhere : RunFileData::kReadable;
  auto run = ReadRunFile(options.file, data, asked->has_value() ? &alone : nullptr);
  if (!run.ok()) return Fail(kExitBadConfiguration, run.status().message());
  run->validate = {};        // its data need not be there
  signal(SIGPIPE, SIG_IGN);  // the reader of our output may leave; the temporary files must still be removed
  StopSignals signals;       // before any thread
  return options.fleet.wanted ? MeasureOnFleet(*run, options, &signals)
                              : MeasureHere(*run, options, &signals);
}

}  // namespace weft
