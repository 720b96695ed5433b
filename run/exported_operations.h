// Names the operations that an exported model may use: functional ones, whose results depend on their
// arguments alone.
//
// Without this list a file could call anything that LibTorch registers, as operations that read files or
// write to their arguments. python/weft/operations.txt holds the names, for the exporter too. Pure.
#ifndef WEFT_RUN_EXPORTED_OPERATIONS_H_
#define WEFT_RUN_EXPORTED_OPERATIONS_H_

#include "absl/strings/string_view.h"

namespace weft {

// `name` without an overload: "aten::add".
bool IsExportedOperation(absl::string_view name);

}  // namespace weft

#endif  // WEFT_RUN_EXPORTED_OPERATIONS_H_
