#include "proto/session/poll_turn.h"

#include <gtest/gtest.h>

namespace weft::poll_turn_test {
namespace {

constexpr int64_t kStart = 1'000'000'000;

// Asks in vain every microsecond for so long; returns how often it was to poll.
int AskFor(PollTurn* turn, int64_t from, int64_t ns) {
  int polls = 0;
  for (int64_t t = from; t <= from + ns; t += 1'000) {
    if (!turn->TakeForCaller(t)) continue;
    ++polls;
    turn->Return();
  }
  return polls;
}

TEST(PollTurn, CallerThatSoonBlocks_LeavesTheTurnToTheOwnThread) {
  PollTurn turn;
  for (int64_t t = kStart; t < kStart + 100'000'000; t += 1'000'000) {
    EXPECT_EQ(AskFor(&turn, t, PollTurn::kVain - 2'000), 0);
    EXPECT_FALSE(turn.Rest()) << "nobody waits for it";
    EXPECT_EQ(turn.TakeForOwn(t + PollTurn::kVain), 0);
    turn.Return();
  }
}

TEST(PollTurn, CallerSpins_PollsWithAPauseOnceTheOwnThreadIsOut) {
  PollTurn turn;
  ASSERT_EQ(turn.TakeForOwn(kStart), 0);
  EXPECT_FALSE(turn.TakeForCaller(kStart));
  EXPECT_FALSE(turn.own_is_in_the_way());
  EXPECT_FALSE(turn.TakeForCaller(kStart + PollTurn::kVain));
  EXPECT_TRUE(turn.own_is_in_the_way());
  turn.Return();
  EXPECT_FALSE(turn.own_is_in_the_way());
  const int64_t now = kStart + PollTurn::kVain + 1'000;
  EXPECT_TRUE(turn.TakeForCaller(now));
  EXPECT_TRUE(turn.caller_polls());
  EXPECT_FALSE(turn.TakeForCaller(now + PollTurn::kPause)) << "another thread asks meanwhile";
  EXPECT_GT(turn.TakeForOwn(now), 0);
  turn.Return();
  EXPECT_EQ(AskFor(&turn, now + PollTurn::kPause, 100'000), 51);
}

TEST(PollTurn, CallerComputesAShortJob_KeepsTheTurn) {
  PollTurn turn;
  int64_t now = kStart;
  ASSERT_GT(AskFor(&turn, now, 30'000), 0);
  for (int job = 0; job < 100; ++job) {
    turn.NoteArrived(now += 30'000);
    EXPECT_EQ(turn.TakeForOwn(now), PollTurn::kGone);
    now += PollTurn::kGone - 10'000;
    EXPECT_EQ(turn.TakeForOwn(now), 10'000);
    EXPECT_TRUE(turn.TakeForCaller(now)) << "at once: it does not have to ask in vain first";
    turn.Return();
  }
}

TEST(PollTurn, CallerDoesNotComeBack_OwnThreadPolls) {
  PollTurn turn;
  ASSERT_GT(AskFor(&turn, kStart, 30'000), 0);
  const int64_t now = kStart + 30'000 + PollTurn::kGone;
  EXPECT_EQ(turn.TakeForOwn(now), 0);
  EXPECT_FALSE(turn.TakeForCaller(now + 1'000));
  EXPECT_FALSE(turn.own_is_in_the_way()) << "it has not asked in vain for long";
}

TEST(PollTurn, CallerIsAboutToBlock_OwnThreadPollsAtOnce) {
  PollTurn turn;
  ASSERT_GT(AskFor(&turn, kStart, 30'000), 0);
  EXPECT_GT(turn.TakeForOwn(kStart + 30'000), 0);
  EXPECT_TRUE(turn.Rest());
  EXPECT_EQ(turn.TakeForOwn(kStart + 30'000), 0);
}

}  // namespace
}  // namespace weft::poll_turn_test
