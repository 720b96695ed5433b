#include "worker/shell/transport/outgoing_tensors.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/connected_peer.h"
#include "worker/shell/transport/transfer_times.h"

namespace weft::outgoing_tensors_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Type = TransportMessage::Type;

constexpr size_t kInline = 64, kLarge = 4096;

class OutgoingTensorsTest : public ::testing::Test {
 protected:
  struct Sent {
    TransportMessage message;
    Messenger::Payload payload;
  };
  static TransportMessage Want(int step, bool again = false) {
    TransportMessage message;
    message.type = Type::kWant;
    message.sender = ConnectedPeer::kSender;
    message.key = ConnectedPeer::Key(step);
    message.in_place_ok = true;
    message.again = again;
    return message;
  }
  static TransportMessage AboutOffer(Type type, uint64_t offer) {
    TransportMessage message;
    message.type = type;
    message.sender = ConnectedPeer::kSender;
    message.offers[0] = offer;
    message.offer_count = 1;
    return message;
  }
  // A tensor in memory that others can map, or elsewhere (null).
  static Tensor TensorOf(size_t bytes, void* data, std::shared_ptr<void> owner = std::make_shared<int>()) {
    return {.shape = ConnectedPeer::Bytes(static_cast<int64_t>(bytes)),
            .data = data,
            .bytes = bytes,
            .owner = std::move(owner)};
  }
  // Has the peer want the tensor, and offers it.
  void Send(int step, Tensor tensor) {
    outgoing_.OnWant(kNow, Want(step));
    outgoing_.Offer(kNow, ConnectedPeer::kPeer, ConnectedPeer::Key(step), std::move(tensor));
  }

  MappedMemory memory_;
  void* const mapped_ = *memory_.Allocate(kLarge);
  char elsewhere_[kLarge] = {};
  ConnectedPeer peer_;
  std::vector<Sent> sent_;
  std::vector<std::string> log_;
  OutgoingTensors outgoing_{
      {/*in_place=*/true, kInline, [this](const std::string& line) { log_.push_back(line); }},
      peer_.table,
      peer_.connections,
      memory_,
      [this](const PeerConnection&, TransportMessage* message, const Messenger::Payload& payload) {
        sent_.push_back({*message, payload});
      }};
};

TEST_F(OutgoingTensorsTest, LargeTensorInMappedMemory_GoesInPlace) {
  Send(0, TensorOf(kLarge, mapped_));
  Send(1, TensorOf(kInline, mapped_));
  Send(2, TensorOf(kLarge, elsewhere_));
  ASSERT_THAT(sent_, SizeIs(3));
  EXPECT_EQ(sent_[0].message.type, Type::kInPlace);
  EXPECT_EQ(sent_[0].message.segment, memory_.Find(mapped_, kLarge)->segment);
  EXPECT_EQ(sent_[0].payload.bytes, 0u);
  EXPECT_EQ(sent_[1].message.type, Type::kData);
  EXPECT_EQ(sent_[1].payload.bytes, kInline);
  EXPECT_EQ(sent_[2].message.type, Type::kData);
  EXPECT_EQ(sent_[2].payload.data, elsewhere_);
  EXPECT_EQ(outgoing_.WithCounts({}).tensors_sent, 3u);
}

TEST_F(OutgoingTensorsTest, SentBytes_AreKeptForTheCarrierAndTheConsumer) {
  for (const bool released_first : {false, true}) {
    const auto owner = std::make_shared<int>();
    Send(released_first, TensorOf(kLarge, elsewhere_, owner));
    const uint64_t offer = sent_.back().message.offer;
    EXPECT_EQ(outgoing_.BytesBeingSentTo(ConnectedPeer::kSender), kLarge);
    const auto release = [&] { outgoing_.OnReleases(AboutOffer(Type::kRelease, offer)); };
    const auto sent = [&] { outgoing_.OnSent(sent_.back().payload.token); };
    released_first ? release() : sent();
    EXPECT_EQ(owner.use_count(), 2) << released_first;
    EXPECT_TRUE(outgoing_.AwaitsReleases());
    released_first ? sent() : release();
    EXPECT_EQ(owner.use_count(), 1) << released_first;
    EXPECT_EQ(outgoing_.bytes_held(), 0u);
    EXPECT_FALSE(outgoing_.AwaitsReleases());
  }
}

