// Ends a program at one of its durable steps as kill -9 or as a power cut would. It is a library to be
// preloaded, so the program needs no fault points of its own: every call that makes something durable is one.
//
//   LD_PRELOAD=libweft_power_cut.so POWER_CUT_ROOT=FOLDER POWER_CUT_LOG=FILE
//   [POWER_CUT_AT=N POWER_CUT_SIDE=before|after [POWER_CUT_SEED=S]]
//
// A durable step is fsync, fdatasync or rename of something below the root. Each is a line of the log,
// numbered from 1. At number N the program gets SIGKILL, before or after the call. With a seed the machine
// loses its power too: of each file, a random choice of the pages written since its last sync is what it was
// then; and of the names made, moved or removed since the last sync of their folder, all behind a random one
// are as they were, because file systems keep the order of names. New folders stay.
//
// Writes of the C library itself (stdio) are not seen before the stream is opened again; the programs of
// this project write with descriptors and C++ streams, whose calls are seen.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace {

constexpr size_t kPage = 4096;

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::string Environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

bool IsFolder(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool IsFile(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

std::string Absolute(const char* path) {
  if (path[0] == '/') return path;
  char folder[4096];
  return getcwd(folder, sizeof folder) == nullptr ? path : std::string(folder) + "/" + path;
}

std::string PathOf(int fd) {
  char path[4096];
  const ssize_t n = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "";
}

// The calls below go to the kernel, past the functions of this file.
std::string Contents(const std::string& path) {
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string bytes;
  char block[65536];
  for (ssize_t n; fd >= 0 && (n = read(fd, block, sizeof block)) > 0;)
    bytes.append(block, static_cast<size_t>(n));
  if (fd >= 0) close(fd);
  return bytes;
}

void Overwrite(const std::string& path, const std::string& bytes) {
  const int fd = static_cast<int>(
      syscall(SYS_openat, AT_FDCWD, path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  for (size_t at = 0; fd >= 0 && at < bytes.size();) {
    const ssize_t n = syscall(SYS_write, fd, bytes.data() + at, bytes.size() - at);
    if (n <= 0) break;
    at += static_cast<size_t>(n);
  }
  if (fd >= 0) close(fd);
}

// Returns true if every thread of the process is stopped.
bool IsStopped(pid_t pid) {
  std::error_code gone;
  for (const auto& thread :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
    // "pid (name) state ..", and a name may have brackets.
    const std::string stat = Contents(thread.path() / "stat");
    const size_t state = stat.rfind(')') + 2;
    if (state < stat.size() && stat[state] != 'T') return false;
  }
  return true;
}

class Disk {
 public:
  static Disk& Get() {
    static Disk* disk = new Disk;  // in use until the process ends
    return *disk;
  }

  bool Watches(const std::string& path) const {
    return !root_.empty() && path.compare(0, root_.size(), root_) == 0;
  }

  // Runs the call, which may change the bytes or make the name of a file.
  template <typename Call>
  auto Change(const std::string& path, const Call& call) {
    if (!Watches(path) || IsFolder(path)) return call();
    const std::lock_guard<std::mutex> lock(mu_);
    const bool is_new = !IsFile(path);
    if (synced_.count(path) == 0) synced_[path] = is_new ? "" : Contents(path);
    const auto result = call();
    if (is_new && IsFile(path)) changes_.push_back({Change_::kMade, path, "", false, ""});
    return result;
  }

  template <typename Call>
  int Sync(const char* name, const std::string& path, const Call& call) {
    if (!Watches(path)) return call();
    const std::lock_guard<std::mutex> lock(mu_);
    return Step(name, path, [&] {
      const int result = call();
      if (result != 0) return result;
      if (IsFolder(path)) {
        changes_.erase(std::remove_if(changes_.begin(), changes_.end(),
                                      [&](const NameChange& c) { return FolderOf(c.path) == path; }),
                       changes_.end());
      } else {
        synced_[path] = Contents(path);
      }
      return result;
    });
  }

  template <typename Call>
  int Rename(const std::string& from, const std::string& to, const Call& call) {
    if (!Watches(to)) return call();
    const std::lock_guard<std::mutex> lock(mu_);
    return Step("rename", to, [&] {
      NameChange change{Change_::kMoved, to, from, IsFile(to), Contents(to)};
      const int result = call();
      if (result == 0) {
        Move(from, to);
        changes_.push_back(std::move(change));
      }
      return result;
    });
  }

  template <typename Call>
  int Remove(const std::string& path, const Call& call) {
    if (!Watches(path) || !IsFile(path)) return call();
    const std::lock_guard<std::mutex> lock(mu_);
    NameChange change{Change_::kRemoved, path, "", true, Contents(path)};
    const int result = call();
    if (result == 0) {
      changes_.push_back(std::move(change));
      synced_.erase(path);
    }
    return result;
  }

 private:
  enum class Change_ { kMade, kMoved, kRemoved };
  struct NameChange {
    Change_ kind;
    std::string path, from;
    bool was_file;       // true if `path` was a file before,
    std::string before;  // with these bytes
  };

  Disk()
      : root_(Environment("POWER_CUT_ROOT")),
        log_(Environment("POWER_CUT_LOG")),
        at_(atoi(Environment("POWER_CUT_AT").c_str())),
        before_(Environment("POWER_CUT_SIDE") == "before"),
        loses_(!Environment("POWER_CUT_SEED").empty()),
        random_(static_cast<uint32_t>(atoi(Environment("POWER_CUT_SEED").c_str()))) {}

  template <typename Call>
  int Step(const char* name, const std::string& path, const Call& call) {
    const int number = ++steps_;
    const std::string line = std::to_string(number) + " " + name + " " + path.substr(root_.size()) + "\n";
    const int fd = static_cast<int>(
        syscall(SYS_openat, AT_FDCWD, log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (fd >= 0) {
      [[maybe_unused]] const auto n = syscall(SYS_write, fd, line.data(), line.size());
      close(fd);
    }
    if (number == at_ && before_) Cut();
    const int result = call();
    if (number == at_) Cut();
    return result;
  }

  void Move(const std::string& from, const std::string& to) {
    std::map<std::string, std::string> moved;
    for (auto it = synced_.begin(); it != synced_.end();) {
      const bool below = it->first == from || it->first.compare(0, from.size() + 1, from + "/") == 0;
      if (below) moved[to + it->first.substr(from.size())] = std::move(it->second);
      it = below ? synced_.erase(it) : std::next(it);
    }
    for (auto& [path, bytes] : moved) synced_[path] = std::move(bytes);
  }

  [[noreturn]] void Cut() {
    const pid_t program = getpid();
    if (!loses_) kill(program, SIGKILL);
    // No thread of the program may see what its files become: it could fail otherwise than by the cut, as
    // where a file that it has mapped is shorter. So another process stops it first.
    if (fork() == 0) {
      close_range(3, ~0u, 0);  // it must not outlive the program as the holder of a lock
      kill(program, SIGSTOP);
      while (!IsStopped(program)) usleep(500);
      LosePower();
      kill(program, SIGKILL);
      _exit(0);
    }
    for (;;) pause();
  }

  void LosePower() {
    const size_t kept = changes_.empty() ? 0 : random_() % (changes_.size() + 1);
    while (changes_.size() > kept) {
      Revert(changes_.back());
      changes_.pop_back();
    }
    for (const auto& [path, synced] : synced_) {
      if (IsFile(path)) Blend(path, synced);
    }
  }

  void Revert(const NameChange& change) {
    if (change.kind == Change_::kMade) {
      syscall(SYS_unlink, change.path.c_str());
    } else if (change.kind == Change_::kMoved) {
      syscall(SYS_rename, change.path.c_str(), change.from.c_str());
      Move(change.path, change.from);
    }
    if (change.was_file) Overwrite(change.path, change.before);
  }

  // Leaves of each page that has changed since the sync either version.
  void Blend(const std::string& path, const std::string& synced) {
    std::string now = Contents(path);
    if (now == synced) return;
    // A file that has become longer may keep its new length, with nothing in the pages that are lost.
    std::string before = synced;
    const size_t length = random_() % 2 == 0 ? now.size() : synced.size();
    now.resize(length, '\0');
    before.resize(length, '\0');
    for (size_t page = 0; page < length; page += kPage) {
      const size_t size = std::min(kPage, length - page);
      if (random_() % 2 == 0) now.replace(page, size, before, page, size);
    }
    Overwrite(path, now);
  }

  const std::string root_, log_;
  const int at_;
  const bool before_, loses_;
  std::mt19937 random_;
  std::mutex mu_;
  int steps_ = 0;
  std::map<std::string, std::string> synced_;  // by path; bytes at the last sync
  std::vector<NameChange> changes_;            // since the last sync of their folders, in order
};

}  // namespace

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

EXPORTED int fsync(int fd) {
  return Disk::Get().Sync("fsync", PathOf(fd), [fd] { return Next<int(int)>("fsync")(fd); });
}

EXPORTED int fdatasync(int fd) {
  return Disk::Get().Sync("fdatasync", PathOf(fd), [fd] { return Next<int(int)>("fdatasync")(fd); });
}

EXPORTED int rename(const char* from, const char* to) noexcept {
  return Disk::Get().Rename(Absolute(from), Absolute(to),
                            [=] { return Next<int(const char*, const char*)>("rename")(from, to); });
}

EXPORTED int unlink(const char* path) noexcept {
  return Disk::Get().Remove(Absolute(path), [=] { return Next<int(const char*)>("unlink")(path); });
}

EXPORTED int remove(const char* path) noexcept {
  return Disk::Get().Remove(Absolute(path), [=] { return Next<int(const char*)>("remove")(path); });
}

EXPORTED ssize_t write(int fd, const void* bytes, size_t n) {
  return Disk::Get().Change(PathOf(fd),
                            [=] { return Next<ssize_t(int, const void*, size_t)>("write")(fd, bytes, n); });
}

EXPORTED ssize_t writev(int fd, const struct iovec* parts, int count) {
  return Disk::Get().Change(
      PathOf(fd), [=] { return Next<ssize_t(int, const struct iovec*, int)>("writev")(fd, parts, count); });
}

EXPORTED ssize_t pwrite(int fd, const void* bytes, size_t n, off_t at) {
  return Disk::Get().Change(
      PathOf(fd), [=] { return Next<ssize_t(int, const void*, size_t, off_t)>("pwrite")(fd, bytes, n, at); });
}

EXPORTED ssize_t pwrite64(int fd, const void* bytes, size_t n, off64_t at) {
  return Disk::Get().Change(PathOf(fd), [=] {
    return Next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64")(fd, bytes, n, at);
  });
}

EXPORTED int ftruncate(int fd, off_t length) noexcept {
  return Disk::Get().Change(PathOf(fd), [=] { return Next<int(int, off_t)>("ftruncate")(fd, length); });
}

EXPORTED int ftruncate64(int fd, off64_t length) noexcept {
  return Disk::Get().Change(PathOf(fd), [=] { return Next<int(int, off64_t)>("ftruncate64")(fd, length); });
}

EXPORTED int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  const auto call = [=] { return Next<int(const char*, int, ...)>("open")(path, flags, mode); };
  return (flags & (O_CREAT | O_TRUNC)) == 0 ? call() : Disk::Get().Change(Absolute(path), call);
}

EXPORTED int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  const auto call = [=] { return Next<int(const char*, int, ...)>("open64")(path, flags, mode); };
  return (flags & (O_CREAT | O_TRUNC)) == 0 ? call() : Disk::Get().Change(Absolute(path), call);
}

EXPORTED FILE* fopen(const char* path, const char* mode) {
  const auto call = [=] { return Next<FILE*(const char*, const char*)>("fopen")(path, mode); };
  return mode[0] == 'r' && std::string(mode).find('+') == std::string::npos
             ? call()
             : Disk::Get().Change(Absolute(path), call);
}

EXPORTED FILE* fopen64(const char* path, const char* mode) {
  const auto call = [=] { return Next<FILE*(const char*, const char*)>("fopen64")(path, mode); };
  return mode[0] == 'r' && std::string(mode).find('+') == std::string::npos
             ? call()
             : Disk::Get().Change(Absolute(path), call);
}

}  // extern "C"
