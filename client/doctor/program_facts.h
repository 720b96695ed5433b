// Finds what the daemons beside the running program are: their releases, their libraries and their settings.
//
// Each is started for a moment, and answers instead of serving. Use it on the main thread.
#ifndef WEFT_CLIENT_DOCTOR_PROGRAM_FACTS_H_
#define WEFT_CLIENT_DOCTOR_PROGRAM_FACTS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/settings/settings.h"

namespace weft {

struct ProgramFacts {
  bool is_there = false;                        // beside the running program
  std::string problem;                          // why it does not start, or what its settings have wrong
  std::string release;                          // "0.1.0"
  std::string libraries;                        // "LibTorch 2.9.1, .."; "" for a program that tells none
  std::map<std::string, std::string> settings;  // by name of the flag
};

ProgramFacts ReadProgramFacts(const std::string& program);

// Returns what the answer to --version and the settings say.
ProgramFacts ParseProgramFacts(absl::string_view version, const std::vector<Setting>& settings);

}  // namespace weft

#endif  // WEFT_CLIENT_DOCTOR_PROGRAM_FACTS_H_
