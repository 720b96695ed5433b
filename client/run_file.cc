#include "client/run_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/schedule_file.h"
#include "client/yaml_file.h"
#include "proto/run/run_schedule.h"
#include "schedules/check.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kBytesMost = 1 << 20;

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a folder, not a run file"));
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": cannot read the run file: ", std::strerror(errno)));
  }
  std::string text(kBytesMost + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kBytesMost) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is larger than 1 MiB, so it is no run file"));
  }
  return text;
}

// The texts of a file that are paths, as pointers into its JSON.
constexpr const char* kPaths[] = {"/data/text/path", "/data/idx/images", "/data/idx/labels",
                                  "/data/cifar10/path"};

std::string DottedPath(const char* pointer) {
  std::string path = pointer + 1;
  for (char& c : path) c = c == '/' ? '.' : c;
  return path;
}

void ResolvePaths(const fs::path& folder, Json& json) {
  for (const char* pointer : kPaths) {
    const Json::json_pointer where(pointer);
    // `contains` wants sections all the way down; anything else is the parser's to refuse.
    if (!json.contains(where) || !json[where].is_string()) continue;
    const std::string text = json[where];
    if (!text.empty()) json[where] = fs::absolute(folder / text).lexically_normal().string();
  }
}

// The file's name as a run's name, with '-' for letters that a run's name may not have.
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
  errno = 0;
  if (std::ifstream(path, std::ios::binary)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
}

// Whether the schedule fits the stages and micro-batches and can run to its end.
absl::Status CheckFits(const RunSpec& spec, RunFileData data) {
  RunSpec run = spec;
  // Who only simulates may be looking for what does fit.
  if (data == RunFileData::kIgnored) run.memory = 0;
  return CheckedScheduleOf(run).status();
}

}  // namespace

absl::StatusOr<RunSpec> ParseRunFile(const std::string& path, const std::string& text, RunFileData data) {
  auto yaml = ParseYaml(text);
  if (!yaml.ok()) {
    const absl::string_view message = yaml.status().message();
    const bool numbered = !message.empty() && absl::ascii_isdigit(message[0]);
    return absl::InvalidArgumentError(absl::StrCat(path, numbered ? ":" : ": ", message));
  }
  Json json = yaml->json;
  if (json.is_object() && !json.contains("name")) json["name"] = NameOf(path);
  ResolvePaths(fs::path(path).parent_path(), json);
  const auto at = [&](const std::string& place, absl::string_view message) {
    return absl::InvalidArgumentError(absl::StrCat(path, ":", yaml->LineOf(place), ": ", message));
  };
  if (json.is_object() && json.contains("schedule")) {
    const absl::Status read = EmbedActions(fs::path(path).parent_path().string(), json["schedule"]);
    if (!read.ok()) return at("schedule.file", absl::StrCat("schedule.file: ", read.message()));
  }
  for (const char* key : {"resume", "until"}) {
    if (!json.is_object() || !json.contains(key)) continue;
    return at(key, absl::StrCat(key, ": is not a run file's to say; it is a flag, weft train FILE --", key));
  }
  auto spec = ParseRunSpec(json);
  if (!spec.ok()) {
    const auto place = spec.status().GetPayload(kPathPayload);
    return at(place.has_value() ? std::string(*place) : "", spec.status().message());
  }
  for (const char* pointer : kPaths) {
    const Json::json_pointer where(pointer);
    if (data == RunFileData::kIgnored || !json.contains(where)) continue;
    const absl::Status readable =
        CheckReadable(json[where], where.back() == "path" && !json["data"].contains("text"));
    if (!readable.ok())
      return at(DottedPath(pointer), absl::StrCat(DottedPath(pointer), ": ", readable.message()));
  }
  const absl::Status fits = CheckFits(*spec, data);
  if (!fits.ok()) {
    const auto place = fits.GetPayload(kPathPayload);  // its message names it
    if (place.has_value()) return at(std::string(*place), fits.message());
    return at(PathOfProblem(fits, "schedule", spec->schedule.name),
              absl::StrCat("schedule: ", fits.message()));
  }
  return spec;
}

absl::StatusOr<RunSpec> ReadRunFile(const std::string& path, RunFileData data) {
  auto text = ReadText(path);
  if (!text.ok()) return text.status();
  return ParseRunFile(path, *text, data);
}

}  // namespace weft
