#include "client/simulate_command.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/profile.h"
#include "client/schedule_file.h"
#include "client/simulation_json.h"
#include "client/trace_file.h"
#include "proto/run/run_schedule.h"
#include "proto/run/run_spec.h"
#include "schedules/actions.h"
#include "schedules/check.h"
#include "schedules/communication.h"
#include "schedules/drawing.h"
#include "schedules/drawing_memory.h"
#include "schedules/families.h"

namespace weft {
namespace {

// Bounds on what one call may ask for, far above what can be read or drawn.
constexpr int64_t kJobsOfStepMost = 20'000'000;
constexpr int64_t kJobsListedMost = 20'000'000;
constexpr size_t kBoxesMost = 40'000;
constexpr int kLinesMost = 64;  // ranks that a table draws

absl::StatusOr<std::vector<std::vector<int>>> ParseInputs(const std::vector<std::string>& texts) {
  std::vector<std::vector<int>> inputs;
  for (const std::string& text : texts) {
    inputs.emplace_back();
    if (text == "data") continue;
    for (const auto part : absl::StrSplit(text, '+')) {
      int stage = 0;
      if (!absl::SimpleAtoi(part, &stage)) {
        return absl::InvalidArgumentError(
            absl::StrFormat("--inputs: `%s` is neither `data` nor numbers of stages joined by +", text));
      }
      inputs.back().push_back(stage);
    }
  }
  return inputs;
}

absl::StatusOr<Schedule> MakeNamedSchedule(const SimulateOptions& options,
                                           std::vector<std::vector<int>> inputs) {
  if (options.from_step >= 0) {
    return absl::InvalidArgumentError("--from-step is for traces, as in out/tiny/trace.json");
  }
  const auto spec = ParseScheduleText(options.schedule);
  if (!spec.ok()) return spec.status();
  if (options.stages == 0 || options.microbatches == 0) {
    return absl::InvalidArgumentError(
        "--stages and --microbatches are required, as in --stages 4 --microbatches 8");
  }
  if (int64_t{options.stages} * options.microbatches > kJobsOfStepMost) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d stages of %d micro-batches are more than %d jobs a step", options.stages,
                        options.microbatches, kJobsOfStepMost));
  }
  auto schedule = MakeSchedule(*spec, options.stages, options.microbatches);
  if (!schedule.ok()) return schedule;
  schedule->name = ToText(*spec);
  schedule->inputs = std::move(inputs);
  const absl::Status fits = CheckSchedule(*schedule);
  if (!fits.ok()) return fits;
  return schedule;
}

absl::StatusOr<Schedule> MakeCheckedSchedule(const SimulateOptions& options) {
  auto inputs = ParseInputs(options.inputs);
  if (!inputs.ok()) return inputs.status();
  auto schedule = IsScheduleFile(options.schedule)
                      ? ReadScheduleFile(options.schedule, {options.stages, options.microbatches,
                                                            *std::move(inputs), options.from_step})
                      : MakeNamedSchedule(options, *std::move(inputs));
  if (!schedule.ok() || !options.clips) return schedule;
  schedule->clips = true;
  if (absl::Status sound = CheckSchedule(*schedule); !sound.ok()) return sound;
  return schedule;
}

std::vector<DrawnJob> Drawn(const SimulationResult& result) {
  std::vector<DrawnJob> jobs;
  jobs.reserve(result.jobs.size());
  for (const SimulatedJob& j : result.jobs) jobs.push_back({j.job, j.rank, j.start, j.end});
  return jobs;
}

std::string Plural(int n, absl::string_view word) { return absl::StrCat(n, " ", word, n == 1 ? "" : "s"); }

std::string Sizes(const Schedule& schedule, const SimulateOptions& options) {
  return absl::StrCat(Plural(schedule.stages, "stage"), ", ", schedule.microbatches,
                      schedule.microbatches == 1 ? " micro-batch, " : " micro-batches, ",
                      Plural(options.simulation.steps, "step"), ", ", Plural(schedule.ranks, "rank"));
}

DrawingOptions Drawing(const Schedule& schedule, const SimulateOptions& options,
                       const SimulationResult& result) {
  DrawingOptions drawing;
  drawing.title = schedule.name;
  drawing.subtitle = absl::StrFormat("%s; makespan %.6g, idle %.1f %%", Sizes(schedule, options),
                                     result.makespan, 100 * result.bubble_ratio);
  drawing.ranks = schedule.ranks;
  drawing.stages = schedule.stages;
  drawing.inputs = schedule.inputs;
  return drawing;
}

