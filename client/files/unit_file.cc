#include "client/files/unit_file.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/host_name.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Folders of unit files. If two of them have the same file, the earlier one counts.
const char* const kFolders[] = {"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system",
                                "/usr/lib/systemd/system", "/lib/systemd/system"};

// Returns the assignments of a file, KEY=VALUE, with their places. Those of a unit's other sections than
// [Service] are left out.
absl::StatusOr<std::vector<std::pair<std::string, PlacedText>>> ReadAssignments(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  std::vector<std::pair<std::string, PlacedText>> assignments;
  bool is_of_service = true;
  int number = 0;
  std::string line, whole;
  while (std::getline(file, line)) {
    ++number;
    const std::string begin(absl::StripLeadingAsciiWhitespace(line));
    if (whole.empty() && (absl::StartsWith(begin, "#") || absl::StartsWith(begin, ";"))) continue;
    whole += line;
    if (absl::EndsWith(whole, "\\")) {
      whole.back() = ' ';
      continue;
    }
    const std::string text(absl::StripAsciiWhitespace(std::exchange(whole, "")));
    if (text.empty()) continue;
    if (text[0] == '[') is_of_service = text == "[Service]";
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    if (!is_of_service || text[0] == '[') continue;
    assignments.push_back(
        {std::string(absl::StripAsciiWhitespace(parts.first)),
         {std::string(absl::StripAsciiWhitespace(parts.second)), absl::StrCat(path, ":", number)}});
  }
  return assignments;
}

// Splits a text into words at spaces outside of quotes, which fall away.
std::vector<std::string> WordsOf(const std::string& text) {
  std::vector<std::string> words;
  bool within = false;
  char quote = 0;
  for (const char c : text) {
    if (quote == 0 && absl::ascii_isspace(static_cast<unsigned char>(c))) {
      within = false;
      continue;
    }
    if (!within) words.emplace_back();
    within = true;
    if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else {
      words.back() += c;
    }
  }
  return words;
}

// The files of a unit, the unit itself first.
struct UnitFiles {
  std::string name, instance;  // "weft-worker@0.service" and "0"
  std::vector<std::string> paths;
};

std::string TemplateOf(const std::string& name) {
  const size_t at = name.find('@');
  return at == std::string::npos ? name : absl::StrCat(name.substr(0, at + 1), ".service");
}

absl::StatusOr<UnitFiles> FindUnit(const std::string& unit) {
  UnitFiles files;
  const fs::path asked = unit;
  std::vector<std::string> folders(std::begin(kFolders), std::end(kFolders));
  if (asked.has_parent_path()) folders = {asked.parent_path().string()};
  files.name = absl::StrCat(absl::StripSuffix(asked.filename().string(), ".service"), ".service");
  const size_t at = files.name.find('@');
  if (at != std::string::npos)
    files.instance = std::string(absl::StripSuffix(files.name.substr(at + 1), ".service"));
  std::map<std::string, std::string> drop_ins;  // paths by name
  for (const std::string& folder : folders) {
    for (const std::string& name : {files.name, TemplateOf(files.name)}) {
      std::error_code error;
      const std::string path = absl::StrCat(folder, "/", name);
      if (files.paths.empty() && fs::exists(path, error)) files.paths.push_back(path);
      for (fs::directory_iterator i(absl::StrCat(path, ".d"), error), end; !error && i != end;
           i.increment(error)) {
        if (i->path().extension() == ".conf") drop_ins.emplace(i->path().filename().string(), i->path());
      }
    }
  }
  if (files.paths.empty())
    return absl::NotFoundError(
        absl::StrCat("there is no unit ", files.name, " in ", absl::StrJoin(folders, ", ")));
  for (const auto& [name, path] : drop_ins) files.paths.push_back(path);
  return files;
}

class UnitReader {
 public:
  explicit UnitReader(const UnitFiles& files) : files_(files) {}

  absl::StatusOr<UnitProcess> Read() {
    for (const std::string& path : files_.paths) {
      const auto assignments = ReadAssignments(path);
      if (!assignments.ok()) return assignments.status();
      for (const auto& [key, value] : *assignments) Take(key, value);
    }
    UnitProcess process;
    for (const PlacedText& words : environment_) {
      for (const std::string& word : WordsOf(Specified(words.text))) SetVariable(word, words.place, &process);
    }
    for (const PlacedText& file : environment_files_) {
      if (absl::Status read = TakeFile(file.text, &process); !read.ok()) return read;
    }
    return TakeCommand(std::move(process));
  }

