// Reads an exported model's model.json, strictly.
//
// Failure: InvalidArgument that names the file's version, the layer and the operation, or the field that is
// missing, and says what to do. Pure.
#ifndef WEFT_RUN_EXPORTED_MODEL_JSON_H_
#define WEFT_RUN_EXPORTED_MODEL_JSON_H_

#include <memory>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "run/exported_model.h"

namespace weft {

// Returns the model; messages begin with the place in the file, as "layers[2].operations[3]: ".
absl::StatusOr<std::shared_ptr<const ExportedModel>> ParseExportedModel(const nlohmann::json& file);

}  // namespace weft

#endif  // WEFT_RUN_EXPORTED_MODEL_JSON_H_
