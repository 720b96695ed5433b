#include "base/service/service_notices.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace weft::service_notices_test {
namespace {

using Manager = ServiceNotices::Manager;

// The service manager's end: a socket of the abstract namespace.
class ManagerSocket {
 public:
  ManagerSocket() : name_(absl::StrCat("@weft-notices-", getpid())) {
    socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name_.data() + 1, name_.size() - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_.size());
    EXPECT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&address), length), 0);
  }
  ManagerSocket(const ManagerSocket&) = delete;
  ManagerSocket& operator=(const ManagerSocket&) = delete;
  ~ManagerSocket() { close(socket_); }

  const std::string& name() const { return name_; }
  // Returns the next notice; "" if none comes in the time.
  std::string Next(int milliseconds = 60'000) const {
    pollfd waiting{socket_, POLLIN, 0};
    if (poll(&waiting, 1, milliseconds) <= 0) return "";
    char text[4096];
    const ssize_t size = recv(socket_, text, sizeof(text), 0);
    return size <= 0 ? "" : std::string(text, static_cast<size_t>(size));
  }

 private:
  const std::string name_;
  int socket_ = -1;
};

TEST(ServiceNotices, StartingReadyAndStopping_SayStateAndStatus) {
  const ManagerSocket manager;
  ServiceNotices notices(Manager{manager.name(), 0});
  notices.Starting("has taken up 5 of the 9 runs in its store");
  EXPECT_EQ(manager.Next(), "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=has taken up 5 of the 9 runs in its store");
  notices.Ready("listening on 127.0.0.1:7070");
  notices.Stopping("stopping on Terminated");
  EXPECT_EQ(manager.Next(), "READY=1\nSTATUS=listening on 127.0.0.1:7070");
  EXPECT_EQ(manager.Next(), "STOPPING=1\nSTATUS=stopping on Terminated");
}

TEST(ServiceNotices, StatusWithLineEnds_IsNoFurtherAssignment) {
  const ManagerSocket manager;
  ServiceNotices notices(Manager{manager.name(), 0});
  notices.Ready("a\nMAINPID=1");
  EXPECT_EQ(manager.Next(), "READY=1\nSTATUS=a\\nMAINPID=1");
}

TEST(ServiceNotices, Watchdog_IsPingedOnlyWhileThereIsNoProblem) {
  const ManagerSocket manager;
  std::atomic<bool> hangs{false};
  ServiceNotices notices(Manager{manager.name(), 20'000'000});
  notices.Watch([&hangs] { return hangs ? std::string("the loop has not turned for 6 s") : std::string(); });
  EXPECT_EQ(manager.Next(), "WATCHDOG=1");
  EXPECT_EQ(manager.Next(), "WATCHDOG=1");
  hangs = true;
  std::string notice = manager.Next();
  while (notice == "WATCHDOG=1") notice = manager.Next();  // those that were under way
  EXPECT_EQ(notice, "STATUS=the loop has not turned for 6 s");
  EXPECT_EQ(manager.Next(), "STATUS=the loop has not turned for 6 s");
  hangs = false;
  while (notice != "WATCHDOG=1") notice = manager.Next();
}

TEST(ServiceNotices, NoManager_SendsNothing) {
  ServiceNotices notices(Manager{});
  notices.Ready("");
  notices.Watch([] {
    ADD_FAILURE() << "nobody listens";
    return std::string();
  });
}

TEST(ServiceNotices, ManagerThatIsGone_IsForgiven) {
  ServiceNotices notices(Manager{"/nowhere/notify", 0});
  notices.Ready("listening");
}

TEST(ServiceNotices, Environment_IsTakenOnce) {
  setenv("NOTIFY_SOCKET", "/run/systemd/notify", 1);
  setenv("WATCHDOG_USEC", "30000000", 1);
  setenv("WATCHDOG_PID", absl::StrCat(getpid()).c_str(), 1);
  const auto manager = ServiceNotices::TakeFromEnvironment();
  ASSERT_TRUE(manager.ok()) << manager.status();
  EXPECT_EQ(manager->socket, "/run/systemd/notify");
  EXPECT_EQ(manager->watchdog_ns, 30'000'000'000);
  EXPECT_EQ(std::getenv("NOTIFY_SOCKET"), nullptr);
  EXPECT_EQ(std::getenv("WATCHDOG_USEC"), nullptr);
  EXPECT_EQ(ServiceNotices::TakeFromEnvironment()->socket, "");
}

TEST(ServiceNotices, WatchdogOfAnotherProcess_IsNotPinged) {
  setenv("WATCHDOG_USEC", "30000000", 1);
  setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(ServiceNotices::TakeFromEnvironment()->watchdog_ns, 0);
}

TEST(ServiceNotices, EnvironmentThatMakesNoSense_IsRefusedByName) {
  setenv("NOTIFY_SOCKET", "run/notify", 1);
  EXPECT_EQ(
      ServiceNotices::TakeFromEnvironment().status().message(),
      "the service manager set NOTIFY_SOCKET to \"run/notify\", which is not a path or @NAME of at most 107 "
      "bytes; unset it to start this daemon by hand");
  setenv("NOTIFY_SOCKET", ("/" + std::string(200, 'x')).c_str(), 1);
  EXPECT_FALSE(ServiceNotices::TakeFromEnvironment().ok());
  for (const char* wrong : {"soon", "-1", "0", "99999999999999999999"}) {
    setenv("WATCHDOG_USEC", wrong, 1);
    EXPECT_FALSE(ServiceNotices::TakeFromEnvironment().ok()) << wrong;
  }
}

}  // namespace
}  // namespace weft::service_notices_test
