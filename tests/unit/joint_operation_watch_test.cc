#include "coordinator/core/joint_operation_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/second.h"

namespace weft::joint_operation_watch_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Stages 0 and 1 are held by ranks 0, 1 and 2, stage 2 by ranks 3 and 4. No other stage has collectives.
class JointOperationWatchTest : public ::testing::Test {
 protected:
  JointOperationWatchTest() {
    order_.Add(0, {0, 1, 2});
    order_.Add(1, {0, 1, 2});
    order_.Add(2, {3, 4});
  }

  std::string Take(const std::vector<Rank>& ranks, const std::vector<RunningJointOperation>& reported) {
    return watch_.Take(ranks, reported, 60 * kSecond);
  }
  // The process of this rank alone says that its device does the reduce of the step and stage.
  std::string Say(Rank rank, int stage, int member, int64_t age_ns, int32_t step = 0, uint64_t bytes = 0) {
    return Take({rank}, {{rank, Job::Reduce(step, stage, member), age_ns, bytes}});
  }
  std::string SayNothing(Rank rank) { return Take({rank}, {}); }

  JointOrder order_;
  JointOperationWatch watch_{order_};
};

TEST_F(JointOperationWatchTest, MemberThatHasNotBegun_IsWaitedFor) {
  EXPECT_THAT(Say(0, 1, 0, 3600 * kSecond), IsEmpty());
  EXPECT_THAT(Say(1, 1, 1, 3600 * kSecond), IsEmpty());
  EXPECT_THAT(SayNothing(2), IsEmpty());
}

TEST_F(JointOperationWatchTest, AllHaveBegun_MayTakeItsTimeFromTheLast) {
  Say(0, 1, 0, 3600 * kSecond);
  Say(1, 1, 1, 3600 * kSecond);
  EXPECT_THAT(Say(2, 1, 2, 60 * kSecond), IsEmpty());
  EXPECT_EQ(Say(2, 1, 2, 61 * kSecond),
            "the collective of reduce (step 0, stage 1, member 0) on ranks 0, 1, 2 hangs: all have begun it, "
            "the last one, rank 2, 61 s ago, and it may take 60 s");
}

TEST_F(JointOperationWatchTest, ManyBytes_MayTakeTheirTimeAtTheWorstRateToo) {
  const uint64_t bytes = uint64_t{1} << 30;  // 1,024 s at 1 MiB/s
  Say(3, 2, 0, 3600 * kSecond, 0, bytes);
  EXPECT_THAT(Say(4, 2, 1, 1070 * kSecond, 0, bytes), IsEmpty());
  EXPECT_THAT(Say(4, 2, 1, 1090 * kSecond, 0, bytes), HasSubstr("may take 10"));
}

// One member has ended the sum of stage 1 and has begun that of stage 0; the others have not ended it.
TEST_F(JointOperationWatchTest, MemberHasEndedIt_TheFirstThatIsNamedHangs) {
  Say(0, 1, 0, 300 * kSecond);
  Say(1, 1, 1, 300 * kSecond);
  EXPECT_THAT(Say(2, 0, 2, 299 * kSecond), AllOf(HasSubstr("stage 1"), HasSubstr("299 s ago")));
}

TEST_F(JointOperationWatchTest, MemberWhoseDeviceRunsAJob_SaysNothingAndIsWaitedFor) {
  Say(3, 2, 0, 300 * kSecond);
  SayNothing(3);
  EXPECT_THAT(Say(4, 2, 1, 300 * kSecond), IsEmpty());
  EXPECT_THAT(Say(3, 2, 0, 61 * kSecond), HasSubstr("hangs"));
}

TEST_F(JointOperationWatchTest, SeveralRanksOfOneProcess_AreTakenTogether) {
  EXPECT_THAT(
      Take({3, 4}, {{3, Job::Reduce(0, 2, 0), 61 * kSecond, 0}, {4, Job::Reduce(0, 2, 1), 61 * kSecond, 0}}),
      HasSubstr("on ranks 3, 4 hangs"));
  EXPECT_THAT(Take({3, 4}, {{3, Job::Reduce(0, 2, 0), 61 * kSecond, 0}}), IsEmpty());
}

TEST_F(JointOperationWatchTest, OtherRanksAndStagesWithoutCollectives_ChangeNothing) {
  EXPECT_THAT(
      Take({3}, {{3, Job::Reduce(0, 2, 0), 61 * kSecond, 0}, {4, Job::Reduce(0, 2, 1), 61 * kSecond, 0}}),
      IsEmpty());
  EXPECT_THAT(Say(4, 7, 0, 61 * kSecond), IsEmpty());
}

}  // namespace
}  // namespace weft::joint_operation_watch_test
