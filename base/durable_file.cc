#include "base/durable_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/run_files.h"
#include "base/threads.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPush = 8 << 20;  // bytes that are worth a request to the disk

// Returns the folder of a file or a folder.
std::string FolderOf(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Syncs what was opened under the path, and closes it. A negative descriptor: it could not be, with errno.
absl::Status Sync(const std::string& path, int fd) {
  const int error = fd >= 0 && fsync(fd) == 0 ? 0 : errno;
  if (fd >= 0) close(fd);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot sync ", path, ": ", RunFileError(error)));
}

}  // namespace

// Several processes may write the same file at once; each has its own temporary one.
DurableFile::DurableFile(std::string path)
    : path_(std::move(path)), temporary_(absl::StrCat(path_, ".", getpid(), "-", gettid(), ".partial")) {
  fd_ = OpenRunFile(temporary_, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK, 0644);
  if (fd_ < 0) Fail("create", errno);
}

DurableFile::~DurableFile() {
  EndWriteBack();
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

void DurableFile::Fail(const char* what, int error) {
  if (status_.ok())
    status_ = absl::UnavailableError(absl::StrCat("cannot ", what, " ", path_, ": ", RunFileError(error)));
}

void DurableFile::Append(const void* data, size_t bytes) {
  if (!status_.ok()) return;
  if (!WriteAll(fd_, data, bytes)) return Fail("write", errno);
  length_ += bytes;
  if (length_ - pushed_ >= kPush) Push();
}

void DurableFile::ReplaceBegin(const void* data, size_t bytes) {
  if (status_.ok() && pwrite(fd_, data, bytes, 0) != static_cast<ssize_t>(bytes)) Fail("write", errno);
}

void DurableFile::Push() {
  if (pushed_ == 0) {
    absl::StatusOr<std::thread> thread = TryStartThread([this] { WriteBack(); });
    if (thread.ok()) thread_ = *std::move(thread);
  }
  pushed_ = length_;
  MutexLock lock(mu_);
  ready_ = pushed_;
  changed_.Signal();
}

// Runs on the file's own thread. The sync at the end reports errors that occur here.
void DurableFile::WriteBack() {
  uint64_t begun = 0;
  while (true) {
    uint64_t ready = 0;
    {
      MutexLock lock(mu_);
      while (ready_ == begun && !ended_) changed_.Wait(mu_);
      if (ended_) return;
      ready = ready_;
    }
    sync_file_range(fd_, static_cast<off_t>(begun), static_cast<off_t>(ready - begun), SYNC_FILE_RANGE_WRITE);
    begun = ready;
  }
}

void DurableFile::EndWriteBack() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mu_);
    ended_ = true;
    changed_.Signal();
  }
  thread_.join();
}

absl::Status DurableFile::Finish() {
  EndWriteBack();
  if (status_.ok() && fsync(fd_) != 0) Fail("sync", errno);
  if (!status_.ok()) return status_;
  if (close(std::exchange(fd_, -1)) != 0) Fail("close", errno);
  if (status_.ok() && rename(temporary_.c_str(), path_.c_str()) != 0) Fail("rename", errno);
  if (!status_.ok()) {
    unlink(temporary_.c_str());
    return status_;
  }
  return SyncToDisk(FolderOf(path_));
}

absl::StatusOr<std::string> ReplaceableFile(const std::string& path) {
  std::error_code error;
  const fs::file_status itself = fs::symlink_status(path, error);
  // What cannot be looked at cannot be written either, and that says why.
  if (itself.type() == fs::file_type::none || !fs::exists(itself) || fs::is_regular_file(itself)) return path;
  if (fs::is_symlink(itself) && fs::is_regular_file(path, error)) {
    const fs::path at_its_end = fs::canonical(path, error);
    if (!error) return at_its_end.string();
  }
  const char* const what = fs::is_directory(itself) ? "a folder"
                           : fs::is_symlink(itself) ? "a symbolic link to no regular file"
                                                    : "a pipe, a device or a socket";
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is ", what, "; name a file that is new, or a regular file to replace"));
}

absl::Status WriteWholeFile(const std::string& path, absl::string_view text) {
  DurableFile file(path);
  file.Append(text.data(), text.size());
  return file.Finish();
}

absl::Status SyncToDisk(const std::string& path) {
  return Sync(path, OpenRunFile(path, O_RDONLY | O_NONBLOCK));
}

absl::StatusOr<std::vector<std::string>> MakeFolders(const std::string& folder) {
  std::vector<std::string> made;
  std::error_code error;
  for (fs::path missing = folder; !fs::exists(missing, error) && missing.has_relative_path();
       missing = missing.parent_path()) {
    made.insert(made.begin(), missing.string());
  }
  fs::create_directories(folder, error);
  if (error)
    return absl::UnavailableError(absl::StrCat("cannot make the folder ", folder, ": ", error.message()));
  for (const std::string& name : made) {
    const std::string parent = FolderOf(name);  // of a folder of the daemon's own as well
    absl::Status synced = Sync(parent, open(parent.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!synced.ok()) return synced;
  }
  return made;
}

bool WriteAll(int fd, const void* data, size_t n) {
  const char* from = static_cast<const char*>(data);
  while (n > 0) {
    const ssize_t wrote = write(fd, from, n);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    from += wrote;
    n -= static_cast<size_t>(wrote);
  }
  return true;
}

}  // namespace weft
