#include "base/run_files.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

struct Root {
  int folder = -1;                 // descriptor, open as long as the process
  std::vector<std::string> paths;  // absolute, without `/` at the end: as given, and without links
};

// The roots of this process; never destroyed, since threads may open files until it ends.
std::vector<Root>& Roots() {
  static auto* const roots = new std::vector<Root>;
  return *roots;
}

std::string PlainPath(const fs::path& path) {
  std::string text = path.lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

// Returns the rest of a path behind the root, "." for the root itself; nothing for a path elsewhere. The rest
// stays as it was written: only the kernel says where it leads.
std::optional<std::string> Beneath(const std::string& root, const std::string& path) {
  if (path == root) return ".";
  const std::string folder = root == "/" ? root : root + "/";
  if (!absl::StartsWith(path, folder)) return std::nullopt;
  std::string rest = path.substr(folder.size());
  rest.erase(0, rest.find_first_not_of('/'));
  return rest.empty() ? "." : rest;
}

int OpenBeneath(int root, const std::string& rest, int flags, mode_t mode) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags) | O_CLOEXEC;
  how.mode = (flags & O_CREAT) != 0 ? mode : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  constexpr int kTries = 64;  // EAGAIN: somebody renamed a folder meanwhile
  for (int i = 0; i < kTries; ++i) {
    const long fd = syscall(SYS_openat2, root, rest.c_str(), &how, sizeof how);
    if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) return static_cast<int>(fd);
  }
  return -1;
}

absl::Status AddRoot(const std::string& path, std::vector<Root>* roots) {
  const auto refused = [&path](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("--roots: ", path, ": ", why));
  };
  if (!fs::path(path).is_absolute()) return refused("it must be an absolute path");
  Root root;
  root.folder = open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root.folder < 0) return refused(std::strerror(errno));
  roots->push_back(root);
  std::error_code error;
  roots->back().paths = {PlainPath(path), PlainPath(fs::canonical(path, error))};
  if (error) return refused(error.message());
  const int probe = OpenBeneath(root.folder, ".", O_PATH | O_DIRECTORY, 0);
  if (probe < 0)
    return refused(absl::StrCat("the kernel cannot open beneath it (openat2): ", std::strerror(errno)));
  close(probe);
  return absl::OkStatus();
}

void Close(const std::vector<Root>& roots) {
  for (const Root& root : roots) close(root.folder);
}

}  // namespace

absl::Status ConfineRunFiles(const std::vector<std::string>& roots) {
  std::vector<Root> opened;
  for (const std::string& path : roots) {
    if (absl::Status added = AddRoot(path, &opened); !added.ok()) {
      Close(opened);
      return added;
    }
  }
  Close(std::exchange(Roots(), std::move(opened)));
  return absl::OkStatus();
}

int OpenRunFile(const std::string& path, int flags, mode_t mode) {
  if (Roots().empty()) return open(path.c_str(), flags | O_CLOEXEC, mode);
  for (const Root& root : Roots()) {
    for (const std::string& prefix : root.paths) {
      if (const auto rest = Beneath(prefix, path); rest.has_value())
        return OpenBeneath(root.folder, *rest, flags, mode);
    }
  }
  errno = EXDEV;
  return -1;
}

std::string RunFileError(int error) {
  if (error != EXDEV) return std::strerror(error);
  std::vector<std::string> roots;
  for (const Root& root : Roots()) roots.push_back(root.paths.front());
  return absl::StrCat("it is not beneath a folder in which this process may open files of runs (--roots: ",
                      absl::StrJoin(roots, ", "), ")");
}

// If a path is missing, its first parent that exists decides, since the missing folders are made in that.
absl::Status CheckRunPath(const std::string& path) {
  if (Roots().empty()) return absl::OkStatus();
  for (std::string there = path;; there = fs::path(there).parent_path().string()) {
    const int fd = OpenRunFile(there, O_PATH);
    if (fd >= 0) {
      close(fd);
      return absl::OkStatus();
    }
    const fs::path missing = fs::path(there).filename();
    if (errno == ENOENT && missing != "..") continue;
    const int error = errno == ENOENT ? EXDEV : errno;  // where a missing folder's `..` leads is not known
    const std::string sentence = absl::StrCat("cannot open ", path, ": ", RunFileError(error));
    return error == EXDEV ? absl::PermissionDeniedError(sentence) : absl::InvalidArgumentError(sentence);
  }
}

absl::Status CheckReadable(const std::string& path) {
  std::error_code error;
  const int mode = fs::is_directory(path, error) ? R_OK | X_OK : R_OK;
  if (faccessat(AT_FDCWD, path.c_str(), mode, AT_EACCESS) == 0 || errno == ENOENT || errno == ENOTDIR)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
}

std::ifstream RunFileToRead(const std::string& path) {
  // The stream opens the same file again, by its descriptor, and has one of its own. It would wait for the
  // other end of a pipe.
  const int fd = OpenRunFile(path, O_RDONLY | O_NONBLOCK);
  struct stat info {};
  std::ifstream file;
  if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
    file.open(absl::StrCat("/proc/self/fd/", fd), std::ios::binary);
  else
    file.setstate(std::ios::failbit);
  if (fd >= 0) close(fd);
  return file;
}

}  // namespace weft
