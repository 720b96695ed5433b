#include "worker/shell/transport/transfer_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <set>

namespace weft {
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
  table_.Want(1, Key(0), 0, 100, &events_);
  table_.Offer(1, Key(1), Bytes(10));
  table_.BeginEpoch(7, 1);
  EXPECT_EQ(table_.wants(), 1u);
  EXPECT_EQ(table_.offers(), 1u);
}

TEST_F(TransferTableTest, Expire_EndsWantsInOrderOfDeadline) {
  table_.Want(1, Key(0), 0, 3'000'000'000, &events_);
  table_.Want(1, Key(1), 1'000'000'000, 2'000'000'000, &events_);
  EXPECT_EQ(table_.next_deadline(), 2'000'000'000);
  table_.Expire(1'999'999'999, &events_);
  EXPECT_TRUE(events_.empty());
  table_.MarkLanding(Key(0));  // bytes on their way do not put the deadline off
  table_.Expire(11'000'000'000, &events_);
  ASSERT_EQ(events_.size(), 2u);
  EXPECT_EQ(events_[0].key, Key(1));
  EXPECT_THAT(std::string(events_[0].status.message()),
              ::testing::HasSubstr("waited 10.0 s for activation of step 1"));
  EXPECT_THAT(std::string(events_[0].status.message()), ::testing::HasSubstr("from process 1"));
  EXPECT_THAT(std::string(events_[1].status.message()), ::testing::HasSubstr("on their way"));
  EXPECT_FALSE(table_.Take(1, Key(0)));
  EXPECT_EQ(table_.next_deadline(), std::numeric_limits<Nanos>::max());
}

TEST_F(TransferTableTest, Landing_RefusesFurtherBytesOfTheKey) {
  table_.Want(1, Key(0), 0, 100, &events_);
  EXPECT_TRUE(table_.IsAwaited(1, Key(0)));
  EXPECT_FALSE(table_.IsAwaited(2, Key(0)));
  table_.MarkLanding(Key(0));
  EXPECT_FALSE(table_.IsAwaited(1, Key(0)));
  EXPECT_TRUE(table_.Take(1, Key(0)));
  EXPECT_FALSE(table_.Take(1, Key(0)));
}

TEST_F(TransferTableTest, FailPeer_IsStickyAndTakesWantsAndOffersAlong) {
  table_.AddPeer(2, kBob, "process 2", &events_);
  table_.Want(1, Key(5), 0, 100, &events_);
  table_.Want(1, Key(4), 0, 100, &events_);
  table_.Want(2, Key(6), 0, 100, &events_);
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
  EXPECT_FALSE(table_.Want(1, Key(8), 0, 100, &events_));
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
          ASSERT_EQ(table.Want(1, key, now, now + 1 + random() % 20, &events), wanted.insert(key).second);
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
          now += random() % 10;
          table.Expire(now, &events);
          for (const TransportEvent& event : events) ASSERT_EQ(wanted.erase(event.key), 1u);
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
}  // namespace weft
