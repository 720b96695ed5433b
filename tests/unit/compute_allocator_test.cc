#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "worker/shell/compute/segment_allocator.h"

namespace weft::compute_allocator_test {
namespace {

// Ordinary memory that remembers what is out, and ends after `limit` bytes.
class CountingMemory final : public MemorySource {
 public:
  explicit CountingMemory(size_t limit = SIZE_MAX) : limit_(limit) {}
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (out_ + bytes > limit_) return absl::ResourceExhaustedError("the limit of the test");
    out_ += bytes;
    ++segments_;
    return memory_.Allocate(bytes);
  }
  void Free(void* segment, size_t bytes) override {
    out_ -= bytes;
    memory_.Free(segment, bytes);
  }
  size_t out() const { return out_; }
  int segments() const { return segments_; }

 private:
  const size_t limit_;
  size_t out_ = 0;
  int segments_ = 0;
  PlainMemory memory_;
};

struct Block {
  char* data;
  size_t bytes;
  MemoryClass memory_class;
  char fill;
};

int64_t Charged(size_t bytes) { return static_cast<int64_t>(std::max<size_t>(1, (bytes + 63) / 64) * 64); }

size_t RandomSize(std::mt19937& random) {
  switch (random() % 4) {
    case 0:
      return random() % 100;
    case 1:
      return random() % 5000;
    case 2:
      return random() % 200000;
    default:
      return 64 << (random() % 15);
  }
}

TEST(SegmentAllocator, RandomAllocations_NeverOverlapAndCountExactly) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    CountingMemory memory;
    auto allocator = SegmentAllocator::Create(memory);
    std::mt19937 random(seed);
    std::vector<Block> blocks;
    BytesByClass live{}, peak{};
    int64_t most_bytes = 0;
    for (int i = 0; i < 20000; ++i) {
      const bool full = blocks.size() > 200;
      if (blocks.empty() || (random() % 2 == 0 && !full)) {
        const size_t bytes = RandomSize(random);
        const auto c = static_cast<MemoryClass>(random() % kMemoryClasses);
        absl::StatusOr<void*> p = allocator->Allocate(bytes, c);
        ASSERT_TRUE(p.ok()) << p.status();
        ASSERT_EQ(reinterpret_cast<uintptr_t>(*p) % SegmentAllocator::kAlignment, 0u);
        blocks.push_back({static_cast<char*>(*p), bytes, c, static_cast<char>(random())});
        std::memset(blocks.back().data, blocks.back().fill, bytes);
        auto& count = live[static_cast<int>(c)];
        count += Charged(bytes);
        peak[static_cast<int>(c)] = std::max(peak[static_cast<int>(c)], count);
        most_bytes = std::max(most_bytes, std::accumulate(live.begin(), live.end(), int64_t{0}));
      } else {
        std::swap(blocks[random() % blocks.size()], blocks.back());
        const Block b = blocks.back();
        blocks.pop_back();
        // A block that overlapped it would have written other bytes.
        ASSERT_TRUE(std::all_of(b.data, b.data + b.bytes, [&](char x) { return x == b.fill; }));
        SegmentAllocator::Free(b.data);
        live[static_cast<int>(b.memory_class)] -= Charged(b.bytes);
      }
      ASSERT_EQ(allocator->live_bytes(), live);
      ASSERT_EQ(allocator->peak_bytes(), peak);
      ASSERT_EQ(allocator->most_bytes(), most_bytes);
      if (i % 500 == 0) allocator->CheckConsistency();
    }
    for (const Block& b : blocks) SegmentAllocator::Free(b.data);
    allocator->CheckConsistency();
    EXPECT_EQ(allocator->live_bytes(), BytesByClass{});
    EXPECT_EQ(memory.out(), allocator->segment_bytes());
    allocator.reset();
    EXPECT_EQ(memory.out(), 0u);
  }
}

