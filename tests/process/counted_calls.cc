// Stands in for two functions of the programs that the test of counted calls runs, and notes each call: the
// parsing of a run's specification and the making of a schedule. The originals are compiled again under
// another name (CMakeLists.txt); this file's are linked in their place.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "run/run_spec.h"
#include "schedules/families/families.h"

namespace weft {

absl::StatusOr<RunSpec> UncountedParseRunSpec(const nlohmann::json& file);
absl::StatusOr<Schedule> UncountedMakeSchedule(absl::string_view name,
                                               const std::map<std::string, std::string>& parameters,
                                               int stages, int microbatches);

namespace {

// Appends "PROCESS CALL" to the file that the test names. A line is one write, so processes may share it.
void Note(absl::string_view call) {
  const char* path = std::getenv("WEFT_COUNTED_CALLS");
  if (path == nullptr) return;
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  const std::string line = absl::StrCat(getpid(), " ", call, "\n");
  if (file < 0 || write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::abort();
  close(file);
}

}  // namespace

absl::StatusOr<RunSpec> ParseRunSpec(const nlohmann::json& file) {
  Note("parse");
  return UncountedParseRunSpec(file);
}

absl::StatusOr<Schedule> MakeSchedule(absl::string_view name,
                                      const std::map<std::string, std::string>& parameters, int stages,
                                      int microbatches) {
  Note("schedule");
  return UncountedMakeSchedule(name, parameters, stages, microbatches);
}

}  // namespace weft
