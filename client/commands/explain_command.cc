#include "client/commands/explain_command.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/found_trace.h"
#include "client/commands/kept_plan.h"
#include "client/files/predicted_run.h"
#include "client/runs/waits_text.h"
#include "nlohmann/json.hpp"
#include "run/run_schedule.h"
#include "schedules/explain/explanation.h"

namespace weft {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kRows = 12;  // differences shown; the rest is one more row

// The steps that are compared, and what the plan is made from.
struct Compared {
  int first_step = 0, last_step = 0;
  std::string plan;
  TimedSteps planned, measured;
};

std::vector<DrawnJob> JobsOf(const std::vector<DrawnJob>& jobs, int first, int last) {
  std::vector<DrawnJob> kept;
  std::copy_if(jobs.begin(), jobs.end(), std::back_inserter(kept),
               [&](const DrawnJob& j) { return j.job.step >= first && j.job.step <= last; });
  return kept;
}

double MakespanOf(const std::vector<DrawnJob>& jobs) {
  double begin = jobs.front().start, end = jobs.front().end;
  for (const DrawnJob& j : jobs) {
    begin = std::min(begin, j.start);
    end = std::max(end, j.end);
  }
  return end - begin;
}

// Returns the step of median time among those of which `planned` has a plan.
int MedianStep(const std::vector<DrawnJob>& jobs, const std::set<int>& planned) {
  std::vector<std::pair<double, int>> times;
  for (const int step : planned) {
    const std::vector<DrawnJob> of_step = JobsOf(jobs, step, step);
    if (!of_step.empty()) times.emplace_back(MakespanOf(of_step), step);
  }
  std::sort(times.begin(), times.end());
  return times[(times.size() - 1) / 2].second;
}

std::set<int> StepsOf(const std::vector<DrawnJob>& jobs) {
  std::set<int> steps;
  for (const DrawnJob& j : jobs) steps.insert(j.job.step);
  return steps;
}

// Simulates the run by the profile, without `dispatch`. Returns the last `steps` steps.
absl::StatusOr<TimedSteps> PlanByProfile(const RunSpec& run, const std::string& profile, int steps) {
  const auto costs = RunCosts::Make({profile}, run);
  if (!costs.ok()) return costs.status();
  auto prepared = PrepareRun(run, *costs);
  if (!prepared.ok()) return prepared.status();
  prepared->costs.steps = std::max(kPredictedSteps, steps + 1);
  prepared->costs.dispatch = 0;  // measured jobs do not have it: it is a cause of its own
  prepared->costs.record_jobs = prepared->costs.record_waits = true;
  const auto result = SimulateRun(*prepared);
  if (!result.ok()) return result.status();
  if (costs->UnitOf() != "s") {
    return absl::InvalidArgumentError(absl::StrCat(
        profile,
        ": its times are not in seconds (`unit: s`), so they cannot be compared with measured ones"));
  }
  TimedSteps planned;
  const int first = prepared->costs.steps - steps;
  for (const SimulatedJob& j : result->jobs) {
    if (j.job.step >= first) planned.jobs.push_back({j.job, j.rank, j.start, j.end});
  }
  for (const TransferInterval& t : result->transfers) {
    if (t.consumer.step >= first)
      planned.transfers.push_back({t.from, t.to, t.tensor, t.consumer, t.start, t.end, t.bytes});
  }
  return planned;
}

absl::Status NoSuchStep(const ExplainOptions& options, const std::string& trace, const std::set<int>& steps) {
  return absl::OutOfRangeError(absl::StrFormat("%s has no step %d with a plan; it has %d to %d", trace,
                                               options.step, *steps.begin(), *steps.rbegin()));
}

absl::StatusOr<Compared> Compare(const ExplainOptions& options, const FoundTrace& found, const Graph& graph) {
  if (!found.trace.ok()) return found.trace.status();
  const Trace* const trace = &*found.trace;
  const bool by_profile = !options.profile.empty();
  const std::set<int> steps = StepsOf(by_profile ? trace->jobs : trace->planned);
  if (steps.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(found.name, " has no plan beside the measured jobs; give one with --profile"));
  }
  if (options.step >= 0 && steps.count(options.step) == 0) return NoSuchStep(options, found.name, steps);
  Compared compared;
  // Steps on old weights overlap, and are explained together.
  const bool overlap = graph.schedule().MaxStaleness() > 0 && options.step < 0;
  const int step = options.step >= 0 ? options.step : MedianStep(trace->jobs, steps);
  compared.first_step = overlap ? *steps.begin() : step;
  compared.last_step = overlap ? *steps.rbegin() : step;
  compared.measured.jobs = JobsOf(trace->jobs, compared.first_step, compared.last_step);
  if (compared.measured.jobs.empty()) return NoSuchStep(options, found.name, steps);
  compared.measured.idle = trace->idle;
  compared.plan = by_profile ? options.profile : "the run's own job times";
  if (!by_profile) {
    compared.planned.jobs = JobsOf(trace->planned, compared.first_step, compared.last_step);
    return compared;
  }
  auto planned = PlanByProfile(*found.run, options.profile, compared.last_step - compared.first_step + 1);
  if (!planned.ok()) return planned.status();
  compared.planned = *std::move(planned);
  return compared;
}

