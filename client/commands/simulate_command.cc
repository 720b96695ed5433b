#include "client/commands/simulate_command.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/commands/simulation_json.h"
#include "client/files/network_file.h"
#include "client/files/predicted_run.h"
#include "client/files/profile.h"
#include "client/files/run_file.h"
#include "client/files/schedule_file.h"
#include "client/files/trace_file.h"
#include "coordinator/record/idle_shares.h"
#include "run/run_schedule.h"
#include "run/run_spec.h"
#include "schedules/check/check.h"
#include "schedules/drawing/drawing.h"
#include "schedules/drawing/drawing_memory.h"
#include "schedules/families/families.h"
#include "schedules/simulator/actions.h"
#include "schedules/simulator/communication.h"
#include "schedules/simulator/operation_rows.h"

namespace weft {
namespace {

// Bounds of what one call may ask for, far above what can be read or drawn.
constexpr int64_t kMaxJobsOfStep = 20'000'000;
constexpr int64_t kMaxListedJobs = 20'000'000;
constexpr int64_t kMaxQuickForwards = 100'000'000;
constexpr size_t kMaxBoxes = 40'000;
constexpr int kMaxLines = 64;    // ranks that a table draws
constexpr size_t kMaxRows = 64;  // ranks that a table lists
constexpr int kMaxDrawnRanks = 4096;

// Marks an error as one of a file that the command line names, and not of the command line itself.
absl::Status InFile(const absl::Status& status) {
  return status.ok() ? status : absl::DataLossError(status.message());
}

// Returns the exit code of a simulation that cannot be made.
ExitCode CodeOf(const absl::Status& status) {
  if (absl::IsDataLoss(status)) return kExitBadConfiguration;
  return absl::IsFailedPrecondition(status) ? kExitFailed : kExitUsage;
}

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

using Times = std::array<std::vector<double>, kJobKinds>;

// A simulation and the words for its output.
struct PreparedSimulation {
  PreparedRun run;
  std::string times;  // source of its times
  std::string unit;   // unit of all times: "s", "" for any
  int default_steps = 1;
  DrawnTime time() const { return unit == "s" ? DrawnTime::kSeconds : DrawnTime::kUnits; }
};

std::vector<double>& Of(Times& times, JobKind kind) { return times[static_cast<int>(kind)]; }
const std::vector<double>& Of(const Times& times, JobKind kind) { return times[static_cast<int>(kind)]; }

bool AnyGiven(const Times& times) {
  return std::any_of(times.begin(), times.begin() + static_cast<int>(JobKind::kReduce),
                     [](const auto& of_kind) { return !of_kind.empty(); });
}

// Returns the sum of the two stage by stage; one value counts for all stages.
std::vector<double> SumOf(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> sum = a.size() >= b.size() ? a : b;
  for (size_t s = 0; s < sum.size(); ++s) {
    sum[s] = (a.size() == 1  ? a[0]
              : s < a.size() ? a[s]
                             : 0) +
             (b.size() == 1  ? b[0]
              : s < b.size() ? b[s]
                             : 0);
  }
  return sum;
}

// Returns `given` with defaults for missing times: see SimulateOptions.
Times Completed(Times given) {
  std::vector<double>& backward = Of(given, JobKind::kBackward);
  std::vector<double>& input = Of(given, JobKind::kBackwardInput);
  std::vector<double>& weight = Of(given, JobKind::kBackwardWeight);
  if (Of(given, JobKind::kForward).empty()) Of(given, JobKind::kForward) = {1};
  if (backward.empty()) {
    backward = input.empty() || weight.empty() ? std::vector<double>{1} : SumOf(input, weight);
  }
  for (std::vector<double>* half : {&input, &weight}) {
    if (!half->empty()) continue;
    *half = backward;
    for (double& time : *half) time /= 2;
  }
  return given;
}

std::string ListOf(const std::vector<double>& values) {
  return absl::StrJoin(values, ",",
                       [](std::string* out, double v) { absl::StrAppendFormat(out, "%.6g", v); });
}

// Returns "forward 1, backward 2 (halves 1 and 1)".
std::string TimesText(const Times& times, bool split) {
  std::string text = absl::StrCat("forward ", ListOf(Of(times, JobKind::kForward)), ", backward ",
                                  ListOf(Of(times, JobKind::kBackward)));
  if (split) {
    absl::StrAppend(&text, " (for the input ", ListOf(Of(times, JobKind::kBackwardInput)),
                    ", for the weights ", ListOf(Of(times, JobKind::kBackwardWeight)), ")");
  }
  return text;
}

bool AnyBytes(const SimulationOptions& costs) {
  const auto some = [](const std::vector<double>& values) {
    return std::any_of(values.begin(), values.end(), [](double v) { return v > 0; });
  };
  return some(costs.activation) || some(costs.weight) || some(costs.state) || some(costs.output);
}

// Refuses flags that could change nothing: they are a mistake, and the output would hide it.
absl::Status CheckFlags(const SimulateOptions& options) {
  const auto refuse = [](absl::string_view message) { return absl::InvalidArgumentError(message); };
  const bool form_json = options.output == "json";
  if (options.jobs && !form_json) return refuse("--jobs lists the jobs in the JSON; add -o json");
  if (options.communication && !form_json && options.output != "table") {
    return refuse("--communication is for -o table and -o json");
  }
  if (!options.under.empty() && !IsRunFile(options.schedule)) {
    return refuse(absl::StrCat("--schedule replaces the schedule of a run file, and ", options.schedule,
                               " is none; write the schedule in its place"));
  }
  if (options.host_bandwidth > 0 && !IsRunFile(options.schedule)) {
    return refuse(
        absl::StrCat("--host-bandwidth is of the copies of `activations: offload`, which are a run file's; ",
                     options.schedule, " is none"));
  }
  if (options.flops > 0 && (!IsRunFile(options.schedule) || AnyGiven(options.simulation.duration))) {
    return refuse(
        "--flops has no effect, because it makes times of the counted FLOPs of a run file; give a run file "
        "and "
        "no times");
  }
  if (options.profile.empty()) return absl::OkStatus();
  const bool sizes = AnyBytes(options.simulation);
  if (AnyGiven(options.simulation.duration) || sizes) {
    return refuse(absl::StrCat("a profile has ", sizes ? "sizes" : "times", " of its own; give --profile ",
                               options.profile, " or the ", sizes ? "sizes" : "times", ", not both"));
  }
  return absl::OkStatus();
}

// Refuses such flags where the costs are known.
absl::Status CheckEffect(const SimulationOptions& costs) {
  if (AnyBytes(costs)) return absl::OkStatus();
  for (const auto& [given, flag] : {std::pair{costs.memory, "--memory"}, {costs.bandwidth, "--bandwidth"}}) {
    if (given <= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag,
                     " has no effect, because nothing has a size; give --activation and --weight, a "
                     "--profile, or a run file"));
  }
  return absl::OkStatus();
}

// Refuses times of jobs that the schedule does not have. With several schedules, it suffices that one has
// them.
absl::Status CheckTimes(const SimulateOptions& options, const RunSchedule& prepared) {
  const Schedule& schedule = prepared.scheme;
  if (!options.compared.empty()) return absl::OkStatus();
  const SimulationOptions& given = options.simulation;
  const auto refuse = [&](absl::string_view flag, absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " has no effect, because ", schedule.name, " ", why));
  };
  const bool input = !Of(given.duration, JobKind::kBackwardInput).empty();
  const bool weight = !Of(given.duration, JobKind::kBackwardWeight).empty();
  const bool both_are_whole = input && weight && Of(given.duration, JobKind::kBackward).empty();
  if (!schedule.split_backward && (input || weight) && !both_are_whole) {
    return refuse(input ? "--backward-input" : "--backward-weight",
                  "does not split the backward; give --backward");
  }
  const std::vector<double>& reduce = Of(given.duration, JobKind::kReduce);
  const bool reduces = std::any_of(reduce.begin(), reduce.end(), [](double time) { return time > 0; });
  if (given.overlapped <= 0 && !reduces) return absl::OkStatus();
  const Graph graph(prepared);
  if (given.overlapped > 0 && !graph.has_pairs()) return refuse("--overlapped", "has no overlapped pairs");
  if (!reduces) return absl::OkStatus();
  for (int stage = 0; stage < schedule.stages; ++stage) {
    if (graph.protocol(stage).has_reduce()) return absl::OkStatus();
  }
  return refuse("--reduce", "has no sum of gradients over replicas");
}

