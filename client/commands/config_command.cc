#include "client/commands/config_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/settings/settings.h"
#include "client/commands/command_line.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string ProgramOf(const ConfigOptions& options) {
  if (!options.program.empty()) return options.program;
  const std::string name = fs::path(options.file).filename().string();
  if (name == "coordinator.yaml") return "weft-coordinator";
  return name == "worker.yaml" ? "weft-worker" : "weft";
}

// Becomes the daemon, which answers and exits.
ExitCode AskDaemon(const ConfigOptions& options, const std::string& program) {
  std::error_code error;
  const std::string path = (fs::read_symlink("/proc/self/exe", error).parent_path() / program).string();
  std::vector<std::string> words = {program};
  if (!options.file.empty()) words.insert(words.end(), {"--config", options.file});
  if (options.action == "check") {
    words.emplace_back("--check-config");
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

}  // namespace

ExitCode RunConfig(const ConfigOptions& options) {
  const std::string program = ProgramOf(options);
  if (program != "weft") return AskDaemon(options, program);
  if (options.action == "check") {
    if (options.file.empty()) return Fail(kExitUsage, "config: check needs a FILE");
    if (const auto wrong = CheckClientConfig(options.file); wrong.has_value())
      return Fail(kExitBadConfiguration, *wrong);
    return PrintData(options.file + " is right\n");
  }
  const auto settings = ClientSettings(options.file);
  if (!settings.ok()) return Fail(kExitBadConfiguration, settings.status().message());
  return PrintData(options.json ? SettingsJson(*settings) : SettingsText(*settings, options.origins));
}

}  // namespace weft
