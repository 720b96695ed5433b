// Reads a run file on disk as a RunSpec.
//
// Beyond the grammar of run/run_spec.h it resolves relative data paths against the file's own folder,
// takes the file's name as the name of a run that gives none, checks whether the data can be read, puts the
// rows of a schedule's file into the spec, and checks that the schedule fits the run and can be trained.
//
// A plan (schedule_file.h) may take the place of the file's schedule, stages and micro-batches. A file whose
// schedule is `auto` has none of its own: `weft train` plans it and leaves the plan in its results; without a
// plan, the reader takes the one that it finds there.
//
// Failure: InvalidArgument with one sentence that begins with `FILE:LINE: train.batch: ` as far as it is
// known.
#ifndef WEFT_CLIENT_FILES_RUN_FILE_H_
#define WEFT_CLIENT_FILES_RUN_FILE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "run/run_schedule.h"
#include "run/run_spec.h"

namespace weft {

// Says whether the data that a file names must be there. A command that only predicts a run needs no data,
// and the run need not fit the memory; the data of a submitted run are on the workers' machines.
enum class RunFileData { kReadable, kElsewhere, kIgnored };

// `plan`: null for none.
absl::StatusOr<RunSpec> ReadRunFile(const std::string& path, RunFileData data = RunFileData::kReadable,
                                    const nlohmann::json* plan = nullptr);

// Reads the file likewise, and returns the schedule with it that was made to check it. Under kIgnored, and
// with PlanOnOneRank, it is that of the run without its memory budget.
absl::StatusOr<ScheduledRun> ReadScheduledRun(const std::string& path,
                                              RunFileData data = RunFileData::kReadable,
                                              const nlohmann::json* plan = nullptr);

// Request of a file with `schedule: auto`, or {auto: {ranks: 4, time_limit: 5}}.
struct AutoSchedule {
  int ranks = 0;              // 0 for as many as there are processes
  double time_limit = 5;      // seconds of search
  bool microbatches = false;  // their number is planned, too: the file leaves it out
};

// Returns nothing for a file with a schedule of its own, or that cannot be read.
absl::StatusOr<std::optional<AutoSchedule>> ReadAutoSchedule(const std::string& path);

// Returns the plan of a run on one rank, for commands to which the schedule does not matter. With it, the run
// need not fit the memory.
nlohmann::json PlanOnOneRank();

// Parses a text that stands for the file at `path`.
absl::StatusOr<RunSpec> ParseRunFile(const std::string& path, const std::string& text,
                                     RunFileData data = RunFileData::kReadable);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_RUN_FILE_H_
