// The bytes of the transport: what is encoded comes back, and nothing that a peer can send does harm.
#include "worker/shell/transport/transport_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/transport_fixture.h"
#include "worker/shell/transport/transport_address.h"

namespace weft::transport_message_test {
namespace {

using Type = TransportMessage::Type;

std::string Encoded(const TransportMessage& message) {
  char buffer[TransportMessage::kMaxBytes];
  return std::string(buffer, Encode(message, buffer));
}

std::vector<TransportMessage> OneOfEach() {
  std::vector<TransportMessage> messages;
  for (int type = 1; type <= 8; ++type) {
    TransportMessage m;
    m.type = static_cast<Type>(type);
    m.sender = 0xfeedfacecafebeef;
    m.key = testing::Key(5, 77);
    m.key.kind = TensorKind::kGradientSum;
    m.key.use = 3;
    m.in_place_ok = true;
    m.shape = TensorShape{DataType::kBFloat16, 6, {2, 3, 4, 5, 6, 7}};
    m.bytes = 2 * 3 * 4 * 5 * 6 * 7 * 2;
    m.place = MemoryPlace::kDevice;
    m.made_ns = 1'000;
    m.sent_ns = 1'250;
    m.offer = 99;
    m.segment = {11, 22, 1 << 20, 9};
    m.offset = 4096;
    m.offer_count = TransportMessage::kMaxOffers;
    for (uint32_t i = 0; i < m.offer_count; ++i) m.offers[i] = 1000 + i;
    messages.push_back(m);
  }
  return messages;
}

TEST(TransportMessage, EveryType_EncodedAndDecoded_IsTheSame) {
  for (const TransportMessage& in : OneOfEach()) {
    SCOPED_TRACE(static_cast<int>(in.type));
    const std::string bytes = Encoded(in);
    EXPECT_LE(bytes.size(), TransportMessage::kMaxBytes);
    TransportMessage out;
    ASSERT_TRUE(Decode(bytes, &out).ok());
    EXPECT_EQ(out.type, in.type);
    EXPECT_EQ(out.sender, in.sender);
    const bool keyed = in.type <= Type::kData;
    if (keyed) {
      EXPECT_EQ(out.key, in.key);
    }
    if (in.type == Type::kWant) {
      EXPECT_TRUE(out.in_place_ok);
    }
    if (in.type == Type::kInPlace || in.type == Type::kData) {
      EXPECT_EQ(out.shape, in.shape);
      EXPECT_EQ(out.bytes, in.bytes);
      EXPECT_EQ(out.made_ns, in.made_ns);
      EXPECT_EQ(out.sent_ns, in.sent_ns);
    }
    if (in.type == Type::kData) {
      EXPECT_EQ(out.place, in.place);
    }
    if (in.type == Type::kInPlace) {
      EXPECT_EQ(out.place, MemoryPlace::kHost);
      EXPECT_EQ(out.segment, in.segment);
      EXPECT_EQ(out.offset, in.offset);
      EXPECT_EQ(out.offer, in.offer);
    }
    if (in.type == Type::kRelease || in.type == Type::kCopyInstead) {
      ASSERT_EQ(out.offer_count, in.offer_count);
      EXPECT_EQ(out.offers, in.offers);
    }
    if (in.type == Type::kSegmentGone) {
      EXPECT_EQ(out.segment.id, in.segment.id);
    }
  }
}

TEST(TransportMessage, CutOrLengthened_IsRefused) {
  for (const TransportMessage& message : OneOfEach()) {
    const std::string bytes = Encoded(message);
    TransportMessage out;
    for (size_t n = 0; n < bytes.size(); ++n) {
      EXPECT_FALSE(Decode(absl::string_view(bytes.data(), n), &out).ok()) << n;
    }
    EXPECT_FALSE(Decode(bytes + "x", &out).ok());
  }
}

TEST(TransportMessage, PlaceOutsideItsSegment_IsRefused) {
  TransportMessage good = OneOfEach()[static_cast<int>(Type::kInPlace) - 1];
  TransportMessage out;
  ASSERT_TRUE(Decode(Encoded(good), &out).ok());
  for (const uint64_t offset :
       {good.segment.bytes, good.segment.bytes - good.bytes + 1, ~uint64_t{0}, ~good.bytes}) {
    TransportMessage bad = good;
    bad.offset = offset;
    EXPECT_FALSE(Decode(Encoded(bad), &out).ok()) << offset;
  }
  good.offset = good.segment.bytes - good.bytes;
  EXPECT_TRUE(Decode(Encoded(good), &out).ok());
  good.segment.bytes = ~uint64_t{0};
  EXPECT_FALSE(Decode(Encoded(good), &out).ok());
}

TEST(TransportMessage, TimesThatCannotBe_AreRefused) {
  TransportMessage good = OneOfEach()[static_cast<int>(Type::kData) - 1];
  TransportMessage out;
  for (const auto& [made, sent] :
       {std::pair<int64_t, int64_t>{-1, 5}, {6, 5}, {5, INT64_MAX}, {INT64_MIN, 5}}) {
    TransportMessage bad = good;
    bad.made_ns = made;
    bad.sent_ns = sent;
    EXPECT_FALSE(Decode(Encoded(bad), &out).ok()) << made << " " << sent;
  }
}

TEST(TransportMessage, ShapeThatDoesNotFitItsBytes_IsRefused) {
  const int64_t huge = int64_t{1} << 40;
  EXPECT_TRUE(CheckShape({DataType::kFloat32, 0}, 0).ok());
  EXPECT_TRUE(CheckShape({DataType::kFloat32, 0}, 4).ok());
  EXPECT_TRUE(CheckShape({DataType::kFloat32, 2, {3, 0}}, 0).ok());
  EXPECT_TRUE(CheckShape({DataType::kInt64, 2, {3, 2}}, 48).ok());
  EXPECT_FALSE(CheckShape({DataType::kInt64, 2, {3, 2}}, 47).ok());
  EXPECT_FALSE(CheckShape({DataType::kUInt8, 1, {-1}}, 0).ok());
  EXPECT_FALSE(CheckShape({DataType::kUInt8, 2, {-1, -1}}, 1).ok());
  EXPECT_FALSE(CheckShape({DataType::kUInt8, 2, {huge, huge}}, 0).ok());
  EXPECT_FALSE(CheckShape({DataType::kUInt8, 7}, 1).ok());
}

TEST(TransportMessage, UnknownPlace_IsRefused) {
  std::string bytes = Encoded(OneOfEach()[static_cast<int>(Type::kData) - 1]);
  TransportMessage out;
  ASSERT_TRUE(Decode(bytes, &out).ok());
  bytes.back() = 2;  // the place is the last field
  EXPECT_FALSE(Decode(bytes, &out).ok());
}

// Random and mutated bytes: whatever is accepted must encode to the very same bytes, so nothing is half
// understood.
TEST(TransportMessage, RandomBytes_AreRefusedOrFullyUnderstood) {
  std::mt19937 random(4711);
  std::vector<std::string> seeds;
  for (const TransportMessage& message : OneOfEach()) seeds.push_back(Encoded(message));
  int accepted = 0;
  for (int i = 0; i < 400'000; ++i) {
    std::string bytes;
    if (i % 4 == 0) {
      bytes.resize(random() % 300);
      for (char& c : bytes) c = static_cast<char>(random());
    } else {
      bytes = seeds[random() % seeds.size()];
      for (int k = 1 + random() % 3; k > 0; --k)
        bytes[random() % bytes.size()] = static_cast<char>(random() >> 7);
    }
    TransportMessage out;
    if (!Decode(bytes, &out).ok()) continue;
    ++accepted;
    ASSERT_EQ(Encoded(out), bytes);
    if (out.type == Type::kInPlace) {
      ASSERT_LE(out.offset + out.bytes, out.segment.bytes);
    }
  }
  EXPECT_GT(accepted, 1000);  // mutated ids and numbers are legal: the test reaches past the first check
}

TEST(TransportAddress, EncodedAndDecoded_IsTheSame) {
  TransportAddress in{42,
                      {"boot/pid:[7]", 123, 456},
                      {1, 2, 4096, 5},
                      std::string("\0ucx\0", 5),
                      {"cuda", "GPU-1234"},
                      {},
                      kTlsPlane};
  const absl::StatusOr<TransportAddress> out = DecodeAddress(EncodeAddress(in));
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->sender, in.sender);
  EXPECT_EQ(out->process, in.process);
  EXPECT_EQ(out->probe, in.probe);
  EXPECT_EQ(out->messenger, in.messenger);
  EXPECT_EQ(out->device, in.device);
  EXPECT_EQ(out->plane, in.plane);
}

TEST(TransportAddress, AnotherFormat_IsRefusedByItsNumber) {
  std::string later =
      EncodeAddress({42, {"boot/pid:[7]", 123, 456}, {1, 2, 4096, 5}, "ucx", {"cuda", "GPU"}});
  later[3] = 5;
  uint32_t checksum = 2166136261u;
  for (const char c : later.substr(0, later.size() - 4))
    checksum = (checksum ^ static_cast<uint8_t>(c)) * 16777619u;
  std::memcpy(&later[later.size() - 4], &checksum, 4);
  EXPECT_THAT(std::string(DecodeAddress(later).status().message()),
              ::testing::HasSubstr(
                  "has the format 5, and this release reads format 4; train with workers of one release"));
}

TEST(TransportAddress, Damaged_IsRefused) {
  const std::string good =
      EncodeAddress({42, {"boot/pid:[7]", 123, 456}, {1, 2, 4096, 5}, "ucx", {"cuda", "GPU"}});
  for (size_t i = 0; i < good.size(); ++i) {
    EXPECT_FALSE(DecodeAddress(good.substr(0, i)).ok());
    std::string bad = good;
    bad[i] ^= 0x10;
    EXPECT_FALSE(DecodeAddress(bad).ok()) << i;
  }
}

}  // namespace
}  // namespace weft::transport_message_test
