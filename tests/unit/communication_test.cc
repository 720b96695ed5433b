// Communication steps between two ticks, against what can be counted by hand.
#include "schedules/simulator/communication.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "schedules/families/families.h"
#include "tests/unit/without_terms.h"

namespace weft::communication_test {
namespace {

CommunicationSteps Count(const std::string& name, int stages, int microbatches,
                         const std::map<std::string, std::string>& parameters = {},
                         const std::string& rule = "sync", int steps = 5) {
  auto schedule = MakeSchedule(name, parameters, stages, microbatches);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  const absl::Status ruled = ApplyRule(rule, name, &*schedule);
  EXPECT_TRUE(ruled.ok()) << ruled;
  const auto count = CountCommunicationSteps(Graph(WithoutTerms(*schedule)), steps);
  EXPECT_TRUE(count.ok()) << count.status();
  return count.value_or(CommunicationSteps());
}

TEST(CommunicationSteps, OneRank_SendsNothing) {
  const auto count = Count("lpp", 4, 4, {{"groups", "1"}, {"ranks", "1"}});
  EXPECT_EQ(count.most, 0);
  EXPECT_EQ(count.chain, 0);
  EXPECT_EQ(count.messages, 0);
}

// The next stage needs a stage's output at once, and nobody else does.
TEST(CommunicationSteps, Pipeline_SendsOneMessageBetweenTwoTicks) {
  for (const char* name : {"gpipe", "1f1b"}) {
    const auto count = Count(name, 4, 8);
    EXPECT_EQ(count.chain, 1) << name;
    EXPECT_EQ(count.most, 1) << name;
    EXPECT_EQ(count.messages, 2 * 3 * 8) << name << ": activations there, gradients back";
  }
}

// All ranks end a step at once, and wait for one another's gradients: N-1 slices of the sum to be made, and
// the N-1 others to be had, as many steps as in a ring.
TEST(CommunicationSteps, Ddp_ExchangesAmongAllRanksBetweenTwoTicks) {
  for (int n : {2, 3, 4, 6}) {
    const auto count = Count("ddp", n, n);
    EXPECT_EQ(count.chain, 2) << n;
    EXPECT_EQ(count.most, 2 * (n - 1)) << n;
    EXPECT_EQ(count.messages, 2 * n * (n - 1) * n) << n << ": each stage's slices";
  }
}

// Owners have their stage's gradient from all ranks, one after another, and then give all of them the new
// weights.
TEST(CommunicationSteps, Fsdp_GathersAtTheOwnerBetweenTwoTicks) {
  const auto count = Count("fsdp", 4, 4);
  EXPECT_EQ(count.chain, 2);
  EXPECT_GE(count.most, 2 * (4 - 1));
}

// The cyclic order has somewhere else to go at every tick: nothing is needed at once by all.
TEST(CommunicationSteps, CyclicPipeline_SendsOneMessageBetweenTwoTicks) {
  for (int n : {2, 3, 4, 8}) {
    for (const char* rule : {"cdp_v1", "cdp_v2"}) {
      EXPECT_EQ(Count("1f1b", n, n, {}, rule).most, 1) << n << rule;
    }
  }
}

// Running sums and versions go one hop between two ticks, however many ranks there are; of fsdp and the
// pyramid one more, to the holder that makes the next version.
TEST(CommunicationSteps, CyclicPlacements_NeedAsManyWhateverTheNumberOfRanks) {
  for (int n : {2, 3, 4, 8}) {
    for (const char* rule : {"cdp_v1", "cdp_v2"}) {
      SCOPED_TRACE(absl::StrCat(rule, " N=", n));
      const auto replicated = Count("ddp", n, n, {}, rule);
      EXPECT_EQ(replicated.chain, 1);
      EXPECT_EQ(replicated.most, 1);
      EXPECT_LE(Count("fsdp", n, n, {}, rule).most, 2);
      EXPECT_LE(Count("cdp_mp", n, n, {}, rule).most, 2);
      EXPECT_EQ(Count("fsdp", n, n, {{"residency", "migrating"}}, rule).most, 1);
    }
  }
}

// More steps show no more than the steady state.
TEST(CommunicationSteps, MoreSteps_ChangeNothing) {
  for (const char* rule : {"sync", "cdp_v2"}) {
    EXPECT_EQ(Count("ddp", 4, 4, {}, rule, 5).most, Count("ddp", 4, 4, {}, rule, 8).most) << rule;
    EXPECT_EQ(Count("fsdp", 4, 4, {}, rule, 5).most, Count("fsdp", 4, 4, {}, rule, 8).most) << rule;
  }
}

}  // namespace
}  // namespace weft::communication_test
