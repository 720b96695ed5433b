#include "worker/shell/transport/incoming_tensors.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/connected_peer.h"

namespace weft::incoming_tensors_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = TransportEvent::Kind;
using Type = TransportMessage::Type;

constexpr uint64_t kOffer = 42;

class IncomingTensorsTest : public ::testing::Test {
 protected:
  // A message of the peer's with an offer of so many bytes.
  static TransportMessage Offer(Type type, int step, uint64_t bytes) {
    TransportMessage message;
    message.type = type;
    message.sender = ConnectedPeer::kSender;
    message.key = ConnectedPeer::Key(step);
    message.offer = kOffer;
    message.bytes = bytes;
    if (bytes > 0) message.shape = ConnectedPeer::Bytes(static_cast<int64_t>(bytes));
    return message;
  }
  void Want(int step) { incoming_.Want(kNow, ConnectedPeer::kPeer, ConnectedPeer::Key(step), &peer_.events); }
  Messenger::Handler::Landing Payload(int step, uint64_t bytes, bool valid = true) {
    return incoming_.OnPayload(kNow, Offer(Type::kData, step, bytes), valid, {}, &peer_.events);
  }
  // Has the receipts sent. Returns the offers that they name.
  std::vector<uint64_t> Receipts() {
    sent_.clear();
    incoming_.SendReceipts();
    std::vector<uint64_t> offers;
    for (const TransportMessage& m : sent_) {
      EXPECT_EQ(m.type, Type::kRelease);
      offers.insert(offers.end(), m.offers.begin(), m.offers.begin() + m.offer_count);
    }
    return offers;
  }
  uint64_t dropped() const { return incoming_.WithCounts({}).dropped_messages; }

  ConnectedPeer peer_{ThisProcess()};
  std::vector<TransportMessage> sent_;
  IncomingTensors incoming_{peer_.table, peer_.connections,
                            ReceivePool::Create(std::make_shared<PlainMemory>(), 0), nullptr,
                            [this](const PeerConnection&, TransportMessage* m) { sent_.push_back(*m); }};
};

TEST_F(IncomingTensorsTest, Want_SaysWhetherThisProcessReadsInPlace) {
  Want(0);
  peer_.connection().in_place = true;
  Want(1);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[0].type, Type::kWant);
  EXPECT_EQ(sent_[0].key, ConnectedPeer::Key(0));
  EXPECT_FALSE(sent_[0].in_place_ok);
  EXPECT_TRUE(sent_[1].in_place_ok);
}

TEST_F(IncomingTensorsTest, WantedBytes_ArriveWhenTheyHaveLanded) {
  Want(0);
  const auto landing = Payload(0, 100);
  ASSERT_NE(landing.to, nullptr);
  EXPECT_EQ(incoming_.BytesFrom(ConnectedPeer::kPeer), 100u);
  EXPECT_THAT(peer_.events, IsEmpty());
  EXPECT_THAT(Receipts(), IsEmpty());
  EXPECT_EQ(incoming_.OnLanded(landing.token, absl::OkStatus(), &peer_.events), ConnectedPeer::kSender);
  ASSERT_EQ(peer_.events.size(), 1u);
  EXPECT_EQ(peer_.events[0].kind, Kind::kArrived);
  EXPECT_EQ(peer_.events[0].tensor.data, landing.to);
  EXPECT_THAT(Receipts(), ElementsAre(kOffer));
  EXPECT_EQ(incoming_.WithCounts({}).bytes_received, 100u);
  EXPECT_EQ(incoming_.BytesFrom(ConnectedPeer::kPeer), 0u);
}

TEST_F(IncomingTensorsTest, BytesThatNobodyWants_AreRefusedWithAReceipt) {
  EXPECT_EQ(Payload(0, 100).to, nullptr);
  EXPECT_EQ(dropped(), 1u);
  EXPECT_THAT(Receipts(), ElementsAre(kOffer));
}

TEST_F(IncomingTensorsTest, BytesThatAreNotWhatTheirMessageSays_AreRefusedThoughWanted) {
  Want(0);
  EXPECT_EQ(Payload(0, 100, /*valid=*/false).to, nullptr);
  EXPECT_EQ(dropped(), 1u);
  EXPECT_NE(Payload(0, 100).to, nullptr);
}

