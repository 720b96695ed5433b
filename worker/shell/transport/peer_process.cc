#include "worker/shell/transport/peer_process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/clock_name.h"

namespace weft {
namespace {

std::string MachineId() { return KernelSpace("pid"); }

// Reads field 22 of /proc/<pid>/stat; returns 0 if there is no such process.
uint64_t StartTime(int32_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return 0;
  // The name, field 2, may hold anything; the fields go on behind its closing parenthesis.
  const size_t behind = line.rfind(')');
  if (behind == std::string::npos) return 0;
  std::istringstream fields(line.substr(behind + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

}  // namespace

ProcessIdentity ThisProcess() { return {MachineId(), getpid(), StartTime(getpid())}; }

absl::StatusOr<int> OpenProcess(const ProcessIdentity& process) {
  static const std::string* const machine = new std::string(MachineId());
  if (process.machine != *machine) return absl::UnimplementedError("a process of another machine");
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
  if (fd < 0 && errno != ESRCH)
    return absl::UnimplementedError(absl::StrCat("pidfd_open: ", std::strerror(errno)));
  pollfd ended{fd, POLLIN, 0};
  // The start time is compared after opening: from then on the descriptor stands for one process.
  if (fd < 0 || StartTime(process.pid) != process.start_time || poll(&ended, 1, 0) != 0) {
    if (fd >= 0) close(fd);
    return absl::UnavailableError(absl::StrCat("process ", process.pid, " has ended"));
  }
  return fd;
}

}  // namespace weft