TEST_F(OutgoingTensorsTest, ConsumerThatCannotRead_GetsTheBytes) {
  Send(0, TensorOf(kLarge, mapped_));
  const uint64_t offer = sent_[0].message.offer;
  outgoing_.OnCopyInstead(kNow, AboutOffer(Type::kCopyInstead, offer));
  ASSERT_THAT(sent_, SizeIs(2));
  EXPECT_EQ(sent_[1].message.type, Type::kData);
  EXPECT_EQ(sent_[1].payload.bytes, kLarge);
  EXPECT_EQ(sent_[1].message.offer, offer);
  outgoing_.OnCopyInstead(kNow, AboutOffer(Type::kCopyInstead, offer));
  EXPECT_THAT(sent_, SizeIs(2)) << "it is not read in place any more";
  EXPECT_EQ(outgoing_.WithCounts({}).dropped_messages, 1u);
}

TEST_F(OutgoingTensorsTest, OfferOfAnotherConsumer_IsNotReleased) {
  Send(0, TensorOf(kLarge, mapped_));
  TransportMessage release = AboutOffer(Type::kRelease, sent_[0].message.offer);
  release.sender = ConnectedPeer::kSender + 1;
  outgoing_.OnReleases(release);
  EXPECT_EQ(outgoing_.bytes_held(), kLarge);
  EXPECT_EQ(outgoing_.WithCounts({}).dropped_messages, 1u);
}

TEST_F(OutgoingTensorsTest, TensorThatDoesNotArrive_IsSentAgainUntilTheLinkIsGivenUp) {
  Send(0, TensorOf(kLarge, elsewhere_));
  Nanos now = kNow;
  outgoing_.OnWant(now, Want(0, /*again=*/true));
  EXPECT_THAT(sent_, SizeIs(1)) << "it may still be on its way";
  for (int sendings = 2; sendings <= HeldOffers::kMostSends; ++sendings) {
    now += 10 * kAnswerTime;
    outgoing_.OnWant(now, Want(0, true));
    ASSERT_THAT(sent_, SizeIs(sendings));
  }
  EXPECT_THAT(log_.back(), HasSubstr("did not arrive at process 3; it is sent again"));
  EXPECT_FALSE(peer_.connections.TakeBroken(now).has_value());
  outgoing_.OnWant(now += 10 * kAnswerTime, Want(0, true));
  EXPECT_THAT(sent_, SizeIs(HeldOffers::kMostSends));
  const auto broken = peer_.connections.TakeBroken(now);
  ASSERT_TRUE(broken.has_value());
  EXPECT_EQ(broken->first, ConnectedPeer::kSender);
  EXPECT_THAT(broken->second, HasSubstr("5 times"));
  EXPECT_EQ(outgoing_.WithCounts({}).sent_again, 4u);
}

TEST_F(OutgoingTensorsTest, OfferThatNobodyAcknowledges_IsSentAgainToAnOpenPeer) {
  Send(0, TensorOf(kLarge, mapped_));
  outgoing_.SendOverdue(kNow + kProbeTime - 1);
  EXPECT_THAT(sent_, SizeIs(1));
  outgoing_.SendOverdue(kNow + kProbeTime);
  EXPECT_THAT(sent_, SizeIs(2));
  peer_.connection().open = false;
  outgoing_.SendOverdue(kNow + 2 * kProbeTime);
  EXPECT_THAT(sent_, SizeIs(2));
  EXPECT_FALSE(outgoing_.AwaitsReleases()) << "it will release nothing any more";
}

TEST_F(OutgoingTensorsTest, PathToAPeer_IsLoggedOnce) {
  Send(0, TensorOf(kLarge, mapped_));
  Send(1, TensorOf(kLarge, mapped_));
  EXPECT_THAT(log_, ElementsAre(HasSubstr("tensors to process 3")));
}

TEST_F(OutgoingTensorsTest, NewEpoch_ReleasesCopiesAndKeepsWhatIsRead) {
  Send(0, TensorOf(kLarge, mapped_));
  Send(1, TensorOf(kLarge, elsewhere_));
  outgoing_.OnSent(sent_[1].payload.token);
  outgoing_.BeginEpoch(ConnectedPeer::kRun, ConnectedPeer::kEpoch + 1);
  EXPECT_EQ(outgoing_.bytes_held(), kLarge);
  outgoing_.Forget(ConnectedPeer::kSender);
  EXPECT_EQ(outgoing_.bytes_held(), 0u);
}

using OutgoingTensorsDeathTest = OutgoingTensorsTest;

TEST_F(OutgoingTensorsDeathTest, DeviceMemoryToAPeerThatTakesNone_EndsTheProcess) {
  Tensor tensor = TensorOf(kLarge, elsewhere_);
  tensor.place = MemoryPlace::kDevice;
  EXPECT_DEATH(Send(0, std::move(tensor)), "process 3, which takes none");
}

}  // namespace
}  // namespace weft::outgoing_tensors_test
