// Holds the graphs of an exported model in a run's specification: as they are, or packed if they are large. A
// packed model of many equal blocks has a twentieth of its bytes, so that hundreds of blocks fit into a
// specification.
#ifndef WEFT_RUN_GRAPHS_TEXT_H_
#define WEFT_RUN_GRAPHS_TEXT_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace weft {

inline constexpr size_t kMaxGraphsBytes = size_t{16} << 20;  // of a model's graphs as text

// Returns the graphs, an object, or a string that holds a large one: JSON, deflated, in base64.
nlohmann::json PackGraphs(const nlohmann::json& graphs);

// Returns the graphs from either form. InvalidArgument if a string holds no graphs, or more than
// kMaxGraphsBytes.
absl::StatusOr<nlohmann::json> UnpackGraphs(const nlohmann::json& packed);

}  // namespace weft

#endif  // WEFT_RUN_GRAPHS_TEXT_H_
