#include "coordinator/record/train_results.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/durable_file.h"
#include "base/run_files.h"
#include "coordinator/record/loss_curve.h"
#include "coordinator/record/loss_watch.h"
#include "coordinator/record/run_view.h"
#include "nlohmann/json.hpp"
#include "run/model_layers.h"
#include "run/network_spec.h"
#include "run/run_memory.h"
#include "run/stage_cut.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kMaxSimulatedJobs = 4'000'000;
constexpr int64_t kMaxPlannedJobs = 400'000;  // of the simulation whose last steps are kept
constexpr size_t kBoxesOfRank = 80;           // boxes of timeline.svg, about as many as can be told apart
constexpr size_t kLinesShown = 16;            // lines of a rank in its picture
constexpr int kLineColumns = 72;

// Returns a list indexed by rank, of one of the maps of each rank's report.
template <typename Number>
Json ByRank(const std::vector<RankReport>& reports, std::map<std::string, Number> RankReport::*field) {
  Json list = Json::array();
  for (const RankReport& report : reports) {
    Json of_rank = Json::object();
    for (const auto& [name, number] : report.*field) of_rank[name] = number;
    list.push_back(std::move(of_rank));
  }
  return list;
}

Json BytesSent(const std::vector<RankReport>& reports) {
  std::map<std::string, int64_t> sums;
  for (const RankReport& report : reports) {
    for (const auto& [name, bytes] : report.bytes_sent) sums[name] += bytes;
  }
  return sums.empty() ? Json(Json::object()) : Json(sums);
}

// Returns by stage the most bytes that a forward kept on any rank; empty if no rank has reported.
std::vector<int64_t> ActivationBytes(const TrainResults& results) {
  std::vector<int64_t> activation_bytes(results.spec.stages(), 0);
  bool reported = false;
  for (const RankReport& report : results.reports) {
    for (const auto& [stage, bytes] : report.activation_bytes) {
      if (stage >= results.spec.stages()) continue;
      activation_bytes[stage] = std::max(activation_bytes[stage], bytes);
      reported = true;
    }
  }
  return reported ? activation_bytes : std::vector<int64_t>();
}

// Returns by kind of job and stage the most bytes that a job took on any rank.
Json JobBytesJson(const std::vector<RankReport>& reports) {
  std::map<std::pair<JobKind, int32_t>, JobBytes> most;
  for (const RankReport& report : reports) {
    for (const JobBytesOfStage& job : report.job_bytes) {
      JobBytes& of_stage = most.try_emplace({job.kind, job.stage}, job.bytes).first->second;
      of_stage = MostOf(of_stage, job.bytes);
    }
  }
  Json list = Json::array();
  for (const auto& [job, bytes] : most) {
    list.push_back({{"kind", JobKindName(job.first)},
                    {"stage", job.second},
                    {"before", bytes.before},
                    {"buffers", bytes.buffers},
                    {"most", bytes.most},
                    {"left_buffers", bytes.left_buffers},
                    {"left", bytes.left},
                    {"passing", bytes.passing}});
  }
  return list;
}

DrawingOptions Drawing(const TrainResults& results) {
  DrawingOptions drawing;
  drawing.title = absl::StrCat(results.spec.name, ": ", ToText(results.spec.schedule));
  drawing.ranks = results.ranks;
  drawing.stages = results.spec.stages();
  drawing.inputs = StageInputs(CountLayers(results.spec.model), results.spec.layers_of_stage);
  drawing.activation_bytes = ActivationBytes(results);
  drawing.time = DrawnTime::kSeconds;
  drawing.zero_unix_ns = results.first_start_unix_ns;
  DrawWaits(results.idle, results.transfers, &drawing);
  return drawing;
}

// Returns the options with the planned jobs beside these.
DrawingOptions DrawingWithPlan(const TrainResults& results, const std::vector<DrawnJob>& jobs) {
  DrawingOptions drawing = Drawing(results);
  drawing.planned = PlannedBeside(results.predicted.jobs, jobs);
  return drawing;
}

std::string LastStepPicture(const TrainResults& results, const TextStyle& style) {
  DrawingOptions drawing = Drawing(results);
  std::vector<DrawnJob> jobs = LastSteps(results.jobs, 1);
  if (jobs.empty()) return "";
  drawing.ranks = std::min(drawing.ranks, static_cast<int>(kLinesShown));
  jobs.erase(
      std::remove_if(jobs.begin(), jobs.end(), [&](const DrawnJob& j) { return j.rank >= drawing.ranks; }),
      jobs.end());
  return absl::StrCat("\nthe last step, measured:\n", DrawLines(jobs, drawing, kLineColumns, style.unicode));
}

