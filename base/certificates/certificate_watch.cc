#include "base/certificates/certificate_watch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/threads.h"

namespace weft {
namespace {

constexpr int64_t kLookEvery = 1'000'000'000;  // ns

// Returns a file with the text; -1 where there is no descriptor or memory for it.
int MemoryFile(absl::string_view text) {
  const int fd = memfd_create("weft-certificates", MFD_CLOEXEC);
  if (fd < 0 || write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size())) return fd;
  close(fd);
  return -1;
}

// Makes the descriptor refer to a new file with the text. A reader that has opened the former file reads that
// one to its end. Returns false if no such file can be made.
bool ReplaceMemoryFile(int fd, absl::string_view text) {
  const int next = MemoryFile(text);
  if (next < 0) return false;
  const bool replaced = dup3(next, fd, O_CLOEXEC) == fd;
  close(next);
  return replaced;
}

absl::Status NoDescriptor() {
  return absl::ResourceExhaustedError("there is no file descriptor or no memory left for the certificates");
}

std::string PathOfDescriptor(int fd) { return absl::StrCat("/proc/self/fd/", fd); }

}  // namespace

absl::StatusOr<std::unique_ptr<CertificateWatch>> CertificateWatch::Start(const std::string& folder,
                                                                          OwnCertificate own,
                                                                          Observer observer) {
  absl::StatusOr<CertificateFolder> content = ReadCertificateFolder(folder, own);
  if (!content.ok()) return content.status();
  std::unique_ptr<CertificateWatch> watch(
      new CertificateWatch(folder, own, std::move(observer), *std::move(content)));
  if (watch->authorities_ < 0 || watch->identity_ < 0) return NoDescriptor();
  return watch;
}

CertificateWatch::CertificateWatch(const std::string& folder, OwnCertificate own, Observer observer,
                                   CertificateFolder content)
    : folder_(folder),
      own_(own),
      observer_(std::move(observer)),
      first_(std::move(content)),
      authorities_(MemoryFile(first_.authorities)),
      identity_(MemoryFile(first_.identity)),
      thread_(StartThread([this] { Run(); })) {}

CertificateWatch::~CertificateWatch() {
  over_.Notify();
  thread_.join();
  close(authorities_);
  close(identity_);
}

std::string CertificateWatch::authorities_path() const { return PathOfDescriptor(authorities_); }
std::string CertificateWatch::identity_path() const { return PathOfDescriptor(identity_); }

absl::Status CertificateWatch::Replace(const CertificateFolder& content) const {
  const bool replaced =
      ReplaceMemoryFile(authorities_, content.authorities) && ReplaceMemoryFile(identity_, content.identity);
  return replaced ? absl::OkStatus() : NoDescriptor();
}

void CertificateWatch::Run() {
  CertificateFolder taken = first_;
  std::string complaint;  // the last one
  while (!over_.WaitWithTimeout(kLookEvery)) {
    absl::StatusOr<CertificateFolder> now = ReadCertificateFolder(folder_, own_);
    absl::Status status = now.status();
    if (status.ok() && *now == taken) {
      complaint.clear();
      continue;
    }
    if (status.ok()) status = Replace(*now);
    if (!status.ok()) {
      const std::string sentence(status.message());
      if (std::exchange(complaint, sentence) != sentence && observer_.refused) observer_.refused(status);
      continue;
    }
    complaint.clear();
    taken = *std::move(now);
    if (observer_.changed) observer_.changed(taken);
  }
}

}  // namespace weft