TEST(SegmentAllocator, SameStepsAgain_TakeNoNewSegments) {
  CountingMemory memory;
  auto allocator = SegmentAllocator::Create(memory);
  std::vector<size_t> sizes;
  std::mt19937 random(3);
  for (int i = 0; i < 100; ++i) sizes.push_back(RandomSize(random));
  sizes.push_back(20 << 20);  // larger than a segment
  sizes.push_back((20 << 20) + 4096 - 128);
  int after_first = 0;
  for (int step = 0; step < 50; ++step) {
    std::vector<void*> blocks;
    for (size_t bytes : sizes) blocks.push_back(*allocator->Allocate(bytes, MemoryClass::kActivations));
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (void* b : blocks) SegmentAllocator::Free(b);
    if (step == 0) after_first = memory.segments();
  }
  EXPECT_EQ(memory.segments(), after_first);
}

TEST(SegmentAllocator, LargeBlocksOfOneSize_ReuseTheirSegments) {
  CountingMemory memory;
  auto allocator = SegmentAllocator::Create(memory);
  for (size_t bytes = 9 << 20; bytes < (10 << 20); bytes += 100000) {
    SegmentAllocator::Free(*allocator->Allocate(bytes, MemoryClass::kBuffers));
    const int segments = memory.segments();
    for (int i = 0; i < 3; ++i) SegmentAllocator::Free(*allocator->Allocate(bytes, MemoryClass::kBuffers));
    EXPECT_EQ(memory.segments(), segments) << bytes;
  }
}

