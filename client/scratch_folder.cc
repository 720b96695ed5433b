#include "client/scratch_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// A unix socket's path has room for 107 characters.
constexpr size_t kFolderMost = 80;

}  // namespace

absl::StatusOr<std::unique_ptr<ScratchFolder>> ScratchFolder::Make() {
  std::error_code error;
  std::string parent = std::filesystem::temp_directory_path(error).string();
  if (error || parent.size() > kFolderMost) parent = "/tmp";
  std::string path = absl::StrCat(parent, "/weft-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a folder in ", parent, ": ", std::strerror(errno),
                                               "; set TMPDIR to a writable one"));
  }
  return std::unique_ptr<ScratchFolder>(new ScratchFolder(std::move(path)));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace weft
