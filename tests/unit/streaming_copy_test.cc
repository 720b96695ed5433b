#include "worker/shell/memory/streaming_copy.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "gtest/gtest.h"

namespace weft::streaming_copy_test {
namespace {

TEST(StreamingCopy, AnyAlignmentAndSize_CopiesTheseBytesAndNoOthers) {
  constexpr size_t kSize = 40'000;
  std::vector<unsigned char> from(kSize);
  for (size_t i = 0; i < kSize; ++i) from[i] = static_cast<unsigned char>(i * 7 + i / 256);
  for (const size_t to_begin : {0, 1, 15, 16, 63, 64}) {
    for (const size_t from_begin : {0, 1, 16, 33}) {
      for (const size_t bytes : {0, 1, 63, 64, 65, 127, 449, 16'384, 39'000}) {
        std::vector<unsigned char> to(kSize, 0), expected = to;
        std::copy_n(from.begin() + static_cast<ptrdiff_t>(from_begin), bytes,
                    expected.begin() + static_cast<ptrdiff_t>(to_begin));
        StreamingCopy(to.data() + to_begin, from.data() + from_begin, bytes);
        EXPECT_EQ(to, expected) << to_begin << " " << from_begin << " " << bytes;
      }
    }
  }
}

}  // namespace
}  // namespace weft::streaming_copy_test