absl::StatusOr<RunSchedule> MakeNamedSchedule(const SimulateOptions& options,
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
  if (int64_t{options.stages} * options.microbatches > kMaxJobsOfStep) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d stages of %d micro-batches are more than %d jobs a step", options.stages,
                        options.microbatches, kMaxJobsOfStep));
  }
  auto schedule = MakeSchedule(*spec, options.stages, options.microbatches);
  if (!schedule.ok()) return schedule;
  schedule->scheme.name = ToText(*spec);
  schedule->terms.inputs = std::move(inputs);
  const absl::Status fits = CheckSchedule(*schedule);
  if (!fits.ok()) return fits;
  return schedule;
}

absl::StatusOr<RunSchedule> MakeCheckedSchedule(const SimulateOptions& options) {
  auto inputs = ParseInputs(options.inputs);
  if (!inputs.ok()) return inputs.status();
  const bool is_file = IsScheduleFile(options.schedule);
  auto schedule = is_file ? ReadScheduleFile(options.schedule, {options.stages, options.microbatches,
                                                                *std::move(inputs), options.from_step})
                          : MakeNamedSchedule(options, *std::move(inputs));
  if (is_file && !schedule.ok() && !absl::IsOutOfRange(schedule.status())) return InFile(schedule.status());
  if (!schedule.ok() || !options.takes_norm) return schedule;
  schedule->terms.takes_norm = true;
  if (absl::Status sound = CheckSchedule(*schedule); !sound.ok()) return sound;
  return schedule;
}

