#include "base/service/service_notices.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/plain_text.h"
#include "base/threads.h"

namespace weft {
namespace {

constexpr size_t kMaxStatus = 1024;
constexpr int64_t kMaxWatchdogMicroseconds = int64_t{1} << 40;  // 12 days

// Returns the variable's value, and removes it; "" where it is not set.
std::string TakeVariable(const char* name) {
  const char* value = std::getenv(name);
  std::string taken = value == nullptr ? "" : value;
  unsetenv(name);
  return taken;
}

absl::Status BadVariable(absl::string_view name, absl::string_view value, absl::string_view needed) {
  return absl::InvalidArgumentError(absl::StrCat("the service manager set ", name, " to \"", value,
                                                 "\", which is not ", needed,
                                                 "; unset it to start this daemon by hand"));
}

// Fills the address, and returns its length; 0 if the name does not fit.
socklen_t AddressOf(absl::string_view name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  if (name.size() >= sizeof(address->sun_path)) return 0;
  std::memcpy(address->sun_path, name.data(), name.size());
  if (name[0] == '@') address->sun_path[0] = '\0';
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
}

}  // namespace

absl::StatusOr<ServiceNotices::Manager> ServiceNotices::TakeFromEnvironment() {
  Manager manager;
  manager.socket = TakeVariable("NOTIFY_SOCKET");
  const std::string microseconds = TakeVariable("WATCHDOG_USEC"), pid = TakeVariable("WATCHDOG_PID");
  sockaddr_un address;
  if (!manager.socket.empty() &&
      ((manager.socket[0] != '/' && manager.socket[0] != '@') || AddressOf(manager.socket, &address) == 0))
    return BadVariable("NOTIFY_SOCKET", manager.socket, "a path or @NAME of at most 107 bytes");
  int64_t number = 0;
  if (!microseconds.empty() &&
      (!absl::SimpleAtoi(microseconds, &number) || number <= 0 || number > kMaxWatchdogMicroseconds))
    return BadVariable("WATCHDOG_USEC", microseconds, "a number of microseconds");
  if (pid.empty() || pid == absl::StrCat(getpid())) manager.watchdog_ns = number * 1000;
  return manager;
}

ServiceNotices::ServiceNotices(Manager manager) : manager_(std::move(manager)) {
  if (!manager_.socket.empty()) socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

ServiceNotices::~ServiceNotices() {
  ends_.Notify();
  if (pinger_.joinable()) pinger_.join();
  if (socket_ >= 0) close(socket_);
}

void ServiceNotices::Watch(std::function<std::string()> problem) {
  if (socket_ < 0 || manager_.watchdog_ns == 0) return;
  pinger_ = StartThread([this, problem = std::move(problem)] {
    do {
      const std::string found = problem();
      found.empty() ? Send("WATCHDOG=1", "") : Send("", found);
    } while (!ends_.WaitWithTimeout(manager_.watchdog_ns / 2));
  });
}

void ServiceNotices::Reloading() { Send("RELOADING=1", "takes its configuration anew"); }

void ServiceNotices::Send(absl::string_view assignment, absl::string_view status) const {
  if (socket_ < 0) return;
  std::string text(assignment);
  // PlainText leaves no end of a line in the status, so it cannot become a further assignment.
  if (!status.empty())
    absl::StrAppend(&text, text.empty() ? "" : "\n", "STATUS=", PlainText(status, kMaxStatus));
  sockaddr_un address;
  const socklen_t length = AddressOf(manager_.socket, &address);
  sendto(socket_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
         reinterpret_cast<const sockaddr*>(&address), length);
}

}  // namespace weft
