#include "proto/session/protocol_versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "proto/wire/session_codec.h"

namespace weft::protocol_versions_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Refusal(const ProtocolVersions& worker, const ProtocolVersions& coordinator) {
  return std::string(ChooseProtocol(worker, coordinator).status().message());
}

TEST(ChooseProtocol, AnyTwoRanges_HighestOfBothOrNone) {
  constexpr uint32_t kEnd = 6;
  for (uint32_t a = 1; a < kEnd; ++a) {
    for (uint32_t b = a; b < kEnd; ++b) {
      for (uint32_t c = 1; c < kEnd; ++c) {
        for (uint32_t d = c; d < kEnd; ++d) {
          std::optional<uint32_t> highest;
          for (uint32_t v = 1; v < kEnd; ++v) {
            if (a <= v && v <= b && c <= v && v <= d) highest = v;
          }
          const absl::StatusOr<uint32_t> chosen = ChooseProtocol({a, b}, {c, d});
          EXPECT_EQ(chosen.ok() ? std::optional(*chosen) : std::nullopt, highest) << a << b << c << d;
        }
      }
    }
  }
}

TEST(ChooseProtocol, NoneInCommon_NamesBothRangesAndTheOlderSide) {
  EXPECT_EQ(ChooseProtocol({2, 2}, {3, 4}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Refusal({2, 2}, {3, 4}),
              AllOf(HasSubstr("the worker speaks protocol version 2, the coordinator versions 3 to 4"),
                    HasSubstr("the worker is of an older release: upgrade it to one that speaks version 3")));
  EXPECT_THAT(Refusal({3, 4}, {1, 2}),
              HasSubstr("the coordinator is of an older release: upgrade it to one that speaks version 3"));
}

TEST(ChooseProtocol, RangeOfAFaultyPeer_IsRefusedAsSuch) {
  EXPECT_EQ(ChooseProtocol({3, 2}, {2, 3}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Refusal({3, 2}, {2, 3}),
              HasSubstr("the worker says that it speaks the protocol versions 3 to 2"));
  EXPECT_THAT(Refusal({2, 2}, {0, 0}), HasSubstr("the coordinator says that"));
}

// Releases before ranges write and read the field `protocol` alone, and their coordinator wants its own
// version there.
TEST(OpenMessage, ReleaseWithoutRanges_ItsVersionIsItsRange) {
  v1::Open open;
  open.set_protocol(2);
  const ProtocolVersions versions = wire::Decode(open);
  EXPECT_EQ(versions.lowest, 2u);
  EXPECT_EQ(versions.highest, 2u);
}

TEST(OpenMessage, SpeaksTheVersionBeforeToo_ReleaseWithoutRangesFindsItsOwn) {
  v1::Open open;
  wire::Encode(ProtocolVersions{2, 3}, &open);
  EXPECT_EQ(open.protocol(), 2u);
  const ProtocolVersions versions = wire::Decode(open);
  EXPECT_EQ(versions.lowest, 2u);
  EXPECT_EQ(versions.highest, 3u);
}

}  // namespace
}  // namespace weft::protocol_versions_test
