#include "worker/shell/torch/graph_arguments.h"

#include <ATen/ops/scalar_tensor.h>

#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

using c10::TypeKind;

absl::Status Unfit(const c10::TypePtr& type) {
  return absl::InvalidArgumentError(absl::StrCat("an argument is not of the type ", type->str()));
}

bool IsWhole(TypeKind kind) { return kind == TypeKind::IntType || kind == TypeKind::SymIntType; }

// Makes a tensor of a number where the operation wants one, as Python's callers do: it is "wrapped", and does
// not raise the type of what it meets.
template <typename Number>
at::Tensor WrappedNumber(Number number, c10::ScalarType type) {
  at::Tensor tensor = at::scalar_tensor(number, type);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

std::optional<c10::IValue> Fixed(bool flag, TypeKind kind) {
  if (kind == TypeKind::BoolType || kind == TypeKind::NumberType) return c10::IValue(flag);
  if (kind == TypeKind::TensorType) return c10::IValue(WrappedNumber(flag, c10::kBool));
  return std::nullopt;
}

std::optional<c10::IValue> Fixed(int64_t whole, TypeKind kind) {
  if (IsWhole(kind) || kind == TypeKind::NumberType) return c10::IValue(whole);
  if (kind == TypeKind::FloatType) return c10::IValue(static_cast<double>(whole));
  if (kind == TypeKind::TensorType) return c10::IValue(WrappedNumber(whole, c10::kLong));
  return std::nullopt;
}

std::optional<c10::IValue> Fixed(double number, TypeKind kind) {
  if (kind == TypeKind::FloatType || kind == TypeKind::NumberType) return c10::IValue(number);
  if (kind == TypeKind::TensorType) return c10::IValue(WrappedNumber(number, c10::kDouble));
  return std::nullopt;
}

// Types, layouts and memory formats are whole numbers to the dispatcher.
std::optional<c10::IValue> Fixed(ElementType type, TypeKind kind) {
  if (!IsWhole(kind) && kind != TypeKind::ScalarTypeType) return std::nullopt;
  return c10::IValue(static_cast<int64_t>(TorchTypeOf(type)));
}

std::optional<c10::IValue> Fixed(GraphMemoryFormat format, TypeKind kind) {
  if (!IsWhole(kind) && kind != TypeKind::MemoryFormatType) return std::nullopt;
  const auto torch = format == GraphMemoryFormat::kContiguous ? c10::MemoryFormat::Contiguous
                     : format == GraphMemoryFormat::kPreserve ? c10::MemoryFormat::Preserve
                                                              : c10::MemoryFormat::ChannelsLast;
  return c10::IValue(static_cast<int64_t>(torch));
}

// Returns a list of numbers of one type; nothing if one of them is not of it.
template <typename Number>
std::optional<c10::IValue> ListOf(const GraphNumbers& numbers, int64_t samples) {
  c10::List<Number> list;
  for (const GraphNumber& number : numbers) {
    if (const auto* times = std::get_if<GraphSamples>(&number)) {
      list.push_back(static_cast<Number>(times->times * samples));
    } else if (const auto* own = std::get_if<Number>(&number)) {
      list.push_back(*own);
    } else if (const auto* whole = std::get_if<int64_t>(&number); whole != nullptr) {
      list.push_back(static_cast<Number>(*whole));
    } else {
      return std::nullopt;
    }
  }
  return c10::IValue(std::move(list));
}

std::optional<c10::IValue> Fixed(const GraphNumbers& numbers, const c10::TypePtr& type, int64_t samples) {
  const auto list = type->cast<c10::ListType>();
  if (list == nullptr) return std::nullopt;
  const TypeKind element = list->getElementType()->kind();
  if (IsWhole(element)) return ListOf<int64_t>(numbers, samples);
  if (element == TypeKind::FloatType) return ListOf<double>(numbers, samples);
  if (element == TypeKind::BoolType) return ListOf<bool>(numbers, samples);
  if (element == TypeKind::TensorType && numbers.empty()) return c10::IValue(c10::List<at::Tensor>());
  return std::nullopt;
}

// Converts the kinds of arguments that hold no value of the graph.
struct Fixing {
  const c10::TypePtr& type;
  const GraphPlace& place;

  std::optional<c10::IValue> operator()(std::monostate) const { return c10::IValue(); }
  std::optional<c10::IValue> operator()(bool v) const { return Fixed(v, type->kind()); }
  std::optional<c10::IValue> operator()(int64_t v) const { return Fixed(v, type->kind()); }
  std::optional<c10::IValue> operator()(double v) const { return Fixed(v, type->kind()); }
  std::optional<c10::IValue> operator()(const GraphSamples& v) const {
    return Fixed(v.times * place.samples, type->kind());
  }
  std::optional<c10::IValue> operator()(const std::string& text) const {
    if (type->kind() != TypeKind::StringType) return std::nullopt;
    return c10::IValue(text);
  }
  std::optional<c10::IValue> operator()(const GraphNumbers& v) const { return Fixed(v, type, place.samples); }
  std::optional<c10::IValue> operator()(ElementType v) const { return Fixed(v, type->kind()); }
  std::optional<c10::IValue> operator()(GraphMemoryFormat v) const { return Fixed(v, type->kind()); }
  std::optional<c10::IValue> operator()(GraphLayout) const {
    if (!IsWhole(type->kind()) && type->kind() != TypeKind::LayoutType) return std::nullopt;
    return c10::IValue(static_cast<int64_t>(c10::Layout::Strided));
  }
  std::optional<c10::IValue> operator()(GraphDevice) const {
    if (type->kind() != TypeKind::DeviceObjType) return std::nullopt;
    return c10::IValue(place.device);
  }
  // The graph's values are not fixed.
  std::optional<c10::IValue> operator()(const GraphValue&) const { return std::nullopt; }
  std::optional<c10::IValue> operator()(const GraphValues&) const { return std::nullopt; }
};

}  // namespace

