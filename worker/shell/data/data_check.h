// Checks the data of a run as a whole before anything starts: lengths, headers, labels and every token, and
// that an exported model's weights are there.
//
// It uses the workers' readers (data.h), so there is one set of rules and messages. Files are read in large
// pieces, not mapped: a file that is cut short meanwhile must not kill the process. Failure: as data.h; each
// message begins with the key of the run file, as "data.text.path: ".
#ifndef WEFT_WORKER_SHELL_DATA_DATA_CHECK_H_
#define WEFT_WORKER_SHELL_DATA_DATA_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "run/run_spec.h"
#include "worker/shell/data/data.h"

namespace weft {

// The use of the data: for steps, or for validations.
enum class DataUse { kTraining, kValidation };

// Checks the data. Returns sentences about data that can be used and are hardly meant so; each begins with
// its key.
absl::StatusOr<std::vector<std::string>> CheckData(const RunSpec& run, DataUse use,
                                                   const ScanProgress& progress);

// Returns the files that hold the run's data, and an exported model's weights.
std::vector<std::string> DataPaths(const RunSpec& run);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_DATA_DATA_CHECK_H_
