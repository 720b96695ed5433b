// The worker program by itself: wrong input and an absent coordinator.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process/command.h"

namespace weft {
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

TEST(WorkerDaemon, MetricsPortInUse_IsSaid) {
  TestFolder folder;
  Command first({"weft-worker", "--coordinator", "unix:" + folder / "none.sock", "--metrics", "127.0.0.1:0"});
  ASSERT_TRUE(first.WaitFor("metrics at http://127.0.0.1:", 30));
  first.Signal(15);
  const std::string err = first.Wait(30).err;
  const size_t at = err.find("127.0.0.1:");
  const std::string address = err.substr(at, err.find('/', at) - at);
  Command holder({"weft-worker", "--coordinator", "unix:" + folder / "none.sock", "--metrics", address});
  ASSERT_TRUE(holder.WaitFor("metrics at", 30));
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
}  // namespace weft
