// `reduction: fast` in the coordinator's core: whether collectives serve, why not, and the way of ids.
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/coordinator_core.h"
#include "coordinator/core/reduction.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "tests/unit/heard.h"
#include "tests/unit/without_terms.h"

namespace weft::coordinator_reduction_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::shared_ptr<const RunPlan> Plan(const std::string& family, ReductionMode reduction,
                                    const std::map<std::string, std::string>& parameters = {}) {
  auto plan =
      MakeRunPlan("run", family, WithoutTerms(*MakeSchedule(family, parameters, 2, 2)), 2, 0, reduction);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

class ReductionTest : public ::testing::Test {
 protected:
  void Take(Effects e) {
    for (OutgoingMessage& m : e.messages) sent[m.session].push_back(std::move(m.message));
    for (RunInfo& r : e.runs) info = std::move(r);
  }
  void Do(Event e) { Take(core.Step(now, std::move(e))); }
  void Say(SessionId session, FromWorker m) { Do(SessionMessage{session, std::move(m)}); }
  void Join(SessionId session, const std::string& device = "cuda", const std::string& id = "",
            const std::string& collectives = "nccl 2.28.3") {
    Do(SessionOpened{session});
    Say(session, Hello{absl::StrCat("w", session), "h", static_cast<int64_t>(100 + session), -1, "addr",
                       device, id.empty() ? absl::StrCat("GPU-", session) : id, collectives});
  }
  uint64_t Submit(std::shared_ptr<const RunPlan> plan, int processes = 2) {
    Do(SubmitRun{1, "", std::move(plan), "{}", processes, ""});
    return ++runs;
  }
  template <typename Message>
  std::optional<Message> Heard(SessionId session) {
    return TakeFirst<Message>(&sent[session]);
  }
  // Returns the sentence when fast is asked for and not had.
  std::string WhyNot(std::shared_ptr<const RunPlan> plan, int processes = 2) {
    Submit(std::move(plan), processes);
    const auto assign = Heard<Assign>(1);
    EXPECT_TRUE(assign.has_value());
    EXPECT_EQ(assign->reduction_mode, ReductionMode::kOrdered);
    EXPECT_THAT(assign->reduction, StartsWith("fast is done as ordered: "));
    EXPECT_EQ(info.reduction, assign->reduction);
    return assign->reduction;
  }

  int64_t now = 1'000'000'000;
  uint64_t runs = 0;
  CoordinatorCore core{CoreOptions{}};
  std::map<SessionId, std::deque<FromCoordinator>> sent;
  RunInfo info;
};

TEST_F(ReductionTest, AScheduleThatCollectivesCannotServe_IsDoneAsOrdered) {
  RunPlan plan = *Plan("ddp", ReductionMode::kFast);
  plan.fast = nullptr;
  plan.unsound = "there is a circle";
  Join(1);
  Join(2);
  EXPECT_THAT(WhyNot(std::make_shared<const RunPlan>(std::move(plan))), HasSubstr("there is a circle"));
}

TEST_F(ReductionTest, EachRankHasAGpu_CollectivesServe) {
  Join(1);
  Join(2);
  Submit(Plan("ddp", ReductionMode::kFast));
  for (const SessionId s : {1, 2}) {
    const auto assign = Heard<Assign>(s);
    ASSERT_TRUE(assign.has_value());
    EXPECT_EQ(assign->reduction_mode, ReductionMode::kFast);
    EXPECT_EQ(assign->reduction, "fast: the cuda devices sum by nccl 2.28.3");
  }
  EXPECT_EQ(info.reduction, "fast: the cuda devices sum by nccl 2.28.3");
}

TEST_F(ReductionTest, Ordered_SaysNothing) {
  Join(1);
  Join(2);
  Submit(Plan("ddp", ReductionMode::kOrdered));
  const auto assign = Heard<Assign>(1);
  EXPECT_EQ(assign->reduction_mode, ReductionMode::kOrdered);
  EXPECT_THAT(assign->reduction, IsEmpty());
}

TEST_F(ReductionTest, Cpu_IsOrdered) {
  Join(1, "cpu", "cpu", "");
  Join(2, "cpu", "cpu", "");
  EXPECT_THAT(WhyNot(Plan("ddp", ReductionMode::kFast)),
              AllOf(HasSubstr("process 0 (w1"), HasSubstr("cpu"), HasSubstr("has no collectives")));
}

TEST_F(ReductionTest, RanksShareAProcess_IsOrdered) {
  Join(1);
  EXPECT_THAT(WhyNot(Plan("ddp", ReductionMode::kFast), 1),
              HasSubstr("2 ranks share one of its 1 processes"));
}

TEST_F(ReductionTest, RanksShareAGpu_IsOrdered) {
  Join(1, "cuda", "GPU-a");
  Join(2, "cuda", "GPU-a");
  EXPECT_THAT(WhyNot(Plan("ddp", ReductionMode::kFast)),
              AllOf(HasSubstr("process 0"), HasSubstr("process 1"), HasSubstr("share the device GPU-a")));
}

TEST_F(ReductionTest, DevicesOfTwoKinds_IsOrdered) {
  Join(1, "cuda");
  Join(2, "rocm");
  EXPECT_THAT(WhyNot(Plan("ddp", ReductionMode::kFast)), HasSubstr("computes on rocm"));
}

TEST_F(ReductionTest, LibrariesOfTwoVersions_IsOrdered) {
  Join(1);
  Join(2, "cuda", "", "nccl 2.20.1");
  EXPECT_THAT(WhyNot(Plan("ddp", ReductionMode::kFast)), HasSubstr("has nccl 2.20.1"));
}

TEST_F(ReductionTest, NothingToReduce_IsOrdered) {
  Join(1);
  Join(2);
  EXPECT_THAT(WhyNot(Plan("1f1b", ReductionMode::kFast)), HasSubstr("no stage has several holders"));
}

TEST_F(ReductionTest, WeightsInSlices_CollectivesServe) {
  Join(1);
  Join(2);
  Submit(Plan("fsdp", ReductionMode::kFast, {{"shard", "width"}}));
  for (const SessionId s : {1, 2}) EXPECT_EQ(Heard<Assign>(s)->reduction_mode, ReductionMode::kFast);
  EXPECT_EQ(info.reduction, "fast: the cuda devices sum by nccl 2.28.3");
}

TEST_F(ReductionTest, IdOfAGroup_GoesFromTheFirstMemberToTheOthers) {
  Join(1);
  Join(2);
  const uint64_t run = Submit(Plan("ddp", ReductionMode::kFast));
  const uint64_t epoch = Heard<Assign>(1)->epoch;
  Say(1, GroupId{run, epoch, 0, "id"});
  const auto id = Heard<GroupId>(2);
  ASSERT_TRUE(id.has_value());
  EXPECT_EQ(id->bytes, "id");
  EXPECT_EQ(id->epoch, epoch);
  EXPECT_FALSE(Heard<GroupId>(1).has_value());
}

TEST_F(ReductionTest, IdsThatAreLateForeignOrOfAnotherMember_AreDroppedAndCounted) {
  Join(1);
  Join(2);
  Join(3);
  const uint64_t run = Submit(Plan("ddp", ReductionMode::kFast));
  const uint64_t epoch = Heard<Assign>(1)->epoch;
  Say(2, GroupId{run, epoch, 0, "not the first member"});
  Say(1, GroupId{run, epoch - 1, 0, "late"});
  Say(1, GroupId{run, epoch, 1, "no such group"});
  Say(3, GroupId{run, epoch, 0, "of no process of the run"});
  EXPECT_EQ(core.probe().fenced, 4u);
  for (const SessionId s : {1, 2, 3}) EXPECT_FALSE(Heard<GroupId>(s).has_value());
  Say(1, Prepared{run});
  Say(2, Prepared{run});
  Say(1, GroupId{run, epoch, 0, "after all were prepared"});
  EXPECT_EQ(core.probe().fenced, 5u);
}

TEST_F(ReductionTest, AfterItEnded_TheNextRunIsDecidedAnew) {
  Join(1, "cpu", "cpu", "");
  Join(2);
  const uint64_t first = Submit(Plan("ddp", ReductionMode::kFast));
  Heard<Assign>(2);
  Do(CancelRun{2, first, ""});
  Say(2, Forgotten{first});
  Do(SessionClosed{1, "left"});
  Join(3);
  Submit(Plan("ddp", ReductionMode::kFast));
  EXPECT_EQ(Heard<Assign>(2)->reduction_mode, ReductionMode::kFast);
}

}  // namespace
}  // namespace weft::coordinator_reduction_test
