#include "client/commands/profile_command.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/commands/measured_run.h"
#include "client/files/profile.h"
#include "client/files/run_file.h"
#include "client/training/run_data.h"
#include "client/training/scratch_folder.h"
#include "client/training/stop_signals.h"
#include "coordinator/replanning/measured_jobs.h"
#include "nlohmann/json.hpp"
#include "run/model_layers.h"
#include "run/schedule_spec.h"

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

// Returns the activations of a run whose layers are stages each.
std::string ActivationsOfLayers(const RunSpec& run) {
  const std::vector<std::string> of_stages = SplitActivations(run.schedule);
  if (of_stages.size() == 1) return of_stages[0];
  std::vector<std::string> of_layers;
  for (int s = 0; s < run.stages(); ++s)
    of_layers.insert(of_layers.end(), run.layers_of_stage[s], of_stages[s]);
  return absl::StrJoin(of_layers, "/");
}

}  // namespace

RunSpec ProfilingRun(const RunSpec& run, int steps) {
  RunSpec profiling = run;
  profiling.name = absl::StrCat("profile-", run.name).substr(0, 63);
  profiling.layers_of_stage.assign(CountLayers(run.model).size(), 1);
  profiling.train.batch = run.microbatch_samples();
  profiling.train.microbatches = 1;
  profiling.train.steps = steps;
  profiling.schedule = ScheduleSpec();
  profiling.schedule.name = "lpp";
  profiling.schedule.parameters = {{"groups", "1"}, {"ranks", "1"}};
  profiling.schedule.activations = ActivationsOfLayers(run);
  profiling.memory = 0;
  profiling.checkpoint = {.none = true};
  profiling.validate = {};
  profiling.replan = {};
  profiling.redundancy = 0;
  return profiling;
}

RunSpec SplitProfilingRun(const RunSpec& run, int steps) {
  RunSpec profiling = ProfilingRun(run, steps);
  profiling.schedule.name = "custom";
  profiling.schedule.parameters = {{"ranks", "1"}, {"compute", "0"}, {"split_backward", "true"}};
  return profiling;
}