std::string Svg(const TrainResults& results) {
  const std::vector<DrawnJob> jobs = LastSteps(results.jobs, kBoxesOfRank * results.ranks);
  DrawingOptions drawing = DrawingWithPlan(results, jobs);
  if (!jobs.empty()) {
    int32_t first = jobs.front().job.step, last = first;
    for (const DrawnJob& j : jobs) {
      first = std::min(first, j.job.step);
      last = std::max(last, j.job.step);
    }
    drawing.subtitle = absl::StrFormat(
        "measured, %s of %d; %d stages, %d micro-batches, %d ranks on %d processes",
        first == last ? absl::StrCat("step ", last) : absl::StrCat("steps ", first, " to ", last),
        results.spec.train.steps, results.spec.stages(), results.spec.train.microbatches, results.ranks,
        results.processes);
  }
  return DrawSvg(jobs, drawing);
}

// Names the steps of the run file that these are, where they are not all.
std::string StepsText(const RunSpec& spec) {
  if (spec.steps_to_make() == spec.train.steps) return "";
  return absl::StrCat(" (", spec.first_step(), " to ", spec.end_step() - 1, " of ", spec.train.steps, ")");
}

// Writes the ranks' actions in the last step. Writes nothing where a step has more jobs than are kept.
absl::Status WriteActions(const TrainResults& results, const std::string& path) {
  const std::vector<DrawnJob> jobs = LastSteps(results.jobs, 1);
  return jobs.empty() ? absl::OkStatus() : WriteWholeFile(path, DrawActions(jobs, Drawing(results)));
}

// Removes only the files that a checkpoint is made of, and the folder if that leaves nothing in it.
void RemoveCheckpointFiles(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const std::string extension = entry.path().extension().string();
    const bool tensors =
        name.rfind("stage", 0) == 0 && (extension == ".safetensors" || extension == ".slice");
    if (tensors || name == "model.safetensors.index.json") fs::remove(entry.path(), ignored);
  }
  fs::remove(folder, ignored);
}

void RemoveCheckpoint(const fs::path& folder) {
  RemoveCheckpointFiles(folder / "state");
  RemoveCheckpointFiles(folder);
}

// Returns the lines about what did not go as planned; "" if all did.
std::string TroubleText(const TrainResults& r) {
  std::string out;
  if (r.restarts > 0) {
    absl::StrAppend(&out, "restarts     ", r.restarts,
                    ": a process or a data link was lost, or a process left or came back",
                    r.non_finite_steps > 0 ? ", or a number was not finite\n" : "\n");
  }
  if (r.non_finite_steps > 0) {
    absl::StrAppend(&out, "given up     ", r.non_finite_steps, r.non_finite_steps == 1 ? " step" : " steps",
                    " with a number that was not finite, and made again\n");
  }
  if (r.skipped_steps > 0) {
    absl::StrAppend(&out, "skipped      ", r.skipped_steps, r.skipped_steps == 1 ? " step" : " steps",
                    " whose gradient was not finite\n");
  }
  return out;
}

// Returns by stage the duration of a job on a rank of speed 1, as a part of the mean over the ranks that do
// such jobs.
std::vector<double> SpeedFactors(const NetworkSpec& network, const Graph& graph, JobKind kind) {
  std::vector<double> factors;
  const Schedule& schedule = graph.schedule();
  for (int s = 0; s < schedule.stages; ++s) {
    std::vector<Rank> ranks;
    for (int b = 0; HasMicrobatch(kind) && b < schedule.microbatches; ++b)
      ranks.push_back(schedule.compute(Job::Compute(0, s, b, kind)));
    if (!HasMicrobatch(kind)) ranks = graph.members(s);
    double slowness = 0;
    for (const Rank rank : ranks) slowness += 1 / network.network.SpeedOf(rank);
    factors.push_back(ranks.empty() ? 1 : static_cast<double>(ranks.size()) / slowness);
  }
  return factors;
}

// Adds the figures under names that differ from those of a training.
void AddFigures(const Validation& validation, Json* json) {
  (*json)["validation_loss"] = validation.loss;
  for (const auto& [name, value] : validation.metrics) (*json)[absl::StrCat("validation_", name)] = value;
}

}  // namespace

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  const size_t index = std::min(values.size() - 1, rank == 0 ? 0 : rank - 1);
  std::nth_element(values.begin(), values.begin() + index, values.end());
  return values[index];
}

