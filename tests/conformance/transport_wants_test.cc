// Tests what every transport must do (transport.h): every want ends: by an arrival, by being canceled, by the
// epoch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "tests/conformance/transport_suite.h"

namespace weft::testing {
namespace {

using Kind = TransportEvent::Kind;

TEST_P(TransportConformance, NextLook_WithoutWants_IsNever) {
  Connect();
  EXPECT_EQ(consumer_->next_look(), std::numeric_limits<Nanos>::max());
  consumer_->Want(kProducer, Key(1));
  Pump();
  EXPECT_LT(consumer_->next_look(), MonotonicNow() + 2 * kSecond) << "to notice what is lost";
  Offer(producer_, kConsumer, Key(1), Tensor{});
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_TRUE(PumpUntil([&] { return producer_->next_look() == std::numeric_limits<Nanos>::max(); }));
  EXPECT_EQ(consumer_->next_look(), std::numeric_limits<Nanos>::max());
}

TEST_P(TransportConformance, Cancel_BeforeTheOffer_NothingArrives) {
  Connect();
  consumer_->Want(kProducer, Key(0));
  Settle();
  consumer_->Cancel(Key(0));
  Settle();
  Offer(producer_, kConsumer, Key(0), Make(producer_, 5000, 1));
  PumpFor(kSecond / 20);
  EXPECT_TRUE(consumer_events_.empty());
  EXPECT_EQ(producer_->bytes_held(), 5000u);  // still on offer
  consumer_->Want(kProducer, Key(0));
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kArrived);
}

TEST_P(TransportConformance, Cancel_RacingTheTensor_ReturnsItToItsProducer) {
  Connect();
  for (int i = 0; i < 50; ++i) {
    int released = 0;
    const TensorKey key = Key(i, /*epoch=*/i + 1);
    consumer_->Want(kProducer, key);
    PumpFor(kSecond / 1000);
    Offer(producer_, kConsumer, key, Make(producer_, 30'000, i, &released));
    if (i % 2) producer_->Progress(MonotonicNow(), &producer_events_);
    consumer_->Cancel(key);
    consumer_->Cancel(key);  // of what is not wanted: nothing
    PumpFor(kSecond / 1000);
    // An offer that the cancel overtook is still there; the next epoch forgets it.
    producer_->BeginEpoch(kRun, i + 2);
    consumer_->BeginEpoch(kRun, i + 2);
    EXPECT_TRUE(PumpUntil([&] { return released == 1 && producer_->bytes_held() == 0; }));
  }
  EXPECT_TRUE(consumer_events_.empty());
}

TEST_P(TransportConformance, Want_Twice_IsRefusedAndTheFirstArrives) {
  Connect();
  consumer_->Want(kProducer, Key(0));
  consumer_->Want(kProducer, Key(0));
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kWantFailed);
  EXPECT_EQ(consumer_events_[0].status.code(), absl::StatusCode::kAlreadyExists);
  Offer(producer_, kConsumer, Key(0), Tensor{});
  ASSERT_TRUE(PumpUntilEvents(2));
  EXPECT_EQ(consumer_events_[1].kind, Kind::kArrived);
}

TEST_P(TransportConformance, Want_OfAnotherEpochOrPeer_Fails) {
  Connect();
  consumer_->Want(kProducer, Key(0, /*epoch=*/9));
  consumer_->Want(77, Key(1));
  ASSERT_TRUE(PumpUntilEvents(2));
  EXPECT_EQ(consumer_events_[0].status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(consumer_events_[1].status.code(), absl::StatusCode::kNotFound);
}

TEST_P(TransportConformance, Want_OfAStaleEpoch_IsDroppedAndCounted) {
  Connect();
  producer_->BeginEpoch(kRun, 2);
  Offer(producer_, kConsumer, Key(0, 2), Make(producer_, 5000, 1));
  consumer_->Want(kProducer, Key(0, 1));
  ASSERT_TRUE(PumpUntil([&] { return producer_->counters().dropped_messages == 1; }));
  PumpFor(kSecond / 50);
  EXPECT_TRUE(consumer_events_.empty());
  EXPECT_EQ(producer_->bytes_held(), 5000u);
}

TEST_P(TransportConformance, Tensor_OfAStaleEpoch_IsDroppedCountedAndReturned) {
  Connect();
  int released = 0;
  consumer_->Want(kProducer, Key(0));
  PumpFor(kSecond / 50);
  consumer_->BeginEpoch(kRun, 2);  // before the tensor gets here
  Offer(producer_, kConsumer, Key(0), Make(producer_, 50'000, 1, &released));
  ASSERT_TRUE(PumpUntil([&] { return consumer_->counters().dropped_messages == 1 && released == 1; }));
  EXPECT_TRUE(consumer_events_.empty());
  EXPECT_EQ(producer_->bytes_held(), 0u);
}

TEST_P(TransportConformance, BeginEpoch_WithWantsAndOffers_ForgetsThemSilently) {
  Connect();
  int released = 0;
  consumer_->Want(kProducer, Key(0));
  Offer(producer_, kConsumer, Key(1), Make(producer_, 5000, 1, &released));
  consumer_->BeginEpoch(kRun, 2);
  producer_->BeginEpoch(kRun, 2);
  EXPECT_EQ(released, 1);
  EXPECT_EQ(producer_->bytes_held(), 0u);
  PumpFor(kSecond / 10);
  EXPECT_TRUE(consumer_events_.empty());
}

TEST_P(TransportConformance, Want_OfAnEpochThatTheProducerHasYetToBegin_IsServedThen) {
  Connect();
  consumer_->BeginEpoch(kRun, 2);
  consumer_->Want(kProducer, Key(0, 2));
  PumpFor(kSecond / 20);
  producer_->BeginEpoch(kRun, 2);
  Offer(producer_, kConsumer, Key(0, 2), Make(producer_, 5000, 4));
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kArrived);
  EXPECT_TRUE(Holds(consumer_events_[0].tensor, 4));
}

TEST_P(TransportConformance, Arrived_InAnEarlierEpoch_StaysReadable) {
  Connect();
  int released = 0;
  std::optional<Tensor> arrived = Transfer(Key(0), Make(producer_, 100'000, 8, &released));
  ASSERT_TRUE(arrived);
  producer_->BeginEpoch(kRun, 2);
  consumer_->BeginEpoch(kRun, 2);
  PumpFor(kSecond / 20);
  EXPECT_TRUE(Holds(*arrived, 8));
  if (GetParam().in_place) {
    EXPECT_EQ(released, 0);
  }
  arrived.reset();
  EXPECT_TRUE(PumpUntil([&] { return released == 1; }));
}

}  // namespace
}  // namespace weft::testing
