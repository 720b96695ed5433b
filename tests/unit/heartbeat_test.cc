#include "base/metrics/heartbeat.h"

#include <gtest/gtest.h>

namespace weft::heartbeat_test {
namespace {

TEST(Heartbeat, LoopThatBeats_HasNoProblem) {
  Heartbeat heart(0);
  EXPECT_EQ(heart.Problem(Heartbeat::kMaxSilence), "");
  heart.Beat(Heartbeat::kMaxSilence);
  EXPECT_EQ(heart.Problem(2 * Heartbeat::kMaxSilence), "");
  EXPECT_EQ(heart.next(), Heartbeat::kMaxSilence + Heartbeat::kEvery);
}

TEST(Heartbeat, LoopThatHangs_IsToldWithTheTime) {
  Heartbeat heart(0);
  heart.Beat(1'000'000'000);
  EXPECT_EQ(heart.Problem(13'500'000'000), "the loop has not turned for 12 s");
}

}  // namespace
}  // namespace weft::heartbeat_test
