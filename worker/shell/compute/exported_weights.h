// Reads the weights of an exported model: parameters and constants by their names in the model's state_dict.
//
// The folder's weights.safetensors holds parameters as float32. Constants that are whole numbers are int64,
// and truth values are bytes. Threads: any. Failure: NotFound, InvalidArgument or DataLoss that names the
// file and the tensor.
#ifndef WEFT_WORKER_SHELL_COMPUTE_EXPORTED_WEIGHTS_H_
#define WEFT_WORKER_SHELL_COMPUTE_EXPORTED_WEIGHTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "run/model_spec.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

// Returns the type in which the file holds a constant. Parameters are float32 there, also frozen ones,
// whatever the graphs read.
DataType HeldTypeOf(const ExportedConstant& constant);

// Checks that the file holds all tensors of the model, with their types and sizes, and no others but those of
// its graphs of another precision. The message
// begins with "model.exported: ".
absl::Status CheckExportedWeights(const ExportedSpec& exported);

// Copies one constant, whose size and type must be these, to `out`, as the file holds it.
absl::Status ReadExportedConstant(const std::string& file, const ExportedConstant& constant, void* out);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_COMPUTE_EXPORTED_WEIGHTS_H_
