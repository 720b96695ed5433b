// Tests that no single message between two UCX transports can be lost for good. Time is virtual here: the
// transports are told that seconds have passed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>

#include "tests/conformance/transport_suite.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft::testing {
namespace {

using Kind = TransportEvent::Kind;

struct LossCase {
  const char* name;
  bool in_place;
  const char* ucx_transports;
};

class TransportLoss : public ::testing::TestWithParam<LossCase> {
 protected:
  // Counts down the messages until the one that is lost; below 0 none is.
  struct End {
    int until_loss = -1;
    bool loses_tensors = false;  // all of them
    std::unique_ptr<Transport> transport;
    std::vector<TransportEvent> events;
  };

  void SetUp() override {
    for (End* end : {&producer_, &consumer_}) {
      UcxOptions options;
      options.in_place = GetParam().in_place;
      options.ucx_transports = GetParam().ucx_transports;
      options.loses = [end](TransportMessage::Type type) {
        const bool tensor = type == TransportMessage::Type::kData || type == TransportMessage::Type::kInPlace;
        return (tensor && end->loses_tensors) || (end->until_loss >= 0 && end->until_loss-- == 0);
      };
      absl::StatusOr<std::unique_ptr<Transport>> transport = CreateUcxTransport(options);
      ASSERT_TRUE(transport.ok()) << transport.status();
      end->transport = *std::move(transport);
      end->transport->BeginEpoch(kRun, 1);
    }
    Transport &a = *producer_.transport, &b = *consumer_.transport;
    ASSERT_TRUE(a.Admit({{b.address(), kConsumerLabel}}).ok());
    ASSERT_TRUE(b.Admit({{a.address(), kProducerLabel}}).ok());
    ASSERT_TRUE(a.Connect(kConsumer, b.address(), kConsumerLabel).ok());
    ASSERT_TRUE(b.Connect(kProducer, a.address(), kProducerLabel).ok());
  }

  void Pump() {
    int idle = 0;
    while (idle < 50) {
      int handled = 0;
      for (End* end : {&producer_, &consumer_}) handled += end->transport->Progress(now_, &end->events);
      idle = handled == 0 ? idle + 1 : 0;
    }
  }
  // Moves time until there are so many events, at most so far. Messages by TCP take their real time.
  bool PassUntil(size_t events, int seconds, int real_us = 2000) {
    for (int i = 0; i < seconds * 2 && consumer_.events.size() < events; ++i) {
      now_ += kSecond / 2;
      Pump();
      if (real_us > 0) usleep(real_us);
      Pump();
    }
    return consumer_.events.size() >= events;
  }

  // Moves tensors of all sizes, of which the message is lost, and returns whether there was such a message.
  bool MoveAll(End* loser, int nth, uint64_t epoch) {
    for (End* end : {&producer_, &consumer_}) end->transport->BeginEpoch(kRun, epoch);
    consumer_.events.clear();
    loser->until_loss = nth;
    int released = 0;
    constexpr size_t kSizes[] = {0, 100, 20'000, 3'000'000};
    int step = 0;
    for (const size_t bytes : kSizes) {
      consumer_.transport->Want(kProducer, Key(step, epoch));
      producer_.transport->Offer(
          kConsumer, Key(step, epoch),
          bytes == 0 ? Tensor{} : MakeTensor(producer_.transport->memory(), bytes, step, &released));
      ++step;
    }
    EXPECT_TRUE(PassUntil(step, 20)) << "they arrive within seconds";
    const bool lost = loser->until_loss < 0;
    loser->until_loss = -1;
    for (const TransportEvent& event : consumer_.events) {
      EXPECT_EQ(event.kind, Kind::kArrived) << event.status;
      EXPECT_TRUE(HasPattern(event.tensor, event.key.step));
    }
    consumer_.events.clear();
    const bool by_tcp = GetParam().ucx_transports == std::string("tcp");
    EXPECT_FALSE(PassUntil(1, 80, by_tcp ? 2000 : 0)) << "each arrives once";
    EXPECT_EQ(released, 3);
    EXPECT_EQ(producer_.transport->bytes_held(), 0u);
    return lost;
  }

  End producer_, consumer_;
  Nanos now_ = MonotonicNow();
};

TEST_P(TransportLoss, OfAnyOneMessage_LosesNoTensorAndNoMemory) {
  int lost = 0;
  uint64_t epoch = 1;
  for (int nth = 0; nth < 8 && !HasFailure(); ++nth) {
    SCOPED_TRACE(nth);
    lost += MoveAll(&producer_, nth, ++epoch);
    lost += MoveAll(&consumer_, nth, ++epoch);
  }
  EXPECT_GT(lost, 2 * 4) << "each tensor has a want and itself, and there are acknowledgements";
  EXPECT_TRUE(producer_.events.empty());
}

TEST_P(TransportLoss, OfOneTensorAgainAndAgain_FailsTheLinkAndNamesIt) {
  producer_.loses_tensors = true;
  consumer_.transport->Want(kProducer, Key(0));
  producer_.transport->Offer(kConsumer, Key(0), MakeTensor(producer_.transport->memory(), 20'000, 1));
  EXPECT_FALSE(PassUntil(1, 60));
  ASSERT_EQ(producer_.events.size(), 1u);
  EXPECT_EQ(producer_.events[0].kind, Kind::kPeerFailed);
  EXPECT_THAT(
      std::string(producer_.events[0].status.message()),
      ::testing::HasSubstr("process 2 (pid 22 on host a) is lost: its data link has lost the activation "
                           "of step 0, stage 3, micro-batch 0, from rank 1 for rank 2 (20000 bytes) 5 "
                           "times"));
  EXPECT_EQ(producer_.transport->bytes_held(), 0u);
  EXPECT_EQ(producer_.transport->counters().sent_again, 4u);
  EXPECT_GE(consumer_.transport->counters().asked_again, 5u);
}

// The link lives and the tensor is not made yet: the consumer asks now and then, and nothing comes of it.
TEST_P(TransportLoss, OfNothing_TensorThatIsMadeLateArrivesOnce) {
  consumer_.transport->Want(kProducer, Key(0));
  EXPECT_FALSE(PassUntil(1, 100));
  producer_.transport->Offer(kConsumer, Key(0), MakeTensor(producer_.transport->memory(), 20'000, 1));
  ASSERT_TRUE(PassUntil(1, 1));
  EXPECT_EQ(consumer_.events[0].kind, Kind::kArrived);
  EXPECT_EQ(producer_.transport->counters().dropped_messages, 0u);
  EXPECT_EQ(producer_.transport->counters().sent_again, 0u);
  EXPECT_GT(consumer_.transport->counters().asked_again, 0u);
}

INSTANTIATE_TEST_SUITE_P(Every, TransportLoss,
                         ::testing::Values(LossCase{"in_place", true, "^posix"},
                                           LossCase{"copied", false, "^posix"},
                                           LossCase{"tcp", false, "tcp"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace weft::testing
