#include "client/files/run_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/path_text.h"
#include "base/yaml_file.h"
#include "client/files/absolute_path.h"
#include "client/files/exported_folder.h"
#include "client/files/predicted_run.h"
#include "client/files/profile.h"
#include "client/files/schedule_file.h"
#include "run/file_section.h"
#include "run/run_schedule.h"
#include "schedules/check/check.h"
#include "schedules/families/families.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMaxRunFileBytes = 1 << 20;
constexpr int kMaxAutoRanks = 128;
constexpr double kMaxAutoSeconds = 3600;

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a folder, not a run file"));
  }
  // A pipe that nobody writes into must not hold the program up.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": cannot read the run file: ", std::strerror(errno)));
  }
  struct stat info {};
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(file);
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file, so it is not a run file"));
  }
  std::string text(kMaxRunFileBytes + 1, '\0');
  size_t size = 0;
  for (ssize_t n = 1; n > 0 && size != text.size();) {
    n = read(file, text.data() + size, text.size() - size);
    if (n > 0) size += static_cast<size_t>(n);
  }
  close(file);
  text.resize(size);
  if (text.size() > kMaxRunFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is larger than 1 MiB, so it is not a run file"));
  }
  return text;
}

// The texts of a file that are paths, as pointers into its JSON.
constexpr const char* kPaths[] = {"/weights",
                                  "/data/text/path",
                                  "/data/idx/images",
                                  "/data/idx/labels",
                                  "/data/cifar10/path",
                                  "/validate/data/text/path",
                                  "/validate/data/idx/images",
                                  "/validate/data/idx/labels",
                                  "/validate/data/cifar10/path"};

// Returns the same of this file: the files of an exported model's fields have the fields' names, and it may
// have several libraries.
std::vector<Json::json_pointer> PathsOf(const Json& json) {
  std::vector<Json::json_pointer> paths;
  for (const char* pointer : kPaths) paths.emplace_back(pointer);
  for (const char* pointer : {"/data/arrays", "/validate/data/arrays"}) {
    const Json::json_pointer arrays(pointer);
    if (!json.contains(arrays) || !json[arrays].is_object()) continue;
    for (const auto& item : json[arrays].items()) {
      const Json& files = item.value();  // one, or a list
      if (!files.is_array()) paths.push_back(arrays / item.key());
      for (size_t i = 0; files.is_array() && i < files.size(); ++i) paths.push_back(arrays / item.key() / i);
    }
  }
  const Json::json_pointer plugins("/plugins");
  for (size_t i = 0; json.contains(plugins) && json[plugins].is_array() && i < json[plugins].size(); ++i)
    paths.push_back(plugins / i / "library");
  return paths;
}

bool IsCifar10(const Json::json_pointer& where) {
  return !where.parent_pointer().empty() && where.parent_pointer().back() == "cifar10";
}

std::string DottedPath(const Json::json_pointer& pointer) {
  std::string path = pointer.to_string().substr(1);
  for (char& c : path) c = c == '/' ? '.' : c;
  return path;
}

void ResolvePaths(const fs::path& folder, Json& json) {
  for (const Json::json_pointer& where : PathsOf(json)) {
    // `contains` wants sections all the way down; anything else is the parser's to refuse.
    if (!json.contains(where) || !json[where].is_string()) continue;
    const std::string text = json[where];
    if (!text.empty()) json[where] = AbsolutePath(folder / text);
  }
}

// Returns the file's name as a run's name, with '-' for letters that a run's name may not have.
std::string NameOf(const std::string& path) {
  std::string name = fs::path(path).stem().string().substr(0, 63);
  for (char& c : name) c = absl::ascii_isalnum(c) || c == '_' || c == '.' ? c : '-';
  return !name.empty() && absl::ascii_isalnum(name[0]) ? name : "run";
}