SimulationOptions CostsOfRun(const RunSpec& spec, const RunSchedule& schedule,
                             const JobDurations& durations) {
  SimulationOptions costs;
  costs.duration = durations;
  if (!spec.network.has_value()) return costs;
  ApplyNetwork(*spec.network, &costs);
  costs.output.clear();
  costs.weight.clear();
  for (const StageMemory& stage : CountStages(spec)) {
    costs.output.push_back(static_cast<double>(stage.output));
    costs.weight.push_back(static_cast<double>(stage.parameters));
  }
  const Graph graph(schedule);
  for (int k = 0; k < kJobKinds; ++k) {
    const std::vector<double> factors = SpeedFactors(*spec.network, graph, static_cast<JobKind>(k));
    for (size_t s = 0; s < costs.duration[k].size() && s < factors.size(); ++s)
      costs.duration[k][s] *= factors[s];
  }
  return costs;
}

absl::StatusOr<Prediction> PredictionFrom(const RunSchedule& schedule, int steps, int kept,
                                          SimulationOptions options) {
  const Graph graph(schedule);
  // A few steps show the period; more would only take longer.
  const int64_t affordable = kMaxSimulatedJobs / std::max(1, graph.jobs_per_step());
  options.steps = static_cast<int>(std::clamp<int64_t>(std::min<int64_t>(steps, affordable), 1, 8));
  const int64_t listed = int64_t{options.steps} * graph.jobs_per_step();
  options.record_jobs = listed <= kMaxPlannedJobs;
  const auto result = Simulate(graph, options);
  if (!result.ok()) return result.status();
  Prediction prediction{result->period, PredictedIdle(*result), {}};
  for (const SimulatedJob& j : result->jobs) {
    if (j.job.step >= options.steps - kept) prediction.jobs.push_back({j.job, j.rank, j.start, j.end});
  }
  return prediction;
}

std::vector<DrawnJob> PlannedBeside(std::vector<DrawnJob> planned, const std::vector<DrawnJob>& measured) {
  const auto window = [](const std::vector<DrawnJob>& jobs) {
    int first = std::numeric_limits<int>::max(), last = -1;
    for (const DrawnJob& j : jobs) {
      first = std::min(first, j.job.step);
      last = std::max(last, j.job.step);
    }
    return std::pair(first, last);
  };
  const auto begin = [](const std::vector<DrawnJob>& jobs, int first) {
    double start = std::numeric_limits<double>::infinity();
    for (const DrawnJob& j : jobs) {
      if (j.job.step >= first) start = std::min(start, j.start);
    }
    return start;
  };
  if (planned.empty() || measured.empty()) return {};
  const auto [first_planned, last_planned] = window(planned);
  const auto [first_measured, last_measured] = window(measured);
  const int steps = std::min(last_planned - first_planned, last_measured - first_measured) + 1;
  const int first = last_planned - steps + 1;
  const int renumber = last_measured - last_planned;
  const double shift = begin(measured, last_measured - steps + 1) - begin(planned, first);
  std::vector<DrawnJob> beside;
  for (DrawnJob& j : planned) {
    if (j.job.step < first) continue;
    j.job.step += renumber;
    j.start += shift;
    j.end += shift;
    beside.push_back(j);
  }
  return beside;
}

std::string TraceText(const TrainResults& results) {
  return DrawTrace(results.jobs, DrawingWithPlan(results, results.jobs));
}

std::string StepLine(const StepRecord& step) {
  Json line = {{"step", step.step}};
  line["loss"] = step.has_loss ? Json(step.loss) : Json();
  if (step.gradient_norm.has_value()) line["gradient_norm"] = *step.gradient_norm;
  if (step.skipped) line["skipped"] = true;
  line["seconds"] = step.seconds;
  line["end_seconds"] = step.end_seconds;
  return line.dump();
}

std::string ValidationLine(const Validation& validation) {
  Json line = {{"step", validation.step}};
  AddFigures(validation, &line);
  line["validation_samples"] = validation.samples;
  return line.dump();
}

