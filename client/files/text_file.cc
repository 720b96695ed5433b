#include "client/files/text_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft {

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t most, absl::string_view what) {
  const auto cannot = [&] {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  };
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return cannot();
  std::string text;
  std::vector<char> block(1 << 16);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(file.gcount()));
    if (text.size() > most) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is larger than ", most >> 10, " KiB; is it ", what, "?"));
    }
  }
  if (file.bad() || !file.eof()) return cannot();
  return text;
}

}  // namespace weft
