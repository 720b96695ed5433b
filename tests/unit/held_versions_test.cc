// Tests which versions of the weights are held at a time, in runs that make some of the steps only.
#include "schedules/sync/held_versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedules/families/families.h"
#include "tests/unit/without_terms.h"

namespace weft {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Version = HeldVersions::Version;
using Versions = HeldVersions::Versions;

// Both passes of the micro-batch read.
Versions ReadBoth(HeldVersions& held, int step, int stage) {
  Versions dropped;
  held.Read(Job::Compute(step, stage, 0, JobKind::kForward), &dropped);
  EXPECT_THAT(dropped, IsEmpty()) << "the backward still reads it";
  held.Read(Job::Compute(step, stage, 0, JobKind::kBackward), &dropped);
  return dropped;
}

// Stage s reads weights that are 2 - s updates old.
Graph PipeDream() { return Graph(WithoutTerms(*MakeSchedule("pipedream", {}, 3, 1))); }

TEST(HeldVersions, LaterFirstStep_BeginsWithAllThatItsJobsRead) {
  const Graph graph = PipeDream();
  for (const int first : {0, 1, 2, 7}) {
    HeldVersions held(graph, {first + 9, first});
    for (int s = 0; s < 3; ++s) EXPECT_EQ(held.Held(s, 0), 1 + std::min(first, 2 - s)) << first;
    Versions dropped;
    held.DropUnread(&dropped);
    EXPECT_THAT(dropped, IsEmpty());
  }
}

TEST(HeldVersions, SavedRun_EndsWithWhatTheNextStepsWouldRead) {
  const Graph graph = PipeDream();
  HeldVersions held(graph, {/*end=*/6, /*first=*/4, /*saved=*/true});
  EXPECT_THAT(ReadBoth(held, 4, 0), UnorderedElementsAre(Version{0, 0, 2}));
  EXPECT_TRUE(held.KeepsVersion(Job::Update(4, 0, 0)));
  Versions dropped;
  EXPECT_EQ(held.Publish(Job::Update(4, 0, 0), &dropped), 3);
  EXPECT_THAT(ReadBoth(held, 5, 0), UnorderedElementsAre(Version{0, 0, 3}));
  EXPECT_TRUE(held.KeepsVersion(Job::Update(5, 0, 0)));
  EXPECT_EQ(held.Publish(Job::Update(5, 0, 0), &dropped), 3) << "4, 5 and 6: step 6 reads the first of them";
  EXPECT_THAT(dropped, IsEmpty());
  // The last stage reads the newest alone.
  EXPECT_THAT(ReadBoth(held, 4, 2), IsEmpty());
  EXPECT_FALSE(held.KeepsVersion(Job::Update(4, 2, 0)));
}

TEST(HeldVersions, UnsavedRun_EndsWithTheNewest) {
  const Graph graph = PipeDream();
  HeldVersions held(graph, 2);
  EXPECT_THAT(ReadBoth(held, 0, 0), IsEmpty()) << "step 1 reads version 0 too";
  EXPECT_TRUE(held.KeepsVersion(Job::Update(0, 0, 0)));
  Versions dropped;
  EXPECT_EQ(held.Publish(Job::Update(0, 0, 0), &dropped), 2);
  EXPECT_THAT(ReadBoth(held, 1, 0), UnorderedElementsAre(Version{0, 0, 0}));
  EXPECT_FALSE(held.KeepsVersion(Job::Update(1, 0, 0)));
  EXPECT_EQ(held.Publish(Job::Update(1, 0, 0), &dropped), 1);
}

// Each rank holds every stage and reads for its own micro-batch.
TEST(HeldVersions, ReplicasOfACyclicRule_DropTheFirstVersionsThatOthersRead) {
  Schedule schedule = *MakeSchedule("ddp", {}, 3, 3);
  ASSERT_TRUE(ApplyRule("cdp_v2", "ddp", &schedule).ok());
  const Graph graph(WithoutTerms(schedule));
  Versions dropped;
  HeldVersions(graph, {6, 4, true}).DropUnread(&dropped);
  EXPECT_THAT(dropped, UnorderedElementsAre(Version{0, 2, 3}, Version{1, 1, 3}, Version{1, 2, 3}));
  // Followed alone are told of.
  dropped.clear();
  HeldVersions(graph, {6, 4, true}, {true, true, false}).DropUnread(&dropped);
  EXPECT_THAT(dropped, UnorderedElementsAre(Version{1, 1, 3}));
}

}  // namespace
}  // namespace weft
