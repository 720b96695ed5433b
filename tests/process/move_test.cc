// Ranks that move to other workers without a fault, with the real daemons: no step is made twice, no loss is
// counted, and the bits are those of an undisturbed run.
#include <signal.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/process/command.h"
#include "tests/process/disturbed_service.h"

namespace weft::move_test {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Steps of a run that still goes on while it moves, and of one that does so two moves or many commands later.
constexpr int kSteps = 150, kLong = 400;

class Move : public DisturbedService {
 protected:
  void SetUp() override {
    coordinator_ = std::make_unique<Command>(
        std::vector<std::string>{"weft-coordinator", "--listen", address_, "--output-root", folder_.path()});
    ASSERT_TRUE(coordinator_->WaitFor("listening on", kSeconds));
    StartWorkers(*coordinator_, 3);
  }
  // Submits a training that may lose no process.
  void SubmitRun(const std::string& schedule, int steps, std::map<std::string, std::string> changes = {}) {
    changes.insert({"restarts", "0"});
    const std::string file = WriteRun(schedule, steps, changes);
    TrainReference(file);
    Submit(file);
  }
  // Returns the names of the workers of ranks 0, 1, ..: "w0 w0 w1 w1".
  std::string Placement() const {
    const Json run = Describe();
    std::string placement;
    for (const int member : run["member_of_rank"]) {
      const std::string label = run["members"][member];
      const size_t name = label.find('(') + 1;
      absl::StrAppend(&placement, placement.empty() ? "" : " ", label.substr(name, label.find(',') - name));
    }
    return placement;
  }
  std::string StateOf(const std::string& worker) const {
    for (const Json& w : Json::parse(Weft({"workers", "-o", "json"}).out)) {
      if (w["name"] == worker) return w["state"];
    }
    return "gone";
  }
  // Expects the run to end as if nothing had happened, after so many moves.
  void ExpectUndisturbed(int moves) const {
    EXPECT_EQ(Weft({"wait", "1"}).code, 0) << Describe().dump(1);
    ExpectTheReference();
    EXPECT_EQ(Summary()["restarts"], moves);
  }

  std::unique_ptr<Command> coordinator_;
};

class MoveUnder : public Move, public ::testing::WithParamInterface<const char*> {};

TEST_P(MoveUnder, RankGoesToAFreeWorker_SameBitsFromACheckpoint) {
  SubmitRun(GetParam(), kSteps);
  ASSERT_TRUE(AwaitSteps(7));
  const CommandResult moved = Weft({"move", "1", "--rank", "1", "--to", "w2", "-o", "json"});
  ASSERT_EQ(moved.code, 0) << moved.err;
  const Json run = Json::parse(moved.out);
  EXPECT_EQ(run["restarts"], 1);
  EXPECT_THAT(run["restart_reason"].get<std::string>(),
              AllOf(HasSubstr("ranks move to process 2 (w2, "), HasSubstr("asked for by weft move"),
                    HasSubstr("goes on from its checkpoint of step")));
  EXPECT_EQ(Placement(), "w0 w2 w1 w1");
  ExpectUndisturbed(1);
}

INSTANTIATE_TEST_SUITE_P(Schedules, MoveUnder,
                         ::testing::Values("{1f1b: {}}", "{fsdp: {shard: width}}",
                                           "{ddp: {}, rule: cdp_v2}"));

// No checkpoint is near: copies in memory do.
TEST_F(Move, RanksMoveThereAndBackWithRedundancy_SameBitsFromCopies) {
  SubmitRun("{1f1b: {}}", kLong,
            {{"checkpoint", "{every: 1000}"}, {"redundancy", "{peers: 1}"}, {"restarts", "1"}});
  ASSERT_TRUE(AwaitSteps(7));
  CommandResult moved = Weft({"move", "1", "--rank", "2", "--to", "w2", "--reason", "its fan is loud"});
  ASSERT_EQ(moved.code, 0) << moved.err;
  EXPECT_EQ(Placement(), "w0 w0 w2 w1");
  EXPECT_THAT(Describe()["restart_reason"].get<std::string>(),
              AllOf(HasSubstr("its fan is loud"), HasSubstr("from the copies of step")));
  moved = Weft({"move", "1", "--rank", "2,3", "--to", "0"});
  ASSERT_EQ(moved.code, 0) << moved.err;
  EXPECT_EQ(Placement(), "w0 w0 w0 w0") << "and these keep no copies any more";
  EXPECT_EQ(StateOf("w1"), "free");
  EXPECT_EQ(StateOf("w2"), "free");
  ExpectUndisturbed(2);
}

TEST_F(Move, OrdersThatCannotBeCarriedOut_SayWhyWithTheirExitCode) {
  const auto code_of = [this](const std::string& run, const std::string& rank, const std::string& to) {
    return Weft({"move", run, "--rank", rank, "--to", to}).code;
  };
  EXPECT_EQ(code_of("1", "0", "w2"), 1) << "no such run";
  SubmitRun("{1f1b: {}}", kLong);
  ASSERT_TRUE(AwaitSteps(3));
  EXPECT_EQ(code_of("1", "4", "w2"), 78) << "no such rank";
  EXPECT_EQ(code_of("1", "0", "w9"), 1) << "no such worker";
  EXPECT_EQ(code_of("1", "x", "w2"), 2);
  EXPECT_EQ(Weft({"drain", "w9"}).code, 1);
  ASSERT_EQ(Weft({"submit", WriteRun("{gpipe: {}}", 5000), "--processes", "1", "--out", folder_ / "other",
                  "--detach"})
                .code,
            0);
  const CommandResult busy = Weft({"move", "1", "--rank", "0", "--to", "w2"});
  EXPECT_EQ(busy.code, 75);
  EXPECT_THAT(busy.err, HasSubstr("serves run 2; try again"));
  ExpectUndisturbed(0);
  EXPECT_EQ(code_of("1", "0", "w1"), 1) << "it has ended";
  Command::Run({"weft", "cancel", "2", "--coordinator", address_}, kSeconds);
  EXPECT_EQ(Command::Run({"weft", "move", "1", "--rank", "0", "--to", "w1", "--coordinator",
                          "unix:" + (folder_ / "nobody.sock")},
                         kSeconds)
                .code,
            69);
}

TEST_F(Move, WorkerIsDrained_ItEndsAndItsRunMakesNoStepTwice) {
  SubmitRun("{1f1b: {}}", kSteps);
  ASSERT_TRUE(AwaitSteps(7));
  const CommandResult drained = Weft({"drain", "w0", "--timeout", "100"});
  ASSERT_EQ(drained.code, 0) << drained.err;
  EXPECT_THAT(drained.out, HasSubstr("has left"));
  const CommandResult end = workers_[0]->Wait(kSeconds);
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(StateOf("w0"), "gone");
  EXPECT_TRUE(Eventually([this] { return Placement() == "w1 w1 w2 w2"; })) << Placement();
  ExpectUndisturbed(1);
}

}  // namespace
}  // namespace weft::move_test
