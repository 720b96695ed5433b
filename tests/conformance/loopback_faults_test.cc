// Tests how the loopback network misbehaves on request; transport_process_test.cc has real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

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
    Pump(1);  // they learn the time
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
  b_->Want(1, Key(0));
  a_->Offer(2, Key(0), MakeTensor(a_->memory(), 5000, 1, &released));
  Pump();
  ASSERT_EQ(b_events_.size(), 1u);
  a_->Want(2, Key(10));
  a_->Want(2, Key(11));
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
  a_->Want(2, Key(12));
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
    b_->Want(1, Key(i));
    a_->Offer(2, Key(i), Tensor{});
  }
  Pump();
  EXPECT_TRUE(b_events_.empty());
  network_.Deliver(b_->address(), a_->address());
  Pump();
  ASSERT_EQ(b_events_.size(), 10u);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(b_events_[i].key, Key(i));
}

TEST_F(LoopbackFaults, HoldBack_UntilTheWantIsCanceled_LateTensorGoesBack) {
  int released = 0;
  b_->Want(1, Key(0));
  Pump();
  network_.HoldBack(a_->address(), b_->address());
  a_->Offer(2, Key(0), MakeTensor(a_->memory(), 5000, 1, &released));
  Pump();
  b_->Cancel(Key(0));
  network_.Deliver(a_->address(), b_->address());
  Pump();
  EXPECT_TRUE(b_events_.empty());
  EXPECT_EQ(released, 1);
  EXPECT_EQ(b_->counters().dropped_messages, 1u);
}

// Each message in turn is lost, once: wants, tensors, notices, acknowledgements, in either direction.
TEST_F(LoopbackFaults, LosingAnyOneMessage_LosesNoTensorAndNoMemory) {
  constexpr int kTensors = 6;
  int lost = 0;
  for (int nth = 0; nth < 4 * kTensors; ++nth) {
    for (const bool to_consumer : {false, true}) {
      SCOPED_TRACE(::testing::Message() << nth << (to_consumer ? " to the consumer" : " to the producer"));
      const int epoch = 2 + 2 * nth + (to_consumer ? 1 : 0);
      a_->BeginEpoch(kRun, epoch);
      b_->BeginEpoch(kRun, epoch);
      const int lost_before = network_.lost();
      to_consumer ? network_.Lose(a_->address(), b_->address(), nth)
                  : network_.Lose(b_->address(), a_->address(), nth);
      b_events_.clear();
      int released = 0;
      for (int i = 0; i < kTensors; ++i) {
        b_->Want(1, Key(i, epoch));
        if (i % 2 == 0) Pump();
        a_->Offer(2, Key(i, epoch), i % 3 == 0 ? Tensor{} : MakeTensor(a_->memory(), 5000, i, &released));
      }
      Pump();
      bool all = b_events_.size() == kTensors;
      if (all) {
        b_events_.clear();
        Pump();  // acknowledgements
      }
      if (network_.lost() == lost_before) {  // so many messages there are not
        network_.Lose(a_->address(), b_->address(), -1);
        network_.Lose(b_->address(), a_->address(), -1);
        continue;
      }
      ++lost;
      for (int second = 0; second < 10 && !all; ++second) {
        now_ += kSecond;
        Pump();
        all = b_events_.size() == kTensors;
      }
      ASSERT_TRUE(all) << "within seconds";
      b_events_.clear();
      for (int second = 0; second < 60; ++second) {
        now_ += kSecond;
        Pump();
      }
      EXPECT_TRUE(b_events_.empty()) << "a tensor arrives once";
      EXPECT_EQ(released, 4);
      EXPECT_EQ(a_->bytes_held(), 0u);
      EXPECT_EQ(a_->next_look(), std::numeric_limits<Nanos>::max()) << "an acknowledgement is missing";
    }
  }
  EXPECT_EQ(lost, 3 * kTensors) << "each tensor has a want, itself, and an acknowledgement";
  EXPECT_TRUE(a_events_.empty());
}

TEST_F(LoopbackFaults, TensorThatIsLostAgainAndAgain_FailsTheLink) {
  b_->Want(1, Key(0));
  Pump();
  network_.Lose(a_->address(), b_->address(), 0);
  a_->Offer(2, Key(0), MakeTensor(a_->memory(), 5000, 1, nullptr));
  for (int second = 0; second < 120 && a_events_.empty(); ++second) {
    now_ += kSecond;
    Pump();
    network_.Lose(a_->address(), b_->address(), 0);
  }
  ASSERT_EQ(a_events_.size(), 1u);
  EXPECT_EQ(a_events_[0].kind, Kind::kPeerFailed);
  EXPECT_THAT(
      std::string(a_events_[0].status.message()),
      ::testing::AllOf(::testing::HasSubstr(kConsumerLabel), ::testing::HasSubstr("has lost the activation"),
                       ::testing::HasSubstr("5 times")));
  EXPECT_EQ(a_->bytes_held(), 0u);
}

// A tensor that is long in the making fails nothing, and costs a message now and then.
TEST_F(LoopbackFaults, TensorThatIsMadeAfterAnHour_Arrives) {
  b_->Want(1, Key(0));
  for (int second = 0; second < 3600; ++second) {
    now_ += kSecond;
    Pump(1);
  }
  EXPECT_TRUE(b_events_.empty());
  a_->Offer(2, Key(0), Tensor{});
  Pump();
  ASSERT_EQ(b_events_.size(), 1u);
  EXPECT_EQ(b_events_[0].kind, Kind::kArrived);
  EXPECT_EQ(a_->counters().dropped_messages, 0u);
}

}  // namespace
}  // namespace weft::testing
