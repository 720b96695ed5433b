#include "worker/shell/transport/transfer_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/unit/second.h"

namespace weft::transfer_table_test {
namespace {

using Kind = TransportEvent::Kind;
constexpr uint64_t kAlice = 1001, kBob = 1002;  // sender numbers

TensorKey Key(int step, uint64_t epoch = 1, uint64_t run = 7) {
  TensorKey key;
  key.run = run;
  key.epoch = epoch;
  key.step = step;
  return key;
}

Tensor Bytes(int64_t n) {
  return Tensor{{DataType::kUInt8, 1, {n}}, nullptr, static_cast<size_t>(n), std::make_shared<int>(0)};
}

class TransferTableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    table_.BeginEpoch(7, 1);
    table_.AddPeer(1, kAlice, "process 1", &events_);
  }
  TransferTable table_;
  std::vector<TransportEvent> events_;
};

TEST_F(TransferTableTest, Halves_InEitherOrder_MeetOnce) {
  EXPECT_FALSE(table_.Offer(1, Key(0), Bytes(10)));
  EXPECT_EQ(table_.offered_bytes(), 10u);
  auto due = table_.OnWant(kAlice, Key(0), true);
  ASSERT_TRUE(due);
  EXPECT_EQ(due->peer, 1);
  EXPECT_EQ(due->tensor.bytes, 10u);
  EXPECT_TRUE(due->in_place_ok);
  EXPECT_EQ(table_.offered_bytes(), 0u);
  EXPECT_FALSE(table_.OnWant(kAlice, Key(1), false));
  due = table_.Offer(1, Key(1), Bytes(20));
  ASSERT_TRUE(due);
  EXPECT_FALSE(due->in_place_ok);
  EXPECT_FALSE(table_.Offer(1, Key(1), Bytes(20)));  // the want is used up
}

TEST_F(TransferTableTest, Want_OfAnotherPeerForTheSameKey_IsNotServed) {
  table_.AddPeer(2, kBob, "process 2", &events_);
  EXPECT_FALSE(table_.OnWant(kBob, Key(0), true));
  EXPECT_FALSE(table_.Offer(1, Key(0), Bytes(10)));
  EXPECT_TRUE(table_.Offer(2, Key(0), Bytes(10)));
}

TEST_F(TransferTableTest, Offer_Twice_IsDroppedAndCounted) {
  table_.Offer(1, Key(0), Bytes(10));
  table_.Offer(1, Key(0), Bytes(99));
  EXPECT_EQ(table_.offered_bytes(), 10u);
  EXPECT_EQ(table_.dropped(), 1u);
  table_.Offer(1, Key(0, /*epoch=*/2), Bytes(10));
  EXPECT_EQ(table_.dropped(), 2u);
}

TEST_F(TransferTableTest, EarlyWants_BeyondTheBound_LoseTheOldest) {
  for (size_t i = 0; i < TransferTable::kMaxEarlyWants + 3; ++i)
    table_.OnWant(kBob, Key(static_cast<int>(i)), true);
  EXPECT_EQ(table_.dropped(), 3u);
  table_.AddPeer(2, kBob, "process 2", &events_);
  EXPECT_FALSE(table_.Offer(2, Key(2), Bytes(1)));
  EXPECT_TRUE(table_.Offer(2, Key(3), Bytes(1)));
  EXPECT_TRUE(table_.Offer(2, Key(TransferTable::kMaxEarlyWants + 2), Bytes(1)));
}

TEST_F(TransferTableTest, EarlyWants_OfLaterEpochs_WaitForTheirs) {
  table_.OnWant(kAlice, Key(0, 2), true);
  table_.OnWant(kAlice, Key(0, 3), true);
  table_.OnWant(kAlice, Key(0, 1, /*run=*/8), true);
  table_.OnWant(kAlice, Key(0, 0), true);  // stale
  EXPECT_EQ(table_.dropped(), 1u);
  table_.BeginEpoch(7, 3);  // epoch 2 never began here
  EXPECT_EQ(table_.dropped(), 2u);
  EXPECT_TRUE(table_.Offer(1, Key(0, 3), Bytes(1)));
  table_.BeginEpoch(8, 1);
  EXPECT_TRUE(table_.Offer(1, Key(0, 1, 8), Bytes(1)));
}

TEST_F(TransferTableTest, EarlyWant_Cancelled_IsNotServed) {
  table_.OnWant(kBob, Key(0), true);
  table_.OnCancel(kBob, Key(0));
  table_.AddPeer(2, kBob, "process 2", &events_);
  EXPECT_FALSE(table_.Offer(2, Key(0), Bytes(1)));
}