bool IsTrace(const std::string& name) { return absl::EndsWith(name, ".json"); }

// Takes times and sizes of a trace's own jobs, where others are not given.
absl::Status TakeTrace(const SimulateOptions& options, PreparedSimulation* prepared) {
  const auto trace = ReadTrace(options.schedule);
  if (!trace.ok()) return InFile(trace.status());
  const int stages = prepared->run.schedule.scheme.stages;
  SimulationOptions& costs = prepared->run.costs;
  if (!AnyBytes(costs) && trace->activation_bytes.size() == static_cast<size_t>(stages))
    costs.activation = trace->activation_bytes;
  if (AnyGiven(options.simulation.duration)) return absl::OkStatus();
  costs.duration = MeanDurations(trace->jobs, stages);
  prepared->times = "the mean times of the trace's jobs, in the order in which they started";
  prepared->unit = trace->measured ? "s" : "";
  if (trace->measured) return absl::OkStatus();
  for (auto& of_kind : costs.duration) {
    for (double& time : of_kind) time *= 1e3;  // a unit is drawn as a millisecond
  }
  return absl::OkStatus();
}

// Gives a schedule the network of the flag.
absl::Status UseNetwork(const SimulateOptions& options, SimulationOptions* costs) {
  if (options.network.empty()) return absl::OkStatus();
  const auto network = ReadNetworkFile(options.network);
  if (!network.ok()) return InFile(network.status());
  const bool widths = network->bandwidth > 0 || network->network.bandwidth_between > 0;
  if (widths && !AnyBytes(*costs)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the bandwidth of ", options.network,
        " has no effect, because nothing has a size; give --activation and --weight, a --profile, "
        "or a run file"));
  }
  ApplyNetwork(*network, costs);
  return absl::OkStatus();
}

