// Reads a run file on disk as a RunSpec.
//
// Beyond the grammar of run/run_spec.h it resolves relative data paths against the file's own folder,
// takes the file's name as the name of a run that gives none, checks whether the data can be read, puts the
// rows of a schedule's file into the spec, and checks that the schedule fits the run and can be trained.
//
// Failure: InvalidArgument with one sentence that begins with `FILE:LINE: train.batch: ` as far as it is
// known.
#ifndef WEFT_CLIENT_FILES_RUN_FILE_H_
#define WEFT_CLIENT_FILES_RUN_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "run/run_schedule.h"
#include "run/run_spec.h"

namespace weft {

// Says whether the data that a file names must be there. A command that only predicts a run needs no data,
// and the run need not fit the memory; the data of a submitted run are on the workers' machines.
enum class RunFileData { kReadable, kElsewhere, kIgnored };

absl::StatusOr<RunSpec> ReadRunFile(const std::string& path, RunFileData data = RunFileData::kReadable);

// Reads the file likewise, and returns the schedule with it that was made to check it. Under kIgnored it is
// that of the run without its memory budget.
absl::StatusOr<ScheduledRun> ReadScheduledRun(const std::string& path,
                                              RunFileData data = RunFileData::kReadable);

// Parses a text that stands for the file at `path`.
absl::StatusOr<RunSpec> ParseRunFile(const std::string& path, const std::string& text,
                                     RunFileData data = RunFileData::kReadable);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_RUN_FILE_H_
