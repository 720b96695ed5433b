// Gives the flags of a program further sources: built-in values, then a configuration file, then the
// environment, then the command line, of which the later ones win.
//
// The file is YAML. Its keys are the long names of flags, as `log-level`; a flag that may be given several
// times takes a list. In a program with commands, a key at the top belongs to every command that has such a
// flag and to `shared`. A key in a section, as `train: {device: auto}`, belongs to that command. A flag's
// variable is WEFT_ and its name: WEFT_LOG_LEVEL. Unknown keys and wrong values are refused with file and
// line.
//
// CLI11 parses; it would let the file win over the environment, so a key of the file is left out where the
// variable is set. It is also left out where the command line or a variable gives a flag that excludes it.
// Use: construct when all flags are there, then parse, then ask. One thread. The app outlives this object.
#ifndef WEFT_BASE_SETTINGS_SETTINGS_H_
#define WEFT_BASE_SETTINGS_SETTINGS_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace weft {

struct SettingsOptions {
  std::string default_file;  // read where neither --config nor WEFT_CONFIG names one, if it is there
  // Words the refusal of an unknown name: what it is, the name, and the valid ones (run/unknown_name.h).
  std::function<std::string(absl::string_view what, absl::string_view written,
                            const std::vector<std::string>& names)>
      unknown;
  // Keys that may stand at the top of the file of a program with commands. Only these have variables.
  std::vector<std::string> shared = {};
  // Flags that have a variable of another name beside their own, which gives the value itself.
  std::map<std::string, std::string> replaced_by = {};
};

// The value of a flag, and where it comes from.
struct Setting {
  std::string name;    // "log-level"
  std::string value;   // as a text; "" where it has none
  std::string origin;  // "built-in", "file", "environment" or "flag"
  std::string place;   // "/etc/weft/coordinator.yaml:3", "WEFT_LOG_LEVEL", "--log-level"
};

class Settings {
 public:
  // Adds --config FILE to the app, and variables to its flags. Flags of CLI11's `configurable(false)` are
  // only flags.
  Settings(CLI::App& app, SettingsOptions options);
  ~Settings();

  // Returns the flags that can be set, of the command if it is not null, else of the app. Call it after a
  // parse.
  std::vector<Setting> List(CLI::App* command = nullptr) const;
  // Returns the file that was read; "" for none.
  const std::string& file() const;
  // Returns the message, with file and line, where an error of the parse is of the configuration file. Such a
  // program exits with 78.
  std::optional<std::string> Blame(const CLI::ParseError& error) const;

 private:
  class Reader;
  CLI::App& app_;
  const SettingsOptions options_;
  std::shared_ptr<Reader> reader_;
};

// Questions about its configuration that a daemon answers instead of serving.
struct ConfigQuestion {
  bool check = false;  // --check-config: whether the configuration is right
  std::string show;    // --show-config: "values", "origins" or "json"; with `check`, "json" is its form
};
void AddConfigQuestion(CLI::App& app, ConfigQuestion& question);
// Returns the answer; nothing where nothing was asked.
std::optional<std::string> AnswerTo(const ConfigQuestion& question, const Settings& settings);

// Returns the names of settings whose values differ.
std::vector<std::string> Changed(const std::vector<Setting>& before, const std::vector<Setting>& now);

// Returns the settings as a table, with their origins if wanted, or as a JSON array of objects with `name`,
// `value`, `origin` and `place`.
std::string SettingsText(const std::vector<Setting>& settings, bool origins);
nlohmann::ordered_json SettingsJson(const std::vector<Setting>& settings);
// Reads what SettingsJson gives. InvalidArgument for any other text.
absl::StatusOr<std::vector<Setting>> ParseSettingsJson(absl::string_view text);
// Returns the answer to --check-config for a file that is right.
nlohmann::ordered_json RightJson(const std::string& file);

}  // namespace weft

#endif  // WEFT_BASE_SETTINGS_SETTINGS_H_
