#include "run/exported_operations.h"

#include <algorithm>
#include <iterator>

namespace weft {
namespace {

constexpr absl::string_view kOperations[] = {
#include "run/exported_operations.inc"  // made from python/weft/operations.txt, sorted
};

}  // namespace

bool IsExportedOperation(absl::string_view name) {
  return std::binary_search(std::begin(kOperations), std::end(kOperations), name);
}

}  // namespace weft