std::string Table(const Schedule& schedule, const SimulateOptions& options, const SimulationResult& result,
                  const std::optional<CommunicationSteps>& communication) {
  std::string out = absl::StrCat(schedule.name, ": ", Sizes(schedule, options), "\n\n");
  absl::StrAppendFormat(&out, "makespan    %.6g time units\n", result.makespan);
  absl::StrAppendFormat(&out, "period      %.6g a step\n", result.period);
  absl::StrAppendFormat(&out, "idle        %.1f %% (bubble)\n", 100 * result.bubble_ratio);
  absl::StrAppendFormat(&out, "throughput  %.3f of a rank's peak; at most %.3f with these activations\n\n",
                        result.throughput_per_rank, result.throughput_bound);
  if (communication.has_value()) {
    out.pop_back();
    absl::StrAppendFormat(&out, "messages    %.6g a step; at most %d after one another between two ticks\n\n",
                          communication->messages, communication->most);
  }
  if (!result.jobs.empty()) {
    absl::StrAppend(&out, DrawLines(LastSteps(Drawn(result), 1), Drawing(schedule, options, result), 88),
                    "\n");
  }
  std::vector<std::vector<std::string>> rows;
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    const RankStats& s = result.ranks[r];
    rows.push_back({absl::StrCat(r), absl::StrFormat("%.6g", s.busy), absl::StrFormat("%.6g", s.idle),
                    absl::StrCat(s.peak_activations), FormatBytes(s.peak_activation_bytes),
                    absl::StrCat(s.peak_weight_versions), absl::StrCat(s.activation_receives),
                    absl::StrCat(s.gradient_receives), absl::StrCat(s.weight_fetches),
                    FormatBytes(s.bytes_received), FormatBytes(s.bytes_sent)});
  }
  absl::StrAppend(&out, FormatTable({"rank", "busy", "idle", "peak act.", "bytes", "versions", "act. in",
                                     "grad. in", "weights in", "received", "sent"},
                                    rows));
  return out;
}

// The jobs are kept only where they are shown.
bool WantsJobs(const SimulateOptions& options, const Schedule& schedule) {
  const int64_t listed = int64_t{schedule.stages} * schedule.microbatches * options.simulation.steps;
  if (options.output == "json") return options.jobs;
  if (options.output == "table") return schedule.ranks <= kLinesMost && listed <= 1'000'000;
  return true;
}

std::string Render(const Schedule& schedule, const SimulateOptions& options, const SimulationResult& result,
                   const std::optional<CommunicationSteps>& communication) {
  if (options.output == "json") {
    return SimulationJson(schedule, options.simulation.steps, result, options.jobs, communication);
  }
  if (options.output == "table") return Table(schedule, options, result, communication);
  const std::vector<DrawnJob> jobs = Drawn(result);
  DrawingOptions drawing = Drawing(schedule, options, result);
  if (options.output == "trace") return DrawTrace(jobs, drawing);
  if (options.output == "csv")
    return schedule.order.empty() ? DrawActions(jobs, drawing) : ActionsOfOrder(schedule);
  const std::vector<DrawnJob> shown = LastSteps(jobs, kBoxesMost);
  if (shown.size() < jobs.size()) absl::StrAppend(&drawing.subtitle, "; the last steps are drawn");
  return DrawSvg(shown, drawing);
}

// What is said beside the schedule about its costs.
absl::StatusOr<SimulationOptions> CostsOf(const SimulateOptions& options, int stages, DrawnTime* time) {
  SimulationOptions costs = options.simulation;
  *time = DrawnTime::kUnits;
  if (options.profile.empty()) return costs;
  const auto profile = ReadProfile(options.profile);
  if (!profile.ok()) return profile.status();
  const absl::Status applied = ApplyProfile(*profile, stages, {}, &costs);
  if (!applied.ok())
    return absl::InvalidArgumentError(absl::StrCat(options.profile, ": ", applied.message()));
  if (profile->unit == "s") *time = DrawnTime::kSeconds;
  return costs;
}

struct TimedCurve {
  LiveCurve curve;
  DrawnTime time = DrawnTime::kUnits;
};

// What the trace says happened, with the bytes that it has measured unless others are given.
absl::StatusOr<TimedCurve> CurveOfTrace(const SimulateOptions& options) {
  auto trace = ReadTrace(options.schedule);
  if (!trace.ok()) return trace.status();
  int stages = 0;
  for (const DrawnJob& j : trace->jobs) stages = std::max(stages, j.job.stage + 1);
  TimedCurve timed;
  const auto costs = CostsOf(options, stages, &timed.time);
  if (!costs.ok()) return costs.status();
  std::vector<double> left = costs->activation;
  if (left == std::vector<double>{0}) left = trace->left_bytes;
  if (left.empty()) left = {0};
  if (left.size() != 1 && left.size() < static_cast<size_t>(stages)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: sizes of activations are given for %d of its %d stages", options.schedule, left.size(), stages));
  }
  timed.time = trace->measured ? DrawnTime::kSeconds : DrawnTime::kUnits;
  for (DrawnJob& j : trace->jobs) {
    if (trace->measured) break;
    j.start *= 1e3;
    j.end *= 1e3;
  }
  timed.curve.name = absl::StrCat(trace->title.empty() ? options.schedule : trace->title,
                                  trace->measured ? ", measured" : ", simulated");
  timed.curve.live = CountLiveActivations(trace->jobs, left);
  return timed;
}