// The first may still fail: a receipt would lose the tensor.
TEST_F(IncomingTensorsTest, SecondSendingWhileTheFirstLands_IsRefusedWithoutAReceipt) {
  Want(0);
  const auto landing = Payload(0, 100);
  EXPECT_EQ(Payload(0, 100).to, nullptr);
  EXPECT_THAT(Receipts(), IsEmpty());
  incoming_.OnLanded(landing.token, absl::UnavailableError("the link is slow"), &peer_.events);
  EXPECT_THAT(peer_.events, IsEmpty()) << "it is still wanted";
  EXPECT_THAT(Receipts(), IsEmpty());
  EXPECT_NE(Payload(0, 100).to, nullptr);
}

TEST_F(IncomingTensorsTest, CanceledWhileItsBytesLand_DoesNotArriveAndIsNotSentAgain) {
  Want(0);
  const auto landing = Payload(0, 100);
  incoming_.Cancel(ConnectedPeer::Key(0));
  incoming_.OnLanded(landing.token, absl::OkStatus(), &peer_.events);
  EXPECT_THAT(peer_.events, IsEmpty());
  EXPECT_THAT(Receipts(), ElementsAre(kOffer));
}

TEST_F(IncomingTensorsTest, DeviceMemoryInAProcessWithoutADevice_FailsTheWant) {
  Want(0);
  TransportMessage message = Offer(Type::kData, 0, 100);
  message.place = MemoryPlace::kDevice;
  EXPECT_EQ(incoming_.OnPayload(kNow, message, true, {}, &peer_.events).to, nullptr);
  ASSERT_EQ(peer_.events.size(), 1u);
  EXPECT_EQ(peer_.events[0].kind, Kind::kWantFailed);
  EXPECT_THAT(std::string(peer_.events[0].status.message()), HasSubstr("process 3"));
}

TEST_F(IncomingTensorsTest, Notice_ArrivesWithoutBytes) {
  Want(0);
  incoming_.OnNotice(kNow, Offer(Type::kData, 0, 0), &peer_.events);
  incoming_.OnNotice(kNow, Offer(Type::kData, 0, 0), &peer_.events);
  ASSERT_EQ(peer_.events.size(), 1u);
  EXPECT_TRUE(peer_.events[0].tensor.empty());
  EXPECT_EQ(dropped(), 1u) << "the second has no use";
}

TEST_F(IncomingTensorsTest, PlaceThatCannotBeRead_IsAskedForAsBytes) {
  Want(0);
  sent_.clear();
  incoming_.OnInPlace(kNow, Offer(Type::kInPlace, 0, 100), &peer_.events);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].type, Type::kCopyInstead);
  EXPECT_EQ(sent_[0].offers[0], kOffer);
  EXPECT_THAT(peer_.events, IsEmpty());
  EXPECT_NE(Payload(0, 100).to, nullptr);
}

TEST_F(IncomingTensorsTest, TensorReadInPlace_IsReleasedWhenItIsDropped) {
  MappedMemory memory;
  const absl::StatusOr<void*> data = memory.Allocate(4096);
  ASSERT_TRUE(data.ok());
  static_cast<char*>(*data)[5] = 'w';
  peer_.connection().in_place = true;
  Want(0);
  TransportMessage message = Offer(Type::kInPlace, 0, 100);
  message.segment = memory.Find(*data, 100)->segment;
  incoming_.OnInPlace(kNow, message, &peer_.events);
  ASSERT_EQ(peer_.events.size(), 1u);
  EXPECT_NE(peer_.events[0].tensor.data, *data) << "a mapping of its own";
  EXPECT_EQ(static_cast<const char*>(peer_.events[0].tensor.data)[5], 'w');
  incoming_.OnInPlace(kNow, message, &peer_.events);
  EXPECT_EQ(peer_.events.size(), 1u) << "it was sent again meanwhile";
  EXPECT_THAT(Receipts(), IsEmpty());
  peer_.events.clear();
  EXPECT_THAT(Receipts(), ElementsAre(kOffer));
  EXPECT_EQ(incoming_.WithCounts({}).bytes_in_place, 100u);
  memory.Free(*data, 4096);
}

TEST_F(IncomingTensorsTest, ProducerThatHasGone_GetsNoReceipts) {
  Payload(0, 100);
  peer_.connection().open = false;
  EXPECT_THAT(Receipts(), IsEmpty());
}

}  // namespace
}  // namespace weft::incoming_tensors_test
