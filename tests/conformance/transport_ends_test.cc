// Tests what every transport must do (transport.h): connecting, closing, blocking, and objects that outlive a
// transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/conformance/transport_suite.h"

namespace weft::testing {
namespace {

using Kind = TransportEvent::Kind;

TEST_P(TransportConformance, Want_FromAPeerThatIsNotYetConnected_IsServedThen) {
  ASSERT_TRUE(consumer_->Connect(kProducer, producer_->address(), kProducerLabel).ok());
  consumer_->Want(kProducer, Key(0));
  PumpFor(kSecond / 10);
  ASSERT_TRUE(producer_->Connect(kConsumer, consumer_->address(), kConsumerLabel).ok());
  Offer(producer_, kConsumer, Key(0), Make(producer_, 5000, 3));
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kArrived);
  EXPECT_TRUE(Holds(consumer_events_[0].tensor, 3));
}

TEST_P(TransportConformance, Connect_AgainUnderAnotherNumber_KeepsWhatIsBeingRead) {
  Connect();
  int released = 0;
  std::optional<Tensor> arrived = Transfer(Key(0), Make(producer_, 100'000, 8, &released));
  ASSERT_TRUE(arrived);
  producer_->BeginEpoch(kRun, 2);
  consumer_->BeginEpoch(kRun, 2);
  ASSERT_TRUE(producer_->Connect(5, consumer_->address(), "process 5").ok());
  ASSERT_TRUE(consumer_->Connect(6, producer_->address(), "process 6").ok());
  ASSERT_TRUE(consumer_->Connect(6, producer_->address(), "process 6").ok());
  consumer_->Want(6, Key(1, 2));
  Offer(producer_, 5, Key(1, 2), Tensor{});
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kArrived);
  EXPECT_EQ(consumer_events_[0].peer, 6);
  if (GetParam().in_place) {
    EXPECT_EQ(released, 0);
  }
  EXPECT_TRUE(Holds(*arrived, 8));
  arrived.reset();
  EXPECT_TRUE(PumpUntil([&] { return released == 1; }));
  EXPECT_TRUE(producer_events_.empty());
}

TEST_P(TransportConformance, Connect_ToNonsense_IsRefused) {
  EXPECT_FALSE(producer_->Connect(9, "", "process 9").ok());
  EXPECT_FALSE(producer_->Connect(9, "nonsense", "process 9").ok());
  std::string cut = consumer_->address();
  cut.pop_back();
  const absl::Status status = producer_->Connect(9, cut, "process 9");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("process 9"));
}

TEST_P(TransportConformance, Admit_OfAllPeersAtOnce_LetsEachConnect) {
  const std::unique_ptr<Transport> third = GetParam().create(network_, device_.get());
  third->BeginEpoch(kRun, 1);
  const std::vector<PeerAddress> producers = {{producer_->address(), kProducerLabel},
                                              {third->address(), "process 3"}};
  ASSERT_TRUE(consumer_->Admit(producers).ok());
  ASSERT_TRUE(consumer_->Admit({}).ok()) << "those who were admitted still are";
  PeerId number = kProducer;
  std::vector<TransportEvent> ignored;
  for (Transport* from : {producer_.get(), third.get()}) {
    ASSERT_TRUE(from->Admit({{consumer_->address(), kConsumerLabel}}).ok());
    ASSERT_TRUE(from->Connect(kConsumer, consumer_->address(), kConsumerLabel).ok());
    ASSERT_TRUE(consumer_->Connect(number, from->address(), "a producer").ok());
    const TensorKey key = Key(number);
    consumer_->Want(number, key);
    from->Offer(kConsumer, key, Tensor{});
    const size_t arrived = consumer_events_.size() + 1;
    ASSERT_TRUE(PumpUntil([&] {
      third->Progress(MonotonicNow(), &ignored);
      return consumer_events_.size() >= arrived;
    }));
    EXPECT_EQ(consumer_events_.back().kind, Kind::kArrived);
    EXPECT_EQ(consumer_events_.back().peer, number);
    number = 3;
  }
}

TEST_P(TransportConformance, Admit_OfNonsenseAmongPeers_NamesThePeer) {
  if (producer_->name() == "loopback") GTEST_SKIP() << "it keeps nobody away, and reads no address here";
  const absl::Status status =
      producer_->Admit({{consumer_->address(), kConsumerLabel}, {"nonsense", "process 9"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::StartsWith("process 9: "));
}

TEST_P(TransportConformance, Close_WithATensorBeingRead_WaitsForItsRelease) {
  Connect();
  int released = 0;
  std::optional<Tensor> arrived = Transfer(Key(0), Make(producer_, 100'000, 1, &released));
  ASSERT_TRUE(arrived);
  std::atomic<bool> done{false};
  std::thread consumer([&] {  // from here on the only user of the consumer's transport and of `arrived`
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    arrived.reset();
    while (!done) consumer_->Progress(MonotonicNow(), &consumer_events_);
  });
  producer_->Close(MonotonicNow() + 60 * kSecond);
  EXPECT_EQ(released, 1);
  EXPECT_EQ(producer_->bytes_held(), 0u);
  done = true;
  consumer.join();
}

TEST_P(TransportConformance, Close_OfThePeer_FailsWantsWithoutAnAlarm) {
  Connect();
  consumer_->Want(kProducer, Key(0));
  Settle();  // the connection is there, both ways: else the goodbye cannot be sent
  producer_->Close(MonotonicNow() + kSecond);
  producer_.reset();
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kWantFailed);
  EXPECT_EQ(consumer_events_[0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(consumer_events_[0].status.message()), ::testing::HasSubstr(kProducerLabel));
  consumer_->Want(kProducer, Key(1));
  ASSERT_TRUE(PumpUntilEvents(2));
  EXPECT_EQ(consumer_events_[1].kind, Kind::kWantFailed);
  PumpFor(kSecond / 5);
  EXPECT_EQ(consumer_events_.size(), 2u);
  consumer_->Close(MonotonicNow() + kSecond);
}

TEST_P(TransportConformance, Tensor_KeptAfterBothTransportsAreGone_StaysReadable) {
  Connect();
  std::optional<Tensor> kept = Transfer(Key(0), Make(producer_, 200'000, 6));
  std::optional<Tensor> small = Transfer(Key(1), Make(producer_, 100, 7));
  ASSERT_TRUE(kept && small);
  consumer_->Close(MonotonicNow() + kSecond);
  consumer_.reset();
  if (producer_->name() == "loopback") {
    EXPECT_TRUE(Holds(*kept, 6));  // shares the producer's memory source, which goes with the producer
    kept.reset();
    small.reset();
  }
  producer_->Close(MonotonicNow() + kSecond);
  producer_.reset();
  if (kept) {
    EXPECT_TRUE(Holds(*kept, 6));
    EXPECT_TRUE(Holds(*small, 7));
    std::thread([&] {
      kept.reset();
      small.reset();
    }).join();
  }
}

// The step of the tensor at which a driver ends.
constexpr int kLastStep = 99;

// Drives one transport as the worker does: progress, then block until something happens.
class Driver {
 public:
  explicit Driver(Transport* transport) : transport_(transport), thread_([this] { Run(); }) {}
  ~Driver() {
    stop_ = true;
    thread_.join();
  }
  std::function<void(TransportEvent)> on_event;  // set before the first one
  std::atomic<int> arrived{0}, slept{0}, timed_out{0};

 private:
  void Run() {
    std::vector<TransportEvent> events;
    while (!stop_) {
      events.clear();
      const int handled = transport_->Progress(MonotonicNow(), &events);
      for (TransportEvent& event : events) {
        if (event.kind == Kind::kArrived) ++arrived;
        if (event.key == Key(kLastStep)) stop_ = true;
        if (on_event) on_event(std::move(event));
      }
      if (handled > 0 || stop_ || !transport_->Arm()) continue;
      ++slept;
      pollfd wake{transport_->event_fd(), POLLIN, 0};
      if (poll(&wake, 1, 10'000) == 0) ++timed_out;
    }
  }
  Transport* const transport_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST_P(TransportConformance, Arm_WhenBlocked_WakesForMessages) {
  Connect();
  for (int i = 0; i < 20; ++i) consumer_->Want(kProducer, Key(i));
  consumer_->Want(kProducer, Key(kLastStep));
  {
    Driver driver(consumer_.get());
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // time to fall asleep
      Offer(producer_, kConsumer, Key(i), Make(producer_, 10'000, i));
      for (int k = 0; k < 1000 && driver.arrived <= i; ++k) {
        producer_->Progress(MonotonicNow(), &producer_events_);
        std::this_thread::yield();
      }
      while (driver.arrived <= i) {
        producer_->Progress(MonotonicNow(), &producer_events_);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ASSERT_EQ(driver.timed_out, 0) << "slept through a message";
      }
    }
    EXPECT_GT(driver.slept, 0);
    // Wake it to end.
    Offer(producer_, kConsumer, Key(kLastStep), Tensor{});
    while (driver.arrived <= 20 && driver.timed_out == 0)
      producer_->Progress(MonotonicNow(), &producer_events_);
    EXPECT_EQ(driver.timed_out, 0) << "slept through the last message";
    producer_->Close(MonotonicNow());
  }
}

TEST_P(TransportConformance, Arm_WhenBlocked_WakesForATensorDroppedElsewhere) {
  if (!GetParam().in_place) GTEST_SKIP() << "nothing is released by the consumer when tensors are copied";
  Connect();
  int released = 0;
  std::optional<Tensor> arrived = Transfer(Key(0), Make(producer_, 100'000, 1, &released));
  ASSERT_TRUE(arrived);
  PumpFor(kSecond / 50);
  {
    Driver driver(consumer_.get());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    arrived.reset();  // the driver must wake and send the release
    ASSERT_TRUE([&] {
      for (const Nanos end = MonotonicNow() + 60 * kSecond; released == 0 && MonotonicNow() < end;) {
        producer_->Progress(MonotonicNow(), &producer_events_);
      }
      return released == 1;
    }());
    EXPECT_EQ(driver.timed_out, 0);
    producer_->Close(MonotonicNow());
  }
}

TEST_P(TransportConformance, Tensors_DroppedOnManyThreads_AreAllReleased) {
  Connect();
  constexpr int kKeys = 400;
  std::atomic<int> released{0};
  const Tensor all = Make(producer_, kKeys * 4096, 0);
  for (int i = 0; i < kKeys; ++i) {
    consumer_->Want(kProducer, Key(i));
    char* data = static_cast<char*>(all.data) + i * 4096;
    Offer(producer_, kConsumer, Key(i),
          Tensor{Bytes(4096), data, 4096, std::shared_ptr<void>(data, [&](void*) { ++released; }), 0,
                 all.place});
  }
  ASSERT_TRUE(PumpUntilEvents(kKeys));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < kKeys; i += 4) consumer_events_[i].tensor = Tensor{};
    });
  }
  EXPECT_TRUE(PumpUntil([&] { return released == kKeys; }));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(producer_->bytes_held(), 0u);
}

}  // namespace
}  // namespace weft::testing
