#include "base/path_text.h"

#include <filesystem>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/plain_text.h"

namespace weft {

absl::Status CheckPathText(const std::string& path) {
  std::error_code unknown;
  std::string whole = std::filesystem::absolute(path, unknown).string();
  if (unknown) whole = path;
  if (IsUtf8(whole)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the path \"", absl::CHexEscape(whole),
                                                 "\" is not UTF-8, so the records of a run cannot hold it; "
                                                 "rename the file or folder"));
}

}  // namespace weft