absl::Status CheckReadable(const std::string& path, bool may_be_folder) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    if (may_be_folder) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(path, " is a folder, not a file"));
  }
  if (fs::exists(path, error) && !fs::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  errno = 0;
  if (std::ifstream(path, std::ios::binary)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
}

// Makes the schedule and checks that it fits the stages and micro-batches and can run to its end.
absl::StatusOr<RunSchedule> FittingSchedule(const RunSpec& spec, RunFileData data, const Json* plan) {
  // A user who only simulates may be looking for a budget that fits. A plan on one rank stands for another
  // schedule, or for none.
  const bool must_fit = data != RunFileData::kIgnored && (plan == nullptr || *plan != PlanOnOneRank());
  if (must_fit || spec.memory == 0) return CheckedScheduleOf(spec);
  RunSpec run = spec;
  run.memory = 0;
  return CheckedScheduleOf(run);
}

// Returns "; memory: 34MiB would do" for a run that does not fit, if a budget is found with which it does.
std::string Enough(const RunSpec& run, const absl::Status& fits) {
  const auto counted = RunCosts::Make({}, run);
  if (run.memory <= 0 || !IsAboutMemory(fits) || !counted.ok()) return "";
  const std::optional<double> enough = MemoryThatFits(run, *counted);
  return enough.has_value() ? absl::StrCat("; memory: ", ByteFlag(*enough), " would do") : "";
}

// Says what a file is that holds a schedule and no run: the names at its top would be unknown keys.
absl::Status CheckHasRun(const Json& json) {
  if (!json.is_object() || json.contains("model")) return absl::OkStatus();
  const std::vector<std::string> schedules = ScheduleNames();
  for (const auto& item : json.items()) {
    if (std::find(schedules.begin(), schedules.end(), item.key()) == schedules.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the file holds the schedule ", item.key(),
                     " and no run; weft simulate shows it, and to train with it put it below `schedule:` of "
                     "a run file"));
  }
  return absl::OkStatus();
}

bool IsAuto(const Json& run) {
  if (!run.is_object() || !run.contains("schedule")) return false;
  const Json& schedule = run["schedule"];
  return schedule == "auto" || (schedule.is_object() && schedule.contains("auto"));
}

// Puts the plan into the run; where the schedule is `auto` and there is none, that of the run's results.
// Returns it; null for none.
absl::StatusOr<Json> PutPlan(const Json* plan, Json& run) {
  if (plan != nullptr) {
    TakePlan(*plan, run);
    return *plan;
  }
  if (!IsAuto(run)) return Json();
  const std::string left =
      absl::StrCat("out/", run["name"].is_string() ? run["name"].get<std::string>() : "", "/plan.yaml");
  std::error_code error;
  if (!fs::exists(left, error)) {
    return absl::InvalidArgumentError(absl::StrCat("auto is planned by weft train, which leaves ", left,
                                                   " there, and by weft plan; other commands "
                                                   "take such a plan as schedule: {file: plan.yaml}"));
  }
  auto read = ReadPlan(left);
  if (read.ok()) TakePlan(*read, run);
  return read;
}

// Puts `plan` into the run, or a plan or rows of actions in the place of their file's name. Returns the plan;
// null for none. The failure has its key as its payload.
absl::StatusOr<Json> EmbedSchedule(const std::string& folder, const Json* plan, Json& run) {
  if (!run.is_object()) return Json();
  auto put = PutPlan(plan, run);
  if (!put.ok()) return ErrorAt("schedule", put.status().message());
  if (!run.contains("schedule")) return put;
  auto read = EmbedPlan(folder, run);
  const absl::Status embedded = read.ok() ? EmbedActions(folder, run["schedule"]) : read.status();
  if (!embedded.ok()) return ErrorAt("schedule.file", embedded.message());
  return read->is_null() ? put : read;
}

// Ends a message about a file that is not there.
constexpr char kRelativePath[] = "; a relative path starts at the folder of the run file";

// The profile that a run file names for its buffers.
struct NamedProfile {
  std::string path;
  Profile profile;
};

