#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedules/check/check.h"
#include "schedules/families/families.h"
#include "schedules/graph/size.h"
#include "tests/unit/without_terms.h"

namespace weft::schedule_size_test {
namespace {

using ::testing::HasSubstr;

PlanningSize Size(const char* name, int stages, int microbatches) {
  return SizeOf(*MakeSchedule(name, {}, stages, microbatches));
}

TEST(ScheduleSize, Counts_JobsRanksAndTermsOfSums) {
  const PlanningSize pipeline = Size("1f1b", 4, 8);
  EXPECT_EQ(pipeline.jobs, 4 * (2 * 8 + 2));
  EXPECT_EQ(pipeline.ranks, 4);
  EXPECT_EQ(pipeline.terms, 0);
  const PlanningSize replicas = Size("ddp", 4, 8);
  EXPECT_EQ(replicas.jobs, 4 * (2 * 8 + 2 * 8));
  EXPECT_EQ(replicas.terms, 4 * 8 * 8);
}

// The sum over holders grows with the square of the micro-batches.
TEST(ScheduleSize, ManyReplicas_AreRefusedWithTheNumbersBeforeAnythingIsBuilt) {
  const auto schedule = MakeSchedule("ddp", {}, 4, 65536);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  const absl::Status refused = CheckSchedule(WithoutTerms(*schedule));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  for (const char* part : {"4 stages, 65536 micro-batches and 65536 ranks", "17179869184 gradients",
                           "more than the limit of 4.0 GiB", "use fewer micro-batches"}) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
  }
}

TEST(ScheduleSize, TooManyJobs_AreRefusedBeforeAFamilyListsThem) {
  for (const char* name : {"1f1b", "zb_v", "interleaved", "ddp"}) {
    const absl::Status refused = MakeSchedule(name, {}, 4096, 4096).status();
    EXPECT_THAT(std::string(refused.message()), HasSubstr("has 33554432 jobs, which would take about 31"))
        << name;
  }
}

TEST(ScheduleSize, LargeButUsualSizes_Pass) {
  EXPECT_TRUE(CheckSize(*MakeSchedule("1f1b", {}, 1000, 1000)).ok());
  EXPECT_TRUE(CheckSize(*MakeSchedule("ddp", {}, 8, 1024)).ok());
}

}  // namespace
}  // namespace weft::schedule_size_test
