#include "client/files/schedule_file.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/yaml_file.h"
#include "client/files/profile.h"
#include "client/files/text_file.h"
#include "client/files/trace_file.h"
#include "nlohmann/json.hpp"
#include "run/file_section.h"
#include "run/run_schedule.h"
#include "run/run_spec.h"
#include "run/schedule_spec.h"
#include "schedules/check/check.h"
#include "schedules/families/families.h"
#include "schedules/simulator/actions.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMaxActionsBytes = 256 << 20;   // for files that are only simulated
constexpr size_t kMaxEmbeddedBytes = 768 << 10;  // a run's whole specification may have 1 MiB
constexpr size_t kMaxYamlBytes = 1 << 20;
constexpr int kMostOfASize = 1 << 24;
constexpr char kRead[] = "read";  // key of a plan as it is read, with its file and the model that it is for

bool IsYaml(absl::string_view path) { return absl::EndsWith(path, ".yaml") || absl::EndsWith(path, ".yml"); }
bool IsTrace(absl::string_view path) { return absl::EndsWith(path, ".json"); }

// Returns an error with the key as its payload for impossible sizes of a plan.
absl::Status CheckPlanSizes(const Json& plan) {
  const auto is_size = [](const Json& value) {
    return value.is_number_integer() && value > 0 && value <= kMostOfASize;
  };
  const auto fail = [](const std::string& key, const Json& value) {
    return ErrorAt(key,
                   absl::StrCat("must be a whole number from 1 to ", kMostOfASize, ", not ", value.dump()));
  };
  const Json& stages = plan["stages"];
  if (stages.empty()) return ErrorAt("stages", "is an empty list; give the layers of each stage");
  for (size_t s = 0; s < stages.size(); ++s) {
    if (!is_size(stages[s])) return fail(absl::StrCat("stages[", s, "]"), stages[s]);
  }
  if (!plan.contains("microbatches") || is_size(plan["microbatches"])) return absl::OkStatus();
  return fail("microbatches", plan["microbatches"]);
}

absl::Status CheckSizes(const Schedule& schedule, const std::string& path, int stages, int microbatches) {
  if ((stages == 0 || stages == schedule.stages) &&
      (microbatches == 0 || microbatches == schedule.microbatches)) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(
      absl::StrFormat("%s has %d stages and %d micro-batches; give --stages %d --microbatches %d, or neither",
                      path, schedule.stages, schedule.microbatches, schedule.stages, schedule.microbatches));
}

// Makes a schedule from the rows of actions of a trace's step, and from the inputs of its stages.
absl::StatusOr<RunSchedule> ScheduleOfTrace(const std::string& path, int step) {
  auto trace = ReadTrace(path);
  if (!trace.ok()) return trace.status();
  const auto jobs = JobsOfStep(path, *trace, step);
  if (!jobs.ok()) return jobs.status();
  DrawingOptions drawing;
  drawing.ranks = trace->ranks;
  auto schedule = ScheduleFromActions(DrawActions(*jobs, drawing));
  if (!schedule.ok())
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", schedule.status().message()));
  RunTerms terms;
  terms.inputs = std::move(trace->inputs);
  return RunSchedule(*std::move(schedule), std::move(terms));
}

absl::StatusOr<RunSchedule> ScheduleOfRows(const std::string& path) {
  const auto text = ReadTextFile(path, kMaxActionsBytes, "a list of actions");
  if (!text.ok()) return text.status();
  auto schedule = ScheduleFromActions(*text);
  if (!schedule.ok())
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", schedule.status().message()));
  return RunSchedule(*std::move(schedule), RunTerms());
}

