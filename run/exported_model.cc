#include "run/exported_model.h"

#include <algorithm>

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

}  // namespace

std::optional<int64_t> EmbeddingRows(const ExportedModel& model) {
  std::optional<int64_t> rows;
  for (const ExportedLayer& layer : model.layers) {
    const auto first_field = static_cast<int>(layer.layers.size());
    const int end_field = first_field + static_cast<int>(layer.fields.size());
    for (const GraphOperation& operation : layer.operations) {
      if (operation.name != "aten::embedding" || operation.arguments.size() < 2) continue;
      const auto* table = std::get_if<GraphValue>(&operation.arguments[0]);
      const auto* field = std::get_if<GraphValue>(&operation.arguments[1]);
      if (table == nullptr || field == nullptr || field->number < first_field || field->number >= end_field)
        continue;
      const std::vector<int64_t> sizes = SizesOf(model, layer, table->number);
      if (!sizes.empty()) rows = std::min(rows.value_or(sizes[0]), sizes[0]);
    }
  }
  return rows;
}

}  // namespace weft