TEST_F(TransferTableTest, BeginEpoch_Again_ForgetsNothing) {
  table_.Want(1, Key(0), 0, &events_);
  table_.Offer(1, Key(1), Bytes(10));
  table_.BeginEpoch(7, 1);
  EXPECT_EQ(table_.wants(), 1u);
  EXPECT_EQ(table_.offers(), 1u);
}

TEST_F(TransferTableTest, WantThatWaits_IsAskedForAgainSeldomerAndSeldomer) {
  table_.AddPeer(2, kBob, "process 2", &events_);
  table_.Want(1, Key(0), 0, &events_);
  table_.Want(2, Key(1), 0, &events_);
  std::vector<Nanos> asked;
  for (Nanos now = 0; now <= 40 * kSecond; now += kSecond) {
    for (const TensorKey& key : table_.AskAgain(1, now)) {
      EXPECT_EQ(key, Key(0)) << "of the peer alone";
      asked.push_back(now / kSecond);
    }
  }
  EXPECT_THAT(asked, ::testing::ElementsAre(2, 4, 8, 16, 24, 32, 40));
  EXPECT_EQ(table_.WithCounts({}).asked_again, 7u);
  EXPECT_TRUE(events_.empty()) << "a want has no deadline";
  EXPECT_TRUE(table_.Take(1, Key(0)));
  EXPECT_TRUE(table_.AskAgain(1, 100 * kSecond).empty());
}

TEST_F(TransferTableTest, BytesOnTheirWay_HaveTheirTimeAtTheWorstRate) {
  table_.Want(1, Key(0), 0, &events_);
  table_.MarkLanding(Key(0), 5 * kSecond, 10 << 20);
  EXPECT_TRUE(table_.AskAgain(1, 16 * kSecond).empty());
  EXPECT_FALSE(table_.IsAwaited(1, Key(0)));
  EXPECT_TRUE(table_.IsWanted(1, Key(0)));
  EXPECT_EQ(table_.AskAgain(1, 17 * kSecond).size(), 1u);
  EXPECT_TRUE(table_.IsAwaited(1, Key(0))) << "they may come by another message now";
}

TEST_F(TransferTableTest, BytesThatFail_AreAskedForAgainAndFailAtLast) {
  table_.Want(1, Key(0), 0, &events_);
  for (int i = 1; i < TransferTable::kMostLandings; ++i) {
    table_.MarkLanding(Key(0), 100 * i * kSecond, 1 << 30);
    table_.LandingFailed(Key(0), absl::UnavailableError("cut off"), &events_);
    EXPECT_TRUE(events_.empty());
    EXPECT_EQ(table_.AskAgain(1, (100 * i + 1) * kSecond).size(), 1u) << "at once";
  }
  table_.LandingFailed(Key(0), absl::UnavailableError("cut off"), &events_);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].kind, Kind::kWantFailed);
  EXPECT_EQ(table_.wants(), 0u);
}

TEST_F(TransferTableTest, WantThatComesAgain_IsNoFaultAndIsServedOnce) {
  EXPECT_FALSE(table_.OnWant(kAlice, Key(0), true));
  EXPECT_FALSE(table_.OnWant(kAlice, Key(0), true, /*again=*/true));
  EXPECT_EQ(table_.dropped(), 0u);
  EXPECT_FALSE(table_.OnWant(kBob, Key(1), true, /*again=*/true)) << "not connected: it comes once more";
  table_.AddPeer(2, kBob, "process 2", &events_);
  EXPECT_FALSE(table_.Offer(2, Key(1), Bytes(1)));
  EXPECT_TRUE(table_.Offer(1, Key(0), Bytes(1)));
  EXPECT_FALSE(table_.OnWant(kAlice, Key(2), true, /*again=*/true)) << "the first was lost";
  EXPECT_TRUE(table_.Offer(1, Key(2), Bytes(1)));
}

TEST_F(TransferTableTest, Landing_RefusesFurtherBytesOfTheKey) {
  table_.Want(1, Key(0), 0, &events_);
  EXPECT_TRUE(table_.IsAwaited(1, Key(0)));
  EXPECT_FALSE(table_.IsAwaited(2, Key(0)));
  table_.MarkLanding(Key(0), 0, 100);
  EXPECT_FALSE(table_.IsAwaited(1, Key(0)));
  EXPECT_TRUE(table_.Take(1, Key(0)));
  EXPECT_FALSE(table_.Take(1, Key(0)));
}

