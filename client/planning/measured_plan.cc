#include "client/planning/measured_plan.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/monotonic_clock.h"
#include "client/files/measured_network.h"
#include "client/files/predicted_run.h"
#include "client/files/profile.h"
#include "client/files/run_folder.h"
#include "client/files/trace_file.h"
#include "client/planning/plan_file.h"
#include "client/planning/plan_source.h"
#include "nlohmann/json.hpp"
#include "run/run_schedule.h"
#include "schedules/byte_text.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMeasuredSteps = 10;  // the last ones, of which speeds are taken

// Returns the last steps of the trace, and the first ones where both do not meet, without the run's first
// step, which is slower.
struct TracedSteps {
  std::set<int> last, first;
};
TracedSteps StepsOfTrace(const Trace& trace) {
  std::set<int> all;
  for (const DrawnJob& j : trace.jobs) all.insert(j.job.step);
  if (all.size() > 1) all.erase(all.begin());
  TracedSteps steps;
  const size_t count = std::min(kMeasuredSteps, all.size());
  steps.last.insert(std::prev(all.end(), static_cast<std::ptrdiff_t>(count)), all.end());
  if (all.size() >= 2 * kMeasuredSteps)
    steps.first.insert(all.begin(), std::next(all.begin(), static_cast<std::ptrdiff_t>(count)));
  return steps;
}

MeasuredJobs JobsOf(const Trace& trace, const std::set<int>& steps, int ranks, int stages) {
  MeasuredJobs jobs(ranks, stages);
  for (const DrawnJob& j : trace.jobs) {
    if (steps.contains(j.job.step)) jobs.Add(j.rank, j.job, j.end - j.start + j.delay);
  }
  return jobs;
}

// A run that began again may have its ranks on other machines than before.
bool BeganAgain(const std::string& folder) {
  std::ifstream file(fs::path(folder) / "summary.json", std::ios::binary);
  const auto summary = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  return summary.is_object() && summary.value("restarts", 0) > 0;
}

// Returns the jobs of the profile as if every rank had done all of them at speed 1. Their times contain
// `dispatch`, as measured ones contain the delay.
absl::StatusOr<MeasuredJobs> JobsOfProfile(const std::string& path, const RunSpec& run, int ranks) {
  PlanSourceOptions options;
  options.file = run.name;
  options.profile = path;
  const auto source = PlanSourceOf(options, run);
  if (!source.ok()) return source.status();
  SimulationOptions costs;
  if (absl::Status applied = ApplyProfile(source->profile, run.stages(), run.layers_of_stage, &costs);
      !applied.ok())
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", applied.message()));
  MeasuredJobs jobs(ranks, run.stages());
  for (Rank r = 0; r < ranks; ++r) {
    for (int k = 0; HasMicrobatch(static_cast<JobKind>(k)); ++k) {
      for (int s = 0; s < run.stages(); ++s)
        jobs.Add(r, Job::Compute(0, s, 0, static_cast<JobKind>(k)), costs.duration[k][s] + costs.dispatch);
    }
  }
  return jobs;
}

// Checks that the trace is of the run: its ranks and its stages.
absl::Status CheckTrace(const std::string& file, const Trace& trace, const RunSchedule& schedule) {
  if (!trace.measured) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, " was simulated; plan from the folder of a training that ran"));
  }
  int stages = 0;
  for (const DrawnJob& j : trace.jobs) stages = std::max(stages, j.job.stage + 1);
  if (trace.ranks == schedule.scheme.ranks && stages == schedule.scheme.stages) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is of %d stages on %d ranks, and the run has %d stages on %d; they are not of one "
                      "training",
                      file, stages, trace.ranks, schedule.scheme.stages, schedule.scheme.ranks));
}

// Returns what the ranks did at known speeds: a profile, or the first steps of the trace.
absl::StatusOr<std::optional<MeasuredJobs>> JobsBefore(const MeasuredPlanOptions& options, const RunSpec& run,
                                                       const Trace& trace, const std::set<int>& first) {
  std::string profile = options.profile;
  std::error_code error;
  const fs::path own = fs::path(options.folder) / "profile.json";
  if (profile.empty() && fs::exists(own, error)) profile = own.string();
  if (!profile.empty()) {
    auto jobs = JobsOfProfile(profile, run, trace.ranks);
    if (!jobs.ok()) return jobs.status();
    return *std::move(jobs);
  }
  if (first.empty() || BeganAgain(options.folder)) return std::nullopt;
  return JobsOf(trace, first, trace.ranks, run.stages());
}

void SetLink(const MeasuredPlanOptions& options, const Trace& trace, ReplanQuestion* question) {
  const bool given = options.bandwidth > 0 || options.latency > 0;
  if (trace.transfers.empty() && !given) return;
  question->link = LinkOf(BurstsOf(trace.transfers));
  if (options.bandwidth > 0) question->link->bandwidth = options.bandwidth;
  if (options.latency > 0) question->link->latency = options.latency;
}

PlanReport ReportOf(const MeasuredPlan& plan) {
  PlanReport report;
  report.source = plan.folder;
  report.unit = std::string("s");
  report.ranks = static_cast<int>(plan.measured.speeds.size());
  report.choice = {plan.better.schedule, CutAsWritten(plan.run), plan.run.train.microbatches};
  report.microbatches = plan.run.train.microbatches;
  report.step = plan.better.step;
  report.step_bound = plan.better.bound;
  report.held_bytes = plan.better.held_bytes;
  report.peak_bytes = plan.better.peak_bytes;
  report.memory = static_cast<double>(plan.run.memory);
  report.buffers = plan.run.buffers;
  report.weight_bytes = WeightBytesOf(plan.run);
  return report;
}

}  // namespace

