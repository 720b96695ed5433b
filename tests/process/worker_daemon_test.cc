// The worker program by itself: wrong input and an absent coordinator.
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/net/address.h"
#include "base/net/listener.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process/command.h"

namespace weft::worker_daemon_test {
namespace {

using ::testing::HasSubstr;

TEST(WorkerDaemon, CoordinatorThatIsNotThere_ExitSixtyNineWithItsAddress) {
  TestFolder folder;
  const CommandResult r = Command::Run(
      {"weft-worker", "--coordinator", "unix:" + folder / "none.sock", "--connect-timeout", "1"});
  EXPECT_EQ(r.code, 69) << r.err;
  EXPECT_THAT(r.err, HasSubstr("none.sock"));
  EXPECT_THAT(r.err, HasSubstr("unreachable"));
}

// Inodes of the sockets on which the process accepts TCP connections.
std::vector<std::string> TcpListeners(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd")) {
    std::error_code gone;
    own.insert(std::filesystem::read_symlink(entry.path(), gone).string());
  }
  std::vector<std::string> listeners;
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream file(process + table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::vector<std::string> field(10);
      for (std::string& f : field) fields >> f;
      const bool listens = field[3] == "0A";
      if (listens && own.count("socket:[" + field[9] + "]") > 0) listeners.push_back(line);
    }
  }
  return listeners;
}

// A port of UCX can be misused by everybody who reaches it.
TEST(WorkerDaemon, CoordinatorOfThisMachine_NoTcpPortIsOpen) {
  TestFolder folder;
  const std::string address = "unix:" + folder / "coordinator.sock";
  Command coordinator({"weft-coordinator", "--listen", address});
  ASSERT_TRUE(coordinator.WaitFor("listening on", 60));
  Command worker({"weft-worker", "--coordinator", address, "--name", "near"});
  ASSERT_TRUE(coordinator.WaitFor("near, pid", 60));
  EXPECT_THAT(TcpListeners(worker.pid()), ::testing::IsEmpty());
  Command open({"weft-worker", "--coordinator", address, "--name", "open", "--data-network", "lo"});
  ASSERT_TRUE(coordinator.WaitFor("open, pid", 60));
  EXPECT_THAT(TcpListeners(open.pid()), ::testing::SizeIs(1)) << "else this test sees no port at all";
}

TEST(WorkerDaemon, CoordinatorIsStartedAnew_TheWorkerRegistersAnew) {
  TestFolder folder;
  const std::string address = "unix:" + folder / "coordinator.sock";
  auto coordinator =
      std::make_unique<Command>(std::vector<std::string>{"weft-coordinator", "--listen", address});
  ASSERT_TRUE(coordinator->WaitFor("listening on", 60));
  Command worker({"weft-worker", "--coordinator", address, "--name", "w"});
  ASSERT_TRUE(coordinator->WaitFor("w, pid", 60));
  coordinator->Signal(9);
  coordinator->Wait(30);
  coordinator = std::make_unique<Command>(std::vector<std::string>{"weft-coordinator", "--listen", address});
  ASSERT_TRUE(coordinator->WaitFor("w, pid", 60)) << "and again, as the same process";
  EXPECT_TRUE(worker.WaitFor("registering anew", 60));
  // Told to stop, the coordinator takes its worker along, as it has no store that brings the runs back.
  coordinator->Signal(15);
  EXPECT_EQ(worker.Wait(60).code, 69);
}

TEST(WorkerDaemon, CoordinatorDoesNotComeBack_TheWorkerGivesUp) {
  TestFolder folder;
  const std::string address = "unix:" + folder / "coordinator.sock";
  Command coordinator({"weft-coordinator", "--listen", address});
  ASSERT_TRUE(coordinator.WaitFor("listening on", 60));
  Command worker({"weft-worker", "--coordinator", address, "--name", "w", "--reconnect-timeout", "1"});
  ASSERT_TRUE(coordinator.WaitFor("w, pid", 60));
  coordinator.Signal(9);
  const CommandResult r = worker.Wait(60);
  EXPECT_EQ(r.code, 69) << r.err;
  EXPECT_THAT(r.err, HasSubstr("unreachable for 1 s"));
}

TEST(WorkerDaemon, NoCoordinatorGiven_IsUsage) {
  const CommandResult r = Command::Run({"weft-worker"});
  EXPECT_EQ(r.code, 2);
  EXPECT_THAT(r.err, HasSubstr("--coordinator"));
}

TEST(WorkerDaemon, AddressThatIsNone_IsBadConfiguration) {
  const CommandResult r = Command::Run({"weft-worker", "--coordinator", "nonsense"});
  EXPECT_EQ(r.code, 78) << r.err;
  EXPECT_THAT(r.err, HasSubstr("nonsense"));
}

TEST(WorkerDaemon, DataPorts_AreARangeOrOne) {
  const auto check = [](const std::string& ports) {
    return Command::Run({"weft-worker", "--check-config", "--data-ports", ports});
  };
  EXPECT_EQ(check("20000-20100").code, 0);
  EXPECT_EQ(check("20000").code, 0);
  const CommandResult refused = check("20000-");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("takes a port, as 20000, or"));
}

TEST(WorkerDaemon, MetricsPortInUse_IsSaid) {
  TestFolder folder;
  auto holder = Listener::Open({*ParseAddress("127.0.0.1:0")});
  ASSERT_TRUE(holder.ok()) << holder.status();
  const std::string address = (*holder)->addresses()[0].text();
  const CommandResult second =
      Command::Run({"weft-worker", "--coordinator", "unix:" + folder / "none.sock", "--metrics", address});
  EXPECT_EQ(second.code, 78) << second.err;
  EXPECT_THAT(second.err, HasSubstr("in use"));
}

TEST(WorkerDaemon, ReferenceOfBrokenSpecification_IsBadConfiguration) {
  TestFolder folder;
  const CommandResult r = Command::Run(
      {"weft-worker", "--reference", folder.Write("spec.json", "{\"name\": 3"), "--out", folder / "out"});
  EXPECT_EQ(r.code, 78) << r.err;
  EXPECT_THAT(r.err, HasSubstr("not JSON"));
}

}  // namespace
}  // namespace weft::worker_daemon_test
