#include "worker/shell/data/data_prefetch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

namespace weft::data_prefetch_test {
namespace {

constexpr int kSteps = 20, kMicrobatches = 3;

int64_t NumberOf(const DataPiece& piece) {
  return (int64_t{piece.step} * kMicrobatches + piece.microbatch) * 2 + (piece.targets ? 1 : 0);
}

// A tensor whose one element says which piece it is.
Tensor TensorOf(const DataPiece& piece) {
  auto value = std::make_shared<int64_t>(NumberOf(piece));
  return {{DataType::kInt64, 1, {1}}, value.get(), sizeof(int64_t), value};
}

std::vector<DataPiece> PiecesOf(int step) {
  std::vector<DataPiece> pieces;
  for (int b = 0; b < kMicrobatches; ++b) {
    pieces.push_back({step, b, false});
    pieces.push_back({step, b, true});
  }
  return pieces;
}

class Reads {
 public:
  absl::StatusOr<Tensor> operator()(const DataPiece& piece) {
    MutexLock lock(mutex_);
    read_.push_back(piece);
    ahead_ += std::this_thread::get_id() != asking_ ? 1 : 0;
    if (piece == failing_) return absl::NotFoundError("no file");
    return TensorOf(piece);
  }
  std::vector<DataPiece> all() {
    MutexLock lock(mutex_);
    return read_;
  }
  // Returns the count of another thread than the one that made this.
  int ahead() {
    MutexLock lock(mutex_);
    return ahead_;
  }
  std::optional<DataPiece> failing_;

 private:
  Mutex mutex_;
  std::vector<DataPiece> read_;
  int ahead_ = 0;
  const std::thread::id asking_ = std::this_thread::get_id();
};

void ExpectTakes(DataPrefetch& prefetch, const DataPiece& piece) {
  const absl::StatusOr<Tensor> tensor = prefetch.Take(piece);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(*static_cast<const int64_t*>(tensor->data), NumberOf(piece));
}

TEST(DataPrefetch, ExpectedOrder_IsReadAheadAndEachOnce) {
  Reads reads;
  {
    DataPrefetch prefetch(std::ref(reads), PiecesOf, kSteps);
    for (int step = 3; step < kSteps; ++step) {
      for (const DataPiece& piece : PiecesOf(step)) {
        ExpectTakes(prefetch, piece);
        // Reads are at most two beyond the requests; the caller reads the first of all.
        const auto asked = static_cast<size_t>(NumberOf(piece) - NumberOf({3, 0, false}) + 1);
        EXPECT_LE(reads.all().size(), asked + DataPrefetch::kDepth);
        while (reads.all().size() < 3) std::this_thread::yield();  // it goes ahead by itself
      }
    }
  }
  std::vector<DataPiece> read = reads.all(), once = read;
  std::sort(once.begin(), once.end());
  EXPECT_EQ(std::unique(once.begin(), once.end()), once.end());
  EXPECT_EQ(read.size(), static_cast<size_t>((kSteps - 3) * kMicrobatches * 2));
}

TEST(DataPrefetch, AnyOrderAndAskedTwice_GivesWhatWasAskedFor) {
  std::mt19937 random(7);
  int ahead = 0;
  for (int round = 0; round < 20; ++round) {
    Reads reads;
    DataPrefetch prefetch(std::ref(reads), PiecesOf, kSteps);
    std::vector<DataPiece> order;
    for (int step = 0; step < kSteps; ++step) {
      for (const DataPiece& piece : PiecesOf(step)) {
        if (random() % 10 != 0) order.push_back(piece);  // some jobs run elsewhere
      }
    }
    // The order changes only within some steps.
    for (size_t i = 0; i < order.size(); ++i) {
      std::swap(order[i], order[std::min(order.size() - 1, i + random() % 15)]);
    }
    for (const DataPiece& piece : order) {
      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      ExpectTakes(prefetch, piece);
      if (random() % 4 == 0) ExpectTakes(prefetch, piece);
    }
    ahead += reads.ahead();
  }
  EXPECT_GT(ahead, 0);
}

TEST(DataPrefetch, TwoWhoAsk_GetTheirs) {
  Reads reads;
  DataPrefetch prefetch(std::ref(reads), PiecesOf, kSteps);
  std::vector<std::thread> threads;
  for (const bool targets : {false, true}) {
    threads.emplace_back([&prefetch, targets] {
      for (int step = 0; step < kSteps; ++step) {
        for (int b = 0; b < kMicrobatches; ++b) ExpectTakes(prefetch, {step, b, targets});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(reads.all().size(), static_cast<size_t>(kSteps * kMicrobatches * 2));
}

TEST(DataPrefetch, FailedRead_IsGivenToWhoAsks) {
  Reads reads;
  reads.failing_ = DataPiece{0, 1, true};
  DataPrefetch prefetch(std::ref(reads), PiecesOf, kSteps);
  ExpectTakes(prefetch, {0, 0, false});
  ExpectTakes(prefetch, {0, 1, false});
  EXPECT_EQ(prefetch.Take({0, 1, true}).status().code(), absl::StatusCode::kNotFound);
  ExpectTakes(prefetch, {0, 2, false});
}

}  // namespace
}  // namespace weft::data_prefetch_test
