#include "proto/session/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace weft::link_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using TextLink = Link<std::string, std::string>;
constexpr int64_t kMs = 1'000'000;

LinkOptions Lossy() {
  LinkOptions o;
  o.resend_ns = 100 * kMs;
  o.ack_delay_ns = 20 * kMs;
  return o;
}

struct LinkTest : ::testing::Test {
  TextLink a{7, Lossy()}, b{7, Lossy()};
  std::vector<std::string> at_b;
};

TEST_F(LinkTest, Send_Taken_ArrivesInOrder) {
  ASSERT_TRUE(a.Send("one").ok());
  ASSERT_TRUE(a.Send("two").ok());
  const auto packet = a.Take(0);
  ASSERT_TRUE(packet.has_value());
  EXPECT_EQ(packet->first, 1u);
  ASSERT_TRUE(b.Receive(0, *packet, &at_b).ok());
  EXPECT_THAT(at_b, ElementsAre("one", "two"));
  EXPECT_FALSE(a.Take(0).has_value()) << "nothing is left";
}

TEST_F(LinkTest, Take_BytesBound_SplitsButAlwaysGivesOne) {
  ASSERT_TRUE(a.Send("big", 100).ok());
  ASSERT_TRUE(a.Send("small", 10).ok());
  ASSERT_TRUE(a.Send("small too", 10).ok());
  EXPECT_EQ(a.Take(0, 50)->messages.size(), 1u);
  EXPECT_EQ(a.Take(0, 50)->messages.size(), 2u);
}

TEST_F(LinkTest, Receive_Twice_DeliversOnce) {
  ASSERT_TRUE(a.Send("one").ok());
  const auto packet = *a.Take(0);
  ASSERT_TRUE(b.Receive(0, packet, &at_b).ok());
  ASSERT_TRUE(b.Receive(0, packet, &at_b).ok());
  EXPECT_THAT(at_b, ElementsAre("one"));
  EXPECT_EQ(b.duplicates(), 1u);
}

TEST_F(LinkTest, Receive_OutOfOrder_HoldsUntilTheGapIsFilled) {
  ASSERT_TRUE(a.Send("one").ok());
  const auto first = *a.Take(0);
  ASSERT_TRUE(a.Send("two").ok());
  const auto second = *a.Take(0);
  ASSERT_TRUE(b.Receive(0, second, &at_b).ok());
  EXPECT_THAT(at_b, IsEmpty());
  EXPECT_EQ(b.held(), 1u);
  ASSERT_TRUE(b.Receive(0, first, &at_b).ok());
  EXPECT_THAT(at_b, ElementsAre("one", "two"));
  EXPECT_EQ(b.held(), 0u);
}

TEST_F(LinkTest, Receive_MoreEarlyOnesThanTheBound_DropsTheRest) {
  LinkOptions options = Lossy();
  options.held_limit = 2;
  TextLink bounded(7, options);
  ASSERT_TRUE(bounded.Receive(0, {7, 0, 2, {"2", "3", "4", "5"}}, &at_b).ok());
  EXPECT_EQ(bounded.held(), 2u);
  ASSERT_TRUE(bounded.Receive(0, {7, 0, 1, {"1"}}, &at_b).ok());
  EXPECT_THAT(at_b, ElementsAre("1", "2", "3"));
}

TEST_F(LinkTest, Take_Unacknowledged_GoesAgainAfterTheTimeoutAndBacksOff) {
  ASSERT_TRUE(a.Send("one").ok());
  ASSERT_TRUE(a.Take(0).has_value());
  EXPECT_EQ(a.next_deadline(), 100 * kMs);
  EXPECT_FALSE(a.Take(99 * kMs).has_value());
  EXPECT_TRUE(a.Take(100 * kMs).has_value());
  EXPECT_EQ(a.resent(), 1u);
  EXPECT_EQ(a.next_deadline(), 300 * kMs) << "twice as long";
  EXPECT_FALSE(a.Take(299 * kMs).has_value());
  EXPECT_TRUE(a.Take(300 * kMs).has_value());
}

TEST_F(LinkTest, Take_OnlyReceived_AcknowledgesAfterTheDelay) {
  ASSERT_TRUE(a.Send("one").ok());
  ASSERT_TRUE(b.Receive(0, *a.Take(0), &at_b).ok());
  EXPECT_EQ(b.next_deadline(), 20 * kMs);
  EXPECT_FALSE(b.Take(19 * kMs).has_value());
  const auto ack = b.Take(20 * kMs);
  ASSERT_TRUE(ack.has_value());
  EXPECT_THAT(ack->messages, IsEmpty());
  std::vector<std::string> at_a;
  ASSERT_TRUE(a.Receive(20 * kMs, *ack, &at_a).ok());
  EXPECT_EQ(a.unacknowledged(), 0u);
  EXPECT_EQ(a.next_deadline(), kNever);
}

TEST_F(LinkTest, Take_ManyReceived_AcknowledgesAtOnce) {
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(a.Send("x").ok());
  ASSERT_TRUE(b.Receive(0, *a.Take(0), &at_b).ok());
  EXPECT_TRUE(b.Take(0).has_value());
}

TEST_F(LinkTest, Resume_PeerHasSome_SendsTheRestAgain) {
  for (const char* m : {"one", "two", "three"}) ASSERT_TRUE(a.Send(m).ok());
  ASSERT_TRUE(a.Take(0).has_value());  // lost with its connection
  ASSERT_TRUE(a.Resume(0, 1).ok());
  const auto packet = *a.Take(0);
  EXPECT_EQ(packet.first, 2u);
  EXPECT_THAT(packet.messages, ElementsAre("two", "three"));
}

TEST_F(LinkTest, Receive_AckOfUnsent_IsRefused) {
  ASSERT_TRUE(a.Send("one").ok());
  EXPECT_EQ(a.Receive(0, {7, 1, 1, {}}, &at_b).code(), absl::StatusCode::kInvalidArgument)
      << "waiting, never taken";
  ASSERT_TRUE(a.Take(0).has_value());
  EXPECT_TRUE(a.Receive(0, {7, 1, 1, {}}, &at_b).ok());
  EXPECT_EQ(a.Resume(0, 2).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LinkTest, Receive_PacketOfAnotherLink_ChangesNothing) {
  ASSERT_TRUE(a.Send("one").ok());
  auto packet = *a.Take(0);
  packet.link = 8;
  ASSERT_TRUE(b.Receive(0, packet, &at_b).ok());
  EXPECT_THAT(at_b, IsEmpty());
  EXPECT_EQ(b.strays(), 1u);
}

TEST_F(LinkTest, Send_PeerNeverAcknowledges_SaysSo) {
  LinkOptions options = Lossy();
  options.unacknowledged_limit = 2;
  TextLink bounded(7, options);
  ASSERT_TRUE(bounded.Send("1").ok());
  ASSERT_TRUE(bounded.Send("2").ok());
  EXPECT_EQ(bounded.Send("3").code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace weft::link_test
