#include "tests/golden/transcript_file.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace weft {

std::string TranscriptCommand::Value(const std::string& key, const std::string& otherwise) const {
  const auto found = values.find(key);
  return found == values.end() ? otherwise : found->second;
}

absl::StatusOr<TranscriptCommand> ParseTranscriptCommand(absl::string_view line) {
  TranscriptCommand command;
  command.text = std::string(line);
  size_t at = 0;
  while (at < line.size()) {
    if (line[at] == ' ') {
      ++at;
      continue;
    }
    const size_t space = line.find(' ', at), bracket = line.find("=(", at);
    size_t end = std::min(space, line.size());
    if (bracket < end) {
      end = line.find(')', bracket);
      if (end == line.npos)
        return absl::InvalidArgumentError(absl::StrCat("\"", line, "\" opens a bracket and closes none"));
      const std::string key(line.substr(at, bracket - at));
      command.values[key] = std::string(line.substr(bracket + 2, end - bracket - 2));
      at = end + 1;
      continue;
    }
    const absl::string_view word = line.substr(at, end - at);
    const size_t equals = word.find('=');
    if (equals != word.npos) {
      command.values[std::string(word.substr(0, equals))] = std::string(word.substr(equals + 1));
    } else if (command.name.empty()) {
      command.name = std::string(word);
    } else {
      command.words.emplace_back(word);
    }
    at = end;
  }
  return command;
}

namespace {

// Returns the output of the command lines; "ok" if they lead to nothing.
absl::StatusOr<std::string> RunBlock(const std::vector<std::string>& lines, size_t first, size_t end,
                                     const TranscriptRun& run) {
  std::string out;
  for (size_t i = first; i < end; ++i) {
    absl::StatusOr<TranscriptCommand> command = ParseTranscriptCommand(lines[i]);
    if (!command.ok())
      return absl::InvalidArgumentError(absl::StrCat("line ", i + 1, ": ", command.status().message()));
    out += run(*command);
  }
  return out.empty() ? "ok\n" : out;
}

}  // namespace

absl::StatusOr<std::string> RunTranscript(absl::string_view text, const TranscriptRun& run) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const auto ends = [&](size_t i) { return i == lines.size() || lines[i].empty(); };
  std::string out;
  for (size_t i = 0; i < lines.size();) {
    const bool last = i + 1 == lines.size();
    if (lines[i].empty() || lines[i][0] == '#') {
      if (!last || !lines[i].empty()) absl::StrAppend(&out, lines[i], "\n");
      ++i;
      continue;
    }
    const size_t first = i;
    for (; !ends(i) && lines[i] != "----"; ++i) absl::StrAppend(&out, lines[i], "\n");
    if (ends(i)) {
      return absl::InvalidArgumentError(absl::StrCat("line ", first + 1, ": the command \"", lines[first],
                                                     "\" needs a line ---- behind it"));
    }
    const absl::StatusOr<std::string> output = RunBlock(lines, first, i, run);
    if (!output.ok()) return output.status();
    absl::StrAppend(&out, "----\n", *output);
    while (!ends(i)) ++i;
  }
  return out;
}

}  // namespace weft
