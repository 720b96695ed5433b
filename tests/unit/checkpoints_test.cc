// Tests when the coordinator announces snapshots, and what it holds back for them.
#include "coordinator/core/checkpoints.h"

#include <memory>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "tests/unit/second.h"
#include "tests/unit/without_terms.h"

namespace weft::checkpoints_test {
namespace {

std::shared_ptr<const RunPlan> Plan(const std::string& family, int stages, int microbatches, int steps,
                                    const CheckpointRule& rule, int first_step = 0) {
  const auto schedule = MakeSchedule(family, {}, stages, microbatches);
  return *MakeRunPlan("r", family, WithoutTerms(*schedule), steps, first_step, ReductionMode::kOrdered, rule);
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

// A snapshot passes where no checkpoint falls on the step; the next waits until one validation at most is not
// done.
TEST(Checkpoints, EveryNValidated_TheNextWaitsForTheOneBeforeTheLast) {
  const auto plan = Plan("gpipe", 2, 2, 20, {6, 0, 2, /*validate_every=*/3});
  Checkpoints checkpoints(*plan, 1);
  checkpoints.Begin(0);
  EXPECT_FALSE(checkpoints.ResumesWithValidation());
  const auto take = [&](int32_t step, bool passes) {
    EXPECT_EQ(checkpoints.hold(), step - 1);
    ASSERT_EQ(checkpoints.Due(0, step - 1, step + 3), step);
    checkpoints.Announce(step, 0);
    EXPECT_EQ(checkpoints.Passes(step), passes);
    EXPECT_TRUE(checkpoints.Validates(step));
    EXPECT_EQ(checkpoints.Saved(0, step, ""), "");
    EXPECT_TRUE(checkpoints.Sealed(step));
    checkpoints.AddValidation(step);
  };
  take(3, true);
  EXPECT_EQ(checkpoints.BeginValidation(), 3);
  EXPECT_EQ(checkpoints.BeginValidation(), std::nullopt) << "one at a time";
  take(6, false);
  EXPECT_EQ(checkpoints.Due(0, 8, 12), std::nullopt) << "two are not done";
  EXPECT_FALSE(checkpoints.IsValidating(6));
  ASSERT_TRUE(checkpoints.IsValidating(3));
  checkpoints.Validated();
  EXPECT_EQ(checkpoints.BeginValidation(), 6);
  take(9, true);
  checkpoints.Announce(20, 0);
  EXPECT_TRUE(checkpoints.Validates(20)) << "also behind the last step";
  EXPECT_FALSE(checkpoints.Passes(20));
}

TEST(Checkpoints, ValidatedBesideTimedCheckpoints_EachHasItsOwnTime) {
  const auto plan = Plan("gpipe", 2, 2, 100, {0, 10 * kSecond, 2, /*validate_every=*/5});
  Checkpoints checkpoints(*plan, 1);
  checkpoints.Begin(0);
  ASSERT_EQ(checkpoints.Due(kSecond, 3, 7), 5);
  checkpoints.Announce(5, kSecond);
  EXPECT_TRUE(checkpoints.Passes(5));
  checkpoints.Saved(0, 5, "");
  checkpoints.Sealed(5);
  EXPECT_EQ(checkpoints.next_due(), 10 * kSecond) << "what passes is no checkpoint";
  ASSERT_EQ(checkpoints.Due(11 * kSecond, 6, 9), 7);
  checkpoints.Announce(7, 11 * kSecond);
  EXPECT_FALSE(checkpoints.Passes(7) || checkpoints.Validates(7));
}

// The run ends with the snapshot that would have passed; the run that goes on there validates it.
TEST(Checkpoints, StopAtASnapshotThatPasses_MakesItACheckpoint) {
  const auto plan = Plan("gpipe", 2, 2, 100, {0, 0, 2, /*validate_every=*/10});
  Checkpoints checkpoints(*plan, 1);
  checkpoints.Begin(0);
  checkpoints.Announce(*checkpoints.Due(0, 6, 10), 0);
  EXPECT_TRUE(checkpoints.Passes(10));
  EXPECT_EQ(checkpoints.Stop(8), 10);
  EXPECT_FALSE(checkpoints.Passes(10));
  EXPECT_FALSE(checkpoints.Validates(10));
  Checkpoints late(*plan, 1);
  late.Begin(0);
  late.Announce(*late.Due(0, 6, 10), 0);
  EXPECT_EQ(late.Saved(0, 10, ""), "");
  EXPECT_EQ(late.Stop(10), 11) << "it is being put aside";
  const auto resumed = Plan("gpipe", 2, 2, 100, {0, 0, 2, /*validate_every=*/10}, 10);
  EXPECT_TRUE(Checkpoints(*resumed, 1).ResumesWithValidation());
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
  EXPECT_EQ(free.Stop(13, /*least=*/15), 16) << "more steps are to be in it";
  EXPECT_EQ(free.Due(0, 13, 17), 16);

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
  EXPECT_EQ(SnapshotLead((*MakeRunPlan("r", "ddp", WithoutTerms(mixed), 9))->graph), 3);
}

}  // namespace
}  // namespace weft::checkpoints_test
