// Describes a model of the user's own as values: a graph of ATen operations for each layer, as weft.export
// wrote it (python/weft, docs/guide/exported_format.md).
//
// A layer reads outputs of layers before it, fields of the data, or both. A tied parameter, which several
// layers use, is in a layer of its own that reads nothing and hands it out. Values are numbered within the
// layer: first what it reads (layers, then fields), then its parameters, its statistics, its constants, and
// the results of its operations, in order. The last layer's output is the loss: a mean over the micro-batch,
// or a sum, beside which the model has a count. The evaluation is a graph of its own, without cuts, because
// a module may compute something else in evaluation mode. A model has one file of graphs for float32, and may
// have another for bfloat16, in which layers read narrowed copies of the same weights (precision.h).
//
// Invariants of a parsed model: every operation is one of the allowed, functional ones of ATen, or of another
// namespace, whose libraries the run has to name; an operation reads values that stand before it; sizes are
// positive and their products stay far from overflow; names of layers
// and of tensors are unique; each layer but the last is read by one or two others, so that the sum of their
// gradients has the same bits wherever the model is cut. Whether LibTorch takes the arguments is the worker's
// to check (worker/shell/torch/graph_layer.h). Pure.
#ifndef WEFT_RUN_EXPORTED_MODEL_H_
#define WEFT_RUN_EXPORTED_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

enum class ElementType : uint8_t { kF32, kBF16, kF16, kF64, kI64, kI32, kI16, kI8, kU8, kBool };
enum class GraphMemoryFormat : uint8_t { kContiguous, kPreserve, kChannelsLast };

// ---- the arguments of an operation

// A whole number that is so many times the samples of a micro-batch.
struct GraphSamples {
  int64_t times = 0;
};
struct GraphValue {
  int number = 0;
};
// A list of values; -1 for none.
struct GraphValues {
  std::vector<int> numbers;
};
struct GraphDevice {};  // where the layer computes
struct GraphLayout {};  // strided
using GraphNumber = std::variant<bool, int64_t, GraphSamples, double>;
using GraphNumbers = std::vector<GraphNumber>;
using GraphArgument =
    std::variant<std::monostate, bool, int64_t, GraphSamples, double, std::string, GraphValue, GraphValues,
                 GraphNumbers, ElementType, GraphDevice, GraphLayout, GraphMemoryFormat>;

struct GraphOperation {
  std::string name, overload;            // "aten::add", "Tensor"
  std::vector<GraphArgument> arguments;  // in the order of the operation's schema, all of them
  std::vector<int> results;              // numbers; -1 for one that nobody reads
  std::string place;                     // line of the model's code, as "model.py:12"; "" if it is not known
};

// ---- the model

// A parameter or a constant, by its name in the model's state_dict.
struct ExportedTensor {
  std::string name;
  ElementType type = ElementType::kF32;  // as operations read it
  std::vector<int64_t> sizes;
};

// A buffer, or a parameter that is not trained.
struct ExportedConstant : ExportedTensor {
  bool is_frozen_parameter = false;
};

// A running average of a batch norm, by its name in the model's state_dict.
struct ExportedStatistic {
  std::string name;
  std::vector<int64_t> sizes;
  double momentum = 0;  // part of the micro-batches' mean in the next average; 0 to 1
};

// The costs of a sample, or of a micro-batch of any size where that is said (layer_spec.h).
struct ExportedCosts {
  double flops = 0;
  int64_t activation_bytes = 0, fixed_activation_bytes = 0, work_bytes = 0;
};

struct ExportedLayer {
  std::string name;
  std::vector<int> layers;  // that it reads, ascending
  std::vector<int> fields;  // that it reads
  std::vector<ExportedTensor> parameters;
  std::vector<ExportedStatistic> statistics;
  std::vector<ExportedConstant> constants;
  // Returns the number of the first statistic among the values.
  int first_statistic() const { return static_cast<int>(layers.size() + fields.size() + parameters.size()); }
  int values = 0;  // numbered values
  std::vector<GraphOperation> operations;
  int output = 0;                     // number of the output
  std::vector<int64_t> output_sizes;  // none for the last layer
  // True if these are the sizes of a sample; false for an output that has no samples, as a parameter.
  bool output_by_sample = true;
  ExportedCosts costs;
};

// A named part of a sample. The fields of a sample lie one after the other, each at a multiple of 8 bytes.
struct ExportedField {
  std::string name;
  ElementType type = ElementType::kF32;  // or kI64
  std::vector<int64_t> sizes;            // of a sample
  int64_t begin = 0, bytes = 0;          // within a sample
};

// Figure of an evaluation: a mean over a batch, or a sum, behind which its count stands.
struct ExportedFigure {
  std::string name;
  bool counted = false;
};

struct ExportedModel {
  bool narrow = false;      // layers compute in bfloat16
  bool has_weights = true;  // false for one that was exported from the meta device: it can be planned only
  std::vector<ExportedField> fields;
  int64_t sample_bytes = 0;
  std::vector<ExportedLayer> layers;
  // Names in the model's state_dict: further names of parameters, each with the first one; names of tensors
  // that no layer reads.
  std::map<std::string, std::string> aliases;
  std::vector<std::string> unread;
  // Tensors of the weights' file that only graphs of another precision read.
  std::vector<std::string> elsewhere;
  // Model that counts a micro-batch, if the loss is a sum: one layer that reads data alone, with the fields
  // that it reads. Null for a loss that is a mean by itself.
  std::shared_ptr<const ExportedModel> count;
  // The module in evaluation mode: a model of one layer that reads data, and parameters and statistics of
  // these layers by their names. Its output has `figures`, one number of float64 each, or two; the first is
  // the loss. It is null if the model has none; `no_evaluation` says why.
  std::shared_ptr<const ExportedModel> evaluation;
  std::string no_evaluation;
  std::vector<ExportedFigure> figures;
};

// Returns "F32", ..
absl::string_view ElementTypeName(ElementType type);
std::optional<ElementType> ElementTypeOf(absl::string_view name);
int64_t ElementTypeBytes(ElementType type);
// Returns the bytes of a tensor of these sizes.
int64_t TensorBytes(ElementType type, const std::vector<int64_t>& sizes);

// Returns the graphs that read the weights: the layers, the count and the evaluation, as far as it has them.
std::vector<const ExportedLayer*> AllGraphs(const ExportedModel& model);

// Returns the rows of the smallest embedding that a field of whole numbers is looked up in, as it is or in
// another shape; nothing where no layer does.
std::optional<int64_t> EmbeddingRows(const ExportedModel& model);

// Returns the name in the model's folder of the file of graphs: for bfloat16 if `narrow`, else for float32.
absl::string_view GraphsFile(bool narrow);

}  // namespace weft

#endif  // WEFT_RUN_EXPORTED_MODEL_H_