absl::StatusOr<TimedCurve> CurveOfSchedule(const SimulateOptions& options) {
  const auto schedule = MakeCheckedSchedule(options);
  if (!schedule.ok()) return schedule.status();
  TimedCurve timed;
  auto costs = CostsOf(options, schedule->stages, &timed.time);
  if (!costs.ok()) return costs.status();
  if (int64_t{schedule->stages} * schedule->microbatches * costs->steps > kJobsListedMost) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.schedule, " has too many jobs; ask for fewer --steps"));
  }
  costs->record_jobs = true;
  const auto result = Simulate(Graph(*schedule), *costs);
  if (!result.ok()) return result.status();
  timed.curve.name = absl::StrCat(schedule->name, ", simulated");
  timed.curve.live = CountLiveActivations(Drawn(*result), costs->activation);
  return timed;
}

// Activations alive over all ranks, of all that was asked for in one picture.
absl::StatusOr<std::string> MemoryPicture(const SimulateOptions& options) {
  std::vector<std::string> names = {options.schedule};
  names.insert(names.end(), options.beside.begin(), options.beside.end());
  std::vector<LiveCurve> curves;
  LiveDrawingOptions drawing;
  for (const std::string& name : names) {
    SimulateOptions one = options;
    one.schedule = name;
    auto timed = absl::EndsWith(name, ".json") ? CurveOfTrace(one) : CurveOfSchedule(one);
    if (!timed.ok()) return timed.status();
    if (!curves.empty() && timed->time != drawing.time) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, " and ", names[0],
          " do not have their times in one unit: one is in seconds; give a --profile whose `unit` is \"s\""));
    }
    drawing.time = timed->time;
    curves.push_back(std::move(timed->curve));
  }
  drawing.title = "Activations alive over all ranks";
  const bool sized = options.stages > 0 && options.microbatches > 0;
  if (sized) {
    drawing.subtitle = absl::StrCat(Plural(options.stages, "stage"), ", ", options.microbatches,
                                    options.microbatches == 1 ? " micro-batch" : " micro-batches");
  }
  return DrawLiveActivations(curves, drawing);
}

ExitCode RunMemoryPicture(const SimulateOptions& options) {
  const auto picture = MemoryPicture(options);
  if (picture.ok()) return PrintData(*picture);
  const bool failed = picture.status().code() == absl::StatusCode::kFailedPrecondition;
  return Fail(failed ? kExitFailed : kExitUsage, picture.status().message());
}

}  // namespace

ExitCode RunSimulate(const SimulateOptions& options) {
  if (options.output == "memory") return RunMemoryPicture(options);
  if (!options.beside.empty()) {
    return Fail(kExitUsage, absl::StrCat("one schedule at a time, and not ", options.beside[0],
                                         " too, unless for -o memory"));
  }
  auto schedule = MakeCheckedSchedule(options);
  if (!schedule.ok()) return Fail(kExitUsage, schedule.status().message());
  DrawnTime ignored;
  auto costs = CostsOf(options, schedule->stages, &ignored);
  if (!costs.ok()) return Fail(kExitUsage, costs.status().message());
  SimulationOptions simulation = *std::move(costs);
  simulation.record_jobs = WantsJobs(options, *schedule);
  const int64_t listed = int64_t{schedule->stages} * schedule->microbatches * simulation.steps;
  if (simulation.record_jobs && listed > kJobsListedMost) {
    return Fail(kExitUsage,
                absl::StrCat("listing ", listed, " forward jobs is too much; ask for fewer --steps"));
  }
  const Graph graph(*schedule);
  const auto result = Simulate(graph, simulation);
  if (!result.ok()) {
    const bool usage = result.status().code() == absl::StatusCode::kInvalidArgument;
    return Fail(usage ? kExitUsage : kExitFailed, result.status().message());
  }
  std::optional<CommunicationSteps> communication;
  if (options.communication) {
    const auto counted = CountCommunicationSteps(graph, SteadySteps(*schedule));
    if (!counted.ok()) return Fail(kExitFailed, counted.status().message());
    communication = *counted;
  }
  return PrintData(Render(*schedule, options, *result, communication));
}

}  // namespace weft
