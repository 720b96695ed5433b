// Checks the data of a run file as a whole, before a command that uses them begins anything.
//
// The result of a long check is remembered by the files' paths, sizes, times and inodes and by the question,
// in $XDG_CACHE_HOME/weft or ~/.cache/weft; without a place to remember it, the check is made each time.
// Shows progress on a terminal where it takes longer than a second. Failure: InvalidArgument with one
// sentence that begins with `FILE:LINE: KEY: `.
#ifndef WEFT_CLIENT_TRAINING_RUN_DATA_H_
#define WEFT_CLIENT_TRAINING_RUN_DATA_H_

#include <string>

#include "absl/status/status.h"
#include "run/run_spec.h"

namespace weft {

// Checks the graphs of an exported model by a worker process, which has LibTorch, and the data of `run`,
// which was read from the run file `file`.
absl::Status CheckRunData(const std::string& file, const RunSpec& run);

// Check the graphs alone, and the data of the training alone.
absl::Status CheckGraphs(const std::string& file, const RunSpec& run);
absl::Status CheckTrainingData(const std::string& file, const RunSpec& run);

// Checks the held-out data of its `validate` alone.
absl::Status CheckHeldOutData(const std::string& file, const RunSpec& run);

// Checks data that a flag put in the place of the run file's, which is named instead of the key.
absl::Status CheckFlaggedData(const std::string& flag, const RunSpec& run);

}  // namespace weft

#endif  // WEFT_CLIENT_TRAINING_RUN_DATA_H_
