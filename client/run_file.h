// A run file on disk as a RunSpec.
//
// Beyond the grammar of proto/run/run_spec.h it resolves relative data paths against the file's own folder,
// takes the file's name as the name of a run that gives none, looks whether the data can be read, and checks
// that the schedule fits the run.
//
// Failure: InvalidArgument with one sentence that begins with `FILE:LINE: train.batch: ` as far as it is
// known.
#ifndef WEFT_CLIENT_RUN_FILE_H_
#define WEFT_CLIENT_RUN_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/run/run_spec.h"

namespace weft {

absl::StatusOr<RunSpec> ReadRunFile(const std::string& path);

// The same for a text that stands for the file at `path`.
absl::StatusOr<RunSpec> ParseRunFile(const std::string& path, const std::string& text);

}  // namespace weft

#endif  // WEFT_CLIENT_RUN_FILE_H_
