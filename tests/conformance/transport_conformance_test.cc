// What every transport must do (transport.h), run against each of them: two transports of one process,
// connected. Real processes: transport_process_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "tests/conformance/transport_fixture.h"
#include "worker/shell/transport/loopback_transport.h"
#include "worker/shell/transport/ucx_transport.h"

namespace weft {
namespace {

using testing::Bytes;
using testing::HasPattern;
using testing::Key;
using testing::kRun;
using testing::kSecond;
using testing::MakeTensor;
using testing::MonotonicNow;
using Kind = TransportEvent::Kind;

constexpr PeerId kProducer = 1, kConsumer = 2;
const char* const kProducerLabel = "process 1 (pid 11 on host a)";
const char* const kConsumerLabel = "process 2 (pid 22 on host a)";

struct Backend {
  const char* name;
  bool in_place;  // large tensors of memory() are read where the producer left them
  std::function<std::unique_ptr<Transport>(LoopbackNetwork&)> create;
};

Backend Ucx(const char* name, UcxOptions options) {
  const bool in_place = options.in_place;
  return {name, in_place, [options](LoopbackNetwork&) {
            absl::StatusOr<std::unique_ptr<Transport>> transport = CreateUcxTransport(options);
            if (!transport.ok()) throw std::runtime_error(transport.status().ToString());
            return *std::move(transport);
          }};
}

std::vector<Backend> Backends() {
  UcxOptions copied, tcp, all;
  copied.in_place = false;
  tcp.in_place = false;
  tcp.tls = "tcp";
  all.net_devices = "";
  all.inline_bytes = 0;  // even one byte is read in place
  return {
      {"loopback", true, [](LoopbackNetwork& network) { return network.CreateTransport(); }},
      Ucx("ucx_in_place", UcxOptions()),
      Ucx("ucx_all_in_place", all),
      Ucx("ucx_copied", copied),
      Ucx("ucx_tcp", tcp),
  };
}

class TransportConformance : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    producer_ = GetParam().create(network_);
    consumer_ = GetParam().create(network_);
    producer_->BeginEpoch(kRun, 1);
    consumer_->BeginEpoch(kRun, 1);
  }
  void Connect() {
    ASSERT_TRUE(producer_->Connect(kConsumer, consumer_->address(), kConsumerLabel).ok());
    ASSERT_TRUE(consumer_->Connect(kProducer, producer_->address(), kProducerLabel).ok());
  }

