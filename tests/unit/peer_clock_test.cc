#include "base/peer_clock.h"

#include <gtest/gtest.h>

namespace weft::peer_clock_test {
namespace {

constexpr int64_t kFar = 1'000'000'000'000;  // the peer's clock is so much ahead

TEST(PeerClock, SlowMessages_DoNotMoveIt) {
  PeerClock clock;
  clock.Observe(kFar + 100, 150);  // 50 on the way
  clock.Observe(kFar + 1'000, 5'000);
  EXPECT_EQ(clock.ToLocal(kFar + 100), 150);
  EXPECT_EQ(clock.ToLocal(kFar + 4'950), 5'000);
}

TEST(PeerClock, Drift_IsFollowedAfterTwoWindows) {
  PeerClock clock;
  clock.Observe(kFar, 10);
  const int64_t later = 3 * PeerClock::kWindow;
  clock.Observe(kFar + later - 1'000, later);  // theirs runs slower by now
  EXPECT_EQ(clock.ToLocal(kFar + later - 1'000), later);
}

TEST(PeerClock, NextWindow_StillKnowsTheLastOne) {
  PeerClock clock;
  clock.Observe(kFar, 10);
  clock.Observe(kFar + PeerClock::kWindow, PeerClock::kWindow + 500);  // a slow message begins the window
  EXPECT_EQ(clock.ToLocal(kFar + PeerClock::kWindow), PeerClock::kWindow + 10);
}

}  // namespace
}  // namespace weft::peer_clock_test
