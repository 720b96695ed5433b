// Tests how the loopback network misbehaves on request; transport_process_test.cc has real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/conformance/transport_suite.h"
#include "worker/shell/transport/loopback_transport.h"

namespace weft::testing {
namespace {

using Kind = TransportEvent::Kind;

class LoopbackFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    a_->BeginEpoch(kRun, 1);
    b_->BeginEpoch(kRun, 1);
    ASSERT_TRUE(a_->Connect(2, b_->address(), kConsumerLabel).ok());
    ASSERT_TRUE(b_->Connect(1, a_->address(), kProducerLabel).ok());
  }
  void Pump(int rounds = 10) {
    for (int i = 0; i < rounds; ++i) {
      a_->Progress(now_, &a_events_);
      b_->Progress(now_, &b_events_);
    }
  }
  LoopbackNetwork network_;
  std::unique_ptr<Transport> a_ = network_.CreateTransport(), b_ = network_.CreateTransport();
  std::vector<TransportEvent> a_events_, b_events_;
  Nanos now_ = 0;  // virtual
};

TEST_F(LoopbackFaults, Kill_OfAPeer_FailsItsWantsAndReleasesWhatItRead) {
  int released = 0;
  b_->Want(1, Key(0), 100);
  a_->Offer(2, Key(0), MakeTensor(a_->memory(), 5000, 1, &released));
  Pump();
  ASSERT_EQ(b_events_.size(), 1u);
  a_->Want(2, Key(10), 100);
  a_->Want(2, Key(11), 100);
  a_->Offer(2, Key(1), MakeTensor(a_->memory(), 5000, 1, &released));
  network_.Kill(b_->address());
  Pump();
  ASSERT_EQ(a_events_.size(), 3u);
  EXPECT_EQ(a_events_[0].kind, Kind::kPeerFailed);
  EXPECT_EQ(a_events_[0].peer, 2);
  EXPECT_THAT(std::string(a_events_[0].status.message()), ::testing::HasSubstr(kConsumerLabel));
  EXPECT_EQ(a_events_[1].kind, Kind::kWantFailed);
  EXPECT_EQ(a_events_[1].key, Key(10));
  EXPECT_EQ(a_events_[2].key, Key(11));
  EXPECT_EQ(a_events_[2].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(a_->bytes_held(), 0u);
  Pump();
  EXPECT_EQ(a_events_.size(), 3u);  // once
  a_->Want(2, Key(12), 100);
  a_->Offer(2, Key(13), MakeTensor(a_->memory(), 5000, 1, &released));
  Pump();
  EXPECT_EQ(a_events_.size(), 4u);
  EXPECT_EQ(a_->bytes_held(), 0u);
  EXPECT_FALSE(a_->Connect(2, b_->address(), kConsumerLabel).ok());
  b_events_.clear();
  EXPECT_EQ(released, 3);
}

TEST_F(LoopbackFaults, HoldBack_ThenDeliver_KeepsOrderAndLosesNothing) {
  network_.HoldBack(b_->address(), a_->address());
  for (int i = 0; i < 10; ++i) {
    b_->Want(1, Key(i), 1000);
    a_->Offer(2, Key(i), Tensor{});
  }
  Pump();
  EXPECT_TRUE(b_events_.empty());
  network_.Deliver(b_->address(), a_->address());
  Pump();
  ASSERT_EQ(b_events_.size(), 10u);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(b_events_[i].key, Key(i));
}

TEST_F(LoopbackFaults, HoldBack_PastTheDeadline_LateTensorGoesBack) {
  int released = 0;
  b_->Want(1, Key(0), 1000);
  Pump();
  network_.HoldBack(a_->address(), b_->address());
  a_->Offer(2, Key(0), MakeTensor(a_->memory(), 5000, 1, &released));
  now_ = 2000;
  Pump();
  ASSERT_EQ(b_events_.size(), 1u);
  EXPECT_EQ(b_events_[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  network_.Deliver(a_->address(), b_->address());
  Pump();
  EXPECT_EQ(b_events_.size(), 1u);
  EXPECT_EQ(released, 1);
  EXPECT_EQ(b_->counters().dropped_messages, 1u);
}

}  // namespace
}  // namespace weft::testing