// Prepares a schedule with the options beside it.
absl::StatusOr<PreparedSimulation> PrepareSchedule(const SimulateOptions& options) {
  auto schedule = MakeCheckedSchedule(options);
  if (!schedule.ok()) return schedule.status();
  PreparedSimulation prepared;
  prepared.run.schedule = *std::move(schedule);
  SimulationOptions& costs = prepared.run.costs = options.simulation;
  costs.duration = Completed(options.simulation.duration);
  prepared.times = TimesText(costs.duration, prepared.run.schedule.scheme.split_backward);
  if (!options.profile.empty()) {
    const auto profile = ReadProfile(options.profile);
    if (!profile.ok()) return InFile(profile.status());
    const int stages = prepared.run.schedule.scheme.stages;
    std::vector<int> layers = LayersOfPlan(options.schedule);
    if (layers.size() != static_cast<size_t>(stages))
      layers.clear();  // another cut than the plan's is asked for
    const absl::Status applied = ApplyToSchedule(*profile, layers, &prepared.run.schedule, &costs);
    if (!applied.ok()) return absl::DataLossError(absl::StrCat(options.profile, ": ", applied.message()));
    prepared.times = absl::StrCat("from ", options.profile);
    prepared.unit = profile->unit;
  } else if (IsTrace(options.schedule)) {
    if (absl::Status taken = TakeTrace(options, &prepared); !taken.ok()) return taken;
  }
  if (absl::Status effect = CheckEffect(costs); !effect.ok()) return effect;
  if (absl::Status times = CheckTimes(options, prepared.run.schedule); !times.ok()) return times;
  if (absl::Status used = UseNetwork(options, &costs); !used.ok()) return used;
  if (options.simulation.bandwidth > 0) costs.bandwidth = options.simulation.bandwidth;
  if (options.simulation.latency > 0) costs.latency = options.simulation.latency;
  return prepared;
}

// Returns the run of a run file, with the flags that stand for its keys.
absl::StatusOr<RunSpec> RunOf(const SimulateOptions& options) {
  auto run = ReadRunFile(options.schedule, RunFileData::kIgnored);
  if (!run.ok()) return InFile(run.status());
  if (!options.inputs.empty() || options.from_step >= 0 || AnyBytes(options.simulation)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.schedule,
                     " is a run file: which stages read which, and the sizes, follow from "
                     "its model; give a --profile for other sizes"));
  }
  if (!options.under.empty()) {
    const auto schedule = ParseScheduleText(options.under);
    if (!schedule.ok())
      return absl::InvalidArgumentError(absl::StrCat("--schedule: ", schedule.status().message()));
    const std::string activations = run->schedule.activations;
    run->schedule = *schedule;
    if (schedule->activations == ScheduleSpec().activations) run->schedule.activations = activations;
  }
  if (options.takes_norm) run->train.clip_norm = 1;
  if (options.microbatches > 0) {
    if (run->train.batch % options.microbatches != 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--microbatches %d does not divide the batch of %s, %d samples",
                          options.microbatches, options.schedule, run->train.batch));
    }
    run->train.microbatches = options.microbatches;
  }
  return options.stages > 0 ? Recut(*run, options.stages) : run;
}

// Words the reason why the run cannot be simulated: the file asks for what cannot be, or the flags do.
absl::Status OfRunFile(const SimulateOptions& options, const absl::Status& status) {
  const bool memory = IsAboutMemory(status);
  const bool changed = !options.under.empty() || options.stages > 0 || options.microbatches > 0;
  if (!changed && !(memory && options.simulation.memory > 0)) return InFile(status);
  // A run that cannot fit gets the simulator's status.
  return memory ? absl::FailedPreconditionError(status.message())
                : absl::InvalidArgumentError(status.message());
}

