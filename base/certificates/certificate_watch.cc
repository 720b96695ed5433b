#include "base/certificates/certificate_watch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/require.h"
#include "base/threads.h"

namespace weft {
namespace {

constexpr int64_t kLookEvery = 1'000'000'000;  // ns

int MemoryFile(absl::string_view text) {
  const int fd = memfd_create("weft-certificates", MFD_CLOEXEC);
  Require(fd >= 0, "there is a descriptor for the certificates");
  const ssize_t written = write(fd, text.data(), text.size());
  Require(written == static_cast<ssize_t>(text.size()), "there is memory for the certificates");
  return fd;
}

// Lets the descriptor stand for a file with the text. Whoever has opened the former one reads that to its
// end.
void ReplaceMemoryFile(int fd, absl::string_view text) {
  const int next = MemoryFile(text);
  Require(dup3(next, fd, O_CLOEXEC) == fd, "a descriptor can stand for another file");
  close(next);
}

std::string PathOfDescriptor(int fd) { return absl::StrCat("/proc/self/fd/", fd); }

}  // namespace

absl::StatusOr<std::unique_ptr<CertificateWatch>> CertificateWatch::Start(const std::string& folder,
                                                                          OwnCertificate own,
                                                                          Observer observer) {
  absl::StatusOr<CertificateFolder> content = ReadCertificateFolder(folder, own);
  if (!content.ok()) return content.status();
  return std::unique_ptr<CertificateWatch>(
      new CertificateWatch(folder, own, std::move(observer), *std::move(content)));
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

void CertificateWatch::Run() {
  CertificateFolder taken = first_;
  std::string complaint;  // the last one
  while (!over_.WaitWithTimeout(kLookEvery)) {
    absl::StatusOr<CertificateFolder> now = ReadCertificateFolder(folder_, own_);
    if (!now.ok()) {
      const std::string sentence(now.status().message());
      if (std::exchange(complaint, sentence) != sentence && observer_.refused)
        observer_.refused(now.status());
      continue;
    }
    complaint.clear();
    if (*now == taken) continue;
    taken = *std::move(now);
    ReplaceMemoryFile(authorities_, taken.authorities);
    ReplaceMemoryFile(identity_, taken.identity);
    if (observer_.changed) observer_.changed(taken);
  }
}

}  // namespace weft
