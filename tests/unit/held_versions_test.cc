// Tests which versions of the weights are held at a time, in runs that make some of the steps only.
#include "schedules/sync/held_versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedules/families/families.h"
#include "tests/unit/without_terms.h"

namespace weft::held_versions_test {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Version = HeldVersions::Version;
using Versions = HeldVersions::Versions;

// Lets both passes of the micro-batch read.
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
  EXPECT_FALSE(held.KeepsVersion(Job::Update(5, 0, 0))) << "5 is put aside before it";
  EXPECT_EQ(held.Publish(Job::Update(5, 0, 0), &dropped), 2) << "4 and 6: step 6 reads the first of them";
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

// A snapshot of version 4 needs 2 to 4: 2 until the update to 4 has begun, which 3 is read before.
TEST(HeldVersions, Snapshot_KeepsWhatTheUpdateBeforeItDoesNotBeginWith) {
  const Graph graph = PipeDream();
  HeldVersions held(graph, {/*end=*/6, /*first=*/0, /*saved=*/false});
  held.AddSnapshot(4);
  Versions dropped;
  for (int step = 0; step < 4; ++step) {
    held.Read(Job::Compute(step, 0, 0, JobKind::kForward), &dropped);
    held.Read(Job::Compute(step, 0, 0, JobKind::kBackward), &dropped);
    held.KeepsVersion(Job::Update(step, 0, 0));
    held.Publish(Job::Update(step, 0, 0), &dropped);
  }
  EXPECT_THAT(dropped, UnorderedElementsAre(Version{0, 0, 0}, Version{0, 0, 1}));
  dropped.clear();
  held.Read(Job::Compute(4, 0, 0, JobKind::kForward), &dropped);
  held.Read(Job::Compute(4, 0, 0, JobKind::kBackward), &dropped);
  EXPECT_THAT(dropped, IsEmpty()) << "the snapshot has not been taken";
  held.TakeSnapshot(Job::Update(3, 0, 0), &dropped);
  EXPECT_THAT(dropped, UnorderedElementsAre(Version{0, 0, 2}));
}

// The last stage but one of three is read late by micro-batch 0 alone, on rank 0, which installs late.
TEST(HeldVersions, HolderThatInstallsLate_HoldsOneVersionFromAnyFirstStep) {
  Schedule schedule = *MakeSchedule("ddp", {}, 3, 3);
  ASSERT_TRUE(ApplyRule("cdp_v2", "ddp", &schedule).ok());
  const Graph graph(WithoutTerms(schedule));
  ASSERT_TRUE(graph.protocol(1).holder(0).installs_late);
  for (const int first : {0, 1, 4}) {
    SCOPED_TRACE(first);
    HeldVersions held(graph, {first + 3, first, true});
    Versions dropped;
    for (int step = first; step < first + 3; ++step) {
      EXPECT_EQ(held.Held(1, 0), 1);
      for (const JobKind kind : {JobKind::kForward, JobKind::kBackward})
        held.Read(Job::Compute(step, 1, 0, kind), &dropped);
      EXPECT_FALSE(held.KeepsVersion(Job::Update(step, 1, 0)));
      EXPECT_EQ(held.Publish(Job::Update(step, 1, 0), &dropped), 1);
    }
    EXPECT_THAT(dropped, IsEmpty()) << "each is written over";
  }
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
}  // namespace weft::held_versions_test