RunSpec LinkProfilingRun(const RunSpec& run, int steps) {
  RunSpec profiling = ProfilingRun(run, steps);
  profiling.schedule.name = "custom";
  profiling.schedule.parameters = {{"ranks", "2"}, {"compute", "s % W"}, {"weights", "(s + 1) % W"}};
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

std::string NetworkText(const std::string& source, const MeasuredLink& link,
                        const std::vector<double>& speeds) {
  std::string text = absl::StrCat("# measured by weft profile ", source, "\n");
  if (link.bandwidth > 0) absl::StrAppendFormat(&text, "bandwidth: %.6g\n", link.bandwidth);
  if (link.latency > 0) absl::StrAppendFormat(&text, "latency: %.6g\n", link.latency);
  const auto two_digits = [](std::string* out, double speed) { absl::StrAppendFormat(out, "%.3f", speed); };
  return absl::StrCat(text, "speeds: [", absl::StrJoin(speeds, ", ", two_digits), "]\n");
}

OrderedJson ProfileOf(const RunSpec& run, const MeasuredRun& measured, const MeasuredRun* split,
                      const MeasuredLink& link) {
  const std::vector<LayerCount> layers = CountLayers(run.model);
  // Weights and tensors between layers have the sizes of their numbers, so they need no measurement.
  const Profile counted = CountedProfile(run, 1e9);
  const auto times = TypicalTimes(measured.trace, layers.size());
  const auto time = [&](JobKind kind, size_t layer) { return times[static_cast<int>(kind)][layer]; };
  OrderedJson json = {{"name", run.name}, {"unit", "s"}, {"samples", run.microbatch_samples()}};
  if (SplitActivations(run.schedule).size() == 1) json["activations"] = run.schedule.activations;
  json["layers"] = OrderedJson::array();
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool reported = i < measured.trace.activation_bytes.size();
    const double activation_bytes =
        reported ? measured.trace.activation_bytes[i] : counted.parts[i].activation_bytes;
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
    const auto halves = TypicalTimes(split->trace, layers.size());
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

// The short trainings behind a profile.
struct ProfiledRuns {
  MeasuredRun whole, split, linked, sped;
};

// Returns the speeds of ranks that have done the same jobs, without the first step.
std::vector<double> SpeedsOf(const RunSpec& run, const Trace& trace, int ranks) {
  MeasuredJobs jobs(ranks, run.stages());
  for (const DrawnJob& j : trace.jobs) {
    if (j.job.step > 0) jobs.Add(j.rank, j.job, j.end - j.start);
  }
  return CostsOfJobs(run, jobs).speeds;
}

absl::StatusOr<ProfiledRuns> TrainForProfile(const RunSpec& run, const ProfileOptions& options,
                                             const ScratchFolder& scratch) {
  StopSignals signals;
  ProfiledRuns runs;
  struct Part {
    const char* folder;
    RunSpec spec;
    int processes;
    MeasuredRun* measured;
  };
  std::vector<Part> parts = {{"profile", ProfilingRun(run, options.steps), 1, &runs.whole},
                             {"split", SplitProfilingRun(run, options.steps), 1, &runs.split},
                             {"links", LinkProfilingRun(run, options.steps), 2, &runs.linked}};
  if (options.ranks > 0)
    parts.push_back(
        {"speeds", SpeedProfilingRun(run, options.steps, options.ranks), options.ranks, &runs.sped});
  for (const Part& part : parts) {
    if (part.measured == &runs.linked && part.spec.stages() < 2) continue;  // nothing is sent
    auto measured =
        TrainAndMeasure(part.spec, part.processes, options.device, scratch / part.folder, &signals);
    // A machine may have a device for one process alone.
    const bool may_lack = part.measured == &runs.linked;
    if (!measured.ok() && may_lack && !absl::IsCancelled(measured.status())) {
      PrintMessage(absl::StrCat("the link between two processes is not in the profile: ",
                                measured.status().message()));
      continue;
    }
    if (!measured.ok()) return measured.status();
    *part.measured = *std::move(measured);
  }
  return runs;
}

}  // namespace

ExitCode RunProfile(const ProfileOptions& options) {
  const auto asked = ReadAutoSchedule(options.file);
  if (!asked.ok()) return Fail(kExitBadConfiguration, asked.status().message());
  const nlohmann::json alone = PlanOnOneRank();  // layers are measured one by one
  auto run = ReadRunFile(options.file, RunFileData::kReadable, asked->has_value() ? &alone : nullptr);
  if (!run.ok()) return Fail(kExitBadConfiguration, run.status().message());
  run->validate = {};  // it would be measured too
  if (const absl::Status device = options.device.Check(); !device.ok()) {
    return Fail(kExitBadConfiguration, device.message());
  }
  if (const absl::Status data = CheckRunData(options.file, *run); !data.ok())
    return Fail(kExitBadConfiguration, data.message());
  signal(SIGPIPE, SIG_IGN);  // the reader of our output may leave; the temporary files must still be removed
  const auto scratch = ScratchFolder::Make();
  if (!scratch.ok()) return Fail(kExitFailed, scratch.status().message());
  const auto measured = TrainForProfile(*run, options, **scratch);
  if (measured.status().code() == absl::StatusCode::kCancelled) {
    PrintMessage(measured.status().message());
    return kExitInterrupted;
  }
  if (!measured.ok()) return Fail(kExitFailed, measured.status().message());
  const MeasuredLink link = LinkOf(measured->linked.trace.transfers);
  if (options.ranks > 0) {
    const RunSpec sped = SpeedProfilingRun(*run, options.steps, options.ranks);
    const std::vector<double> speeds = SpeedsOf(sped, measured->sped.trace, options.ranks);
    if (const ExitCode code = Print(NetworkText(options.file, link, speeds), options.network);
        code != kExitOk)
      return code;
  }
  OrderedJson json = ProfileOf(ProfilingRun(*run, options.steps), measured->whole, &measured->split, link);
  json["name"] = run->name;
  return Print(json.dump(2) + "\n", options.output);
}

}  // namespace weft
