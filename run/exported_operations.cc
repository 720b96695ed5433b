#include "run/exported_operations.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

namespace weft {
namespace {

constexpr absl::string_view kOperations[] = {
#include "run/exported_operations.inc"  // made from python/weft/operations.txt, sorted
};

// Those that look at what they have made, to say that a matrix has no inverse, or at their values, to choose
// their way by them. Sorted.
constexpr absl::string_view kReadingOperations[] = {
    "aten::linalg_cholesky",   "aten::linalg_eigh",         "aten::linalg_inv",
    "aten::linalg_matrix_exp", "aten::linalg_matrix_power", "aten::linalg_solve",
};

bool IsWord(absl::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

}  // namespace

bool IsExportedOperation(absl::string_view name) {
  return std::binary_search(std::begin(kOperations), std::end(kOperations), name);
}

bool ReadsValuesOnHost(absl::string_view name) {
  return std::binary_search(std::begin(kReadingOperations), std::end(kReadingOperations), name);
}

bool IsForeignOperation(absl::string_view name) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(name, absl::MaxSplits("::", 1));
  return parts.first != "aten" && IsWord(parts.first) && IsWord(parts.second);
}

}  // namespace weft
