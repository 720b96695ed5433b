#include "client/doctor/program_facts.h"

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "client/training/child_process.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

constexpr double kPatienceSeconds = 30;  // LibTorch may come over a network

}  // namespace

ProgramFacts ParseProgramFacts(absl::string_view version, absl::string_view settings) {
  ProgramFacts facts;
  facts.is_there = true;
  const std::vector<std::string> lines = absl::StrSplit(version, '\n');
  facts.release = lines[0].substr(lines[0].rfind(' ') + 1);
  if (lines.size() > 1) facts.libraries = lines[1];
  const auto list = nlohmann::json::parse(settings, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) {
    facts.problem = "it does not tell its settings";
    return facts;
  }
  for (const auto& setting : list) facts.settings[setting.value("name", "")] = setting.value("value", "");
  return facts;
}

ProgramFacts ReadProgramFacts(const std::string& program) {
  const absl::StatusOr<std::string> path = SiblingProgram(program);
  if (!path.ok()) return {};
  const absl::StatusOr<std::string> version = AnswerOf({*path, "--version"}, kPatienceSeconds);
  const absl::StatusOr<std::string> settings =
      version.ok() ? AnswerOf({*path, "--show-config", "json"}, kPatienceSeconds) : version;
  if (settings.ok()) return ParseProgramFacts(*version, *settings);
  ProgramFacts facts;
  facts.is_there = true;
  facts.problem = std::string(settings.status().message());
  return facts;
}

}  // namespace weft
