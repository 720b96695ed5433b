// Reads a small text file whole, or says why it cannot be read.
#ifndef WEFT_CLIENT_FILES_TEXT_FILE_H_
#define WEFT_CLIENT_FILES_TEXT_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

// Returns InvalidArgument, naming the file, if it cannot be read or has more than `most` bytes. `what` is
// what the file should be, as in "a schedule".
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t most, absl::string_view what);

}  // namespace weft

#endif  // WEFT_CLIENT_FILES_TEXT_FILE_H_