std::string CauseText(const Difference& d) {
  if (d.cause == "transfer") return "transfer late";
  if (d.cause == "memory") return "memory wait";
  if (d.cause == "limit") return "limit of activations";
  if (d.cause == "slack") return "slack of the plan";
  return d.cause;
}

std::string WhereText(const Difference& d) {
  if (d.rank < 0) return "waits that the plan has beside this path, and the run did without";
  const std::string count = absl::StrCat(d.count, d.count == 1 ? " time" : " times");
  if (d.stage < 0) {
    const std::string planned = d.planned > 0 ? absl::StrCat(", planned ", FormatSeconds(d.planned), ", was ",
                                                             FormatSeconds(d.measured))
                                              : "";
    return absl::StrCat("before jobs of rank ", d.rank, ", ", count, planned);
  }
  return absl::StrCat(JobKindName(d.kind), " of stage ", d.stage, " on rank ", d.rank, ", ", count,
                      ", planned ", FormatSeconds(d.planned), ", took ", FormatSeconds(d.measured));
}

std::string SignedSeconds(double seconds) {
  return absl::StrCat(seconds < 0 ? "-" : "+", FormatSeconds(std::abs(seconds)));
}

std::string Table(const RunSpec& run, const Compared& compared, const Explanation& explanation) {
  std::string out = absl::StrCat(run.name, ": ", ToText(run.schedule), "; ");
  if (compared.first_step == compared.last_step) {
    absl::StrAppend(&out, "step ", compared.first_step);
  } else {
    absl::StrAppend(&out, "steps ", compared.first_step, " to ", compared.last_step);
  }
  const double difference = explanation.measured - explanation.planned;
  absl::StrAppend(&out, "\nplanned   ", FormatSeconds(explanation.planned), ", from ", compared.plan,
                  "\nmeasured  ", FormatSeconds(explanation.measured), "; the critical path has ",
                  explanation.path.size(), " jobs\n\n");
  std::vector<std::vector<std::string>> rows;
  double others = 0;
  for (size_t i = 0; i < explanation.differences.size(); ++i) {
    const Difference& d = explanation.differences[i];
    if (i >= kRows) {
      others += d.seconds;
    } else {
      rows.push_back({SignedSeconds(d.seconds), CauseText(d), WhereText(d)});
    }
  }
  if (explanation.differences.size() > kRows) {
    rows.push_back({SignedSeconds(others), "others",
                    absl::StrCat(explanation.differences.size() - kRows, " more; -o json has them all")});
  }
  rows.push_back({SignedSeconds(difference), "sum", "measured less planned"});
  return out + FormatTable({"seconds", "cause", "where"}, rows, OutputStyle());
}

OrderedJson DifferenceJson(const Difference& d) {
  OrderedJson json = {{"cause", d.cause}, {"seconds", d.seconds}};
  if (d.rank >= 0) json["rank"] = d.rank;
  if (d.stage >= 0) {
    json["kind"] = std::string(JobKindName(d.kind));
    json["stage"] = d.stage;
  }
  json["count"] = d.count;
  json["planned"] = d.planned;
  json["measured"] = d.measured;
  return json;
}

OrderedJson ComparisonJson(const RunSpec& run, const Compared& compared, const Explanation& explanation) {
  OrderedJson json = {{"run", run.name},
                      {"first_step", compared.first_step},
                      {"last_step", compared.last_step},
                      {"plan", compared.plan},
                      {"planned", explanation.planned},
                      {"measured", explanation.measured},
                      {"difference", explanation.measured - explanation.planned},
                      {"path_jobs", explanation.path.size()},
                      {"differences", OrderedJson::array()}};
  for (const Difference& d : explanation.differences) json["differences"].push_back(DifferenceJson(d));
  return json;
}

