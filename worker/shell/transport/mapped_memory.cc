#include "worker/shell/transport/mapped_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr size_t kPage = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Closes a descriptor unless it was taken.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int Take() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

absl::Status NoMemory(size_t bytes, const char* call) {
  const int error = errno;
  absl::string_view advice = error == EMFILE ? "; raise the limit of open files (ulimit -n)" : "";
  return absl::ResourceExhaustedError(
      absl::StrCat("no shared segment of ", bytes, " bytes: ", call, ": ", std::strerror(error), advice));
}

}  // namespace

MappedMemory::~MappedMemory() {
  for (const auto& [address, segment] : segments_) {
    munmap(reinterpret_cast<void*>(address), segment.bytes);
    close(segment.descriptor);
  }
}

absl::StatusOr<void*> MappedMemory::Allocate(size_t bytes) {
  const size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  if (rounded == 0) return absl::InvalidArgumentError("a segment of 0 bytes");
  Descriptor fd(memfd_create("weft-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) return NoMemory(bytes, "memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(rounded)) != 0) return NoMemory(bytes, "ftruncate");
  // The file is sealed, so that a peer that maps it can never see it shrink.
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return NoMemory(bytes, "F_ADD_SEALS");
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return NoMemory(bytes, "fstat");
  void* base = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return NoMemory(bytes, "mmap");
  madvise(base, rounded, MADV_HUGEPAGE);  // a wish: most kernels have huge pages off for shared memory
  MutexLock lock(mutex_);
  segments_[reinterpret_cast<uintptr_t>(base)] =
      SegmentRef{next_id_++, static_cast<uint64_t>(info.st_ino), rounded, fd.Take()};
  return base;
}

void MappedMemory::Free(void* segment, size_t /*bytes*/) {
  SegmentRef freed;
  {
    MutexLock lock(mutex_);
    auto it = segments_.find(reinterpret_cast<uintptr_t>(segment));
    if (it == segments_.end()) {
      std::fprintf(stderr, "weft: mapped memory: freed a segment that it did not hand out\n");
      std::abort();
    }
    freed = it->second;
    segments_.erase(it);
    freed_.push_back(freed.id);
    any_freed_.store(true, std::memory_order_release);
  }
  munmap(segment, freed.bytes);
  close(freed.descriptor);
}

std::optional<MappedMemory::Place> MappedMemory::Find(const void* data, size_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(data);
  MutexLock lock(mutex_);
  auto it = segments_.upper_bound(address);
  if (it == segments_.begin()) return std::nullopt;
  --it;
  const uint64_t offset = address - it->first;
  if (offset >= it->second.bytes || bytes > it->second.bytes - offset) return std::nullopt;
  return Place{it->second, offset};
}

std::vector<uint64_t> MappedMemory::TakeFreed() {
  if (!any_freed_.load(std::memory_order_acquire)) return {};
  MutexLock lock(mutex_);
  any_freed_.store(false, std::memory_order_relaxed);
  return std::exchange(freed_, {});
}

PeerMapping::~PeerMapping() { munmap(base_, bytes_); }

absl::StatusOr<std::shared_ptr<PeerMapping>> PeerSegments::Map(uint64_t sender, int pid,
                                                               const SegmentRef& segment) {
  auto known = mappings_.find({sender, segment.id});
  if (known != mappings_.end()) {
    if (known->second->bytes() == segment.bytes) return known->second;
    return absl::InvalidArgumentError(absl::StrCat("segment ", segment.id, " changed its size"));
  }
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", segment.descriptor);
  // Opening does not block, in case the descriptor turns out to be a pipe.
  Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    const int error = errno;
    const std::string what =
        absl::StrCat("cannot open the memory of process ", pid, ": ", std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(what) : absl::PermissionDeniedError(what);
  }
  struct stat info;
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (fstat(fd.get(), &info) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      static_cast<uint64_t>(info.st_ino) != segment.inode ||
      static_cast<uint64_t>(info.st_size) < segment.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor ", segment.descriptor, " of process ", pid,
                                                   " is not a segment of ", segment.bytes, " bytes"));
  }
  void* base = mmap(nullptr, segment.bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return NoMemory(segment.bytes, "mmap of a peer's segment");
  auto mapping = std::make_shared<PeerMapping>(base, segment.bytes);
  mappings_[{sender, segment.id}] = mapping;
  return mapping;
}

void PeerSegments::Forget(uint64_t sender, uint64_t segment_id) { mappings_.erase({sender, segment_id}); }

void PeerSegments::ForgetAll(uint64_t sender) {
  auto it = mappings_.lower_bound({sender, 0});
  while (it != mappings_.end() && it->first.first == sender) it = mappings_.erase(it);
}

}  // namespace weft
