#include "client/doctor/program_facts.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "client/training/child_process.h"

namespace weft {

ProgramFacts ParseProgramFacts(absl::string_view version, const std::vector<Setting>& settings) {
  ProgramFacts facts;
  facts.is_there = true;
  const std::vector<std::string> lines = absl::StrSplit(version, '\n');
  facts.release = lines[0].substr(lines[0].rfind(' ') + 1);
  if (lines.size() > 1) facts.libraries = lines[1];
  for (const Setting& setting : settings) facts.settings[setting.name] = setting.value;
  return facts;
}

ProgramFacts ReadProgramFacts(const std::string& program) {
  const absl::StatusOr<std::string> path = SiblingProgram(program);
  if (!path.ok()) return {};
  const absl::StatusOr<std::string> version = AnswerOf({*path, "--version"});
  const absl::StatusOr<std::vector<Setting>> settings =
      version.ok() ? AskSettings({*path}) : version.status();
  if (settings.ok()) return ParseProgramFacts(*version, *settings);
  ProgramFacts facts;
  facts.is_there = true;
  facts.problem = std::string(settings.status().message());
  return facts;
}

}  // namespace weft