 private:
  void Take(const std::string& key, const PlacedText& value) {
    std::vector<PlacedText>* const list = key == "Environment"       ? &environment_
                                          : key == "EnvironmentFile" ? &environment_files_
                                          : key == "ExecStart"       ? &commands_
                                                                     : nullptr;
    if (list == nullptr) return;
    if (value.text.empty()) {
      list->clear();  // a drop-in begins anew
    } else {
      list->push_back(value);
    }
  }

  std::string Specified(const std::string& text) const {
    const std::string name(absl::StripSuffix(files_.name, ".service"));
    const std::string host = HostName();
    return absl::StrReplaceAll(text, {{"%%", "%"},
                                      {"%i", files_.instance},
                                      {"%l", host.substr(0, host.find('.'))},
                                      {"%n", files_.name},
                                      {"%N", name}});
  }

  static void SetVariable(const std::string& word, const std::string& place, UnitProcess* process) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    process->variables[parts.first] = {parts.second, place};
  }

  absl::Status TakeFile(const std::string& named, UnitProcess* process) const {
    const bool may_miss = absl::StartsWith(named, "-");
    const std::string path = Specified(named.substr(may_miss ? 1 : 0));
    std::error_code error;
    if (may_miss && !fs::exists(path, error)) return absl::OkStatus();
    const auto assignments = ReadAssignments(path);
    if (!assignments.ok()) return assignments.status();
    for (const auto& [name, value] : *assignments)
      process->variables[name] = {Unquoted(value.text), value.place};
    return absl::OkStatus();
  }

  // Returns the value of a variable in an environment file: quotes around all of it fall away. Others stay,
  // for the command that takes the value as words.
  static std::string Unquoted(const std::string& text) {
    const bool quoted = text.size() > 1 && (text[0] == '"' || text[0] == '\'') && text.back() == text[0];
    return quoted ? text.substr(1, text.size() - 2) : text;
  }

  absl::StatusOr<UnitProcess> TakeCommand(UnitProcess process) const {
    if (commands_.empty()) return absl::InvalidArgumentError(absl::StrCat(files_.name, " has no ExecStart="));
    const PlacedText& command = commands_.back();
    const std::vector<std::string> words = WordsOf(Specified(command.text));
    for (const std::string& word : words) {
      for (PlacedText& given : Expanded(word, command.place, process)) process.arguments.push_back(given);
    }
    if (process.arguments.empty())
      return absl::InvalidArgumentError(absl::StrCat(command.place, ": ExecStart= names no program"));
    process.program = process.arguments.front().text;
    process.program.erase(0, process.program.find_first_not_of("@-:+!"));
    process.arguments.erase(process.arguments.begin());
    return process;
  }

  // Returns the words that a word of ExecStart stands for: $NAME as a word is those of the variable, ${NAME}
  // within one is its value.
  static std::vector<PlacedText> Expanded(const std::string& word, std::string place,
                                          const UnitProcess& process) {
    if (word.size() > 1 && word[0] == '$' && word[1] != '{' && word[1] != '$') {
      const auto found = process.variables.find(word.substr(1));
      std::vector<PlacedText> given;
      if (found == process.variables.end()) return given;
      for (std::string& part : WordsOf(found->second.text))
        given.push_back({std::move(part), found->second.place});
      return given;
    }
    return {WithValues(word, std::move(place), process)};
  }

  // Returns a word with the values of its variables, which stand there as they are, at the place of the last
  // one.
  static PlacedText WithValues(absl::string_view word, std::string place, const UnitProcess& process) {
    PlacedText made = {"", std::move(place)};
    while (!word.empty()) {
      const size_t end = word.find('}');
      if (absl::ConsumePrefix(&word, "$$")) {
        made.text += '$';
      } else if (absl::StartsWith(word, "${") && end != absl::string_view::npos) {
        const auto found = process.variables.find(std::string(word.substr(2, end - 2)));
        if (found != process.variables.end()) {
          made.text += found->second.text;
          made.place = found->second.place;
        }
        word.remove_prefix(end + 1);
      } else {
        made.text += word[0];
        word.remove_prefix(1);
      }
    }
    return made;
  }

  const UnitFiles& files_;
  std::vector<PlacedText> environment_, environment_files_, commands_;
};

}  // namespace

absl::StatusOr<UnitProcess> ReadUnit(const std::string& unit) {
  const absl::StatusOr<UnitFiles> files = FindUnit(unit);
  return files.ok() ? UnitReader(*files).Read() : files.status();
}

}  // namespace weft
