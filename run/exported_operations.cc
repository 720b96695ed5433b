#include "run/exported_operations.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

namespace weft {
namespace {

constexpr absl::string_view kOperations[] = {
#include "run/exported_operations.inc"  // made from python/weft/operations.txt, sorted
};

// The operations that look at their results, to say that a matrix has no inverse, or at their inputs, to
// choose their way by them. Sorted.
constexpr absl::string_view kReadingOperations[] = {
    "aten::linalg_cholesky",     "aten::linalg_eigh",  "aten::linalg_inv", "aten::linalg_matrix_exp",
    "aten::linalg_matrix_power", "aten::linalg_solve", "aten::linalg_svd",
};

const GraphArgument* ArgumentOf(const GraphOperation& operation, size_t number) {
  return number < operation.arguments.size() ? &operation.arguments[number] : nullptr;
}

template <typename T>
bool Is(const GraphArgument* argument, const T& wanted) {
  const T* const given = argument == nullptr ? nullptr : std::get_if<T>(argument);
  return given != nullptr && *given == wanted;
}

bool IsAbsent(const GraphArgument* argument) {
  return argument == nullptr || std::holds_alternative<std::monostate>(*argument);
}

// Returns true for a norm of matrices that is made of their singular values: the order, behind the input, is
// 2, -2 or the nuclear one. Where dimensions are given, two are those of matrices.
bool TakesSingularValues(const GraphOperation& operation) {
  const GraphArgument* const order = ArgumentOf(operation, 1);
  const GraphArgument* const dimensions = ArgumentOf(operation, 2);
  const auto* const given = dimensions == nullptr ? nullptr : std::get_if<GraphNumbers>(dimensions);
  if (given != nullptr && given->size() == 1) return false;
  if (Is<std::string>(order, "nuc")) return true;
  return Is<int64_t>(order, 2) || Is<int64_t>(order, -2) || Is<double>(order, 2) || Is<double>(order, -2);
}

// Returns true if the operation reads values with these arguments, and not with others.
bool ReadsByItsArguments(const GraphOperation& operation) {
  const std::string& name = operation.name;
  if (name == "aten::linalg_norm" || name == "aten::linalg_matrix_norm")
    return TakesSingularValues(operation);
  // The largest number says how many classes there are.
  if (name == "aten::one_hot") return Is<int64_t>(ArgumentOf(operation, 1), -1);
  if (name == "aten::tensor_split") return operation.overload == "tensor_indices_or_sections";
  // The sum of the repeats is the size, if that is not given, last.
  if (name == "aten::repeat_interleave")
    return operation.overload != "self_int" && !operation.arguments.empty() &&
           IsAbsent(&operation.arguments.back());
  return false;
}

bool IsWord(absl::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

}  // namespace

bool IsExportedOperation(absl::string_view name) {
  return std::binary_search(std::begin(kOperations), std::end(kOperations), name);
}

bool ReadsValuesOnHost(const GraphOperation& operation) {
  const absl::string_view name = operation.name;
  return std::binary_search(std::begin(kReadingOperations), std::end(kReadingOperations), name) ||
         ReadsByItsArguments(operation);
}

bool IsForeignOperation(absl::string_view name) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(name, absl::MaxSplits("::", 1));
  return parts.first != "aten" && IsWord(parts.first) && IsWord(parts.second);
}

}  // namespace weft
