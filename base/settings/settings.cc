#include "base/settings/settings.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <set>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/yaml_file.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr char kNoFile[] = "/dev/null";
constexpr char kFileVariable[] = "WEFT_CONFIG";

// Returns the first long name of a flag that a file may set; "" for any other option.
std::string KeyOf(const CLI::Option& option) {
  if (!option.get_configurable() || option.get_lnames().empty() || option.get_positional()) return "";
  return option.get_lnames().front();
}

std::vector<std::string> KeysOf(const CLI::App& app) {
  std::vector<std::string> keys;
  for (const CLI::Option* option : app.get_options({})) {
    if (std::string key = KeyOf(*option); !key.empty()) keys.push_back(std::move(key));
  }
  return keys;
}

std::string VariableOf(const std::string& key) {
  return absl::StrCat("WEFT_", absl::AsciiStrToUpper(absl::StrReplaceAll(key, {{"-", "_"}})));
}

bool IsSet(const std::string& variable) {
  const char* const value = variable.empty() ? nullptr : std::getenv(variable.c_str());
  return value != nullptr && *value != '\0';
}

// Returns true if the command line or the environment gives the option, while the file has not been taken
// yet.
bool IsGiven(const CLI::Option* option) { return option->count() > 0 || IsSet(option->get_envname()); }

// Returns the file that is read where no --config is given: that of the variable, which has to be there, else
// the default file if it is there, else none.
std::string FileWithoutFlag(const std::string& default_file) {
  if (IsSet(kFileVariable)) return std::getenv(kFileVariable);
  return !default_file.empty() && std::ifstream(default_file).good() ? default_file : kNoFile;
}