Json SummaryJson(const TrainResults& r) {
  Json json = {{"name", r.spec.name}, {"final_loss", r.final_loss}, {"first_loss", r.first_loss}};
  json["first_step"] = r.spec.first_step();
  json["steps"] = r.step_seconds.size();
  if (!r.reference) json["restarts"] = r.restarts;
  if (r.non_finite_steps > 0) json["non_finite_steps"] = r.non_finite_steps;
  if (r.spec.train.non_finite == NonFinite::kSkip) json["skipped_steps"] = r.skipped_steps;
  if (r.validation.has_value()) {
    json["validation_step"] = r.validation->step;
    AddFigures(*r.validation, &json);
  }
  json["seconds"] = r.seconds;
  json["step_seconds"] = {{"p50", Percentile(r.step_seconds, 0.5)},
                          {"p99", Percentile(r.step_seconds, 0.99)}};
  json["samples_per_second"] =
      r.seconds > 0 ? static_cast<double>(r.step_seconds.size()) * r.spec.train.batch / r.seconds : 0;
  json["schedule"] = r.reference ? "reference" : ToText(r.spec.schedule);
  json["stages"] = r.spec.stages();
  json["microbatches"] = r.spec.train.microbatches;
  json["ranks"] = r.ranks;
  json["processes"] = r.processes;
  if (!r.reference) {
    if (r.spec.schedule.planned_step > 0) json["planned_step_seconds"] = r.spec.schedule.planned_step;
    json["predicted_step_seconds"] = r.predicted.step_seconds;
    if (!r.reduction.empty()) json["reduction"] = r.reduction;
    json["bytes_sent"] = BytesSent(r.reports);
    json["peak_bytes"] = ByRank(r.reports, &RankReport::peak_bytes);
    json["most_bytes"] = Json::array();
    json["activation_bytes"] = ActivationBytes(r);
    json["job_bytes"] = JobBytesJson(r.reports);
    json["idle_seconds"] = ByRank(r.reports, &RankReport::idle_seconds);
    json["idle_share"] = {{"measured", MeasuredIdle(r.reports)}, {"predicted", r.predicted.idle}};
    json["busy_seconds"] = ByRank(r.reports, &RankReport::busy_seconds);
    json["wall_seconds"] = Json::array();
    json["peak_activations"] = Json::array();
    json["peak_weight_versions"] = Json::array();
    for (const RankReport& report : r.reports) {
      json["wall_seconds"].push_back(report.wall_seconds);
      json["most_bytes"].push_back(report.most_bytes);
      json["peak_activations"].push_back(report.peak_activations);
      json["peak_weight_versions"].push_back(report.peak_weight_versions);
    }
  }
  json["run"] = ToJson(r.spec);
  return json;
}

std::string SummaryText(const TrainResults& r, const std::string& folder, const TextStyle& style,
                        const std::string& resume) {
  std::string out = absl::StrCat(
      Heading(absl::StrFormat("%s: %d steps%s in %s%s", r.spec.name, r.step_seconds.size(), StepsText(r.spec),
                              FormatSeconds(r.seconds), r.reference ? ", as one plain loop" : ""),
              style),
      "\n\n");
  absl::StrAppend(&out, "loss         ", LossText(r.first_loss), " -> ", LossText(r.final_loss), "\n");
  if (r.validation.has_value()) {
    absl::StrAppendFormat(&out, "validation   %s on %d samples, after step %d\n", FiguresText(*r.validation),
                          r.validation->samples, r.validation->step);
  }
  absl::StrAppend(&out, TroubleText(r));
  absl::StrAppendFormat(&out, "step time    p50 %s, p99 %s\n", FormatSeconds(Percentile(r.step_seconds, 0.5)),
                        FormatSeconds(Percentile(r.step_seconds, 0.99)));
  if (!r.reference && r.spec.schedule.planned_step > 0) {
    absl::StrAppendFormat(&out, "planned      %s a step, by the plan that it runs\n",
                          FormatSeconds(r.spec.schedule.planned_step));
  }
  if (!r.reference) {
    absl::StrAppendFormat(&out, "predicted    %s a step, by the simulator from this run's own job times\n",
                          FormatSeconds(r.predicted.step_seconds));
  }
  absl::StrAppendFormat(
      &out, "throughput   %.4g samples a second\n",
      r.seconds > 0 ? static_cast<double>(r.step_seconds.size()) * r.spec.train.batch / r.seconds : 0);
  if (!r.reference) {
    std::string sent;
    const Json by_kind = BytesSent(r.reports);
    for (const auto& [kind, bytes] : by_kind.items()) {
      if (bytes == 0) continue;
      absl::StrAppend(&sent, sent.empty() ? "" : ", ", kind, " ", FormatBytes(bytes.get<double>()));
    }
    const auto line = [&](absl::string_view name, const std::string& text) {
      absl::StrAppend(&out, WrapText(absl::StrCat(name, text), style.width, static_cast<int>(name.size())),
                      "\n");
    };
    line("schedule     ", absl::StrFormat("%s: %d %s on %d %s", ToText(r.spec.schedule), r.ranks,
                                          r.ranks == 1 ? "rank" : "ranks", r.processes,
                                          r.processes == 1 ? "process" : "processes"));
    if (!r.reduction.empty()) line("reduction    ", r.reduction);
    line("sent         ", sent.empty() ? "nothing" : sent);
    absl::StrAppend(&out, "\n", RankTable(r.reports, style), "\n",
                    IdleTable(MeasuredIdle(r.reports), r.predicted.idle, style),
                    CoresNote(r.ranks, r.cores == 0 ? r.ranks : r.cores), LastStepPicture(r, style));
  }
  absl::StrAppend(&out, "\nLook at\n", "  ", folder, "/summary.json   every figure of the run\n", "  ",
                  folder, "/steps.jsonl    loss and time of each step\n", "  ", folder,
                  "/loss.svg       the loss as a picture\n");
  if (!r.reference) {
    absl::StrAppend(&out, "  ", folder, "/timeline.svg   the last steps as a picture\n", "  ", folder,
                    "/trace.json     the same for https://ui.perfetto.dev\n", "  ", folder,
                    "/actions.csv    the last step's jobs in their order, one row a rank\n");
  }
  if (r.spec.checkpoint.none) return out;
  absl::StrAppend(&out, "  ", folder, "/checkpoint     the weights (safetensors)",
                  r.spec.first_step() == 0 ? "; checkpoint-0: the initial ones\n" : "\n");
  if (r.spec.end_step() == r.spec.train.steps || resume.empty()) return out;
  return absl::StrCat(out, "\n`", resume, "` goes on with step ", r.spec.end_step(), "\n");
}

