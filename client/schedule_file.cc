#include "client/schedule_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/run_file.h"
#include "client/yaml_file.h"
#include "proto/run/model_layers.h"
#include "proto/run/run_spec.h"
#include "proto/run/schedule_spec.h"
#include "schedules/actions.h"
#include "schedules/check.h"
#include "schedules/families.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kActionsMostBytes = 256 << 20;   // that are only simulated
constexpr size_t kEmbeddedMostBytes = 768 << 10;  // a run's whole specification may have 1 MiB
constexpr size_t kYamlMostBytes = 1 << 20;

absl::StatusOr<std::string> ReadText(const std::string& path, size_t most, absl::string_view what) {
  const auto cannot = [&] {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  };
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return cannot();
  std::string text;
  std::vector<char> block(1 << 16);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(file.gcount()));
    if (text.size() > most) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is larger than ", most >> 10, " KiB; is it ", what, "?"));
    }
  }
  if (file.bad() || !file.eof()) return cannot();
  return text;
}

absl::Status CheckSizes(const Schedule& schedule, const std::string& path, int stages, int microbatches) {
  if ((stages == 0 || stages == schedule.stages) &&
      (microbatches == 0 || microbatches == schedule.microbatches)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s has %d stages and %d micro-batches; give --stages %d --microbatches %d, or neither",
                      path, schedule.stages, schedule.microbatches, schedule.stages, schedule.microbatches));
}

absl::StatusOr<Schedule> ReadRows(const std::string& path, int stages, int microbatches) {
  const auto text = ReadText(path, kActionsMostBytes, "a list of actions");
  if (!text.ok()) return text.status();
  auto schedule = ScheduleFromActions(*text);
  const absl::Status sound = schedule.ok() ? CheckSchedule(*schedule) : schedule.status();
  if (!sound.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", sound.message()));
  if (absl::Status s = CheckSizes(*schedule, path, stages, microbatches); !s.ok()) return s;
  schedule->name = path;
  return schedule;
}

absl::StatusOr<Schedule> ScheduleOfRun(const std::string& path, int stages, int microbatches) {
  const auto run = ReadRunFile(path, RunFileData::kIgnored);
  if (!run.ok()) return run.status();
  const auto& spec = run->schedule;
  const std::vector<LayerCount> layers = CountLayers(run->model);
  std::vector<int> cut = run->layers_of_stage;
  // Fewer or more stages than the run has: cut anew where the layers allow it, else a chain.
  if (stages > 0 && stages != run->stages()) {
    cut = stages <= static_cast<int>(layers.size()) ? CutStages(layers, stages) : std::vector<int>();
  }
  auto schedule = MakeSchedule(spec.name, spec.parameters, stages > 0 ? stages : run->stages(),
                               microbatches > 0 ? microbatches : run->train.microbatches);
  if (schedule.ok() && !cut.empty()) schedule->inputs = StageInputs(layers, cut);
  return schedule;
}

absl::StatusOr<Schedule> ReadYamlSchedule(const std::string& path, int stages, int microbatches) {
  const auto text = ReadText(path, kYamlMostBytes, "a schedule");
  if (!text.ok()) return text.status();
  auto yaml = ParseYaml(*text);
  if (!yaml.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ":", yaml.status().message()));
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
  if (stages == 0 || microbatches == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " says no sizes; give them, as in --stages 4 --microbatches 8"));
  }
  auto schedule = MakeSchedule(spec.name, spec.parameters, stages, microbatches);
  if (schedule.ok()) status = CheckSchedule(*schedule);
  if (!schedule.ok()) status = schedule.status();
  if (!status.ok()) return at(PathOfProblem(status, root, spec.name), status.message());
  return schedule;
}

bool IsYaml(absl::string_view path) { return absl::EndsWith(path, ".yaml") || absl::EndsWith(path, ".yml"); }

// Whether the file has the parts of a run file, not just a schedule.
bool IsRunFile(const std::string& path) {
  const auto text = ReadText(path, kYamlMostBytes, "a run file");
  const auto yaml = text.ok() ? ParseYaml(*text) : text.status();
  return yaml.ok() && yaml->json.is_object() && yaml->json.contains("model");
}

}  // namespace

bool IsScheduleFile(absl::string_view word) {
  if (absl::StartsWith(word, "custom,")) return false;
  return absl::StrContains(word, '/') || absl::EndsWith(word, ".csv") || IsYaml(word);
}

absl::StatusOr<Schedule> ReadScheduleFile(const std::string& path, int stages, int microbatches) {
  if (!IsYaml(path)) return ReadRows(path, stages, microbatches);
  auto schedule = IsRunFile(path) ? ScheduleOfRun(path, stages, microbatches)
                                  : ReadYamlSchedule(path, stages, microbatches);
  if (schedule.ok()) schedule->name = path;
  return schedule;
}

absl::Status EmbedActions(const std::string& folder, Json& schedule) {
  if (!schedule.is_object() || !schedule.contains("file") || !schedule["file"].is_string())
    return absl::OkStatus();
  const std::string name = schedule["file"];
  const auto text = ReadText((fs::path(folder) / name).string(), kEmbeddedMostBytes, "a list of actions");
  if (!text.ok()) return text.status();
  schedule["file"] = {{"path", name}, {"actions", *text}};
  return absl::OkStatus();
}

std::string PathOfProblem(const absl::Status& status, const std::string& path, const std::string& name) {
  const auto parameter = status.GetPayload(kParameterPayload);
  if (!parameter.has_value()) return path;
  return absl::StrCat(path, path.empty() ? "" : ".", name, ".", std::string(*parameter));
}

}  // namespace weft
