// Reads which run the output folder of a training is of.
#ifndef WEFT_CLIENT_FILES_RUN_FOLDER_H_
#define WEFT_CLIENT_FILES_RUN_FOLDER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "run/run_spec.h"

namespace weft {

// Reads the specification of the run in the folder: from run.json; where a release before wrote that, from
// summary.json, or, if the run has not finished, from the file that run.json names. InvalidArgument with one
// sentence that names the file or the folder; where it is no folder of a run, `otherwise` says what to give
// instead.
absl::StatusOr<RunSpec> ReadRunOfFolder(const std::string& folder, absl::string_view otherwise);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_RUN_FOLDER_H_
