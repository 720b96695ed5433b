// Finds out whether a folder lies within something that a run has in its own folder, such as a checkpoint.
// The run replaces and removes that, and so another run's results with it.
#ifndef WEFT_COORDINATOR_RECORD_ENCLOSING_RUN_H_
#define WEFT_COORDINATOR_RECORD_ENCLOSING_RUN_H_

#include <string>

#include "absl/status/status.h"

namespace weft {

// Returns InvalidArgument if `path` is, or is within, a checkpoint of a run, or a run that replaces another.
// A folder of any other name within a run's folder is free. `shown` is the folder as the user wrote it.
// Blocks on the disk.
absl::Status CheckOutsideOfRuns(const std::string& path, const std::string& shown);

}  // namespace weft

#endif  // WEFT_COORDINATOR_RECORD_ENCLOSING_RUN_H_