absl::StatusOr<PreparedSimulation> PrepareRunFile(const SimulateOptions& options) {
  const auto run = RunOf(options);
  if (!run.ok()) return run.status();
  const SimulationOptions& given = options.simulation;
  const double flops = options.flops > 0 ? options.flops : CostOptions().flops;
  const auto costs = RunCosts::Make({options.profile, flops, given.memory, given.bandwidth, given.latency,
                                     options.network, options.host_bandwidth},
                                    *run);
  if (absl::IsOutOfRange(costs.status())) return absl::InvalidArgumentError(costs.status().message());
  if (!costs.ok()) return InFile(costs.status());
  if (options.host_bandwidth > 0 && !Offloads(run->schedule)) {
    return absl::InvalidArgumentError(
        "--host-bandwidth has no effect, because no stage has `activations: offload`");
  }
  auto of_run = PrepareRun(*run, *costs);
  if (!of_run.ok()) return OfRunFile(options, of_run.status());
  PreparedSimulation prepared;
  prepared.run = *std::move(of_run);
  prepared.run.schedule.scheme.name = absl::StrCat(run->name, ": ", ToText(run->schedule));
  if (absl::Status times = CheckTimes(options, prepared.run.schedule); !times.ok()) return times;
  prepared.default_steps = kPredictedSteps;
  prepared.unit = costs->UnitOf();
  prepared.times = costs->profiled() ? absl::StrCat("from ", options.profile)
                                     : absl::StrCat("the model's counted FLOPs; 1 is ", costs->UnitOf(),
                                                    " (--profile for measured times)");
  if (given.overlapped > 0) prepared.run.costs.overlapped = given.overlapped;
  for (const JobKind kind : {JobKind::kReduce, JobKind::kUpdate}) {
    const std::vector<double>& time = Of(given.duration, kind);
    if (time != std::vector<double>{0}) Of(prepared.run.costs.duration, kind) = time;
  }
  if (!AnyGiven(given.duration)) return prepared;
  Times times = Completed(given.duration);
  prepared.run.costs.duration = times;
  prepared.times = TimesText(times, prepared.run.schedule.scheme.split_backward);
  prepared.unit = "";
  prepared.default_steps = 1;
  return prepared;
}

absl::StatusOr<PreparedSimulation> Prepare(const SimulateOptions& options) {
  if (absl::Status flags = CheckFlags(options); !flags.ok()) return flags;
  auto prepared = IsRunFile(options.schedule) ? PrepareRunFile(options) : PrepareSchedule(options);
  if (!prepared.ok()) return prepared;
  const int ranks = prepared->run.schedule.scheme.ranks;
  // The network of a run file is checked with the run.
  if (absl::Status fits = CheckNetwork(prepared->run.costs.network, ranks); !fits.ok()) {
    const std::string& file = options.network.empty() ? options.profile : options.network;
    return absl::DataLossError(absl::StrCat(file, ": ", fits.message()));
  }
  prepared->run.costs.steps =
      options.simulation.steps > 0 ? options.simulation.steps : prepared->default_steps;
  return prepared;
}

std::vector<DrawnJob> Drawn(const SimulationResult& result) {
  std::vector<DrawnJob> jobs;
  jobs.reserve(result.jobs.size());
  for (const SimulatedJob& j : result.jobs) jobs.push_back({j.job, j.rank, j.start, j.end});
  return jobs;
}

std::string Plural(int n, absl::string_view word) { return absl::StrCat(n, " ", word, n == 1 ? "" : "s"); }

std::string Sizes(const PreparedSimulation& prepared) {
  const Schedule& schedule = prepared.run.schedule.scheme;
  return absl::StrCat(Plural(schedule.stages, "stage"), ", ", schedule.microbatches,
                      schedule.microbatches == 1 ? " micro-batch, " : " micro-batches, ",
                      Plural(prepared.run.costs.steps, "step"), ", ", Plural(schedule.ranks, "rank"));
}

// Returns a time in the unit of the simulation: seconds, or a number.
std::string TimeText(const PreparedSimulation& prepared, double time) {
  return prepared.unit == "s" ? FormatSeconds(time) : absl::StrFormat("%.6g", time);
}

DrawingOptions Drawing(const PreparedSimulation& prepared, const SimulationResult& result) {
  DrawingOptions drawing;
  drawing.title = prepared.run.schedule.scheme.name;
  drawing.subtitle = absl::StrFormat("%s; makespan %s, idle %.1f %%", Sizes(prepared),
                                     TimeText(prepared, result.makespan), 100 * result.bubble_ratio);
  drawing.ranks = prepared.run.schedule.scheme.ranks;
  drawing.stages = prepared.run.schedule.scheme.stages;
  drawing.inputs = prepared.run.schedule.terms.inputs;
  drawing.time = prepared.time();
  DrawWaits(result.idle, result.transfers, &drawing);
  return drawing;
}