absl::StatusOr<RunSchedule> ReadOrder(const std::string& path, const ScheduleFileOptions& options) {
  auto schedule = IsTrace(path) ? ScheduleOfTrace(path, options.from_step) : ScheduleOfRows(path);
  if (!schedule.ok()) return schedule;
  if (!options.inputs.empty()) schedule->terms.inputs = options.inputs;
  const absl::Status sound = CheckSchedule(*schedule);
  if (!sound.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", sound.message()));
  absl::Status fits = CheckSizes(schedule->scheme, path, options.stages, options.microbatches);
  if (!fits.ok()) return fits;
  schedule->scheme.name = path;
  return schedule;
}

absl::StatusOr<RunSchedule> ReadYamlSchedule(const std::string& path, const ScheduleFileOptions& options) {
  const auto text = ReadTextFile(path, kMaxYamlBytes, "a schedule");
  if (!text.ok()) return text.status();
  auto yaml = ParseYaml(*text);
  if (!yaml.ok()) return InYamlFile(path, yaml.status());
  const auto at = [&](const std::string& place, absl::string_view message) {
    return absl::InvalidArgumentError(absl::StrCat(path, ":", yaml->LineOf(place), ": ", message));
  };
  const bool keyed = yaml->json.is_object() && yaml->json.contains("schedule");
  Json& value = keyed ? yaml->json["schedule"] : yaml->json;
  const std::string root = keyed ? "schedule" : "";
  absl::Status status = EmbedActions(fs::path(path).parent_path().string(), value);
  if (!status.ok()) return at(root, status.message());
  const ScheduleSpec spec = ReadSchedule(value, root, status);
  if (!status.ok()) {
    const auto place = status.GetPayload(kPathPayload);
    return at(place.has_value() ? std::string(*place) : root, status.message());
  }
  // A plan lists the layers of its stages.
  const bool planned = keyed && yaml->json.contains("stages") && yaml->json["stages"].is_array();
  if (planned) status = CheckPlanSizes(yaml->json);
  if (!status.ok()) return at(std::string(*status.GetPayload(kPathPayload)), status.message());
  const int stages =
      options.stages == 0 && planned ? static_cast<int>(yaml->json["stages"].size()) : options.stages;
  const bool sized = planned && yaml->json.contains("microbatches");
  const int microbatches =
      options.microbatches == 0 && sized ? yaml->json["microbatches"].get<int>() : options.microbatches;
  if (stages == 0 || microbatches == 0) {
    return absl::OutOfRangeError(absl::StrCat(path, " has no sizes; give them, as in ",
                                              planned ? "" : "--stages 4 ", "--microbatches 8"));
  }
  auto schedule = MakeSchedule(spec, stages, microbatches);
  if (schedule.ok()) {
    schedule->terms.inputs = options.inputs;
    status = CheckSchedule(*schedule);
  }
  if (!schedule.ok()) status = schedule.status();
  if (!status.ok()) return at(PathOfProblem(status, root, spec.name), status.message());
  return schedule;
}

// Checks the sizes of a plan, what it says of its model, and its schedule unless that is in another file.
absl::Status CheckPlanParts(const Json& plan) {
  absl::Status status = CheckPlanSizes(plan);
  const Json::json_pointer weights("/plan/weight_bytes");
  if (status.ok() && plan.contains(weights) && !(plan[weights].is_number() && plan[weights] > 0)) {
    status = ErrorAt("plan.weight_bytes",
                     absl::StrCat("must be the bytes of the model's weights, not ", plan[weights].dump()));
  }
  const Json& schedule = plan["schedule"];
  if (schedule.is_object() && schedule.contains("file") && schedule["file"].is_string()) return status;
  ReadSchedule(schedule, "schedule", status);
  return status;
}

// Returns a number that the plan says of itself, below its key `plan`; 0 where it does not.
double PlannedNumber(const Json& plan, const char* key) {
  const Json::json_pointer at = Json::json_pointer("/plan") / key;
  return plan.contains(at) && plan[at].is_number() ? plan[at].get<double>() : 0;
}

// Returns what the plan predicts for a step of a run, in seconds; 0 where it does not say so.
double PlannedStep(const Json& plan) {
  const Json::json_pointer unit("/plan/unit");
  const bool of_run = plan.contains("microbatches") && plan.contains(unit) && plan[unit] == "s";
  return of_run ? PlannedNumber(plan, "step") : 0;
}

// Puts the plan's buffers into a run that has none of its own.
void TakeBuffers(const Json& plan, Json& run) {
  if (plan.contains("buffers") && !run.contains("buffers")) run["buffers"] = plan["buffers"];
}

}  // namespace

bool IsRunFile(const std::string& path) {
  if (!IsYaml(path)) return false;
  const auto text = ReadTextFile(path, kMaxYamlBytes, "a run file");
  const auto yaml = text.ok() ? ParseYaml(*text) : text.status();
  return yaml.ok() && yaml->json.is_object() && yaml->json.contains("model");
}

bool IsScheduleFile(absl::string_view word) {
  if (absl::StartsWith(word, "custom,")) return false;
  return absl::StrContains(word, '/') || absl::EndsWith(word, ".csv") || IsTrace(word) || IsYaml(word);
}

absl::StatusOr<RunSchedule> ReadScheduleFile(const std::string& path, const ScheduleFileOptions& options) {
  if (options.from_step >= 0 && !IsTrace(path)) {
    return absl::OutOfRangeError(
        absl::StrCat(path, " has no steps to choose from; --from-step is for traces (.json)"));
  }
  if (!IsYaml(path)) return ReadOrder(path, options);
  auto schedule = ReadYamlSchedule(path, options);
  if (schedule.ok()) schedule->scheme.name = path;
  return schedule;
}

absl::Status EmbedActions(const std::string& folder, Json& schedule) {
  if (!schedule.is_object() || !schedule.contains("file") || !schedule["file"].is_string())
    return absl::OkStatus();
  const std::string name = schedule["file"];
  const auto text = ReadTextFile((fs::path(folder) / name).string(), kMaxEmbeddedBytes, "a list of actions");
  if (!text.ok()) return text.status();
  schedule["file"] = {{"path", name}, {"actions", *text}};
  return absl::OkStatus();
}

absl::StatusOr<Json> ReadPlan(const std::string& path) {
  const auto text = ReadTextFile(path, kMaxYamlBytes, "a plan");
  if (!text.ok()) return text.status();
  return ParsePlan(path, *text);
}

