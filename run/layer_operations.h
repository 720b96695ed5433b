// Puts a layer together from its operations: each adds its parameters, its floating-point operations, and the
// bytes that it keeps for its backward or takes while it runs.
//
// FLOPs include only what grows with a product of sizes: the multiply-adds of matrix products and
// convolutions, and the work of a layer that has neither. They leave out normalizations, activations and
// softmax. Dropout keeps nothing: the backward makes its mask again. Pure.
#ifndef WEFT_RUN_LAYER_OPERATIONS_H_
#define WEFT_RUN_LAYER_OPERATIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "run/layer_spec.h"

namespace weft {

class LayerOperations {
 public:
  static constexpr int64_t kFloat = 4, kInt64 = 8;  // bytes

  // `element` is the bytes of a number that the layers compute in. `reads_data` is true for a layer that
  // reads no other layer.
  LayerOperations(int64_t element, bool reads_data) : element_(element), reads_data_(reads_data) {}

  int64_t element() const { return element_; }
  // Returns true if layers compute in less than float32, and some tensors are there in both.
  bool narrow() const { return element_ < kFloat; }

  // Adds a parameter that no product counts.
  void Parameter(std::string name, std::vector<int64_t> size, ParameterInit init, bool wide = false);
  // Adds `rows` rows of `in` numbers times a matrix [out, in], with a bias if that has an initial value. Here
  // and below, `name` begins the parameters' names; "" where the layer has no other operation.
  void Linear(absl::string_view name, int64_t rows, int64_t in, int64_t out, ParameterInit weight,
              std::optional<ParameterInit> bias);
  // Adds a parameter whose initial value is in a file.
  void ParameterOfFile(std::string name, std::vector<int64_t> size, std::string file, bool wide = false);
  // Adds a running average whose initial value is in a file.
  void StatisticOfFile(std::string name, std::vector<int64_t> size, std::string file, float momentum);
  // Adds a product alone; its matrix is a parameter that was added.
  void Product(int64_t rows, int64_t in, int64_t out);
  // Adds a layer norm of `rows` rows: it keeps its output, and two statistics of each row, each a tensor.
  void Norm(absl::string_view name, int64_t rows, int64_t width);
  // Adds a convolution and its batch norm. The convolution keeps its own output, which the norm reads; the
  // norm's output stays only if a later operation reads it.
  void Convolution(const NormedConvolution& convolution);
  // Adds the loss of `rows` rows of scores: it keeps their logarithmic softmax, the targets, and
  // the sum of the targets' weights. A GPU keeps the scores, in `gpu_columns` columns, and a sum of each row.
  void Loss(int64_t rows, int64_t classes) { Loss(rows, classes, classes); }
  void Loss(int64_t rows, int64_t classes, int64_t gpu_columns);

  void Flops(double flops) { count_.forward_flops += flops; }
  // Keep a tensor until the backward, of so many numbers of a sample: of the precision, float32, or int64.
  void Keep(int64_t numbers) { KeepBytes(element_ * numbers, 0); }
  void KeepFloats(int64_t numbers) { KeepBytes(kFloat * numbers, 0); }
  void KeepIntegers(int64_t numbers) { KeepBytes(kInt64 * numbers, 0); }
  // Keeps the layer's input where that is the data; the output of another layer is kept there. `all`: the
  // numbers of the data, where the layer reads a part of them.
  void KeepInput(int64_t numbers, std::optional<int64_t> all = std::nullopt);
  // Keeps a tensor with bytes of a sample, and of a micro-batch of any size.
  void KeepBytes(int64_t of_sample, int64_t fixed) { count_.kept.push_back({of_sample, fixed}); }
  // Adds a tensor that is no parameter and stays.
  void ConstantBytes(int64_t bytes) { count_.constant_bytes += AlignedBytes(bytes); }
  // Adds bytes of a sample that an operation takes while it runs.
  void Work(int64_t bytes) { count_.work_bytes += bytes; }
  void Output(std::vector<int64_t> sizes, bool by_sample = true) {
    count_.output = {std::move(sizes), by_sample};
  }

  // Return what has been added up. The count has no name and no inputs.
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  LayerCount Count() const;

 private:
  const int64_t element_;
  const bool reads_data_;
  std::vector<ParameterSpec> parameters_;
  LayerCount count_;
  int64_t convolution_work_ = 0;  // of the convolution that takes most
};

}  // namespace weft

#endif  // WEFT_RUN_LAYER_OPERATIONS_H_
