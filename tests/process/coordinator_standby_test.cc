// Two coordinators on one etcd, with the real programs: one leads, the other stands by. After any failure of
// the leader, the other one goes on with its runs, and they end with the bits of an undisturbed one.
#include <signal.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process/disturbed_service.h"
#include "tests/process/etcd_server.h"
#include "tests/process/free_ports.h"

namespace weft::coordinator_standby_test {
namespace {

using ::testing::HasSubstr;

class CoordinatorStandby : public DisturbedService {
 protected:
  void SetUp() override {
    ASSERT_TRUE(etcd_.Start()) << EtcdServer::kMissing;
    const int port = FreePorts(2);
    for (int i = 0; i < 2; ++i) addresses_[i] = absl::StrCat("127.0.0.1:", port + i);
    address_ = absl::StrCat(addresses_[0], ",", addresses_[1]);
    StartCoordinator(0);
    ASSERT_TRUE(coordinators_[0]->WaitFor("listening on", kSeconds));
    StartCoordinator(1);
    ASSERT_TRUE(coordinators_[1]->WaitFor("standing by; pid", kSeconds));
    StartWorkers(*coordinators_[0], 2);
  }

  void StartCoordinator(int i) {
    coordinators_[i] = std::make_unique<Command>(std::vector<std::string>{
        "weft-coordinator", "--listen", addresses_[i], "--output-root", folder_.path(), "--store",
        absl::StrCat("etcd://", etcd_.address(), "/test")});
  }

  void ExpectFinished() {
    EXPECT_EQ(Weft({"wait", "1"}).code, 0);
    EXPECT_EQ(Describe()["state"], "finished");
    ExpectTheReference();
  }

  EtcdServer etcd_;
  std::array<std::string, 2> addresses_;
  std::array<std::unique_ptr<Command>, 2> coordinators_;
};

TEST_F(CoordinatorStandby, LeaderKilledTwice_TheOtherOneGoesOn) {
  const std::string file = WriteRun("{1f1b: {}}", 200);
  TrainReference(file);
  Submit(file);
  size_t steps = 12;
  for (int leader = 0; leader < 2; ++leader) {
    ASSERT_TRUE(AwaitSteps(steps));
    ASSERT_FALSE(HasSummary()) << "it was too quick to be killed";
    coordinators_[leader]->Signal(SIGKILL);
    coordinators_[leader]->Wait(kSeconds);
    ASSERT_TRUE(coordinators_[1 - leader]->WaitFor("listening on", kSeconds));
    StartCoordinator(leader);
    steps = LossesIn(out_).size() + 15;
  }
  ExpectFinished();
  ExpectOneAttempt(2);
}

// It gives its lease up, so the other one does not wait for its end.
TEST_F(CoordinatorStandby, LeaderGetsSigterm_TheOtherOneGoesOn) {
  const std::string file = WriteRun("{fsdp: {}}", 60);
  TrainReference(file);
  Submit(file);
  ASSERT_TRUE(AwaitSteps(12));
  coordinators_[0]->Signal(SIGTERM);
  EXPECT_EQ(coordinators_[0]->Wait(kSeconds).code, 0);
  ASSERT_TRUE(coordinators_[1]->WaitFor("listening on", kSeconds));
  ExpectFinished();
  ExpectOneAttempt(1);
}

// A former leader that comes back stores nothing, and ends, so that its supervisor starts it as a standby.
TEST_F(CoordinatorStandby, LeaderStoppedBeyondItsLease_ChangesNothingLater) {
  const std::string file = WriteRun("{1f1b: {}}", 200);
  TrainReference(file);
  Submit(file);
  ASSERT_TRUE(AwaitSteps(12));
  coordinators_[0]->Signal(SIGSTOP);
  ASSERT_TRUE(coordinators_[1]->WaitFor("listening on", kSeconds));
  ASSERT_TRUE(AwaitSteps(LossesIn(out_).size() + 5));
  coordinators_[0]->Signal(SIGCONT);
  const CommandResult former = coordinators_[0]->Wait(kSeconds);
  EXPECT_EQ(former.code, 75) << former.err;
  EXPECT_THAT(former.err, HasSubstr("another"));
  ExpectFinished();
  ExpectOneAttempt(1);
}

TEST_F(CoordinatorStandby, StandbyGetsSigterm_EndsAndChangesNothing) {
  coordinators_[1]->Signal(SIGTERM);
  EXPECT_EQ(coordinators_[1]->Wait(kSeconds).code, 0);
  const std::string file = WriteRun("{1f1b: {}}", 10);
  TrainReference(file);
  Submit(file);
  ExpectFinished();
}

}  // namespace
}  // namespace weft::coordinator_standby_test
