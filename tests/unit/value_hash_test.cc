#include "worker/shell/compute/value_hash.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/compute/host_math.h"

namespace weft::value_hash_test {
namespace {

std::vector<float> Numbers(int64_t n) {
  std::vector<float> numbers(n);
  std::iota(numbers.begin(), numbers.end(), 0.5f);
  return numbers;
}

Tensor Of(std::vector<float>& values) {
  return {{DataType::kFloat32, 1, {static_cast<int64_t>(values.size())}},
          values.data(),
          values.size() * sizeof(float),
          std::shared_ptr<void>(values.data(), [](void*) {})};
}

TEST(ValueHash, HashBytes_OneBitFlipped_DiffersWhereverItIs) {
  std::vector<float> values = Numbers(100);  // the last block is not whole
  const uint64_t hash = HashBytes(values.data(), 400);
  for (size_t i = 0; i < 400; ++i) {
    auto* const byte = reinterpret_cast<unsigned char*>(values.data()) + i;
    *byte ^= 1u << (i % 8);
    EXPECT_NE(HashBytes(values.data(), 400), hash) << "byte " << i;
    *byte ^= 1u << (i % 8);
  }
  EXPECT_EQ(HashBytes(values.data(), 400), hash);
}

TEST(ValueHash, HashBytes_BlocksExchanged_Differs) {
  std::vector<float> values = Numbers(64);
  const uint64_t hash = HashBytes(values.data(), 256);
  std::swap_ranges(values.begin(), values.begin() + 16, values.begin() + 32);
  EXPECT_NE(HashBytes(values.data(), 256), hash);
}

TEST(ValueHash, HashSlice_SlicesOfAnyNumber_AddUpToTheWhole) {
  std::vector<float> values = Numbers(16 * 13);
  const Tensor whole = Of(values);
  for (const int parts : {1, 2, 3, 5, 13, 20}) {
    uint64_t sum = 0;
    for (int part = 0; part < parts; ++part)
      sum += *HashSlice(Slice(whole, part, parts), 16 * 13, part, parts);
    EXPECT_EQ(sum, *HashTensor(whole)) << parts << " parts";
  }
}

TEST(ValueHash, HashPieces_OfBothTypesWithGaps_IsThatOfTheWrittenBuffer) {
  const std::vector<float> floats = Numbers(40);
  std::vector<BFloat16> narrow(21);
  NarrowToBFloat16(narrow.data(), floats.data(), 21);
  // A block of zeros lies between the first two pieces, and two at the end.
  const std::vector<FlatPiece> pieces = {{0, 19, floats.data(), DataType::kFloat32},
                                         {48, 21, narrow.data(), DataType::kBFloat16},
                                         {80, 16, floats.data(), DataType::kFloat32}};
  std::vector<float> written(128, 7.0f);
  HostMath().WritePieces(pieces, written.data(), 128);
  EXPECT_EQ(HashPieces(pieces, 128), HashBytes(written.data(), 128 * sizeof(float)));
}

TEST(ValueHash, HashTensor_OfADevice_IsNone) {
  std::vector<float> values = Numbers(16);
  Tensor tensor = Of(values);
  tensor.place = MemoryPlace::kDevice;
  EXPECT_FALSE(HashTensor(tensor).has_value());
  EXPECT_FALSE(HashTensor(Tensor()).has_value());
}

}  // namespace
}  // namespace weft::value_hash_test