TEST_F(TransferTableTest, FailPeer_IsStickyAndTakesWantsAndOffersAlong) {
  table_.AddPeer(2, kBob, "process 2", &events_);
  table_.Want(1, Key(5), 0, &events_);
  table_.Want(1, Key(4), 0, &events_);
  table_.Want(2, Key(6), 0, &events_);
  table_.Offer(1, Key(7), Bytes(10));
  table_.Offer(2, Key(7), Bytes(20));
  EXPECT_TRUE(table_.FailPeer(1, absl::UnavailableError("first cause"), true, &events_));
  EXPECT_FALSE(table_.FailPeer(1, absl::UnavailableError("second cause"), true, &events_));
  ASSERT_EQ(events_.size(), 3u);
  EXPECT_EQ(events_[0].kind, Kind::kPeerFailed);
  EXPECT_EQ(events_[1].key, Key(4));  // by key
  EXPECT_EQ(events_[2].key, Key(5));
  EXPECT_THAT(std::string(events_[2].status.message()), ::testing::HasSubstr("first cause"));
  EXPECT_EQ(table_.offered_bytes(), 20u);
  EXPECT_FALSE(table_.Want(1, Key(8), 0, &events_));
  EXPECT_FALSE(table_.OnWant(kAlice, Key(9), true));
  EXPECT_FALSE(table_.Offer(1, Key(9), Bytes(10)));
  EXPECT_EQ(table_.offered_bytes(), 20u);
  // The failure is the sender's, whatever its number.
  table_.AddPeer(9, kAlice, "process 9", &events_);
  EXPECT_FALSE(table_.PeerStatus(9).ok());
  EXPECT_TRUE(absl::IsNotFound(table_.PeerStatus(1)));
}

TEST_F(TransferTableTest, AddPeer_SwappingTwoNumbers_FollowsTheSenders) {
  table_.AddPeer(2, kBob, "process 2", &events_);
  table_.BeginEpoch(7, 2);
  table_.AddPeer(1, kBob, "process 1", &events_);
  table_.AddPeer(2, kAlice, "process 2", &events_);
  EXPECT_EQ(table_.PeerOf(kAlice), 2);
  EXPECT_EQ(table_.PeerOf(kBob), 1);
  EXPECT_EQ(table_.SenderOf(1), kBob);
  table_.OnWant(kBob, Key(0, 2), true);
  EXPECT_TRUE(table_.Offer(1, Key(0, 2), Bytes(1)));
  EXPECT_TRUE(events_.empty());
}

TEST_F(TransferTableTest, Offer_WithAShapeThatDoesNotFit_EndsTheProcess) {
  Tensor tensor = Bytes(10);
  tensor.bytes = 11;
  EXPECT_DEATH(table_.Offer(1, Key(0), tensor), "activation of step 0.*a shape of 10 bytes with 11 bytes");
}

// Safety over random histories: a want ends once, an offer is delivered at most once, and the byte count is
// right.
TEST(TransferTableProperty, RandomHistories_EveryWantEndsAtMostOnceAndBytesAddUp) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    TransferTable table;
    std::vector<TransportEvent> events;
    table.BeginEpoch(7, 1);
    table.AddPeer(1, kAlice, "process 1", &events);
    std::set<TensorKey> wanted, delivered;
    std::map<TensorKey, uint64_t> offered;
    Nanos now = 0;
    for (int i = 0; i < 400; ++i) {
      const TensorKey key = Key(static_cast<int>(random() % 20));
      events.clear();
      switch (random() % 6) {
        case 0:
          ASSERT_EQ(table.Want(1, key, now, &events), wanted.insert(key).second);
          events.clear();
          break;
        case 1:
          ASSERT_EQ(table.Cancel(key).has_value(), wanted.erase(key) == 1);
          break;
        case 2:
          ASSERT_EQ(table.Take(1, key), wanted.erase(key) == 1);
          break;
        case 3: {
          const uint64_t bytes = random() % 100;
          if (delivered.contains(key) || offered.contains(key)) break;  // the caller offers a key once
          if (table.Offer(1, key, Bytes(static_cast<int64_t>(bytes)))) {
            ASSERT_TRUE(delivered.insert(key).second);
          } else {
            offered[key] = bytes;
          }
          break;
        }
        case 4:
          if (table.OnWant(kAlice, key, true)) {
            ASSERT_EQ(offered.erase(key), 1u);
            ASSERT_TRUE(delivered.insert(key).second);
          }
          break;
        case 5:
          now += random() % 3 * kSecond;
          if (random() % 2 == 0) table.MarkLanding(key, now, random() % 100);
          for (const TensorKey& asked : table.AskAgain(1, now)) ASSERT_TRUE(wanted.contains(asked));
          break;
      }
      uint64_t bytes = 0;
      for (const auto& [k, b] : offered) bytes += b;
      ASSERT_EQ(table.offered_bytes(), bytes);
      ASSERT_EQ(table.wants(), wanted.size());
    }
  }
}

}  // namespace
}  // namespace weft::transfer_table_test