// Puts the measured buffers of a profile in the place of its file's name. Returns nothing where the run names
// none.
absl::StatusOr<std::optional<NamedProfile>> EmbedBuffers(const fs::path& folder, Json& run) {
  if (!run.is_object() || !run.contains("buffers") || !run["buffers"].is_string()) return std::nullopt;
  const fs::path named = run["buffers"].get<std::string>();
  std::string path = (folder / named).string();
  auto profile = ReadProfileWithBuffers(path);
  std::error_code error;
  if (!profile.ok() && named.is_relative() && !fs::exists(path, error))
    return absl::InvalidArgumentError(absl::StrCat(profile.status().message(), kRelativePath));
  if (!profile.ok()) return profile.status();
  run["buffers"] = ToJson(*profile->buffers);
  return NamedProfile{std::move(path), *std::move(profile)};
}

// Checks that the files of the run can be read. `written` is the run as its file has it. The failure
// has the key as its payload.
absl::Status CheckFilesReadable(const Json& run, const Json& written) {
  for (const Json::json_pointer& where : PathsOf(run)) {
    if (!run.contains(where)) continue;
    const absl::Status readable = CheckReadable(run[where], where.back() == "weights" || IsCifar10(where));
    if (readable.ok()) continue;
    const bool relative = fs::path(std::string(written[where])).is_relative();
    return ErrorAt(DottedPath(where), absl::StrCat(readable.message(), relative ? kRelativePath : ""));
  }
  return absl::OkStatus();
}

// Returns true if the plan gave the run's key at the place, or the number that the key was checked against.
bool PlanGives(const Json& plan, const Json& written, const std::string& place) {
  const std::string key = place.substr(0, place.find_first_of(".["));
  if (key == "schedule" || key == "stages") return true;
  if (key == "buffers") return !written.contains("buffers");
  return plan.contains("microbatches") && (place == "train.microbatches" || place == "train.batch");
}

// Returns the fault of a run file's key with its line, and with the file of the plan that gave the key. If
// the plan `replaced` what the run file says, the line would blame another text.
absl::Status FaultAt(const std::string& path, const YamlFile& yaml, const Json& plan, bool replaced,
                     const std::string& place, absl::string_view message) {
  const std::string file = FileOfPlan(plan);
  const auto at_line = [&](const std::string& key) {
    return absl::StrCat(path, ":", yaml.LineOf(key), ": ");
  };
  if (file.empty() || !PlanGives(plan, yaml.json, place))
    return absl::InvalidArgumentError(absl::StrCat(at_line(place), message));
  const std::string where = place == "train.batch" ? at_line(place)
                            : replaced             ? absl::StrCat(path, ": ")
                                                   : at_line("schedule");
  const bool named = absl::StrContains(message, file);
  return absl::InvalidArgumentError(
      absl::StrCat(where, named ? "" : absl::StrCat("with the plan ", file, ": "), message));
}