absl::StatusOr<MeasuredPlan> PlanFromRun(const MeasuredPlanOptions& options) {
  std::error_code error;
  if (!fs::is_directory(options.folder, error))
    return absl::InvalidArgumentError(
        absl::StrCat("--from: ", options.folder, " is no folder; give that of a training's results"));
  auto run = ReadRunOfFolder(options.folder, "give the folder of a training's results");
  if (!run.ok()) return run.status();
  const std::string file = (fs::path(options.folder) / "trace.json").string();
  if (!fs::exists(file, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.folder,
                     " has no trace.json, so nothing says how long its jobs took: a run "
                     "writes it when it ends, as with --until STEP"));
  }
  const auto trace = ReadTrace(file);
  if (!trace.ok()) return trace.status();
  if (options.memory > 0) run->memory = static_cast<int64_t>(options.memory);
  const auto schedule = ScheduleOf(*run);
  if (IsAboutMemory(schedule.status())) return absl::ResourceExhaustedError(schedule.status().message());
  if (!schedule.ok()) return schedule.status();
  if (absl::Status sound = CheckTrace(file, *trace, *schedule); !sound.ok()) return sound;
  const TracedSteps steps = StepsOfTrace(*trace);
  const auto before = JobsBefore(options, *run, *trace, steps.first);
  if (!before.ok()) return before.status();
  MeasuredPlan plan;
  plan.folder = options.folder;
  plan.run = *std::move(run);
  plan.first_step = *steps.last.begin();
  plan.last_step = *steps.last.rbegin();
  plan.measured = CostsOfJobs(plan.run, JobsOf(*trace, steps.last, trace->ranks, plan.run.stages()),
                              before->has_value() ? &**before : nullptr);
  ReplanQuestion question{plan.run, plan.measured, std::nullopt};
  SetLink(options, *trace, &question);
  plan.knows_links = question.link.has_value();
  const int64_t end = MonotonicNow() + static_cast<int64_t>(options.seconds * 1e9);
  auto better = FindBetterSchedule(question, [end] { return MonotonicNow() >= end; });
  if (!better.ok()) return absl::InvalidArgumentError(better.status().message());
  plan.better = *std::move(better);
  return plan;
}

OrderedJson MeasuredPlanJson(const MeasuredPlan& plan) {
  OrderedJson durations = OrderedJson::object();
  for (int k = 0; k < kJobKinds; ++k) {
    const std::vector<double>& of_kind = plan.measured.duration[k];
    if (std::any_of(of_kind.begin(), of_kind.end(), [](double seconds) { return seconds > 0; }))
      durations[std::string(JobKindName(static_cast<JobKind>(k)))] = of_kind;
  }
  return {{"from", plan.folder},
          {"fits", true},
          {"steps_measured", {plan.first_step, plan.last_step}},
          {"unit", "s"},
          {"speeds", plan.measured.speeds},
          {"durations", durations},
          {"links_measured", plan.knows_links},
          {"present", {{"schedule", ToText(plan.run.schedule)}, {"step", plan.better.present}}},
          {"schedule", ToText(plan.better.schedule)},
          {"step", plan.better.step},
          {"gain", plan.better.gain()},
          {"step_lower_bound", plan.better.bound},
          {"stages", CutAsWritten(plan.run)},
          {"microbatches", plan.run.train.microbatches},
          {"held_bytes", plan.better.held_bytes},
          {"peak_bytes", plan.better.peak_bytes},
          {"tried", plan.better.tried},
          {"run", PlanKeys(ReportOf(plan))}};
}

std::string MeasuredPlanYaml(const MeasuredPlan& plan) {
  PlanReport report = ReportOf(plan);
  auto placement = PlacementOfRun(plan.run, report.choice, report.held_bytes, report.peak_bytes);
  if (placement.ok()) report.placement = *std::move(placement);
  return PlanYaml(report);
}

std::string MeasuredPlanTable(const MeasuredPlan& plan) {
  const BetterSchedule& better = plan.better;
  std::string text = absl::StrFormat("measured     steps %d to %d of %s%s\n", plan.first_step, plan.last_step,
                                     plan.folder, plan.knows_links ? "" : "; no links");
  absl::StrAppendFormat(&text, "present      %.4g s a step under %s, simulated at these speeds\n",
                        better.present, ToText(plan.run.schedule));
  if (better.gain() > 0) {
    absl::StrAppendFormat(&text, "better       %.4g s a step under %s: %.1f %% less\n", better.step,
                          ToText(better.schedule), 100 * better.gain());
  } else {
    absl::StrAppendFormat(&text, "better       nothing, of %d schedules\n", better.tried);
  }
  absl::StrAppendFormat(&text, "lower bound  %.4g s: all work over the speed of all ranks\n\n", better.bound);
  text += "rank  speed  peak\n";
  for (size_t r = 0; r < plan.measured.speeds.size(); ++r) {
    absl::StrAppendFormat(&text, "%4d  %5.2f  %s\n", r, plan.measured.speeds[r],
                          FormatBytes(better.peak_bytes[r]));
  }
  return text;
}

}  // namespace weft