ExitCode Show(const ExplainOptions& options, const FoundTrace& found) {
  if (!found.run.ok()) return Fail(kExitBadConfiguration, found.run.status().message());
  if (!found.trace.ok()) return FailToRead(found.trace.status());
  const RunSpec& run = *found.run;
  auto schedule = ScheduleOf(run);
  if (!schedule.ok()) return Fail(kExitBadConfiguration, schedule.status().message());
  const Graph graph(*std::move(schedule), run.train.steps);
  const auto compared = Compare(options, found, graph);
  if (absl::IsOutOfRange(compared.status())) return Fail(kExitUsage, compared.status().message());
  if (!compared.ok()) return Fail(kExitBadConfiguration, compared.status().message());
  const auto explanation = Explain(graph, compared->planned, compared->measured);
  if (!explanation.ok()) {
    return Fail(kExitBadConfiguration,
                absl::StrCat(found.name, ": the trace is not of this run: ", explanation.status().message()));
  }
  if (options.coordinator.json) return PrintJson(ComparisonJson(run, *compared, *explanation));
  return PrintData(Table(run, *compared, *explanation));
}

// Says why a run does not run: it waits, or has ended without a trace.
ExitCode ShowState(const ExplainOptions& options, const RunInfo& run) {
  if (options.coordinator.json) {
    return PrintJson(OrderedJson{
        {"run", run.name}, {"state", std::string(RunStateName(run.state))}, {"reason", run.reason}});
  }
  return PrintData(absl::StrCat("run ", run.id, " (", run.name, ") is ", RunStateName(run.state),
                                run.reason.empty() ? "" : ": ", run.reason, "\n"));
}

bool AsksForWaits(const ExplainOptions& options) { return options.now || options.rank >= 0; }
bool AsksForComparison(const ExplainOptions& options) {
  return options.step >= 0 || !options.profile.empty() || options.own_times;
}
// Returns true for the answer of a coordinator that does not know the call.
bool IsOlder(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsPermissionDenied(status);
}

ExitCode ShowWaits(const ExplainOptions& options, const RunWaits& waits) {
  const auto ranks = static_cast<Rank>(waits.ranks.size());
  if (options.rank >= 0 && waits.still_ns >= 0 && options.rank >= ranks) {
    return Fail(kExitUsage,
                absl::StrCat("run ", waits.run, " has no rank ", options.rank, "; it has ", ranks));
  }
  const Rank only = waits.still_ns >= 0 ? options.rank : -1;
  if (options.coordinator.json) return PrintJson(WaitsJson(waits, only));
  return PrintData(WaitsText(waits, only, OutputStyle()));
}

ExitCode ExplainTrace(const ExplainOptions& options, RunsClient& client, const RunInfo& run,
                      const absl::StatusOr<RunWaits>& waits) {
  const absl::StatusOr<FoundTrace> found = FetchTrace(client, run.id);
  if (absl::IsFailedPrecondition(found.status())) {
    if (run.state > RunState::kFinished) return ShowState(options, run);
    // The comparison cannot be had before there is a trace: its exit code says whether to ask again.
    if (waits.ok() && !IsFinal(run.state) && !AsksForComparison(options)) return ShowWaits(options, *waits);
  }
  if (!found.ok()) return FailToFetch(client, run.id, found.status());
  if (!run.reason.empty()) PrintMessage(absl::StrCat("note: run ", run.id, ": ", run.reason));
  return Show(options, *found);
}

ExitCode ExplainRun(const ExplainOptions& options, uint64_t number) {
  auto client = ConnectTo(options.coordinator);
  if (!client.ok()) return FailToConnect(client.status());
  const absl::StatusOr<RunInfo> run = (*client)->Get(number);
  if (!run.ok()) return Fail(run.status());
  const absl::StatusOr<RunWaits> waits = (*client)->Waits(number);
  if (!waits.ok() && (AsksForWaits(options) || !IsOlder(waits.status()))) return Fail(waits.status());
  const bool still = waits.ok() && !AsksForComparison(options) && StandsStill(*waits);
  if (waits.ok() && (AsksForWaits(options) || still || waits->state < RunState::kRunning))
    return ShowWaits(options, *waits);
  if (run->state < RunState::kRunning) return ShowState(options, *run);
  return ExplainTrace(options, **client, *run, waits);
}

}  // namespace

ExitCode RunExplain(const ExplainOptions& options) {
  if (const auto number = RunNumber(options.run); number.has_value()) return ExplainRun(options, *number);
  if (AsksForWaits(options)) {
    return Fail(kExitUsage,
                "--now and --rank ask a coordinator; give the number of its run, as weft ls shows it");
  }
  ExplainOptions asked = options;
  if (asked.profile.empty() && !asked.own_times) asked.profile = KeptProfile(asked.run);
  return Show(asked, ReadFoundTrace(options.run, "give the output folder of a run, or a run file"));
}

}  // namespace weft
