#include "client/commands/config_command.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/settings/settings.h"
#include "client/commands/command_line.h"
#include "client/files/unit_file.h"
#include "client/training/child_process.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string ProgramOf(const ConfigOptions& options) {
  if (!options.program.empty()) return options.program;
  const std::string name = fs::path(options.file).filename().string();
  if (name == "coordinator.yaml") return "weft-coordinator";
  return name == "worker.yaml" ? "weft-worker" : "weft";
}

// Returns the names of the variables of this process that a daemon would read.
std::vector<std::string> OwnVariables() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (absl::StartsWith(*variable, "WEFT_")) names.emplace_back(*variable, std::strcspn(*variable, "="));
  }
  return names;
}

// Becomes the daemon, which answers and exits.
ExitCode AskDaemon(const ConfigOptions& options, const std::string& program) {
  std::error_code error;
  const std::string path = (fs::read_symlink("/proc/self/exe", error).parent_path() / program).string();
  std::vector<std::string> words = {program};
  if (!options.file.empty()) words.insert(words.end(), {"--config", options.file});
  if (options.action == "check") {
    words.emplace_back("--check-config");
    if (options.json) words.insert(words.end(), {"--show-config", "json"});
  } else {
    words.insert(words.end(), {"--show-config", options.json      ? "json"
                                                : options.origins ? "origins"
                                                                  : "values"});
  }
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(path.c_str(), arguments.data());
  return Fail(kExitFailed, absl::StrCat("cannot run ", path, ": ", std::strerror(errno)));
}

// Returns the places of the values that the unit's command line gives the flag.
std::string PlacesOf(const std::string& flag, const UnitProcess& unit) {
  std::vector<std::string> places;
  for (size_t i = 0; i < unit.arguments.size(); ++i) {
    const std::string& word = unit.arguments[i].text;
    const bool follows =
        word == flag && i + 1 < unit.arguments.size() && !absl::StartsWith(unit.arguments[i + 1].text, "--");
    if (word != flag && !absl::StartsWith(word, flag + "=")) continue;
    const std::string& place = unit.arguments[follows ? i + 1 : i].place;
    if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
  }
  return absl::StrJoin(places, ", ");
}

// Asks the daemon of the unit for its settings, with the command line and the variables that the unit gives.
absl::StatusOr<std::vector<Setting>> SettingsOfUnit(const UnitProcess& unit) {
  const std::string daemon = fs::path(unit.program).filename().string();
  if (daemon != "weft-coordinator" && daemon != "weft-worker") {
    return absl::InvalidArgumentError(absl::StrCat(
        "it starts ", unit.program, "; give a unit that starts weft-coordinator or weft-worker"));
  }
  const auto program = SiblingProgram(daemon);
  if (!program.ok()) return program.status();
  for (const std::string& own : OwnVariables()) unsetenv(own.c_str());
  for (const auto& [name, value] : unit.variables) setenv(name.c_str(), value.text.c_str(), /*overwrite=*/1);
  std::vector<std::string> words = {*program};
  for (const PlacedText& argument : unit.arguments) words.push_back(argument.text);
  auto settings = AskSettings(std::move(words));
  if (!settings.ok()) return settings.status();
  for (Setting& setting : *settings) {
    if (setting.origin == "flag") setting.place = PlacesOf("--" + setting.name, unit);
    if (const auto variable = unit.variables.find(setting.place); variable != unit.variables.end())
      setting.place = variable->second.place;
  }
  return settings;
}

ExitCode Show(const ConfigOptions& options, const std::vector<Setting>& settings) {
  return options.json ? PrintJson(SettingsJson(settings))
                      : PrintData(SettingsText(settings, options.origins));
}

ExitCode ShowUnit(const ConfigOptions& options) {
  const auto unit = ReadUnit(options.unit);
  if (!unit.ok()) return Fail(kExitBadConfiguration, unit.status().message());
  const auto settings = SettingsOfUnit(*unit);
  if (!settings.ok())
    return Fail(kExitBadConfiguration, absl::StrCat(options.unit, ": ", settings.status().message()));
  return Show(options, *settings);
}

}  // namespace

ExitCode RunConfig(const ConfigOptions& options) {
  if (!options.unit.empty()) return ShowUnit(options);
  const std::string program = ProgramOf(options);
  if (program != "weft") return AskDaemon(options, program);
  if (options.action == "check") {
    if (options.file.empty()) return Fail(kExitUsage, "config: check needs a FILE");
    if (const auto wrong = CheckClientConfig(options.file); wrong.has_value())
      return Fail(kExitBadConfiguration, *wrong);
    if (!options.json) return PrintData(options.file + " is right\n");
    return PrintJson(RightJson(options.file));
  }
  const auto settings = ClientSettings(options.file.empty() ? options.own : options.file);
  if (!settings.ok()) return Fail(kExitBadConfiguration, settings.status().message());
  return Show(options, *settings);
}

}  // namespace weft