// Returns "27.3 %: limit 13.6 %, dependency 6.8 %", the largest first.
std::string IdleText(const SimulationResult& result) {
  std::vector<std::pair<double, std::string>> causes;
  const auto by_cause = result.IdleByCause();
  const double area = result.makespan * static_cast<double>(result.ranks.size());
  for (int c = 0; c < kIdleCauses; ++c) {
    if (by_cause[c] > 1e-9 * area)
      causes.emplace_back(-by_cause[c] / area, std::string(IdleCauseName(static_cast<IdleCause>(c))));
  }
  std::sort(causes.begin(), causes.end());
  std::string text = absl::StrFormat("%.1f %%", 100 * result.bubble_ratio);
  for (const auto& [share, cause] : causes) {
    absl::StrAppendFormat(&text, "%s %s %.1f %%", &cause == &causes.front().second ? ":" : ",", cause,
                          -100 * share);
  }
  return text;
}

std::string RankRows(const PreparedSimulation& prepared, const SimulationResult& result) {
  struct Column {
    std::string name;
    std::function<std::string(const RankStats&)> cell;
  };
  const auto time = [&](double value) { return TimeText(prepared, value); };
  std::vector<Column> columns = {{"busy", [&](const RankStats& s) { return time(s.busy); }},
                                 {"idle", [&](const RankStats& s) { return time(s.idle); }}};
  const auto by_cause = result.IdleByCause();
  for (int c = 0; c < kIdleCauses; ++c) {
    if (by_cause[c] <= 1e-9 * result.makespan) continue;
    columns.push_back({std::string(IdleCauseName(static_cast<IdleCause>(c))),
                       [&time, c](const RankStats& s) { return time(s.idle_by_cause[c]); }});
  }
  columns.push_back({"peak act.", [](const RankStats& s) { return absl::StrCat(s.peak_activations); }});
  columns.push_back({"bytes", [](const RankStats& s) { return FormatBytes(s.peak_activation_bytes); }});
  columns.push_back({"held", [](const RankStats& s) { return FormatBytes(s.held_bytes); }});
  columns.push_back({"versions", [](const RankStats& s) { return absl::StrCat(s.peak_weight_versions); }});
  columns.push_back({"act. in", [](const RankStats& s) { return absl::StrCat(s.activation_receives); }});
  columns.push_back({"grad. in", [](const RankStats& s) { return absl::StrCat(s.gradient_receives); }});
  columns.push_back({"weights in", [](const RankStats& s) { return absl::StrCat(s.weight_fetches); }});
  columns.push_back({"received", [](const RankStats& s) { return FormatBytes(s.bytes_received); }});
  columns.push_back({"sent", [](const RankStats& s) { return FormatBytes(s.bytes_sent); }});
  // A column that is 0 on every rank is left out.
  const auto nothing = [&](const Column& column) {
    return std::all_of(result.ranks.begin(), result.ranks.end(), [&](const RankStats& s) {
      const std::string cell = column.cell(s);
      return cell == "0" || cell == "0 B";
    });
  };
  columns.erase(std::remove_if(columns.begin() + 2, columns.end(), nothing), columns.end());
  std::vector<std::string> header = {"rank"};
  for (const Column& column : columns) header.push_back(column.name);
  std::vector<std::vector<std::string>> rows;
  const size_t shown = result.ranks.size() <= kMaxRows + 1 ? result.ranks.size() : kMaxRows;
  for (size_t r = 0; r < shown; ++r) {
    rows.push_back({absl::StrCat(r)});
    for (const Column& column : columns) rows.back().push_back(column.cell(result.ranks[r]));
  }
  std::string table = FormatTable(header, rows, OutputStyle());
  if (shown < result.ranks.size()) {
    absl::StrAppend(&table, "... and ", result.ranks.size() - shown, " more ranks (-o json has them all)\n");
  }
  return table;
}

