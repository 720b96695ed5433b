#include "worker/shell/data/sample_order.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::sample_order_test {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> Permutation(uint64_t seed, int64_t epoch, int64_t count) {
  std::vector<int64_t> numbers;
  for (int64_t place = 0; place < count; ++place)
    numbers.push_back(ShuffledSample(seed, epoch, place, count));
  return numbers;
}

TEST(ShuffledSample, AnyCount_EveryEpochIsAPermutation) {
  std::vector<int64_t> counts(70);
  std::iota(counts.begin(), counts.end(), 1);
  counts.insert(counts.end(), {97, 128, 1000, 1024, 1025, 4097});
  for (const int64_t count : counts) {
    for (const int64_t epoch : {0, 1, 77}) {
      std::vector<int64_t> numbers = Permutation(/*seed=*/count, epoch, count);
      std::sort(numbers.begin(), numbers.end());
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(numbers[i], i) << count << " samples, epoch " << epoch;
    }
  }
}

// Made by a program of its own, in Python, after the header's words.
TEST(ShuffledSample, ByTheDocumentedRule_GivesTheseNumbers) {
  EXPECT_THAT(Permutation(1, 0, 10), ElementsAre(7, 5, 9, 3, 6, 8, 0, 1, 4, 2));
  EXPECT_THAT(Permutation(1, 1, 10), ElementsAre(3, 5, 0, 7, 4, 2, 8, 9, 1, 6));
  EXPECT_THAT(Permutation(2, 0, 10), ElementsAre(8, 9, 2, 6, 5, 1, 4, 7, 3, 0));
  std::vector<int64_t> some;
  for (int64_t place = 0; place < 5; ++place) some.push_back(ShuffledSample(7, 3, place, 60000));
  EXPECT_THAT(some, ElementsAre(47968, 22617, 15702, 18427, 48982));
}

TEST(ShuffledSample, OtherSeedsAndEpochs_AreOtherPermutations) {
  std::set<std::vector<int64_t>> seen;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (int64_t epoch = 0; epoch < 20; ++epoch)
      EXPECT_TRUE(seen.insert(Permutation(seed, epoch, 50)).second);
  }
}

// Chi-squared over the numbers at each place, for which n(n-1) is expected: within five standard deviations.
TEST(ShuffledSample, OverManyEpochs_EveryNumberIsAtEveryPlaceAlike) {
  constexpr int kEpochs = 4000;
  for (const int n : {2, 3, 7, 10, 16}) {
    std::vector<int> counts(n * n);
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      for (int place = 0; place < n; ++place) ++counts[place * n + ShuffledSample(11, epoch, place, n)];
    }
    const double expected = static_cast<double>(kEpochs) / n;
    double chi_squared = 0;
    for (const int count : counts) chi_squared += (count - expected) * (count - expected) / expected;
    const double deviation = std::sqrt(2.0) * n;  // of n / (n - 1) times chi-squared with (n - 1)^2 degrees
    EXPECT_NEAR(chi_squared, n * (n - 1), 5 * deviation) << n;
  }
}

// A random permutation has one fixed point and one pair of neighbours that stay so, on average.
TEST(ShuffledSample, OfManySamples_LeavesNoOrder) {
  constexpr int kCount = 1000, kEpochs = 200;
  int fixed = 0, neighbours = 0;
  double correlation = 0;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<int64_t> numbers = Permutation(5, epoch, kCount);
    for (int i = 0; i < kCount; ++i) {
      fixed += numbers[i] == i;
      neighbours += i > 0 && numbers[i] == numbers[i - 1] + 1;
      correlation += (i - 499.5) * (static_cast<double>(numbers[i]) - 499.5);
    }
  }
  EXPECT_NEAR(fixed, kEpochs, 5 * std::sqrt(kEpochs));
  EXPECT_NEAR(neighbours, kEpochs, 5 * std::sqrt(kEpochs));
  const double largest = kEpochs * (1e9 - 1e3) / 12;
  EXPECT_NEAR(correlation / largest, 0, 5 / std::sqrt(kCount * kEpochs));
}

TEST(ShuffledSample, OfMoreSamplesThanMemoryWouldHold_IsInRangeAndNeverTwice) {
  constexpr int64_t kCount = (int64_t{1} << 62) - 57;
  std::set<int64_t> seen;
  for (int64_t place = 0; place < 2000; ++place) {
    const int64_t number = ShuffledSample(1, 1, kCount - 1 - place, kCount);
    EXPECT_GE(number, 0);
    EXPECT_LT(number, kCount);
    EXPECT_TRUE(seen.insert(number).second);
  }
}

RunSpec RunIn(const char* order) {
  RunSpec run;
  run.train.batch = 12;
  run.train.microbatches = 4;
  run.train.seed = 9;
  run.data.order = order;
  return run;
}

// All samples that the run draws in `steps` steps.
std::vector<Sample> Drawn(const RunSpec& run, int steps, int64_t count) {
  std::vector<Sample> samples;
  for (int t = 0; t < steps; ++t) {
    for (int b = 0; b < run.train.microbatches; ++b) {
      for (int i = 0; i < run.microbatch_samples(); ++i) samples.push_back(SampleOf(run, t, b, i, count));
    }
  }
  return samples;
}

TEST(SampleOf, Sequential_IsTheNumberOfTheContract) {
  const std::vector<Sample> samples = Drawn(RunIn("sequential"), 5, 25);
  for (int64_t j = 0; j < static_cast<int64_t>(samples.size()); ++j)
    EXPECT_EQ(samples[j], (Sample{j % 25, j / 25}));
}

// Epochs may also end within a micro-batch.
TEST(SampleOf, Shuffled_EveryEpochHasEverySampleOnce) {
  constexpr int64_t kCount = 25;
  const std::vector<Sample> samples = Drawn(RunIn("shuffled"), 25, kCount);
  ASSERT_EQ(samples.size(), 12u * kCount);
  for (int64_t epoch = 0; epoch < 12; ++epoch) {
    std::set<int64_t> numbers;
    for (int64_t j = epoch * kCount; j < (epoch + 1) * kCount; ++j) {
      EXPECT_EQ(samples[j].epoch, epoch);
      EXPECT_EQ(samples[j].number, ShuffledSample(9, epoch, j % kCount, kCount));
      numbers.insert(samples[j].number);
    }
    EXPECT_EQ(numbers.size(), static_cast<size_t>(kCount));
  }
}

}  // namespace
}  // namespace weft::sample_order_test