  void Pump() {
    const Nanos now = MonotonicNow();
    int handled = 0;
    if (producer_) handled += producer_->Progress(now, &producer_events_);
    if (consumer_) handled += consumer_->Progress(now, &consumer_events_);
    if (handled == 0) std::this_thread::yield();
  }
  // Generous, because it only bounds a failing test.
  bool PumpUntil(const std::function<bool()>& done, Nanos limit = 60 * kSecond) {
    for (const Nanos end = MonotonicNow() + limit; !done();) {
      if (MonotonicNow() > end) return false;
      Pump();
    }
    return true;
  }
  void PumpFor(Nanos time) {
    PumpUntil([] { return false; }, time);
  }
  bool PumpUntilEvents(size_t n) {
    return PumpUntil([&] { return consumer_events_.size() >= n; });
  }
  // Until the producer has handled every small message that the consumer has sent: they stay in order.
  void Settle() {
    const size_t before = consumer_events_.size();
    ASSERT_TRUE(Transfer(Key(900'000 + settled_++), Tensor{}));
    ASSERT_EQ(consumer_events_.size(), before);
  }
  Nanos Soon() const { return MonotonicNow() + 120 * kSecond; }

  // Moves one tensor; returns what arrived.
  std::optional<Tensor> Transfer(const TensorKey& key, Tensor tensor) {
    const size_t before = consumer_events_.size();
    consumer_->Want(kProducer, key, Soon());
    producer_->Offer(kConsumer, key, std::move(tensor));
    if (!PumpUntilEvents(before + 1)) return std::nullopt;
    TransportEvent event = std::move(consumer_events_.back());
    consumer_events_.pop_back();
    if (event.kind != Kind::kArrived || event.key != key || event.peer != kProducer) return std::nullopt;
    return std::move(event.tensor);
  }

  int settled_ = 0;
  LoopbackNetwork network_;
  std::unique_ptr<Transport> producer_, consumer_;
  std::vector<TransportEvent> producer_events_, consumer_events_;
};

INSTANTIATE_TEST_SUITE_P(Every, TransportConformance, ::testing::ValuesIn(Backends()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(TransportConformance, Want_ThenOffer_Arrives) {
  Connect();
  consumer_->Want(kProducer, Key(0), Soon());
  PumpFor(kSecond / 50);
  EXPECT_TRUE(consumer_events_.empty());
  producer_->Offer(kConsumer, Key(0), MakeTensor(producer_->memory(), 5000, 1));
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kArrived);
  EXPECT_EQ(consumer_events_[0].peer, kProducer);
  EXPECT_EQ(consumer_events_[0].key, Key(0));
  EXPECT_EQ(consumer_events_[0].tensor.shape, Bytes(5000));
  EXPECT_EQ(consumer_events_[0].tensor.bytes, 5000u);
  EXPECT_TRUE(HasPattern(consumer_events_[0].tensor, 1));
}

TEST_P(TransportConformance, Offer_ThenWant_Arrives) {
  Connect();
  producer_->Offer(kConsumer, Key(0), MakeTensor(producer_->memory(), 5000, 1));
  PumpFor(kSecond / 50);
  EXPECT_TRUE(consumer_events_.empty());
  EXPECT_EQ(producer_->bytes_held(), 5000u);
  consumer_->Want(kProducer, Key(0), Soon());
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kArrived);
  EXPECT_TRUE(HasPattern(consumer_events_[0].tensor, 1));
}

TEST_P(TransportConformance, Tensor_OfAnyWay_SaysWhenItWasMade) {
  Connect();
  for (const size_t bytes : {0, 100, 50'000, 5'000'000}) {
    Tensor tensor = bytes > 0 ? MakeTensor(producer_->memory(), bytes, 1) : Tensor{};
    tensor.made_ns = MonotonicNow() - 3;
    std::optional<Tensor> arrived = Transfer(Key(static_cast<int>(bytes)), tensor);
    ASSERT_TRUE(arrived);
    EXPECT_EQ(arrived->made_ns, tensor.made_ns) << bytes;
  }
}

TEST_P(TransportConformance, Notice_WithoutBytes_Arrives) {
  Connect();
  std::optional<Tensor> arrived = Transfer(Key(0), Tensor{});
  ASSERT_TRUE(arrived);
  EXPECT_TRUE(arrived->empty());
  EXPECT_EQ(producer_->bytes_held(), 0u);
}

TEST_P(TransportConformance, Tensor_OfAnySize_ArrivesUnchangedAndIsReleased) {
  Connect();
  int step = 0;
  uint64_t total = 0;
  for (const size_t bytes :
       {size_t{1}, size_t{7}, size_t{4096}, size_t{100'003}, size_t{1} << 20, size_t{64} << 20}) {
    SCOPED_TRACE(bytes);
    int released = 0;
    std::optional<Tensor> arrived =
        Transfer(Key(step), MakeTensor(producer_->memory(), bytes, step, &released));
    ASSERT_TRUE(arrived);
    EXPECT_EQ(arrived->bytes, bytes);
    EXPECT_EQ(arrived->shape, Bytes(bytes));
    EXPECT_TRUE(HasPattern(*arrived, step));
    arrived.reset();
    EXPECT_TRUE(PumpUntil([&] { return released == 1 && producer_->bytes_held() == 0; }));
    ++step;
    total += bytes;
  }
  const TransportCounters sent = producer_->counters(), received = consumer_->counters();
  EXPECT_EQ(sent.tensors_sent, 6u);
  EXPECT_EQ(sent.bytes_sent, total);
  EXPECT_EQ(received.tensors_received, 6u);
  EXPECT_EQ(received.bytes_received, total);
  EXPECT_EQ(received.dropped_messages + sent.dropped_messages, 0u);
  if (GetParam().in_place) {
    EXPECT_GE(received.bytes_in_place, total - 8);  // the two tiny ones may travel in the message
  } else {
    EXPECT_EQ(received.bytes_in_place, 0u);
  }
}

TEST_P(TransportConformance, Shape_OfEveryTypeAndRank_Arrives) {
  Connect();
  int step = 0;
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kInt64, DataType::kUInt8}) {
    for (int dims = 0; dims <= TensorShape::kMaxDims; ++dims) {
      Tensor tensor = MakeTensor(producer_->memory(), 4096, step);
      tensor.shape = TensorShape{type, static_cast<uint8_t>(dims)};
      tensor.bytes = type == DataType::kFloat32    ? 4
                     : type == DataType::kInt64    ? 8
                     : type == DataType::kBFloat16 ? 2
                                                   : 1;
      for (int i = 0; i < dims; ++i) tensor.bytes *= tensor.shape.size[i] = 1 + i % 3;
      const Tensor offered = tensor;
      std::optional<Tensor> arrived = Transfer(Key(step), std::move(tensor));
      ASSERT_TRUE(arrived);
      EXPECT_EQ(arrived->shape, offered.shape);
      EXPECT_EQ(arrived->bytes, offered.bytes);
      EXPECT_TRUE(HasPattern(*arrived, step));
      ++step;
    }
  }
}

TEST_P(TransportConformance, ThousandKeys_InRandomOrder_AllArriveOnce) {
  Connect();
  constexpr int kKeys = 1000;
  constexpr size_t kBytes = 3000;
  std::mt19937 random(12345);
  std::vector<int> wants(kKeys), offers(kKeys);
  std::iota(wants.begin(), wants.end(), 0);
  std::iota(offers.begin(), offers.end(), 0);
  std::shuffle(wants.begin(), wants.end(), random);
  std::shuffle(offers.begin(), offers.end(), random);
  int released = 0;
  const Tensor all = MakeTensor(producer_->memory(), kKeys * kBytes, 0, &released);
  for (int i = 0; i < kKeys; ++i) testing::FillPattern(static_cast<char*>(all.data) + i * kBytes, kBytes, i);
  for (int i = 0; i < kKeys; ++i) {
    consumer_->Want(kProducer, Key(wants[i]), Soon());
    const int step = offers[i];
    producer_->Offer(kConsumer, Key(step),
                     Tensor{Bytes(kBytes), static_cast<char*>(all.data) + step * kBytes, kBytes, all.owner});
    if (i % 37 == 0) Pump();
  }
  ASSERT_TRUE(PumpUntilEvents(kKeys));
  std::map<int, int> seen;
  for (const TransportEvent& event : consumer_events_) {
    ASSERT_EQ(event.kind, Kind::kArrived);
    ++seen[event.key.step];
    EXPECT_TRUE(HasPattern(event.tensor, event.key.step));
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(kKeys));
  std::shuffle(consumer_events_.begin(), consumer_events_.end(), random);
  consumer_events_.clear();
  EXPECT_TRUE(PumpUntil([&] { return producer_->bytes_held() == 0; }));
  EXPECT_EQ(released, 0);  // this test still holds it
}

TEST_P(TransportConformance, BothDirections_AtOnce_AllArrive) {
  Connect();
  for (int i = 0; i < 100; ++i) {
    consumer_->Want(kProducer, Key(i), Soon());
    producer_->Want(kConsumer, Key(1000 + i), Soon());
    producer_->Offer(kConsumer, Key(i), MakeTensor(producer_->memory(), 20'000, i));
    consumer_->Offer(kProducer, Key(1000 + i), MakeTensor(consumer_->memory(), 20'000, 1000 + i));
  }
  ASSERT_TRUE(PumpUntil([&] { return consumer_events_.size() >= 100 && producer_events_.size() >= 100; }));
  for (const auto* events : {&consumer_events_, &producer_events_}) {
    for (const TransportEvent& event : *events) {
      ASSERT_EQ(event.kind, Kind::kArrived);
      EXPECT_TRUE(HasPattern(event.tensor, event.key.step));
    }
  }
}

TEST_P(TransportConformance, Arrived_OfferedAgain_ReachesTheNext) {
  Connect();
  std::optional<Tensor> first = Transfer(Key(0), MakeTensor(producer_->memory(), 50'000, 5));
  ASSERT_TRUE(first);
  producer_->Want(kConsumer, Key(1), Soon());
  consumer_->Offer(kProducer, Key(1),
                   *std::move(first));  // not memory of the consumer when it was read in place
  ASSERT_TRUE(PumpUntil([&] { return !producer_events_.empty(); }));
  ASSERT_EQ(producer_events_[0].kind, Kind::kArrived);
  EXPECT_TRUE(HasPattern(producer_events_[0].tensor, 5));
  producer_events_.clear();
  EXPECT_TRUE(PumpUntil([&] { return producer_->bytes_held() == 0 && consumer_->bytes_held() == 0; }));
}

TEST_P(TransportConformance, MemoryElsewhere_Offered_Arrives) {
  Connect();
  PlainMemory plain;
  for (const size_t bytes : {size_t{10}, size_t{9000}, size_t{3'000'000}}) {
    int released = 0;
    std::optional<Tensor> arrived =
        Transfer(Key(static_cast<int>(bytes)), MakeTensor(plain, bytes, 9, &released));
    ASSERT_TRUE(arrived);
    EXPECT_TRUE(HasPattern(*arrived, 9));
    arrived.reset();
    EXPECT_TRUE(PumpUntil([&] { return released == 1; }));
  }
  EXPECT_EQ(producer_->bytes_held(), 0u);
}

TEST_P(TransportConformance, Owner_OfAReadTensor_ReleasedOnceAndOnlyAfterTheDrop) {
  Connect();
  int released = 0;
  std::optional<Tensor> arrived = Transfer(Key(0), MakeTensor(producer_->memory(), 100'000, 1, &released));
  ASSERT_TRUE(arrived);
  Tensor second = *arrived;
  PumpFor(kSecond / 20);
  if (GetParam().in_place) {
    EXPECT_EQ(released, 0);
    EXPECT_EQ(producer_->bytes_held(), 100'000u);
  }
  arrived.reset();
  PumpFor(kSecond / 20);
  if (GetParam().in_place) {
    EXPECT_EQ(released, 0);
  }
  EXPECT_TRUE(HasPattern(second, 1));
  second = Tensor{};
  ASSERT_TRUE(PumpUntil([&] { return released > 0; }));
  PumpFor(kSecond / 20);
  EXPECT_EQ(released, 1);
  EXPECT_EQ(producer_->bytes_held(), 0u);
}

TEST_P(TransportConformance, Want_PastItsDeadline_FailsNamingKeyAndPeer) {
  Connect();
  Pump();
  consumer_->Want(kProducer, Key(1), Soon());
  consumer_->Want(kProducer, Key(0), MonotonicNow() + kSecond / 10);
  EXPECT_LT(consumer_->next_deadline(), MonotonicNow() + kSecond / 10);
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kWantFailed);
  EXPECT_EQ(consumer_events_[0].key, Key(0));
  EXPECT_EQ(consumer_events_[0].peer, kProducer);
  EXPECT_EQ(consumer_events_[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  const std::string message(consumer_events_[0].status.message());
  EXPECT_THAT(message, ::testing::StartsWith("waited 0."));
  EXPECT_THAT(message, ::testing::HasSubstr("activation of step 0, stage 3"));
  EXPECT_THAT(message, ::testing::HasSubstr(kProducerLabel));
  // Offered too late: nothing arrives, and the other want goes on.
  PumpFor(kSecond / 20);
  producer_->Offer(kConsumer, Key(0), MakeTensor(producer_->memory(), 5000, 1));
  PumpFor(kSecond / 20);
  EXPECT_EQ(consumer_events_.size(), 1u);
  producer_->Offer(kConsumer, Key(1), MakeTensor(producer_->memory(), 5000, 2));
  ASSERT_TRUE(PumpUntilEvents(2));
  EXPECT_EQ(consumer_events_[1].kind, Kind::kArrived);
}

TEST_P(TransportConformance, NextDeadline_WithoutWants_IsNever) {
  Connect();
  EXPECT_EQ(consumer_->next_deadline(), std::numeric_limits<Nanos>::max());
  ASSERT_TRUE(Transfer(Key(0), Tensor{}));
  EXPECT_EQ(consumer_->next_deadline(), std::numeric_limits<Nanos>::max());
}

TEST_P(TransportConformance, Cancel_BeforeTheOffer_NothingArrives) {
  Connect();
  consumer_->Want(kProducer, Key(0), Soon());
  Settle();
  consumer_->Cancel(Key(0));
  Settle();
  producer_->Offer(kConsumer, Key(0), MakeTensor(producer_->memory(), 5000, 1));
  PumpFor(kSecond / 20);
  EXPECT_TRUE(consumer_events_.empty());
  EXPECT_EQ(producer_->bytes_held(), 5000u);  // still on offer
  consumer_->Want(kProducer, Key(0), Soon());
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kArrived);
}

TEST_P(TransportConformance, Cancel_RacingTheTensor_ReturnsItToItsProducer) {
  Connect();
  for (int i = 0; i < 50; ++i) {
    int released = 0;
    const TensorKey key = Key(i, /*epoch=*/i + 1);
    consumer_->Want(kProducer, key, Soon());
    PumpFor(kSecond / 1000);
    producer_->Offer(kConsumer, key, MakeTensor(producer_->memory(), 30'000, i, &released));
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
  consumer_->Want(kProducer, Key(0), Soon());
  consumer_->Want(kProducer, Key(0), Soon());
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kWantFailed);
  EXPECT_EQ(consumer_events_[0].status.code(), absl::StatusCode::kAlreadyExists);
  producer_->Offer(kConsumer, Key(0), Tensor{});
  ASSERT_TRUE(PumpUntilEvents(2));
  EXPECT_EQ(consumer_events_[1].kind, Kind::kArrived);
}

TEST_P(TransportConformance, Want_OfAnotherEpochOrPeer_Fails) {
  Connect();
  consumer_->Want(kProducer, Key(0, /*epoch=*/9), Soon());
  consumer_->Want(77, Key(1), Soon());
  ASSERT_TRUE(PumpUntilEvents(2));
  EXPECT_EQ(consumer_events_[0].status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(consumer_events_[1].status.code(), absl::StatusCode::kNotFound);
}

TEST_P(TransportConformance, Want_OfAStaleEpoch_IsDroppedAndCounted) {
  Connect();
  producer_->BeginEpoch(kRun, 2);
  producer_->Offer(kConsumer, Key(0, 2), MakeTensor(producer_->memory(), 5000, 1));
  consumer_->Want(kProducer, Key(0, 1), Soon());
  ASSERT_TRUE(PumpUntil([&] { return producer_->counters().dropped_messages == 1; }));
  PumpFor(kSecond / 50);
  EXPECT_TRUE(consumer_events_.empty());
  EXPECT_EQ(producer_->bytes_held(), 5000u);
}

TEST_P(TransportConformance, Tensor_OfAStaleEpoch_IsDroppedCountedAndReturned) {
  Connect();
  int released = 0;
  consumer_->Want(kProducer, Key(0), Soon());
  PumpFor(kSecond / 50);
  consumer_->BeginEpoch(kRun, 2);  // before the tensor gets here
  producer_->Offer(kConsumer, Key(0), MakeTensor(producer_->memory(), 50'000, 1, &released));
  ASSERT_TRUE(PumpUntil([&] { return consumer_->counters().dropped_messages == 1 && released == 1; }));
  EXPECT_TRUE(consumer_events_.empty());
  EXPECT_EQ(producer_->bytes_held(), 0u);
}

TEST_P(TransportConformance, BeginEpoch_WithWantsAndOffers_ForgetsThemSilently) {
  Connect();
  int released = 0;
  consumer_->Want(kProducer, Key(0), MonotonicNow() + kSecond / 20);
  producer_->Offer(kConsumer, Key(1), MakeTensor(producer_->memory(), 5000, 1, &released));
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
  consumer_->Want(kProducer, Key(0, 2), Soon());
  PumpFor(kSecond / 20);
  producer_->BeginEpoch(kRun, 2);
  producer_->Offer(kConsumer, Key(0, 2), MakeTensor(producer_->memory(), 5000, 4));
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kArrived);
  EXPECT_TRUE(HasPattern(consumer_events_[0].tensor, 4));
}

TEST_P(TransportConformance, Arrived_InAnEarlierEpoch_StaysReadable) {
  Connect();
  int released = 0;
  std::optional<Tensor> arrived = Transfer(Key(0), MakeTensor(producer_->memory(), 100'000, 8, &released));
  ASSERT_TRUE(arrived);
  producer_->BeginEpoch(kRun, 2);
  consumer_->BeginEpoch(kRun, 2);
  PumpFor(kSecond / 20);
  EXPECT_TRUE(HasPattern(*arrived, 8));
  if (GetParam().in_place) {
    EXPECT_EQ(released, 0);
  }
  arrived.reset();
  EXPECT_TRUE(PumpUntil([&] { return released == 1; }));
}

TEST_P(TransportConformance, Want_FromAPeerThatIsNotYetConnected_IsServedThen) {
  ASSERT_TRUE(consumer_->Connect(kProducer, producer_->address(), kProducerLabel).ok());
  consumer_->Want(kProducer, Key(0), Soon());
  PumpFor(kSecond / 10);
  ASSERT_TRUE(producer_->Connect(kConsumer, consumer_->address(), kConsumerLabel).ok());
  producer_->Offer(kConsumer, Key(0), MakeTensor(producer_->memory(), 5000, 3));
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kArrived);
  EXPECT_TRUE(HasPattern(consumer_events_[0].tensor, 3));
}

TEST_P(TransportConformance, Connect_AgainUnderAnotherNumber_KeepsWhatIsBeingRead) {
  Connect();
  int released = 0;
  std::optional<Tensor> arrived = Transfer(Key(0), MakeTensor(producer_->memory(), 100'000, 8, &released));
  ASSERT_TRUE(arrived);
  producer_->BeginEpoch(kRun, 2);
  consumer_->BeginEpoch(kRun, 2);
  ASSERT_TRUE(producer_->Connect(5, consumer_->address(), "process 5").ok());
  ASSERT_TRUE(consumer_->Connect(6, producer_->address(), "process 6").ok());
  ASSERT_TRUE(consumer_->Connect(6, producer_->address(), "process 6").ok());
  consumer_->Want(6, Key(1, 2), Soon());
  producer_->Offer(5, Key(1, 2), Tensor{});
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kArrived);
  EXPECT_EQ(consumer_events_[0].peer, 6);
  if (GetParam().in_place) {
    EXPECT_EQ(released, 0);
  }
  EXPECT_TRUE(HasPattern(*arrived, 8));
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

TEST_P(TransportConformance, Close_WithATensorBeingRead_WaitsForItsRelease) {
  Connect();
  int released = 0;
  std::optional<Tensor> arrived = Transfer(Key(0), MakeTensor(producer_->memory(), 100'000, 1, &released));
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
  consumer_->Want(kProducer, Key(0), Soon());
  PumpFor(kSecond / 50);
  producer_->Close(MonotonicNow() + kSecond);
  producer_.reset();
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kWantFailed);
  EXPECT_EQ(consumer_events_[0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(consumer_events_[0].status.message()), ::testing::HasSubstr(kProducerLabel));
  consumer_->Want(kProducer, Key(1), Soon());
  ASSERT_TRUE(PumpUntilEvents(2));
  EXPECT_EQ(consumer_events_[1].kind, Kind::kWantFailed);
  PumpFor(kSecond / 5);
  EXPECT_EQ(consumer_events_.size(), 2u);
  consumer_->Close(MonotonicNow() + kSecond);
}

TEST_P(TransportConformance, Tensor_KeptAfterBothTransportsAreGone_StaysReadable) {
  Connect();
  std::optional<Tensor> kept = Transfer(Key(0), MakeTensor(producer_->memory(), 200'000, 6));
  std::optional<Tensor> small = Transfer(Key(1), MakeTensor(producer_->memory(), 100, 7));
  ASSERT_TRUE(kept && small);
  consumer_->Close(MonotonicNow() + kSecond);
  consumer_.reset();
  if (producer_->name() == "loopback") {
    EXPECT_TRUE(HasPattern(*kept, 6));  // shares the producer's memory source, which goes with the producer
    kept.reset();
    small.reset();
  }
  producer_->Close(MonotonicNow() + kSecond);
  producer_.reset();
  if (kept) {
    EXPECT_TRUE(HasPattern(*kept, 6));
    EXPECT_TRUE(HasPattern(*small, 7));
    std::thread([&] {
      kept.reset();
      small.reset();
    }).join();
  }
}

// Drives one transport as the worker does: progress, then block until something happens.
class Driver {
 public:
  explicit Driver(Transport* transport) : transport_(transport), thread_([this] { Run(); }) {}
  ~Driver() {
    stop_ = true;
    thread_.join();
  }
  bool WaitForArrivals(int n) {
    for (const Nanos end = MonotonicNow() + 60 * kSecond; arrived < n && MonotonicNow() < end;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return arrived >= n;
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
        if (on_event) on_event(std::move(event));
      }
      if (handled > 0 || !transport_->Arm()) continue;
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
  for (int i = 0; i < 20; ++i) consumer_->Want(kProducer, Key(i), Soon());
  {
    Driver driver(consumer_.get());
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // time to fall asleep
      producer_->Offer(kConsumer, Key(i), MakeTensor(producer_->memory(), 10'000, i));
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
    producer_->Offer(kConsumer, Key(99), Tensor{});
    producer_->Close(MonotonicNow());
  }
}

TEST_P(TransportConformance, Arm_WhenBlocked_WakesForATensorDroppedElsewhere) {
  if (!GetParam().in_place) GTEST_SKIP() << "nothing is released by the consumer when tensors are copied";
  Connect();
  int released = 0;
  std::optional<Tensor> arrived = Transfer(Key(0), MakeTensor(producer_->memory(), 100'000, 1, &released));
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
  absl::StatusOr<void*> segment = producer_->memory().Allocate(kKeys * 4096);
  ASSERT_TRUE(segment.ok());
  for (int i = 0; i < kKeys; ++i) {
    consumer_->Want(kProducer, Key(i), Soon());
    char* data = static_cast<char*>(*segment) + i * 4096;
    producer_->Offer(
        kConsumer, Key(i),
        Tensor{Bytes(4096), data, 4096, std::shared_ptr<void>(data, [&](void*) { ++released; })});
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
  producer_->memory().Free(*segment, kKeys * 4096);
}

// ---- Only the loopback network can misbehave on request; what real processes do is in
// transport_process_test.cc.

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
}  // namespace weft