std::string Table(const PreparedSimulation& prepared, const SimulationResult& result,
                  const std::optional<CommunicationSteps>& communication) {
  const std::string units = prepared.unit == "s" ? "" : " time units";
  std::string out = absl::StrCat(prepared.run.schedule.scheme.name, ": ", Sizes(prepared),
                                 "\ntimes: ", prepared.times, "\n\n");
  absl::StrAppend(&out, "makespan    ", TimeText(prepared, result.makespan), units, "\n");
  absl::StrAppend(&out, "period      ", TimeText(prepared, result.period), " a step\n");
  absl::StrAppend(&out, "idle        ", IdleText(result), "\n");
  absl::StrAppendFormat(&out, "throughput  %.3f of a rank's peak", result.throughput_per_rank);
  if (result.throughput_bound < 1) {
    absl::StrAppendFormat(&out, "; at most %.3f with these activations", result.throughput_bound);
  }
  absl::StrAppend(&out, "\n");
  if (communication.has_value()) {
    absl::StrAppendFormat(&out, "messages    %.6g a step; at most %d after one another between two ticks\n",
                          communication->messages, communication->most);
  }
  absl::StrAppend(&out, "\n");
  if (!result.jobs.empty()) {
    absl::StrAppend(
        &out, DrawLines(LastSteps(Drawn(result), 1), Drawing(prepared, result), 88, OutputStyle().unicode),
        "\n");
  }
  return absl::StrCat(out, RankRows(prepared, result));
}

// Returns true if the jobs are shown; otherwise they are not kept.
bool WantsJobs(const SimulateOptions& options, const PreparedSimulation& prepared) {
  const Schedule& schedule = prepared.run.schedule.scheme;
  const int64_t listed = int64_t{schedule.stages} * schedule.microbatches * prepared.run.costs.steps;
  if (options.output == "json") return options.jobs;
  if (options.output == "table") return schedule.ranks <= kMaxLines && listed <= 1'000'000;
  return true;
}

std::string Render(const SimulateOptions& options, const PreparedSimulation& prepared,
                   const SimulationResult& result, const std::optional<CommunicationSteps>& communication) {
  const Schedule& schedule = prepared.run.schedule.scheme;
  if (options.output == "json") {
    return SimulationJson(prepared.run, prepared.unit, result, options.jobs, communication);
  }
  if (options.output == "table") return Table(prepared, result, communication);
  if (options.output == "operations")
    return OperationRows(Graph(prepared.run.schedule, prepared.run.costs.steps), result.jobs);
  const std::vector<DrawnJob> jobs = Drawn(result);
  DrawingOptions drawing = Drawing(prepared, result);
  if (options.output == "trace") return DrawTrace(jobs, drawing);
  if (options.output == "csv")
    return schedule.order.empty() ? DrawActions(jobs, drawing) : ActionsOfOrder(schedule);
  const std::vector<DrawnJob> shown = LastSteps(jobs, kMaxBoxes);
  if (shown.size() < jobs.size()) absl::StrAppend(&drawing.subtitle, "; the last steps are drawn");
  return DrawSvg(shown, drawing);
}

struct TimedCurve {
  LiveCurve curve;
  DrawnTime time = DrawnTime::kUnits;
};

// Returns the curve of a trace, with the bytes that it has measured unless others are given.
absl::StatusOr<TimedCurve> CurveOfTrace(const SimulateOptions& options) {
  auto trace = ReadTrace(options.schedule);
  if (!trace.ok()) return InFile(trace.status());
  int stages = 0;
  for (const DrawnJob& j : trace->jobs) stages = std::max(stages, j.job.stage + 1);
  TimedCurve timed;
  SimulationOptions costs = options.simulation;
  if (!options.profile.empty()) {
    const auto profile = ReadProfile(options.profile);
    if (!profile.ok()) return InFile(profile.status());
    const absl::Status applied = ApplyProfile(*profile, stages, {}, &costs);
    if (!applied.ok()) return absl::DataLossError(absl::StrCat(options.profile, ": ", applied.message()));
  }
  std::vector<double> activation_bytes = costs.activation;
  if (activation_bytes == std::vector<double>{0}) activation_bytes = trace->activation_bytes;
  if (activation_bytes.empty()) activation_bytes = {0};
  if (activation_bytes.size() != 1 && activation_bytes.size() < static_cast<size_t>(stages)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: sizes of activations are given for %d of its %d stages", options.schedule,
                        activation_bytes.size(), stages));
  }
  timed.time = trace->measured ? DrawnTime::kSeconds : DrawnTime::kUnits;
  for (DrawnJob& j : trace->jobs) {
    if (trace->measured) break;
    j.start *= 1e3;
    j.end *= 1e3;
  }
  timed.curve.name = absl::StrCat(trace->title.empty() ? options.schedule : trace->title,
                                  trace->measured ? ", measured" : ", simulated");
  timed.curve.live = CountLiveActivations(trace->jobs, activation_bytes);
  return timed;
}

