// Gives the arguments of an exported graph's operations to LibTorch, by the types of the operation's schema.
//
// Private to the adapter of LibTorch. Failure: InvalidArgument where an argument is not of the schema's type.
#ifndef WEFT_WORKER_SHELL_TORCH_GRAPH_ARGUMENTS_H_
#define WEFT_WORKER_SHELL_TORCH_GRAPH_ARGUMENTS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <vector>

#include "absl/status/statusor.h"
#include "run/exported_model.h"

namespace weft {

// Holds what an argument may depend on beside the graph.
struct GraphPlace {
  int64_t samples = 0;  // of a micro-batch
  c10::Device device = c10::Device(c10::DeviceType::CPU);
};

// An argument that is ready: a value of the graph, a list of them, or anything else as LibTorch takes it.
struct ReadyArgument {
  int value = -1;  // number of the value
  const GraphValues* values = nullptr;
  bool optional_values = false;  // the list may have gaps
  c10::IValue fixed;
};

c10::ScalarType TorchTypeOf(ElementType type);

// `argument` outlives the result.
absl::StatusOr<ReadyArgument> MakeReady(const GraphArgument& argument, c10::TypePtr type,
                                        const GraphPlace& place);

// Returns what the operation is called with.
c10::IValue ArgumentOf(const ReadyArgument& argument, const std::vector<at::Tensor>& values);

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_GRAPH_ARGUMENTS_H_
