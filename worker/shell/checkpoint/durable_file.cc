#include "worker/shell/checkpoint/durable_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/threads.h"

namespace weft {
namespace {

constexpr uint64_t kPush = 8 << 20;  // bytes that are worth a request to the disk

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

}  // namespace

// Several processes may write the same file at once; each has its own temporary one.
DurableFile::DurableFile(std::string path)
    : path_(std::move(path)), temporary_(absl::StrCat(path_, ".", getpid(), "-", gettid(), ".partial")) {
  fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644);
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
    status_ =
        absl::UnavailableError(absl::StrCat("cannot ", what, " ", temporary_, ": ", std::strerror(error)));
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

// On the thread of its own. What goes wrong here, the sync at the end reports.
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
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path_.substr(0, slash);
  const int directory = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0 || fsync(directory) != 0)
    status_ = absl::UnavailableError(absl::StrCat("cannot sync ", folder, ": ", std::strerror(errno)));
  if (directory >= 0) close(directory);
  return status_;
}

}  // namespace weft