absl::Status KeepCheckpoint(const std::string& folder, ResumeSpec* resume) {
  const fs::path own = fs::path(folder) / "checkpoint";
  std::error_code error;
  if (resume->checkpoint.empty() || !fs::equivalent(resume->checkpoint, own, error)) return absl::OkStatus();
  const fs::path kept = fs::path(folder) / absl::StrCat("checkpoint-", resume->step);
  RemoveCheckpoint(kept);
  fs::rename(own, kept, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("cannot keep the checkpoint ", own.string(), " as ",
                                                   kept.string(), ": ", error.message(),
                                                   "; give another folder with --out"));
  }
  resume->checkpoint = kept.string();
  return absl::OkStatus();
}

std::string StepsMade(const RunSpec& spec, size_t steps) {
  std::string text = absl::StrCat(steps, " of ", spec.steps_to_make(), " steps");
  if (spec.first_step() == 0) return text;
  return absl::StrCat(text, " (resumed at step ", spec.first_step(), "; ", spec.first_step() + steps, " of ",
                      spec.train.steps, " are made)");
}

absl::StatusOr<RunTrace> ReadRunTrace(const std::string& folder) {
  std::ifstream run_file = RunFileToRead(folder + "/run.json");
  const Json run = Json::parse(run_file, nullptr, /*allow_exceptions=*/false);
  std::ifstream trace_file = RunFileToRead(folder + "/trace.json");
  std::ostringstream trace;
  trace << trace_file.rdbuf();
  if (!run.is_object() || !run.contains("run") || !trace_file)
    return absl::NotFoundError(absl::StrCat("a run that has made a step leaves run.json and trace.json in ",
                                            folder, ", which are not there now"));
  std::ifstream summary_file = RunFileToRead(folder + "/summary.json");
  const std::string summary{std::istreambuf_iterator<char>(summary_file), std::istreambuf_iterator<char>()};
  return RunTrace{run["run"].dump(), std::move(trace).str(), summary};
}

absl::Status WriteSummary(const TrainResults& results, const std::string& folder) {
  return WriteWholeFile(folder + "/summary.json", SummaryJson(results).dump(2) + "\n");
}

std::vector<std::string> WriteTraces(const TrainResults& results, const std::string& folder) {
  std::vector<std::string> lost;
  const auto note = [&](const absl::Status& written) {
    if (!written.ok()) lost.emplace_back(written.message());
  };
  note(WriteLossPicture(
      folder, absl::StrCat(results.spec.name, results.reference ? ": loss of the plain loop" : ": loss")));
  if (results.reference) return lost;
  note(WriteActions(results, folder + "/actions.csv"));
  note(WriteWholeFile(folder + "/timeline.svg", Svg(results)));
  note(WriteWholeFile(folder + "/trace.json", TraceText(results)));
  return lost;
}

}  // namespace weft
