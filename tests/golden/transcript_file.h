// Reads and writes golden transcripts: text files of commands, each block of them with what it led to.
//
//   # Comments stand between blocks.
//   command word key=value key=(value of several words)
//   command
//   ----
//   output, up to an empty line
//
// Everything but the outputs is written back as it was read. Pure. Failure: InvalidArgument names the line.
#ifndef WEFT_TESTS_GOLDEN_TRANSCRIPT_FILE_H_
#define WEFT_TESTS_GOLDEN_TRANSCRIPT_FILE_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

struct TranscriptCommand {
  std::string name;
  std::vector<std::string> words;  // words behind the name that have no key
  std::map<std::string, std::string> values;
  std::string text;  // the line

  // Returns the value of the key; `otherwise` where the command has none.
  std::string Value(const std::string& key, const std::string& otherwise = "") const;
};

absl::StatusOr<TranscriptCommand> ParseTranscriptCommand(absl::string_view line);

// Carries a command out and returns its output: whole lines, none of them empty.
using TranscriptRun = std::function<std::string(const TranscriptCommand&)>;

// Returns the file's text with the outputs that `run` gives for its commands, in order.
absl::StatusOr<std::string> RunTranscript(absl::string_view text, const TranscriptRun& run);

}  // namespace weft

#endif  // WEFT_TESTS_GOLDEN_TRANSCRIPT_FILE_H_
