// Tests when the coordinator announces snapshots, and what it holds back for them.
#include "coordinator/core/checkpoints.h"

#include <memory>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "schedules/families.h"

namespace weft {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::shared_ptr<const RunPlan> Plan(const std::string& family, int stages, int microbatches, int steps,
                                    const CheckpointRule& rule, int first_step = 0) {
  const auto schedule = MakeSchedule(family, {}, stages, microbatches);
  return *MakeRunPlan("r", family, *schedule, steps, first_step, false, rule);
}

TEST(Checkpoints, EveryNSteps_NoMultipleIsLeftOut) {
  const auto plan = Plan("gpipe", 2, 2, 20, {5, 0, 2});
  Checkpoints checkpoints(*plan, 1);
  checkpoints.Begin(0);
  std::vector<int32_t> announced;
  // Grants come as far as the hold allows; each snapshot is complete three steps after its own.
  for (int32_t done = 0; done < 20; ++done) {
    const int32_t reach = done + 4;
    const int32_t granted = std::min(reach, checkpoints.hold());
    while (const auto step = checkpoints.Due(0, granted, reach)) {
      EXPECT_LE(granted, *step - 1) << "no job of its last step has been granted";
      checkpoints.Announce(*step, 0);
      announced.push_back(*step);
    }
    if (!checkpoints.idle() && done >= checkpoints.oldest() + 2) {
      const int32_t step = checkpoints.oldest();
      EXPECT_EQ(checkpoints.Saved(0, step, ""), "");
      EXPECT_TRUE(checkpoints.Sealed(step));
    }
  }
  EXPECT_EQ(announced, (std::vector<int32_t>{5, 10, 15})) << "the end has its own";
}

// The disk is slow: the next one's last step is not granted before.
TEST(Checkpoints, OneUnderWay_HoldsTheStepsBeforeTheNext) {
  const auto plan = Plan("gpipe", 2, 2, 20, {2, 0, 2});
  Checkpoints checkpoints(*plan, 2);
  checkpoints.Begin(0);
  EXPECT_EQ(checkpoints.hold(), 1);
  ASSERT_EQ(checkpoints.Due(0, 0, 4), 2);
  checkpoints.Announce(2, 0);
  EXPECT_EQ(checkpoints.hold(), 3);
  EXPECT_EQ(checkpoints.Due(0, 3, 7), std::nullopt);
  EXPECT_EQ(checkpoints.Saved(1, 2, ""), std::nullopt);
  EXPECT_EQ(checkpoints.Awaited(), std::vector<int>{0});
  EXPECT_EQ(checkpoints.Saved(1, 2, ""), std::nullopt) << "told twice";
  EXPECT_EQ(checkpoints.Saved(0, 2, "full"), "full");
  EXPECT_TRUE(checkpoints.Sealed(2));
  EXPECT_FALSE(checkpoints.Sealed(2));
  EXPECT_EQ(checkpoints.Due(0, 3, 7), 4);
}

TEST(Checkpoints, EveryTime_CountsFromTheLastAnnouncement) {
  const auto plan = Plan("gpipe", 2, 2, 100, {0, 10 * kSecond, 2});
  Checkpoints checkpoints(*plan, 1);
  checkpoints.Begin(5 * kSecond);
  EXPECT_EQ(checkpoints.next_due(), 15 * kSecond);
  EXPECT_EQ(checkpoints.Due(15 * kSecond - 1, 7, 9), std::nullopt);
  ASSERT_EQ(checkpoints.Due(15 * kSecond, 7, 9), 8) << "the first of which nothing is granted";
  checkpoints.Announce(8, 15 * kSecond);
  EXPECT_EQ(checkpoints.next_due(), INT64_MAX) << "one at a time";
  EXPECT_EQ(checkpoints.Due(40 * kSecond, 30, 33), std::nullopt);
  EXPECT_EQ(checkpoints.Saved(0, 8, ""), "");
  checkpoints.Sealed(8);
  EXPECT_EQ(checkpoints.Due(40 * kSecond, 30, 33), 31);
  EXPECT_EQ(checkpoints.Due(40 * kSecond, 99, 100), std::nullopt) << "the run's end comes first";
}

TEST(Checkpoints, Stop_TakesTheNextThatCanBeOrOneThatIsUnderWay) {
  const auto plan = Plan("gpipe", 2, 2, 100, {});
  Checkpoints free(*plan, 1);
  free.Begin(0);
  EXPECT_EQ(free.hold(), INT32_MAX);
  EXPECT_EQ(free.Stop(12), 13);
  EXPECT_EQ(free.hold(), 13) << "no step behind it is made";
  EXPECT_EQ(free.Due(0, 12, 16), 13);
  free.Announce(13, 0);
  EXPECT_EQ(free.Due(0, 13, 17), std::nullopt);
  EXPECT_EQ(free.Stop(13), 13) << "asked twice";

  const auto periodic = Plan("gpipe", 2, 2, 100, {10, 0, 2});
  Checkpoints busy(*periodic, 1);
  busy.Begin(0);
  busy.Announce(*busy.Due(0, 6, 10), 0);
  EXPECT_EQ(busy.Stop(8), 10);
  EXPECT_EQ(busy.Due(0, 8, 12), std::nullopt);
  Checkpoints late(*plan, 1);
  EXPECT_EQ(late.Stop(99), 100) << "the run's own end";
}

// One step of lead is enough where holders read every version to the end, however old the weights.
TEST(Checkpoints, Lead_IsTheStalenessOnlyWhereVersionsMayGoBefore) {
  EXPECT_EQ(SnapshotLead(Plan("gpipe", 4, 4, 9, {})->graph), 1);
  EXPECT_EQ(SnapshotLead(Plan("pipedream", 4, 1, 9, {})->graph), 1);
  Schedule mixed = *MakeSchedule("ddp", {}, 4, 4);
  mixed.staleness = [](int, int b) { return b; };
  EXPECT_EQ(SnapshotLead((*MakeRunPlan("r", "ddp", mixed, 9))->graph), 3);
}

}  // namespace
}  // namespace weft
