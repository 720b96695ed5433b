// Tests what every transport must do (transport.h): tensors of every size and shape arrive once, unchanged,
// and go back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "tests/conformance/transport_suite.h"
#include "worker/shell/checkpoint/snapshot_memory.h"

namespace weft::testing {
namespace {

using Kind = TransportEvent::Kind;

TEST_P(TransportConformance, Want_ThenOffer_Arrives) {
  Connect();
  consumer_->Want(kProducer, Key(0));
  PumpFor(kSecond / 50);
  EXPECT_TRUE(consumer_events_.empty());
  Offer(producer_, kConsumer, Key(0), Make(producer_, 5000, 1));
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kArrived);
  EXPECT_EQ(consumer_events_[0].peer, kProducer);
  EXPECT_EQ(consumer_events_[0].key, Key(0));
  EXPECT_EQ(consumer_events_[0].tensor.shape, Bytes(5000));
  EXPECT_EQ(consumer_events_[0].tensor.bytes, 5000u);
  EXPECT_TRUE(Holds(consumer_events_[0].tensor, 1));
}

TEST_P(TransportConformance, Offer_ThenWant_Arrives) {
  Connect();
  Offer(producer_, kConsumer, Key(0), Make(producer_, 5000, 1));
  PumpFor(kSecond / 50);
  EXPECT_TRUE(consumer_events_.empty());
  EXPECT_EQ(producer_->bytes_held(), 5000u);
  consumer_->Want(kProducer, Key(0));
  ASSERT_TRUE(PumpUntilEvents(1));
  EXPECT_EQ(consumer_events_[0].kind, Kind::kArrived);
  EXPECT_TRUE(Holds(consumer_events_[0].tensor, 1));
}

TEST_P(TransportConformance, Tensor_OfAnyWay_SaysWhenItWasMade) {
  Connect();
  for (const size_t bytes : {0, 100, 50'000, 5'000'000}) {
    Tensor tensor = bytes > 0 ? Make(producer_, bytes, 1) : Tensor{};
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
    std::optional<Tensor> arrived = Transfer(Key(step), Make(producer_, bytes, step, &released));
    ASSERT_TRUE(arrived);
    EXPECT_EQ(arrived->bytes, bytes);
    EXPECT_EQ(arrived->shape, Bytes(bytes));
    EXPECT_TRUE(Holds(*arrived, step));
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
      Tensor tensor = Make(producer_, 4096, step);
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
      EXPECT_TRUE(Holds(*arrived, step));
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
  const Tensor all = Make(producer_, kKeys * kBytes, 0, &released);
  for (int i = 0; i < kKeys; ++i) Fill(all, i * kBytes, kBytes, i);
  for (int i = 0; i < kKeys; ++i) {
    consumer_->Want(kProducer, Key(wants[i]));
    const int step = offers[i];
    Offer(
        producer_, kConsumer, Key(step),
        Tensor{Bytes(kBytes), static_cast<char*>(all.data) + step * kBytes, kBytes, all.owner, 0, all.place});
    if (i % 37 == 0) Pump();
  }
  ASSERT_TRUE(PumpUntilEvents(kKeys));
  std::map<int, int> seen;
  for (const TransportEvent& event : consumer_events_) {
    ASSERT_EQ(event.kind, Kind::kArrived);
    ++seen[event.key.step];
    EXPECT_TRUE(Holds(event.tensor, event.key.step));
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
    consumer_->Want(kProducer, Key(i));
    producer_->Want(kConsumer, Key(1000 + i));
    Offer(producer_, kConsumer, Key(i), Make(producer_, 20'000, i));
    Offer(consumer_, kProducer, Key(1000 + i), Make(consumer_, 20'000, 1000 + i));
  }
  ASSERT_TRUE(PumpUntil([&] { return consumer_events_.size() >= 100 && producer_events_.size() >= 100; }));
  for (const auto* events : {&consumer_events_, &producer_events_}) {
    for (const TransportEvent& event : *events) {
      ASSERT_EQ(event.kind, Kind::kArrived);
      EXPECT_TRUE(Holds(event.tensor, event.key.step));
    }
  }
}

TEST_P(TransportConformance, Arrived_OfferedAgain_ReachesTheNext) {
  Connect();
  std::optional<Tensor> first = Transfer(Key(0), Make(producer_, 50'000, 5));
  ASSERT_TRUE(first);
  producer_->Want(kConsumer, Key(1));
  Offer(consumer_, kProducer, Key(1),
        *std::move(first));  // not memory of the consumer when it was read in place
  ASSERT_TRUE(PumpUntil([&] { return !producer_events_.empty(); }));
  ASSERT_EQ(producer_events_[0].kind, Kind::kArrived);
  EXPECT_TRUE(Holds(producer_events_[0].tensor, 5));
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
    EXPECT_EQ(arrived->place, MemoryPlace::kHost);  // a device's transport takes the host's tensors, too
    EXPECT_TRUE(HasPattern(*arrived, 9));
    arrived.reset();
    EXPECT_TRUE(PumpUntil([&] { return released == 1; }));
  }
  EXPECT_EQ(producer_->bytes_held(), 0u);
}

TEST_P(TransportConformance, Owner_OfAReadTensor_ReleasedOnceAndOnlyAfterTheDrop) {
  Connect();
  int released = 0;
  std::optional<Tensor> arrived = Transfer(Key(0), Make(producer_, 100'000, 1, &released));
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
  EXPECT_TRUE(Holds(second, 1));
  second = Tensor{};
  ASSERT_TRUE(PumpUntil([&] { return released > 0; }));
  PumpFor(kSecond / 20);
  EXPECT_EQ(released, 1);
  EXPECT_EQ(producer_->bytes_held(), 0u);
}

// So a producer has its memory back when it gets what its consumer made of the tensor, and memory that is
// predicted from the jobs holds.
TEST_P(TransportConformance, TensorDroppedBeforeAnOffer_IsReleasedBeforeThatArrives) {
  Connect();
  int released = 0;
  std::optional<Tensor> arrived = Transfer(Key(0), Make(producer_, 100'000, 1, &released));
  ASSERT_TRUE(arrived);
  producer_->Want(kConsumer, Key(1));
  Settle();
  Tensor answer = Make(consumer_, 50'000, 2);
  arrived.reset();
  Offer(consumer_, kProducer, Key(1), std::move(answer));
  // Only the producer makes progress from here on, where messages need no more.
  for (int i = 0; i < 1000 && producer_events_.empty(); ++i) {
    producer_->Progress(MonotonicNow(), &producer_events_);
  }
  ASSERT_TRUE(PumpUntil([&] { return !producer_events_.empty(); }));
  ASSERT_EQ(producer_events_[0].kind, Kind::kArrived);
  EXPECT_EQ(released, 1);
  EXPECT_EQ(producer_->bytes_held(), 0u);
}

// So a copy of a state that two processes of a machine keep is one: it lies in the memory of the one that
// made it, which takes other memory for its next snapshot until the other one has dropped the copy.
TEST_P(TransportConformance, SnapshotThatThePeerKeeps_StaysUntilItDropsIt) {
  constexpr size_t kBytes = 1'000'000;
  Connect();
  SnapshotMemory memory(producer_->memory());
  std::optional<Tensor> made = *memory.Take(kBytes);
  FillPattern(made->data, kBytes, 7);
  const void* const block = made->data;
  std::optional<Tensor> kept = Transfer(Key(0), *made);
  ASSERT_TRUE(kept);
  made.reset();
  if (GetParam().in_place) {
    made = *memory.Take(kBytes);
    EXPECT_NE(made->data, block);
    FillPattern(made->data, kBytes, 8);
    made.reset();
    memory.Release();  // as at the end of an attempt
  }
  EXPECT_TRUE(HasPattern(*kept, 7));
  kept.reset();
  EXPECT_TRUE(PumpUntil([&] { return producer_->bytes_held() == 0; }));
  memory.Release();
  EXPECT_EQ(memory.bytes(), 0);
}

}  // namespace
}  // namespace weft::testing
