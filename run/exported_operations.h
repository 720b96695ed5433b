// Names the operations of ATen that an exported model may use: functional ones, whose results depend on their
// arguments alone; and tells operations of other namespaces, which libraries of the user's own register.
//
// Without this list a file could call anything that LibTorch registers, as operations that read files or
// write to their arguments. python/weft/operations.txt holds the names, for the exporter too. Pure.
#ifndef WEFT_RUN_EXPORTED_OPERATIONS_H_
#define WEFT_RUN_EXPORTED_OPERATIONS_H_

#include "absl/strings/string_view.h"
#include "run/exported_model.h"

namespace weft {

// `name` without an overload: "aten::add".
bool IsExportedOperation(absl::string_view name);

// Returns true for one of them that, on a device with memory of its own, waits for values and reads them on
// the host, as to see whether a matrix has an inverse. Some read values only with some arguments. What an
// index holds is not told by its operation: `index` and `index_put` wait where it is a mask, and have false
// here. Captures of them fail, and their stages run without (worker/shell/torch/torch_graphs.h).
bool ReadsValuesOnHost(const GraphOperation& operation);

// Returns true for the name of an operation outside of ATen, as "mynet::rope". Whether a library that the run
// names registers it is the worker's to check (worker/shell/torch/plugins.h).
bool IsForeignOperation(absl::string_view name);

}  // namespace weft

#endif  // WEFT_RUN_EXPORTED_OPERATIONS_H_
