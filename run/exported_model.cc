#include "run/exported_model.h"

#include <algorithm>
#include <set>

namespace weft {
namespace {

struct NamedType {
  ElementType type;
  const char* name;
  int64_t bytes;
};
constexpr NamedType kTypes[] = {{ElementType::kF32, "F32", 4}, {ElementType::kBF16, "BF16", 2},
                                {ElementType::kF16, "F16", 2}, {ElementType::kF64, "F64", 8},
                                {ElementType::kI64, "I64", 8}, {ElementType::kI32, "I32", 4},
                                {ElementType::kI16, "I16", 2}, {ElementType::kI8, "I8", 1},
                                {ElementType::kU8, "U8", 1},   {ElementType::kBool, "BOOL", 1}};

}  // namespace

absl::string_view ElementTypeName(ElementType type) { return kTypes[static_cast<size_t>(type)].name; }

std::optional<ElementType> ElementTypeOf(absl::string_view name) {
  for (const NamedType& t : kTypes) {
    if (name == t.name) return t.type;
  }
  return std::nullopt;
}

int64_t ElementTypeBytes(ElementType type) { return kTypes[static_cast<size_t>(type)].bytes; }

int64_t TensorBytes(ElementType type, const std::vector<int64_t>& sizes) {
  int64_t bytes = ElementTypeBytes(type);
  for (const int64_t size : sizes) bytes *= size;
  return bytes;
}

std::vector<const ExportedLayer*> AllGraphs(const ExportedModel& model) {
  std::vector<const ExportedLayer*> graphs;
  for (const ExportedLayer& layer : model.layers) graphs.push_back(&layer);
  for (const auto& further : {model.count, model.evaluation}) {
    if (further != nullptr) graphs.push_back(&further->layers.front());
  }
  return graphs;
}

absl::string_view GraphsFile(bool narrow) { return narrow ? "model.bf16.json" : "model.json"; }

namespace {

// Returns the sizes of a value that a layer has as it is: of a layer's output, a parameter or a constant.
std::vector<int64_t> SizesOf(const ExportedModel& model, const ExportedLayer& layer, int value) {
  const auto layers = static_cast<int>(layer.layers.size());
  const int parameter = value - layers - static_cast<int>(layer.fields.size());
  if (value < layers) return model.layers[layer.layers[value]].output_sizes;
  if (parameter >= 0 && parameter < static_cast<int>(layer.parameters.size()))
    return layer.parameters[parameter].sizes;
  const int constant = value - layer.first_statistic() - static_cast<int>(layer.statistics.size());
  if (constant >= 0 && constant < static_cast<int>(layer.constants.size()))
    return layer.constants[constant].sizes;
  return {};
}

// Returns the number of the value that is the argument; -1 if it is none.
int ValueAt(const GraphOperation& operation, size_t argument) {
  if (operation.arguments.size() <= argument) return -1;
  const auto* value = std::get_if<GraphValue>(&operation.arguments[argument]);
  return value == nullptr ? -1 : value->number;
}

// Returns, by number, which values of the layer are fields, as they are or in another shape.
std::vector<bool> FieldsInAnyShape(const ExportedLayer& layer) {
  static const auto* const shaping = new std::set<std::string>{
      "aten::alias", "aten::clone", "aten::contiguous", "aten::expand", "aten::reshape", "aten::unsqueeze"};
  std::vector<bool> fields(layer.values);
  const auto first = fields.begin() + static_cast<int>(layer.layers.size());
  std::fill(first, first + static_cast<int>(layer.fields.size()), true);
  for (const GraphOperation& operation : layer.operations) {
    const int from = ValueAt(operation, 0);
    if (from < 0 || !fields[from] || shaping->count(operation.name) == 0) continue;
    for (const int result : operation.results) {
      if (result >= 0) fields[result] = true;
    }
  }
  return fields;
}

}  // namespace

std::optional<int64_t> EmbeddingRows(const ExportedModel& model) {
  std::optional<int64_t> rows;
  for (const ExportedLayer& layer : model.layers) {
    const std::vector<bool> fields = FieldsInAnyShape(layer);
    for (const GraphOperation& operation : layer.operations) {
      const int table = ValueAt(operation, 0), read = ValueAt(operation, 1);
      if (operation.name != "aten::embedding" || table < 0 || read < 0 || !fields[read]) continue;
      const std::vector<int64_t> sizes = SizesOf(model, layer, table);
      if (!sizes.empty()) rows = std::min(rows.value_or(sizes[0]), sizes[0]);
    }
  }
  return rows;
}

}  // namespace weft
