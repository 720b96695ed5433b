// Schedules that stand in files of their own: rows of actions (.csv), formulas (.yaml), or what a run really
// did (.json: its trace).
//
// A .yaml file here holds just what stands under a run file's `schedule`, with or without that key:
// `custom: {ranks: 4, compute: "s % W"}`. (A whole run file says more than a schedule: predicted_run.h.)
//
// Failure: InvalidArgument with one sentence that begins with the file, and its line as far as it is known.
#ifndef WEFT_CLIENT_SCHEDULE_FILE_H_
#define WEFT_CLIENT_SCHEDULE_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "schedules/schedule.h"

namespace weft {

// Whether the word for a schedule on the command line is a file's name: it ends in .csv, .json, .yaml or
// .yml, or has a slash and is no text of formulas.
bool IsScheduleFile(absl::string_view word);

// Whether a YAML file has the parts of a run file, not just a schedule. False if it cannot be read.
bool IsRunFile(const std::string& path);

// What is said beside the file.
struct ScheduleFileOptions {
  int stages = 0, microbatches = 0;  // 0 where the file says them itself
  // Of stages, as Schedule::inputs; empty for what a trace says, else a chain.
  std::vector<std::vector<int>> inputs;
  int from_step = -1;  // of a trace: the step whose order is taken; -1 for its last
};

// The checked schedule of a file. Of a trace it is the order in which the ranks started the jobs of a step.
absl::StatusOr<Schedule> ReadScheduleFile(const std::string& path, const ScheduleFileOptions& options);

// Puts the rows of actions into a `schedule` that names their file, {file: rows.csv}, so that it means the
// same on machines that do not have the file. Relative paths are relative to `folder`. Other values stay.
absl::Status EmbedActions(const std::string& folder, nlohmann::json& schedule);

// Where in a file to look for what is wrong with its schedule: the path of the formula or parameter that the
// status blames, or `path` itself, which is the schedule's.
std::string PathOfProblem(const absl::Status& status, const std::string& path, const std::string& name);

}  // namespace weft

#endif  // WEFT_CLIENT_SCHEDULE_FILE_H_
