#include "run/exported_model.h"

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

}  // namespace weft
