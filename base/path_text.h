// Says which paths a run can have: its records, its messages and its files' JSON hold UTF-8 only.
#ifndef WEFT_BASE_PATH_TEXT_H_
#define WEFT_BASE_PATH_TEXT_H_

#include <string>

#include "absl/status/status.h"

namespace weft {

// Returns InvalidArgument, with the escaped path, if the path from the root has bytes that are not UTF-8.
absl::Status CheckPathText(const std::string& path);

}  // namespace weft

#endif  // WEFT_BASE_PATH_TEXT_H_