template <typename T>
bool Has(const std::vector<T>& all, const T& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

std::string DumpJson(const OrderedJson& json) {
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::string TextOf(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

}  // namespace

// Reads the file when CLI11 has taken the command line and nothing else yet.
class Settings::Reader final : public CLI::Config {
 public:
  Reader(CLI::App& app, const SettingsOptions& options) : app_(app), options_(options) {}

  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }

  std::vector<CLI::ConfigItem> from_config(std::istream& in) const override {
    file_ = app_.get_config_ptr()->as<std::string>();
    if (file_ == kNoFile) file_.clear();
    NoteFlags();
    if (file_.empty()) return {};
    const std::string text(std::istreambuf_iterator<char>(in), {});
    auto yaml = ParseYaml(text);
    if (!yaml.ok() && yaml.status().message() == "is empty") return {};  // or only comments
    if (!yaml.ok()) throw CLI::ConfigError(absl::StrCat(file_, ":", yaml.status().message()));
    yaml_ = *std::move(yaml);
    if (!yaml_.json.is_object()) Refuse("", "must have keys, as in `log-level: warning`");
    return Items();
  }

  const std::string& file() const { return file_; }
  // Returns the line of what the file sets for the option; 0 if it does not.
  int LineOf(const CLI::Option* option) const {
    const auto found = lines_.find(option);
    return found == lines_.end() ? 0 : found->second;
  }
  bool IsFlag(const CLI::Option* option) const { return Has(flags_, option); }
  const std::map<const CLI::Option*, int>& lines() const { return lines_; }

 private:
  // Notes which options the command line gives.
  void NoteFlags() const {
    const auto note = [this](const CLI::App& app) {
      for (const CLI::Option* option : app.get_options({})) {
        if (option->count() > 0) flags_.push_back(option);
      }
    };
    note(app_);
    for (const CLI::App* sub : app_.get_subcommands({})) note(*sub);
  }

  [[noreturn]] void Refuse(const std::string& path, absl::string_view what) const {
    throw CLI::ConfigError(
        absl::StrCat(file_, ":", yaml_.LineOf(path), ": ", path, path.empty() ? "" : " ", what));
  }
  [[noreturn]] void RefuseKey(const std::string& path, const std::string& key,
                              const std::vector<std::string>& names) const {
    throw CLI::ConfigError(
        absl::StrCat(file_, ":", yaml_.LineOf(path), ": ", options_.unknown("key", key, names)));
  }

  std::vector<CLI::ConfigItem> Items() const {
    std::vector<CLI::ConfigItem> items;
    const std::vector<CLI::App*> commands = app_.get_subcommands([](CLI::App*) { return true; });
    if (commands.empty()) {
      for (const auto& [key, value] : yaml_.json.items()) AddItem(app_, {}, key, key, value, &items);
      return items;
    }
    // The key of a section wins over one at the top, so it comes first.
    std::vector<std::string> names = options_.shared;
    for (const CLI::App* command : commands) names.push_back(command->get_name());
    for (const auto& [key, value] : yaml_.json.items()) {
      if (!Has(names, key)) RefuseKey(key, key, names);
      if (Has(options_.shared, key)) continue;
      if (!value.is_object()) Refuse(key, "must be a section of flags, as in `train: {device: auto}`");
      for (const auto& [inner, of_inner] : value.items())
        AddItem(*app_.get_subcommand(key), {key}, inner, absl::StrCat(key, ".", inner), of_inner, &items);
    }
    for (CLI::App* command : app_.get_subcommands()) {
      for (const std::string& key : options_.shared) {
        const bool has = yaml_.json.contains(key) && command->get_option_no_throw("--" + key) != nullptr;
        if (has) AddItem(*command, {command->get_name()}, key, key, yaml_.json[key], &items);
      }
    }
    return items;
  }

  void AddItem(CLI::App& app, std::vector<std::string> parents, const std::string& key,
               const std::string& path, const Json& value, std::vector<CLI::ConfigItem>* items) const {
    const CLI::Option* option = app.get_option_no_throw("--" + key);
    if (option == nullptr || KeyOf(*option).empty()) RefuseKey(path, key, KeysOf(app));
    CLI::ConfigItem item;
    item.parents = std::move(parents);
    item.name = key;
    const bool many = option->get_items_expected_max() > 1;
    if (value.is_array() && many) {
      for (const Json& one : value) item.inputs.push_back(TextOf(one));
    } else if (value.is_array() || value.is_object() || value.is_null()) {
      Refuse(path, many ? "must be a value or a list of values" : "must be one value");
    } else {
      item.inputs.push_back(TextOf(value));
    }
    const bool is_switch = option->get_items_expected_max() == 0;
    if (is_switch && !value.is_boolean()) Refuse(path, "must be true or false");
    const auto other = options_.replaced_by.find(key);
    const bool replaced = other != options_.replaced_by.end() && IsSet(other->second);
    const std::set<CLI::Option*> excluded = option->get_excludes();
    if (IsGiven(option) || replaced || lines_.count(option) > 0) return;
    if (std::any_of(excluded.begin(), excluded.end(), [](auto* one) { return IsGiven(one); })) return;
    if (&app != &app_ && app.count() == 0) return;  // of a command that is not run
    lines_[option] = yaml_.LineOf(path);
    items->push_back(std::move(item));
  }

  CLI::App& app_;
  const SettingsOptions& options_;
  // CLI11 calls a const method.
  mutable std::string file_;
  mutable YamlFile yaml_;
  mutable std::vector<const CLI::Option*> flags_;
  mutable std::map<const CLI::Option*, int> lines_;
};

Settings::Settings(CLI::App& app, SettingsOptions options) : app_(app), options_(std::move(options)) {
  const auto add_variables = [this](CLI::App& of) {
    for (CLI::Option* option : of.get_options({})) {
      const std::string key = KeyOf(*option);
      const bool wanted = !key.empty() && option->get_envname().empty() &&
                          (options_.shared.empty() || Has(options_.shared, key));
      if (wanted) option->envname(VariableOf(key));
    }
  };
  const std::vector<CLI::App*> commands = app_.get_subcommands([](CLI::App*) { return true; });
  if (commands.empty()) add_variables(app_);
  for (CLI::App* command : commands) add_variables(*command);
  reader_ = std::make_shared<Reader>(app_, options_);
  app_.config_formatter(reader_);
  // CLI11 calls the reader only for a file, and takes none from a variable.
  app_.set_config("--config", FileWithoutFlag(options_.default_file),
                  absl::StrCat("Take flags from this YAML file (default ", options_.default_file,
                               ", if it is there); variables and flags win over it"),
                  /*config_required=*/IsSet(kFileVariable))
      ->option_text(absl::StrCat("FILE (Env:", kFileVariable, ")"))
      ->type_name("FILE");
}

Settings::~Settings() = default;

const std::string& Settings::file() const { return reader_->file(); }

std::vector<Setting> Settings::List(CLI::App* command) const {
  CLI::App& app = command != nullptr ? *command : app_;
  std::vector<Setting> settings;
  for (CLI::Option* option : app.get_options({})) {
    const std::string key = KeyOf(*option);
    if (key.empty()) continue;
    Setting setting = {key, absl::StrJoin(option->results(), " "), "built-in", ""};
    if (const int line = reader_->LineOf(option); line > 0) {
      setting.origin = "file";
      setting.place = absl::StrCat(file(), ":", line);
    } else if (reader_->IsFlag(option)) {
      setting.origin = "flag";
      setting.place = absl::StrCat("--", key);
    } else if (option->count() > 0) {
      setting.origin = "environment";
      setting.place = option->get_envname();
    } else {
      option->capture_default_str();
      setting.value = option->get_default_str();
      // CLI11 writes lists in brackets.
      if (absl::StartsWith(setting.value, "[") && absl::EndsWith(setting.value, "]"))
        setting.value = setting.value.substr(1, setting.value.size() - 2);
      if (option->get_items_expected_max() == 0) setting.value = "false";
      const auto other = options_.replaced_by.find(key);
      if (other != options_.replaced_by.end() && IsSet(other->second)) {
        setting.value = "(not shown)";
        setting.origin = "environment";
        setting.place = other->second;
      }
    }
    settings.push_back(std::move(setting));
  }
  return settings;
}

std::optional<std::string> Settings::Blame(const CLI::ParseError& error) const {
  const bool of_file = dynamic_cast<const CLI::ConfigError*>(&error) != nullptr ||
                       dynamic_cast<const CLI::FileError*>(&error) != nullptr;
  const std::string what = error.what();
  const bool of_variable = dynamic_cast<const CLI::FileError*>(&error) != nullptr &&
                           app_.get_config_ptr()->count() == 0 && IsSet(kFileVariable);
  if (of_variable) return absl::StrCat(kFileVariable, ": ", what);
  if (of_file) return what;
  for (const auto& [option, line] : reader_->lines()) {
    const std::string flag = absl::StrCat("--", option->get_lnames().front());
    const size_t at = what.find(flag);
    if (at == std::string::npos) continue;
    const size_t end = at + flag.size();
    if (end < what.size() && (absl::ascii_isalnum(static_cast<unsigned char>(what[end])) || what[end] == '-'))
      continue;
    return absl::StrCat(file(), ":", line, ": ", what);
  }
  return std::nullopt;
}

void AddConfigQuestion(CLI::App& app, ConfigQuestion& question) {
  app.add_flag("--check-config", question.check, "Say whether the configuration is right, and exit")
      ->configurable(false);
  app.add_option("--show-config", question.show,
                 "Print all settings and exit: their values, with their origins, or both as json")
      ->check(CLI::IsMember({"values", "origins", "json"}))
      ->configurable(false)
      ->type_name("FORM");
}

std::optional<std::string> AnswerTo(const ConfigQuestion& question, const Settings& settings) {
  if (question.check && question.show == "json") return DumpJson(RightJson(settings.file()));
  if (question.check)
    return absl::StrCat(settings.file().empty() ? "the configuration" : settings.file(), " is right\n");
  if (question.show.empty()) return std::nullopt;
  const std::vector<Setting> all = settings.List();
  return question.show == "json" ? DumpJson(SettingsJson(all))
                                 : SettingsText(all, question.show == "origins");
}

std::vector<std::string> Changed(const std::vector<Setting>& before, const std::vector<Setting>& now) {
  std::vector<std::string> names;
  for (const Setting& s : now) {
    const auto same = [&](const Setting& b) { return b.name == s.name && b.value == s.value; };
    if (std::none_of(before.begin(), before.end(), same)) names.push_back(s.name);
  }
  return names;
}

std::string SettingsText(const std::vector<Setting>& settings, bool origins) {
  size_t names = 0, values = 0;
  for (const Setting& s : settings) {
    names = std::max(names, s.name.size());
    values = std::max(values, std::min<size_t>(s.value.size(), 40));
  }
  std::string text;
  for (const Setting& s : settings) {
    std::string line = absl::StrCat(s.name, std::string(names - s.name.size() + 2, ' '), s.value);
    if (origins) {
      const size_t gap = s.value.size() < values ? values - s.value.size() + 2 : 2;
      absl::StrAppend(&line, std::string(gap, ' '), s.origin, s.place.empty() ? "" : " ", s.place);
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return text;
}

OrderedJson SettingsJson(const std::vector<Setting>& settings) {
  OrderedJson json = OrderedJson::array();
  for (const Setting& s : settings)
    json.push_back({{"name", s.name}, {"value", s.value}, {"origin", s.origin}, {"place", s.place}});
  return json;
}

absl::StatusOr<std::vector<Setting>> ParseSettingsJson(absl::string_view text) {
  const Json list = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const absl::Status wrong = absl::InvalidArgumentError("is no list of settings in JSON");
  if (!list.is_array()) return wrong;
  std::vector<Setting> settings;
  for (const Json& one : list) {
    Setting setting;
    for (const auto& [key, field] :
         {std::pair("name", &setting.name), std::pair("value", &setting.value),
          std::pair("origin", &setting.origin), std::pair("place", &setting.place)}) {
      const auto found = one.find(key);
      if (found == one.end() || !found->is_string()) return wrong;
      *field = found->get<std::string>();
    }
    settings.push_back(std::move(setting));
  }
  return settings;
}

OrderedJson RightJson(const std::string& file) { return {{"file", file}, {"right", true}}; }

}  // namespace weft
