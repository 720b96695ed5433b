// Puts the graphs of an exported model into a run file's JSON, so that the run means the same on machines
// that have only the weights.
#ifndef WEFT_CLIENT_FILES_EXPORTED_FOLDER_H_
#define WEFT_CLIENT_FILES_EXPORTED_FOLDER_H_

#include <string>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"

namespace weft {

// Replaces the folder's name in a run's `model`, {exported: mymodel.weft}, by its absolute path and the
// graphs for the run's precision: the content of its model.json, or model.bf16.json. Relative paths are
// relative to `folder`. Other values stay. InvalidArgument with one sentence if the folder cannot be read.
absl::Status EmbedGraphs(const std::string& folder, nlohmann::json& run);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_EXPORTED_FOLDER_H_
