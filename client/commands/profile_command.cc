#include "client/commands/profile_command.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/measured_run.h"
#include "client/files/measured_profile.h"
#include "client/files/run_file.h"
#include "client/training/run_data.h"
#include "client/training/scratch_folder.h"
#include "client/training/stop_signals.h"
#include "nlohmann/json.hpp"
#include "run/measured_buffers.h"
#include "run/model_layers.h"
#include "run/schedule_spec.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

std::string CannotWrite(const std::string& path) {
  return absl::StrCat("cannot write ", path, ": ", std::strerror(errno));
}

ExitCode Print(const std::string& text, const std::string& path) {
  if (path.empty()) return PrintData(text);
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? kExitOk : Fail(kExitFailed, CannotWrite(path));
}

// Finds files that cannot be written before anything takes long, and makes none.
absl::Status CheckWritable(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  std::error_code error;
  const fs::path folder = fs::absolute(path, error).parent_path();
  bool can = false;
  if (fs::is_directory(path, error)) {
    errno = EISDIR;
  } else if (access(path.c_str(), F_OK) == 0) {
    can = access(path.c_str(), W_OK) == 0;
  } else {
    can = access((folder / ".").c_str(), W_OK | X_OK) == 0;
  }
  return can ? absl::OkStatus() : absl::FailedPreconditionError(CannotWrite(path));
}

constexpr int kBufferSteps = 2;  // each is like the other, but for what libraries make once

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

RunSpec OffloadProfilingRun(const RunSpec& run, int steps) {
  RunSpec profiling = ProfilingRun(run, steps);
  profiling.schedule.activations = "offload";
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
  profiling.train.microbatches = MicrobatchesTogether(profiling, ranks) * ranks;
  profiling.train.batch = profiling.train.microbatches * run.microbatch_samples();
  profiling.schedule.name = "ddp";
  profiling.schedule.parameters = {{"ranks", absl::StrCat(ranks)}};
  return profiling;
}

