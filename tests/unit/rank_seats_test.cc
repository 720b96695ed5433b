#include "worker/shell/loop/rank_seats.h"

#include <optional>
#include <utility>
#include <variant>

#include "gtest/gtest.h"

namespace weft::rank_seats_test {
namespace {

// One process with the ranks 1 and 3 of four.
Assign TwoRanks() {
  Assign assign;
  assign.process_of_rank = {0, 1, 0, 1};
  assign.leases = {{1, {}}, {3, {}}};
  return assign;
}

JobTask TaskOf(Rank rank, int microbatch, bool overlapped = false) {
  JobTask task;
  task.start.rank = rank;
  task.start.job = Job::Compute(0, 0, microbatch, overlapped ? JobKind::kBackward : JobKind::kForward);
  task.start.overlapped = overlapped;
  return task;
}

TEST(RankSeats, RanksOfTheProcess_HaveSeatsInTheirOrder) {
  RankSeats seats;
  seats.Place(TwoRanks(), /*pairs=*/false);
  EXPECT_EQ(seats.size(), 2u);
  ASSERT_NE(seats.Of(3), nullptr);
  EXPECT_EQ(seats.Of(3)->index, 1);
  EXPECT_EQ(seats.Of(0), nullptr) << "of another process";
  EXPECT_EQ(seats.Of(4), nullptr) << "of no process";
  EXPECT_EQ(seats.Of(1)->second, nullptr);
  seats.Clear();
  EXPECT_EQ(seats.Of(3), nullptr);
  EXPECT_EQ(seats.size(), 2u) << "seats stay for the next run";
}

TEST(RankSeats, NextRun_BeginsWithoutTheFiguresOfTheOneBefore) {
  RankSeats seats;
  seats.Place(TwoRanks(), false);
  seats.NoteActivationBytes(1, /*stage=*/0, 100);
  seats.NoteActivationBytes(1, 0, 70);
  EXPECT_EQ(seats.Of(1)->activation_bytes.at(0), 100) << "the most";
  seats.Clear();
  seats.Place(TwoRanks(), false);
  EXPECT_TRUE(seats.Of(1)->activation_bytes.empty());
}

TEST(RankSeats, JobInTurn_SitsDownAtOnce) {
  RankSeats seats;
  seats.Place(TwoRanks(), true);
  EXPECT_EQ(seats.Start(TaskOf(3, 0)), 1);
  EXPECT_TRUE(std::holds_alternative<JobTask>(seats.At(1).task));
}

TEST(RankSeats, JobBesideAForward_IsHeldUntilThatHasBegun) {
  RankSeats seats;
  seats.Place(TwoRanks(), /*pairs=*/true);
  seats.Start(TaskOf(3, 1));
  EXPECT_EQ(seats.Start(TaskOf(3, 0, /*overlapped=*/true)), std::nullopt);
  EXPECT_EQ(seats.NoteBegun(3), 3) << "the second seat of the second rank";
  EXPECT_TRUE(std::get<JobTask>(seats.At(3).task).start.overlapped);
  EXPECT_EQ(seats.NoteBegun(3), std::nullopt) << "it is held no more";
}

TEST(RankSeats, JobBesideAForwardThatHasBegun_SitsDownAtOnce) {
  RankSeats seats;
  seats.Place(TwoRanks(), true);
  seats.Start(TaskOf(1, 1));
  EXPECT_EQ(seats.NoteBegun(1), std::nullopt);
  EXPECT_EQ(seats.Start(TaskOf(1, 0, true)), 2);
}

TEST(RankSeats, RanksWithoutCompute_HaveNothingToEnd) {
  RankSeats seats;
  seats.Place(TwoRanks(), false);
  EXPECT_TRUE(seats.End().empty());
  EXPECT_EQ(seats.FindEnding(), std::nullopt);
}

}  // namespace
}  // namespace weft::rank_seats_test