absl::StatusOr<TimedCurve> CurveOfSchedule(const SimulateOptions& options) {
  auto prepared = Prepare(options);
  if (!prepared.ok()) return prepared.status();
  PreparedRun& run = prepared->run;
  if (int64_t{run.schedule.scheme.stages} * run.schedule.scheme.microbatches * run.costs.steps >
      kMaxListedJobs) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.schedule, " has too many jobs; ask for fewer --steps"));
  }
  run.costs.record_jobs = true;
  const auto result = SimulateRun(run);
  if (!result.ok()) return result.status();
  TimedCurve timed;
  timed.time = prepared->time();
  timed.curve.name = absl::StrCat(run.schedule.scheme.name, ", simulated");
  timed.curve.live = CountLiveActivations(Drawn(*result), run.costs.activation);
  return timed;
}

// Draws the activations alive over all ranks, of all named schedules in one picture.
absl::StatusOr<std::string> MemoryPicture(const SimulateOptions& options) {
  std::vector<std::string> names = {options.schedule};
  names.insert(names.end(), options.compared.begin(), options.compared.end());
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
  return picture.ok() ? PrintData(*picture) : Fail(CodeOf(picture.status()), picture.status().message());
}

// A simulation has no bound in time, only in memory.
void TellLength(int64_t forwards) {
  if (forwards <= kMaxQuickForwards) return;
  PrintMessage(
      absl::StrCat("simulating ", forwards,
                   " forward jobs takes a minute or more; Ctrl-C stops it, and a few --steps show the "
                   "same period"));
}

}  // namespace

ExitCode RunSimulate(const SimulateOptions& options) {
  if (options.output == "memory") return RunMemoryPicture(options);
  if (!options.compared.empty()) {
    return Fail(kExitUsage, absl::StrCat("give one schedule; only -o memory takes several, and ",
                                         options.compared[0], " is the second"));
  }
  auto prepared = Prepare(options);
  if (!prepared.ok()) return Fail(CodeOf(prepared.status()), prepared.status().message());
  PreparedRun& run = prepared->run;
  run.costs.record_jobs = WantsJobs(options, *prepared);
  const bool rows = options.output == "csv" || options.output == "operations";
  run.costs.record_waits = run.costs.record_jobs && options.output != "table" && !rows;
  const int64_t listed =
      int64_t{run.schedule.scheme.stages} * run.schedule.scheme.microbatches * run.costs.steps;
  if (run.costs.record_jobs && listed > kMaxListedJobs) {
    return Fail(kExitUsage,
                absl::StrCat("listing ", listed, " forward jobs is too much; ask for fewer --steps"));
  }
  if (options.output == "svg" && run.schedule.scheme.ranks > kMaxDrawnRanks) {
    return Fail(kExitUsage, absl::StrFormat("%d ranks are too many to draw; a picture has at most %d",
                                            run.schedule.scheme.ranks, kMaxDrawnRanks));
  }
  TellLength(listed);
  const auto result = SimulateRun(run);
  if (!result.ok()) {
    const absl::Status why =
        IsRunFile(options.schedule) ? OfRunFile(options, result.status()) : result.status();
    return Fail(CodeOf(why), why.message());
  }
  std::optional<CommunicationSteps> communication;
  if (options.communication) {
    const auto counted = CountCommunicationSteps(Graph(run.schedule), SteadySteps(run.schedule.scheme));
    if (!counted.ok()) return Fail(kExitFailed, counted.status().message());
    communication = *counted;
  }
  return PrintData(Render(options, *prepared, *result, communication));
}

}  // namespace weft