absl::StatusOr<ScheduledRun> ParseScheduledRun(const std::string& path, const std::string& text,
                                               RunFileData data, const Json* plan) {
  if (absl::Status text_of_path = CheckPathText(path); !text_of_path.ok()) return text_of_path;
  auto yaml = ParseYaml(text);
  if (!yaml.ok()) return InYamlFile(path, yaml.status());
  Json json = yaml->json;
  if (const absl::Status run = CheckHasRun(json); !run.ok())
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", run.message()));
  if (json.is_object() && !json.contains("name")) json["name"] = NameOf(path);
  ResolvePaths(fs::path(path).parent_path(), json);
  const absl::StatusOr<Json> planned = EmbedSchedule(fs::path(path).parent_path().string(), plan, json);
  const Json source = plan != nullptr ? *plan : planned.value_or(Json());
  const auto at = [&](const std::string& place, absl::string_view message) {
    return FaultAt(path, *yaml, source, plan != nullptr, place, message);
  };
  if (!planned.ok())
    return at(std::string(*planned.status().GetPayload(kPathPayload)), planned.status().message());
  if (json.is_object() && json.contains("model")) {
    const absl::Status read = EmbedGraphs(fs::path(path).parent_path().string(), json);
    if (!read.ok()) return at("model.exported", absl::StrCat("model.exported: ", read.message()));
  }
  const auto named = EmbedBuffers(fs::path(path).parent_path(), json);
  if (!named.ok()) return at("buffers", absl::StrCat("buffers: ", named.status().message()));
  for (const char* key : {"resume", "until"}) {
    if (!json.is_object() || !json.contains(key)) continue;
    return at(key, absl::StrCat(key, ": is not a key of a run file; it is a flag, weft train FILE --", key));
  }
  auto spec = ParseRunSpec(json);
  if (!spec.ok()) {
    const auto place = spec.status().GetPayload(kPathPayload);
    // These keys are valid in a request, but a person gives them as flags.
    const std::string message = absl::StrReplaceAll(spec.status().message(), {{", resume, until", ""}});
    return at(place.has_value() ? std::string(*place) : "", message);
  }
  if (const absl::Status readable =
          data == RunFileData::kReadable ? CheckFilesReadable(json, yaml->json) : absl::OkStatus();
      !readable.ok())
    return at(std::string(*readable.GetPayload(kPathPayload)), readable.message());
  if (named->has_value()) {
    const absl::Status same = CheckSameModel((*named)->path, (*named)->profile, *spec);
    if (!same.ok()) return at("buffers", absl::StrCat("buffers: ", same.message()));
  }
  if (const absl::Status same = CheckPlanOfModel(*planned, *spec); !same.ok())
    return at("schedule", absl::StrCat("schedule: ", same.message()));
  absl::StatusOr<RunSchedule> schedule = FittingSchedule(*spec, data, plan);
  if (const absl::Status& fits = schedule.status(); !fits.ok()) {
    const auto place = fits.GetPayload(kPathPayload);  // its message names it
    if (place.has_value()) return at(std::string(*place), absl::StrCat(fits.message(), Enough(*spec, fits)));
    return at(PathOfProblem(fits, "schedule", spec->schedule.name),
              absl::StrCat("schedule: ", fits.message()));
  }
  return ScheduledRun{*std::move(spec), std::make_shared<const RunSchedule>(*std::move(schedule))};
}

absl::StatusOr<RunSpec> SpecOf(absl::StatusOr<ScheduledRun> run) {
  if (!run.ok()) return run.status();
  return std::move(run->spec);
}

}  // namespace

absl::StatusOr<RunSpec> ParseRunFile(const std::string& path, const std::string& text, RunFileData data) {
  return SpecOf(ParseScheduledRun(path, text, data, nullptr));
}

absl::StatusOr<ScheduledRun> ReadScheduledRun(const std::string& path, RunFileData data, const Json* plan) {
  auto text = ReadText(path);
  if (!text.ok()) return text.status();
  return ParseScheduledRun(path, *text, data, plan);
}

absl::StatusOr<RunSpec> ReadRunFile(const std::string& path, RunFileData data, const Json* plan) {
  return SpecOf(ReadScheduledRun(path, data, plan));
}

absl::StatusOr<std::optional<AutoSchedule>> ReadAutoSchedule(const std::string& path) {
  const auto text = ReadText(path);
  const auto yaml = text.ok() ? ParseYaml(*text) : text.status();
  if (!yaml.ok() || !IsAuto(yaml->json)) return std::nullopt;
  AutoSchedule asked;
  const Json& run = yaml->json;
  asked.microbatches =
      run.contains("train") && run["train"].is_object() && !run["train"].contains("microbatches");
  if (!run["schedule"].is_object()) return asked;
  absl::Status status;
  const Json value = run["schedule"]["auto"].is_null() ? Json::object() : run["schedule"]["auto"];
  FileSection beside(run["schedule"], "schedule", {"auto", "reduction"}, status);
  if (status.ok()) {
    FileSection section(value, "schedule.auto", {"ranks", "time_limit"}, status);
    section.Read("ranks", asked.ranks, 1, kMaxAutoRanks);
    section.Read("time_limit", asked.time_limit, 0.001, kMaxAutoSeconds);
  }
  if (status.ok()) return asked;
  const std::string place(status.GetPayload(kPathPayload).value_or(absl::Cord()));
  return absl::InvalidArgumentError(absl::StrCat(path, ":", yaml->LineOf(place), ": ", status.message()));
}

Json PlanOnOneRank() { return {{"schedule", {{"lpp", {{"groups", 1}, {"ranks", 1}}}}}, {"stages", 1}}; }

}  // namespace weft
