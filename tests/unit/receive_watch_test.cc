#include "worker/shell/transport/receive_watch.h"

#include "gtest/gtest.h"
#include "tests/unit/second.h"

namespace weft::receive_watch_test {
namespace {

constexpr int64_t kBegin = 1000 * kSecond;

// Looks in vain every 10 ms. Returns the time when the queue counts as stuck; `until` if it does not.
int64_t StuckAt(ReceiveWatch* watch, int64_t from, int64_t until) {
  for (int64_t now = from; now < until; now += kSecond / 100) {
    watch->LookedInVain(now);
    if (watch->IsStuck(now)) return now;
  }
  return until;
}

TEST(ReceiveWatch, AfterTheEndOfAProcess_IsStuckSoon) {
  ReceiveWatch watch;
  watch.PeerEnded(kBegin - kSecond);  // what others had written was still read
  EXPECT_EQ(StuckAt(&watch, kBegin, kBegin + 100 * kSecond), kBegin + ReceiveWatch::kAfterAnEnd);
}

TEST(ReceiveWatch, EndThatIsSeenLater_CountsTheWholeTime) {
  ReceiveWatch watch;
  EXPECT_EQ(StuckAt(&watch, kBegin, kBegin + 20 * kSecond), kBegin + 20 * kSecond);
  watch.PeerEnded(kBegin + 20 * kSecond);
  EXPECT_TRUE(watch.IsStuck(kBegin + 20 * kSecond));
}

TEST(ReceiveWatch, WithoutAnEnd_WaitsForAProcessThatIsStopped) {
  ReceiveWatch watch;
  EXPECT_EQ(StuckAt(&watch, kBegin, kBegin + 100 * kSecond), kBegin + ReceiveWatch::kOtherwise);
}

TEST(ReceiveWatch, EndLongAgo_IsNoReason) {
  ReceiveWatch watch;
  watch.PeerEnded(kBegin - ReceiveWatch::kRead - kSecond);
  EXPECT_EQ(StuckAt(&watch, kBegin, kBegin + 100 * kSecond), kBegin + ReceiveWatch::kOtherwise);
}

TEST(ReceiveWatch, MessagesThatArrive_BeginTheTimeAnew) {
  ReceiveWatch watch;
  watch.PeerEnded(kBegin);
  EXPECT_EQ(StuckAt(&watch, kBegin, kBegin + kSecond), kBegin + kSecond);
  watch.Moves();
  EXPECT_EQ(StuckAt(&watch, kBegin + kSecond, kBegin + 100 * kSecond),
            kBegin + kSecond + ReceiveWatch::kAfterAnEnd);
}

TEST(ReceiveWatch, ProcessThatDidNotLook_IsNotStuckByTheTimeAlone) {
  ReceiveWatch watch;
  watch.PeerEnded(kBegin);
  watch.LookedInVain(kBegin);
  watch.LookedInVain(kBegin + 100 * kSecond);
  EXPECT_FALSE(watch.IsStuck(kBegin + 100 * kSecond));
}

}  // namespace
}  // namespace weft::receive_watch_test
