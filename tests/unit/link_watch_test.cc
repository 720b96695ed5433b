#include "worker/shell/transport/link_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <vector>

#include "tests/unit/second.h"

namespace weft::link_watch_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kPeer = 7, kOther = 9;

class LinkWatchTest : public ::testing::Test {
 protected:
  // One look a second, at which both peers owe something; returns what was said at the last.
  LinkWatch::Verdict Pass(int seconds, bool peer_answers, uint64_t bytes = 0) {
    LinkWatch::Verdict last;
    for (int i = 0; i < seconds; ++i) {
      now_ += kSecond;
      last = watch_.Look(now_, {{kPeer, bytes}, {kOther, 0}});
      asked_ += static_cast<int>(last.ask.size());
      for (const uint64_t peer : last.ask) {
        if (peer == kOther || peer_answers) watch_.Heard(peer);
      }
      for (const uint64_t peer : last.silent) silent_.push_back(peer);
      for (const uint64_t peer : last.healed) healed_.push_back(peer);
      for (const uint64_t peer : last.dead) dead_.push_back(peer);
    }
    return last;
  }

  LinkWatch watch_{
      {.notice_ns = 5 * kSecond, .timeout_ns = 120 * kSecond, .notice_rate = 100, .worst_rate = 10}};
  int64_t now_ = 1000 * kSecond;
  int asked_ = 0;
  std::vector<uint64_t> silent_, healed_, dead_;
};

TEST_F(LinkWatchTest, PeerThatAnswersAndSendsNothing_IsWaitedForWithoutEnd) {
  Pass(10'000, /*peer_answers=*/true);
  EXPECT_GT(asked_, 0);
  EXPECT_THAT(silent_, IsEmpty());
  EXPECT_THAT(dead_, IsEmpty());
}

TEST_F(LinkWatchTest, PeerThatDoesNotAnswer_IsToldWithinSecondsAndGivenUpMuchLater) {
  Pass(5, false);
  EXPECT_THAT(silent_, IsEmpty());
  Pass(3, false);
  EXPECT_THAT(silent_, ElementsAre(kPeer)) << "and not the other, which answers";
  EXPECT_EQ(watch_.silent_links(), 1);
  EXPECT_GE(watch_.SilenceOf(kPeer), 5 * kSecond);
  EXPECT_EQ(watch_.SilenceOf(kOther), 0);
  Pass(110, false);
  EXPECT_THAT(dead_, IsEmpty());
  Pass(5, false);
  EXPECT_EQ(dead_.front(), kPeer);
  EXPECT_THAT(silent_, ElementsAre(kPeer)) << "told once";
}

TEST_F(LinkWatchTest, OutageThatHeals_CostsNothing) {
  for (int outage = 0; outage < 3; ++outage) {
    Pass(70, false);
    Pass(10, true);
    watch_.Heard(kPeer);
    Pass(10, true);
  }
  EXPECT_THAT(silent_, ElementsAre(kPeer, kPeer, kPeer));
  EXPECT_THAT(healed_, ElementsAre(kPeer, kPeer, kPeer));
  EXPECT_THAT(dead_, IsEmpty());
  EXPECT_EQ(watch_.silent_links(), 0);
}

TEST_F(LinkWatchTest, BytesUnderWay_LengthenBothTimes) {
  Pass(25, false, /*bytes=*/2000);
  EXPECT_THAT(silent_, IsEmpty()) << "5 s, and 20 s for 2000 bytes";
  Pass(5, false, 2000);
  EXPECT_THAT(silent_, ElementsAre(kPeer));
  Pass(280, false, 2000);
  EXPECT_THAT(dead_, IsEmpty()) << "120 s, and 200 s";
  Pass(15, false, 2000);
  EXPECT_FALSE(dead_.empty());
}

TEST_F(LinkWatchTest, ThisProcessWasStopped_ThatIsNotThePeersSilence) {
  Pass(3, false);
  now_ += 1000 * kSecond;
  Pass(1, false);
  EXPECT_THAT(silent_, IsEmpty());
  EXPECT_THAT(dead_, IsEmpty());
}

TEST_F(LinkWatchTest, NothingWantedAnyMore_TheLinkIsNotWatched) {
  Pass(10, false);
  const LinkWatch::Verdict verdict = watch_.Look(now_ += kSecond, {});
  EXPECT_THAT(verdict.healed, ElementsAre(kPeer));
  EXPECT_THAT(verdict.ask, IsEmpty());
  EXPECT_EQ(watch_.silent_links(), 0);
  EXPECT_EQ(watch_.next_look(), INT64_MAX);
}

}  // namespace
}  // namespace weft::link_watch_test
