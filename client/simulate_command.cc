#include "client/simulate_command.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/profile.h"
#include "client/schedule_file.h"
#include "client/simulation_json.h"
#include "proto/run/run_schedule.h"
#include "proto/run/run_spec.h"
#include "schedules/actions.h"
#include "schedules/check.h"
#include "schedules/drawing.h"
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

std::string Table(const Schedule& schedule, const SimulateOptions& options, const SimulationResult& result) {
  std::string out = absl::StrCat(schedule.name, ": ", Sizes(schedule, options), "\n\n");
  absl::StrAppendFormat(&out, "makespan    %.6g time units\n", result.makespan);
  absl::StrAppendFormat(&out, "period      %.6g a step\n", result.period);
  absl::StrAppendFormat(&out, "idle        %.1f %% (bubble)\n", 100 * result.bubble_ratio);
  absl::StrAppendFormat(&out, "throughput  %.3f of a rank's peak; at most %.3f with these activations\n\n",
                        result.throughput_per_rank, result.throughput_bound);
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

std::string Render(const Schedule& schedule, const SimulateOptions& options, const SimulationResult& result) {
  if (options.output == "json") {
    return SimulationJson(schedule, options.simulation.steps, result, options.jobs);
  }
  if (options.output == "table") return Table(schedule, options, result);
  const std::vector<DrawnJob> jobs = Drawn(result);
  DrawingOptions drawing = Drawing(schedule, options, result);
  if (options.output == "trace") return DrawTrace(jobs, drawing);
  if (options.output == "csv")
    return schedule.order.empty() ? DrawActions(jobs, drawing) : ActionsOfOrder(schedule);
  const std::vector<DrawnJob> shown = LastSteps(jobs, kBoxesMost);
  if (shown.size() < jobs.size()) absl::StrAppend(&drawing.subtitle, "; the last steps are drawn");
  return DrawSvg(shown, drawing);
}

}  // namespace

ExitCode RunSimulate(const SimulateOptions& options) {
  auto schedule = MakeCheckedSchedule(options);
  if (!schedule.ok()) return Fail(kExitUsage, schedule.status().message());
  SimulationOptions simulation = options.simulation;
  if (!options.profile.empty()) {
    const auto profile = ReadProfile(options.profile);
    if (!profile.ok()) return Fail(kExitUsage, profile.status().message());
    const absl::Status applied = ApplyProfile(*profile, schedule->stages, {}, &simulation);
    if (!applied.ok()) return Fail(kExitUsage, absl::StrCat(options.profile, ": ", applied.message()));
  }
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
  return PrintData(Render(*schedule, options, *result));
}

}  // namespace weft