namespace {

// The short trainings behind a profile.
struct ProfiledRuns {
  MeasuredRun whole, split;
  std::optional<MeasuredRun> offloaded;
  // The trainings that measured the buffers: the same two if the run retains its activations.
  nlohmann::json whole_retained, split_retained;
  std::vector<MeasuredRun> linked;
  MeasuredRun sped;
};

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

// Trains such that activations go to the host's memory and back, beside one in which all layers retain them.
// The host may have no room: then there is none.
absl::StatusOr<std::optional<MeasuredRun>> TrainForOffload(const RunSpec& run, const ProfileOptions& options,
                                                           const TrainRun& train) {
  if (ActivationsOfLayers(run) != "retain") return std::nullopt;
  auto measured = train(OffloadProfilingRun(run, options.steps), 1, "offload");
  if (measured.ok()) return *std::move(measured);
  if (absl::IsCancelled(measured.status())) return measured.status();
  PrintMessage(absl::StrCat("`host_bandwidth` is not in the profile: ", measured.status().message()));
  return std::nullopt;
}

// Returns the run with a budget that it keeps, and with measured buffers: with both, passes are not captured
// as CUDA graphs. Captured ones keep memory of their own, which is no part of what a job takes.
RunSpec WithoutGraphs(RunSpec profiling) {
  constexpr int64_t kMuch = int64_t{1} << 49;
  profiling.memory = kMuch;
  profiling.buffers = MeasuredBuffers{profiling.microbatch_samples(), 0,
                                      std::vector<LayerBuffers>(profiling.layers_of_stage.size())};
  return profiling;
}

// Trains with retained activations and without CUDA graphs, unless that has been done. A rank may have no
// room for the activations of all layers, where the run recomputes or offloads them: then the summaries stay
// empty. Returns Cancelled or OK.
absl::Status TrainForBuffers(const RunSpec& run, const ProfileOptions& options, const TrainRun& train,
                             ProfiledRuns* runs) {
  RunSpec retaining = run;
  retaining.schedule.activations = ScheduleSpec().activations;
  const bool has_graphs = options.fleet.wanted || (options.device.device != "cpu" && options.device.graphs);
  if (!has_graphs && ActivationsOfLayers(run) == retaining.schedule.activations) {
    runs->whole_retained = runs->whole.summary;
    runs->split_retained = runs->split.summary;
    return absl::OkStatus();
  }
  const auto without = [](const absl::Status& failed) {
    if (absl::IsCancelled(failed)) return failed;
    PrintMessage(absl::StrCat("buffers are not in the profile: ", failed.message()));
    return absl::OkStatus();
  };
  const auto whole = train(WithoutGraphs(ProfilingRun(retaining, kBufferSteps)), 1, "buffers");
  if (!whole.ok()) return without(whole.status());
  const auto split = train(WithoutGraphs(SplitProfilingRun(retaining, kBufferSteps)), 1, "split-buffers");
  if (!split.ok()) return without(split.status());
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
  auto offloaded = TrainForOffload(run, options, train);
  if (!offloaded.ok()) return offloaded.status();
  auto linked = TrainForLinks(run, options, train);
  if (!linked.ok()) return linked.status();
  runs.whole = *std::move(whole);
  runs.split = *std::move(split);
  runs.offloaded = *std::move(offloaded);
  runs.linked = *std::move(linked);
  if (absl::Status retained = TrainForBuffers(run, options, train, &runs); !retained.ok()) return retained;
  if (options.ranks == 0) return runs;
  auto sped = train(SpeedProfilingRun(run, options.steps, options.ranks), options.ranks, "speeds");
  if (!sped.ok()) return sped.status();
  runs.sped = *std::move(sped);
  return runs;
}

// Returns what went between the workers in the runs, with their places among these as ranks.
std::vector<RankBurst> BurstsAmong(const std::vector<std::string>& workers,
                                   const std::vector<MeasuredRun>& runs) {
  std::map<std::string, Rank> place;
  for (size_t r = 0; r < workers.size(); ++r) place[workers[r]] = static_cast<Rank>(r);
  std::vector<RankBurst> among;
  for (const MeasuredRun& run : runs) {
    for (const RankBurst& b : BurstsOf(run.trace.transfers)) {
      const auto from = place.find(run.workers.at(b.from)), to = place.find(run.workers.at(b.to));
      if (from == place.end() || to == place.end() || from == to) continue;
      among.push_back({from->second, to->second, b.burst});
    }
  }
  return among;
}

// Returns the link of the profile: that of any two processes.
MeasuredLink LinkOfRuns(const std::vector<MeasuredRun>& runs) {
  std::vector<RankBurst> bursts;
  for (const MeasuredRun& run : runs) {
    const std::vector<RankBurst> more = BurstsOf(run.trace.transfers);
    bursts.insert(bursts.end(), more.begin(), more.end());
  }
  return LinkOf(bursts);
}

// Returns the network of the ranks that have these speeds. `client` is that of a fleet, else null.
absl::StatusOr<MeasuredNetwork> NetworkOfRuns(std::vector<double> speeds, const ProfiledRuns& runs,
                                              RunsClient* client) {
  MeasuredNetwork network;
  if (client == nullptr) {
    network.inside = LinkOfRuns(runs.linked);
  } else {
    absl::StatusOr<std::vector<std::string>> nodes = NodesOf(*client, runs.sped.workers);
    if (!nodes.ok()) return nodes.status();
    network = NetworkOf(*std::move(nodes), BurstsAmong(runs.sped.workers, runs.linked));
  }
  network.speeds = std::move(speeds);
  return network;
}

// Trains by `train`, and writes what that measured.
ExitCode MeasureProfile(const RunSpec& run, const ProfileOptions& options, const TrainRun& train,
                        RunsClient* client) {
  const auto runs = TrainForProfile(run, options, train);
  if (!runs.ok()) return EndMeasuring(runs.status());
  const RunSpec layers = ProfilingRun(run, options.steps);
  OrderedJson json = ProfileOf(layers, runs->whole.trace, &runs->split.trace, LinkOfRuns(runs->linked));
  json["name"] = run.name;
  if (runs->offloaded.has_value()) {
    const double bandwidth = HostBandwidthOf(layers, runs->whole.trace, runs->offloaded->trace);
    if (bandwidth > 0) json["host_bandwidth"] = bandwidth;
  }
  AddBuffers(layers, runs->whole_retained, runs->split_retained, &json);
  std::vector<double> speeds;
  if (options.ranks > 0)
    speeds = SlowToTogether(SpeedProfilingRun(run, options.steps, options.ranks), runs->sped.trace, &json);
  const ExitCode code = Print(json.dump(2) + "\n", options.output);
  if (options.ranks == 0) return code;
  // One that cannot be written leaves the other.
  const auto network = NetworkOfRuns(std::move(speeds), *runs, client);
  if (!network.ok()) return EndMeasuring(network.status());
  const ExitCode of_network = Print(NetworkText(options.file, *network), options.network);
  return code != kExitOk ? code : of_network;
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
  for (const std::string& path : {options.output, options.network}) {
    if (const absl::Status writable = CheckWritable(path); !writable.ok())
      return Fail(kExitBadConfiguration, writable.message());
  }
  run->validate = {};        // its data need not be there
  signal(SIGPIPE, SIG_IGN);  // the reader of our output may leave; the temporary files must still be removed
  StopSignals signals;       // before any thread
  return options.fleet.wanted ? MeasureOnFleet(*run, options, &signals)
                              : MeasureHere(*run, options, &signals);
}

}  // namespace weft