TEST(SegmentAllocator, SourceWithoutMore_FailsAndStaysUsable) {
  CountingMemory memory(2 * SegmentAllocator::kSegmentBytes);
  auto allocator = SegmentAllocator::Create(memory);
  void* kept = *allocator->Allocate(7 << 20, MemoryClass::kWeights);
  void* other = *allocator->Allocate(7 << 20, MemoryClass::kWeights);
  const absl::Status status = allocator->Allocate(7 << 20, MemoryClass::kActivations).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("the limit of the test"));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("7340032 bytes"));
  EXPECT_EQ(allocator->live_bytes()[static_cast<int>(MemoryClass::kActivations)], 0);
  SegmentAllocator::Free(other);
  absl::StatusOr<void*> again = allocator->Allocate(7 << 20, MemoryClass::kActivations);
  ASSERT_TRUE(again.ok());
  SegmentAllocator::Free(*again);
  SegmentAllocator::Free(kept);
  EXPECT_EQ(allocator->Allocate(SIZE_MAX - 10, MemoryClass::kWeights).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(SegmentAllocator, BlocksThatOutliveTheHandle_KeepTheirSegments) {
  CountingMemory memory;
  auto allocator = SegmentAllocator::Create(memory);
  auto* data = static_cast<char*>(*allocator->Allocate(1000, MemoryClass::kBuffers));
  allocator.reset();
  EXPECT_GT(memory.out(), 0u);
  std::memset(data, 1, 1000);
  std::thread([&] { SegmentAllocator::Free(data); }).join();
  EXPECT_EQ(memory.out(), 0u);
}

TEST(SegmentAllocator, BlocksFreedOnOtherThreads_AreCountedOnce) {
  CountingMemory memory;
  auto allocator = SegmentAllocator::Create(memory);
  constexpr int kThreads = 4, kRounds = 5000;
  std::array<std::atomic<void*>, 64> mailbox{};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < kRounds; ++i) {
        const size_t bytes = RandomSize(random);
        auto* data = static_cast<char*>(*allocator->Allocate(bytes, static_cast<MemoryClass>(t)));
        std::memset(data, static_cast<int>(t), bytes);
        SegmentAllocator::Free(mailbox[random() % mailbox.size()].exchange(data));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  allocator->CheckConsistency();
  for (auto& m : mailbox) SegmentAllocator::Free(m.exchange(nullptr));
  EXPECT_EQ(allocator->live_bytes(), BytesByClass{});
  allocator->CheckConsistency();
}

TEST(SegmentAllocator, Tally_CountsWhatIsTalliedAndAlive) {
  CountingMemory memory;
  auto allocator = SegmentAllocator::Create(memory);
  const auto allocate = [&](size_t bytes, Tallied tallied) {
    return *allocator->Allocate(bytes, MemoryClass::kActivations, tallied);
  };
  void* before = allocate(64, Tallied::kYes);  // no tally has begun
  allocator->BeginTally();
  void* kept = allocate(128, Tallied::kYes);
  void* freed = allocate(256, Tallied::kYes);
  void* neighbour = allocate(512, Tallied::kNo);  // another job's
  void* other = *allocator->Allocate(1024, MemoryClass::kBuffers, Tallied::kYes);
  EXPECT_EQ(allocator->tally(MemoryClass::kActivations), 128 + 256);
  for (void* block : {before, freed, neighbour}) SegmentAllocator::Free(block);
  EXPECT_EQ(allocator->tally(MemoryClass::kActivations), 128);
  allocator->BeginTally();
  for (void* block : {kept, other}) SegmentAllocator::Free(block);
  EXPECT_EQ(allocator->tally(MemoryClass::kActivations), 0);
}

TEST(SegmentAllocator, TallyChargedAnew_CountsWhatStaysInItsNewClassAlone) {
  CountingMemory memory;
  auto allocator = SegmentAllocator::Create(memory);
  constexpr int kActivations = static_cast<int>(MemoryClass::kActivations);
  constexpr int kBuffers = static_cast<int>(MemoryClass::kBuffers);
  const auto allocate = [&](size_t bytes) {
    return *allocator->Allocate(bytes, MemoryClass::kBuffers, Tallied::kYes);
  };
  allocator->BeginTally();
  void* before = allocate(64);
  allocator->BeginTally();
  void* first = allocate(128);
  void* passing = allocate(4096);
  void* last = allocate(256);
  SegmentAllocator::Free(passing);
  allocator->ChargeTally(MemoryClass::kActivations);
  EXPECT_EQ(allocator->live_bytes()[kActivations], 128 + 256);
  EXPECT_EQ(allocator->peak_bytes()[kActivations], 128 + 256) << "what passes is no activation";
  EXPECT_EQ(allocator->live_bytes()[kBuffers], 64) << "a block of the tally before";
  EXPECT_EQ(allocator->peak_bytes()[kBuffers], 64 + 4096) << "what stays is in one peak alone";
  EXPECT_EQ(allocator->most_bytes(), 64 + 128 + 4096 + 256);
  EXPECT_EQ(allocator->tally(MemoryClass::kActivations), 128 + 256);
  EXPECT_EQ(allocator->tally(MemoryClass::kBuffers), 0);
  for (void* block : {first, before, last}) SegmentAllocator::Free(block);
  EXPECT_EQ(allocator->tally(MemoryClass::kActivations), 0);
  EXPECT_EQ(allocator->live_bytes(), BytesByClass{});
  allocator->CheckConsistency();
}

// A job's figures are beyond what was there before it, and leave other classes out.
TEST(SegmentAllocator, Job_IsMeasuredFromItsBegin) {
  CountingMemory memory;
  const auto allocator = SegmentAllocator::Create(memory);
  void* const kept = *allocator->Allocate(640, MemoryClass::kActivations);
  void* const waiting = *allocator->Allocate(64, MemoryClass::kBuffers);
  allocator->BeginJob();
  EXPECT_EQ(allocator->job_bytes(), (JobBytes{704, 0, 0, 0, 0, 0}));
  void* const made = *allocator->Allocate(320, MemoryClass::kBuffers);
  SegmentAllocator::Free(kept);
  void* const more = *allocator->Allocate(128, MemoryClass::kBuffers);
  void* const sum = *allocator->Allocate(6400, MemoryClass::kGradients);
  EXPECT_EQ(allocator->job_bytes(), (JobBytes{704, 448, 320, 448, -192, 512}));
  SegmentAllocator::Free(made);
  allocator->BeginJob();
  EXPECT_EQ(allocator->job_bytes(), (JobBytes{192, 0, 0, 0, 0, 0}));
  for (void* const block : {waiting, more, sum}) SegmentAllocator::Free(block);
}

TEST(SegmentAllocatorDeathTest, FreedTwice_Aborts) {
  CountingMemory memory;
  auto allocator = SegmentAllocator::Create(memory);
  void* kept = *allocator->Allocate(100, MemoryClass::kBuffers);
  void* data = *allocator->Allocate(100, MemoryClass::kBuffers);
  SegmentAllocator::Free(data);
  EXPECT_DEATH(SegmentAllocator::Free(data), "freed twice");
  SegmentAllocator::Free(kept);
}

}  // namespace
}  // namespace weft::compute_allocator_test