c10::ScalarType TorchTypeOf(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return c10::kFloat;
    case ElementType::kBF16:
      return c10::kBFloat16;
    case ElementType::kF16:
      return c10::kHalf;
    case ElementType::kF64:
      return c10::kDouble;
    case ElementType::kI64:
      return c10::kLong;
    case ElementType::kI32:
      return c10::kInt;
    case ElementType::kI16:
      return c10::kShort;
    case ElementType::kI8:
      return c10::kChar;
    case ElementType::kU8:
      return c10::kByte;
    case ElementType::kBool:
      return c10::kBool;
  }
  return c10::kFloat;
}

absl::StatusOr<ReadyArgument> MakeReady(const GraphArgument& argument, c10::TypePtr type,
                                        const GraphPlace& place) {
  ReadyArgument ready;
  if (const auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  } else if (std::holds_alternative<std::monostate>(argument)) {
    return Unfit(type);
  }
  if (const auto* value = std::get_if<GraphValue>(&argument)) {
    if (type->kind() != TypeKind::TensorType) return Unfit(type);
    ready.value = value->number;
    return ready;
  }
  if (const auto* values = std::get_if<GraphValues>(&argument)) {
    const auto list = type->cast<c10::ListType>();
    if (list == nullptr) return Unfit(type);
    const TypeKind element = list->getElementType()->kind();
    ready.values = values;
    ready.optional_values = element == TypeKind::OptionalType;
    if (element != TypeKind::TensorType && !ready.optional_values) return Unfit(type);
    for (const int number : values->numbers) {
      if (number < 0 && !ready.optional_values) return Unfit(type);
    }
    return ready;
  }
  std::optional<c10::IValue> fixed = std::visit(Fixing{type, place}, argument);
  if (!fixed.has_value()) return Unfit(type);
  ready.fixed = *std::move(fixed);
  return ready;
}

c10::IValue ArgumentOf(const ReadyArgument& argument, const std::vector<at::Tensor>& values) {
  if (argument.value >= 0) return c10::IValue(values[argument.value]);
  if (argument.values == nullptr) return argument.fixed;
  if (argument.optional_values) {
    c10::List<std::optional<at::Tensor>> list;
    for (const int number : argument.values->numbers)
      list.push_back(number < 0 ? std::nullopt : std::optional<at::Tensor>(values[number]));
    return c10::IValue(std::move(list));
  }
  c10::List<at::Tensor> list;
  for (const int number : argument.values->numbers) list.push_back(values[number]);
  return c10::IValue(std::move(list));
}

}  // namespace weft