absl::StatusOr<Json> ParsePlan(const std::string& path, const std::string& text) {
  const auto yaml = ParseYaml(text);
  if (!yaml.ok()) return InYamlFile(path, yaml.status());
  const Json& plan = yaml->json;
  if (!plan.is_object() || !plan.contains("schedule") || !plan.contains("stages") ||
      !plan["stages"].is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is no plan; it has the keys schedule and stages, as weft plan -o yaml writes them"));
  }
  if (const absl::Status sound = CheckPlanParts(plan); !sound.ok()) {
    const std::string place(sound.GetPayload(kPathPayload).value_or(absl::Cord()));
    return absl::InvalidArgumentError(absl::StrCat(path, ":", yaml->LineOf(place), ": ", sound.message()));
  }
  Json keys = {{"stages", plan["stages"]}};
  keys["schedule"] = plan["schedule"].is_string()
                         ? Json{{plan["schedule"].get<std::string>(), Json::object()}}
                         : plan["schedule"];
  for (const char* key : {"microbatches", "buffers"}) {
    if (plan.contains(key)) keys[key] = plan[key];
  }
  if (const double step = PlannedStep(plan); step > 0 && keys["schedule"].is_object())
    keys["schedule"]["planned_step"] = step;
  keys[kRead] = {{"file", path}, {"weight_bytes", PlannedNumber(plan, "weight_bytes")}};
  return keys;
}

std::vector<int> LayersOfPlan(const std::string& path) {
  std::vector<int> layers;
  if (!IsYaml(path)) return layers;
  const auto plan = ReadPlan(path);
  if (!plan.ok()) return layers;
  for (const Json& count : (*plan)["stages"]) layers.push_back(count.get<int>());
  return layers;
}

absl::StatusOr<Json> EmbedPlan(const std::string& folder, Json& run) {
  if (!run.is_object() || !run.contains("schedule")) return Json();
  const Json& schedule = run["schedule"];
  if (!schedule.is_object() || !schedule.contains("file") || !schedule["file"].is_string()) return Json();
  const std::string name = schedule["file"];
  if (!IsYaml(name)) return Json();
  auto plan = ReadPlan((fs::path(folder) / name).string());
  if (!plan.ok()) return plan.status();
  if (run.contains("stages") && !run["stages"].is_null() && run["stages"] != (*plan)["stages"]) {
    return absl::InvalidArgumentError(absl::StrCat(name, " cuts the layers into stages of ",
                                                   (*plan)["stages"].dump(), ", and the run file says ",
                                                   run["stages"].dump(), "; leave `stages` out"));
  }
  if (plan->contains("microbatches") && run.contains("train") && run["train"].is_object()) {
    Json& own = run["train"]["microbatches"];
    if (own.is_null()) own = (*plan)["microbatches"];
    if (own != (*plan)["microbatches"]) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is for ", (*plan)["microbatches"].dump(),
                                                     " micro-batches in a step, and the "
                                                     "run file says ",
                                                     own.dump(), "; leave `train.microbatches` out"));
    }
  }
  run["stages"] = (*plan)["stages"];
  TakeBuffers(*plan, run);
  Json beside = schedule;  // keys of a schedule beside its name: rule, reduction, activations
  beside.erase("file");
  run["schedule"] = (*plan)["schedule"];
  if (run["schedule"].is_object()) run["schedule"].update(beside);
  return plan;
}

void TakePlan(const Json& plan, Json& run) {
  Json reduction;
  if (run.contains("schedule") && run["schedule"].is_object() && run["schedule"].contains("reduction"))
    reduction = run["schedule"]["reduction"];
  run["schedule"] = plan["schedule"];
  if (!reduction.is_null() && run["schedule"].is_object() && !run["schedule"].contains("reduction"))
    run["schedule"]["reduction"] = reduction;
  run["stages"] = plan["stages"];
  TakeBuffers(plan, run);
  if (plan.contains("microbatches") && run.contains("train") && run["train"].is_object())
    run["train"]["microbatches"] = plan["microbatches"];
}

std::string FileOfPlan(const Json& plan) {
  return plan.is_object() && plan.contains(kRead) ? plan[kRead]["file"].get<std::string>() : "";
}

absl::Status CheckPlanOfModel(const Json& plan, const RunSpec& run) {
  if (FileOfPlan(plan).empty()) return absl::OkStatus();
  const double planned = plan[kRead]["weight_bytes"], own = WeightBytesOf(run);
  if (planned == 0) return absl::OkStatus();  // it does not say for which
  if (planned == own) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is for another model: its weights have %.0f bytes, and those of the run %s %.0f; "
                      "make a plan for this run with weft plan",
                      FileOfPlan(plan), planned, run.name, own));
}

std::string PathOfProblem(const absl::Status& status, const std::string& path, const std::string& name) {
  const auto parameter = status.GetPayload(kParameterPayload);
  if (!parameter.has_value()) return path;
  return absl::StrCat(path, path.empty() ? "" : ".", name, ".", std::string(*parameter));
}

}  // namespace weft
