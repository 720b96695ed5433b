// Reads schedules from files of their own: rows of actions (.csv), formulas (.yaml), or the trace of a real
// run (.json).
//
// A .yaml file here holds just the value of a run file's `schedule`, with or without that key: `custom:
// {ranks: 4, compute: "s % W"}`; a plan has its stages beside it. (A whole run file says more than a
// schedule: predicted_run.h.)
//
// Failure: InvalidArgument with one sentence that begins with the file, and its line as far as it is known.
#ifndef WEFT_CLIENT_FILES_SCHEDULE_FILE_H_
#define WEFT_CLIENT_FILES_SCHEDULE_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "run/run_spec.h"
#include "schedules/run_terms.h"

namespace weft {

// Returns true if the word for a schedule on the command line is a file's name: it ends in .csv, .json, .yaml
// or .yml, or has a slash and is no text of formulas.
bool IsScheduleFile(absl::string_view word);

// Returns true if a YAML file has the parts of a run file, not just a schedule; false also if it cannot be
// read.
bool IsRunFile(const std::string& path);

// The options that are given beside the file.
struct ScheduleFileOptions {
  int stages = 0, microbatches = 0;  // 0 where the file gives them itself
  // Inputs of the stages, as RunTerms::inputs; empty for those of the trace, else a chain.
  std::vector<std::vector<int>> inputs;
  int from_step = -1;  // step of a trace whose order is taken; -1 for its last
};

// Reads and checks the schedule of a file. For a trace it is the order in which the ranks started the jobs of
// a step. OutOfRange where the options are not such that the file allows them; InvalidArgument for a wrong
// file.
absl::StatusOr<RunSchedule> ReadScheduleFile(const std::string& path, const ScheduleFileOptions& options);

// Puts the rows of actions into a `schedule` that names their file, {file: rows.csv}, so that it means the
// same on machines that do not have the file. Relative paths are relative to `folder`. Other values stay.
absl::Status EmbedActions(const std::string& folder, nlohmann::json& schedule);

// Reads a plan: its keys `schedule`, `stages` and, where it chose them, `microbatches`. InvalidArgument for a
// file that is none.
absl::StatusOr<nlohmann::json> ReadPlan(const std::string& path);
// Reads a plan likewise from a text that stands for the file at `path`.
absl::StatusOr<nlohmann::json> ParsePlan(const std::string& path, const std::string& text);

// Returns how many layers each stage of a plan's file has; nothing for any other file.
std::vector<int> LayersOfPlan(const std::string& path);

// Puts the keys of a plan into a `run` whose schedule names its file, {file: plan.yaml}. Relative paths are
// relative to `folder`. Other runs stay. Returns the plan; null where the run names none. InvalidArgument for
// a file that is no plan, or whose stages or micro-batches are not those of the run.
absl::StatusOr<nlohmann::json> EmbedPlan(const std::string& folder, nlohmann::json& run);

// Puts the keys of a plan in the place of what the run says itself. The run's `reduction` stays where the
// plan has none, and its `buffers` stay.
void TakePlan(const nlohmann::json& plan, nlohmann::json& run);

// Returns the file of a plan, as ReadPlan returns it; "" for none.
std::string FileOfPlan(const nlohmann::json& plan);

// Checks that a plan, as ReadPlan returns it, was made for the run's model, as far as it says for which.
absl::Status CheckPlanOfModel(const nlohmann::json& plan, const RunSpec& run);

// Returns where in a file the fault of its schedule stands: the path of the formula or parameter that the
// status blames, or `path` itself, which is the schedule's.
std::string PathOfProblem(const absl::Status& status, const std::string& path, const std::string& name);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_SCHEDULE_FILE_H_
