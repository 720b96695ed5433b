// Tests that the memory of snapshots is kept for the next ones, is counted, and goes when it is released.
#include "worker/shell/checkpoint/snapshot_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>

#include "worker/shell/memory/tensor.h"

namespace weft::snapshot_memory_test {
namespace {

TEST(SnapshotMemory, BlockThatComesBack_IsTakenForTheSameSizeAgain) {
  PlainMemory plain;
  SnapshotMemory memory(plain);
  std::optional<Tensor> first = *memory.Take(1000), second = *memory.Take(1000);
  void* const blocks[] = {first->data, second->data};
  EXPECT_NE(blocks[0], blocks[1]);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks[0]) % 64, 0u);
  EXPECT_EQ(first->bytes, 1000u);
  first.reset();
  EXPECT_EQ(memory.bytes(), 2000) << "it is kept";
  const Tensor other = *memory.Take(992);
  EXPECT_NE(other.data, blocks[0]) << "a block of another size";
  const Tensor again = *memory.Take(1000);
  EXPECT_EQ(again.data, blocks[0]);
  EXPECT_EQ(memory.bytes(), 2992);
  EXPECT_EQ(memory.peak_bytes(), 2992);
}

TEST(SnapshotMemory, Reserve_KeepsABlockForTheFirstThatTakesIt) {
  PlainMemory plain;
  SnapshotMemory memory(plain);
  const std::function<void()> use = memory.Reserve(100'000);
  EXPECT_EQ(memory.bytes(), 100'000);
  const Tensor taken = *memory.Take(100'000);
  EXPECT_EQ(memory.bytes(), 100'000);
  std::memset(taken.data, 7, taken.bytes);
  use();
  for (size_t i = 0; i < taken.bytes; ++i) ASSERT_EQ(static_cast<char*>(taken.data)[i], 7) << i;
}

TEST(SnapshotMemory, TensorOfSeveralOwners_ComesBackWithTheLast) {
  PlainMemory plain;
  SnapshotMemory memory(plain);
  std::optional<Tensor> one = *memory.Take(640);
  std::optional<Tensor> other = one;
  one.reset();
  EXPECT_NE(memory.Take(640)->data, other->data);
  const void* const block = other->data;
  other.reset();
  const Tensor a = *memory.Take(640), b = *memory.Take(640);
  EXPECT_TRUE(a.data == block || b.data == block);
}

TEST(SnapshotMemory, Release_FreesWhatIsKeptAtOnceAndTheRestWhenItComesBack) {
  PlainMemory plain;
  SnapshotMemory memory(plain);
  std::optional<Tensor> kept = *memory.Take(100), used = *memory.Take(200);
  kept.reset();
  memory.Release();
  EXPECT_EQ(memory.bytes(), 200);
  EXPECT_EQ(memory.peak_bytes(), 200);
  std::optional<Tensor> later = *memory.Take(200);
  used.reset();
  EXPECT_EQ(memory.bytes(), 200);
  later.reset();
  EXPECT_EQ(memory.bytes(), 200) << "taken behind the release, and kept";
  memory.Release();
  EXPECT_EQ(memory.bytes(), 0);
}

TEST(SnapshotMemory, TensorThatOutlivesIt_StaysAsItIs) {
  PlainMemory plain;
  std::optional<Tensor> tensor;
  {
    SnapshotMemory memory(plain);
    tensor = *memory.Take(4096);
    static_cast<char*>(tensor->data)[4095] = 7;
  }
  EXPECT_EQ(static_cast<char*>(tensor->data)[4095], 7);
}

TEST(SnapshotMemory, SizeBeyondAnyMachine_IsRefusedWithItsBytes) {
  if (std::getenv("WEFT_TEST_TIME_FACTOR") != nullptr)
    GTEST_SKIP() << "a sanitizer's allocator ends the process in place of refusing";
  PlainMemory plain;
  SnapshotMemory memory(plain);
  const auto refused = memory.Take(size_t{1} << 60);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("1152921504606846976"), std::string::npos) << refused.status();
  EXPECT_EQ(memory.bytes(), 0);
}

// Memory that counts what it has handed out.
class CountedMemory final : public MemorySource {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (bytes > left_) return absl::ResourceExhaustedError("nothing is left");
    left_ -= bytes;
    return plain_.Allocate(bytes);
  }
  void Free(void* segment, size_t bytes) override {
    left_ += bytes;
    plain_.Free(segment, bytes);
  }
  size_t left() const { return left_; }

 private:
  PlainMemory plain_;
  size_t left_ = 10'000;
};

TEST(SnapshotMemory, BlocksOfASource_GoBackToItAndItsReasonIsTold) {
  CountedMemory source;
  SnapshotMemory memory(source);
  {
    const Tensor one = *memory.Take(6000);
    EXPECT_EQ(source.left(), 4000u);
    const auto refused = memory.Take(5000);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(refused.status().message().find("nothing is left"), std::string::npos) << refused.status();
  }
  EXPECT_EQ(source.left(), 4000u) << "it is kept";
  EXPECT_TRUE(memory.Take(5000).ok()) << "what is kept makes room";
  memory.Release();
  EXPECT_EQ(source.left(), 10'000u);
}

}  // namespace
}  // namespace weft::snapshot_memory_test
