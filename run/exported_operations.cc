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

bool IsWord(absl::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

}  // namespace

bool IsExportedOperation(absl::string_view name) {
  return std::binary_search(std::begin(kOperations), std::end(kOperations), name);
}

bool IsForeignOperation(absl::string_view name) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(name, absl::MaxSplits("::", 1));
  return parts.first != "aten" && IsWord(parts.first) && IsWord(parts.second);
}

}  // namespace weft
