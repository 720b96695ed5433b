#include "worker/shell/data/sample_order.h"

#include <algorithm>

#include "base/splitmix64.h"

namespace weft {
namespace {

constexpr uint64_t kOrderStream = 1;  // random stream for the order, among those of a run's seed
constexpr int kRounds = 64;

}  // namespace

int64_t ShuffledSample(uint64_t seed, int64_t epoch, int64_t place, int64_t count) {
  const auto n = static_cast<uint64_t>(count);
  const uint64_t key = SplitMix64(SplitMix64(seed, kOrderStream), static_cast<uint64_t>(epoch));
  auto x = static_cast<uint64_t>(place);
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t round_key = SplitMix64(key, round);
    const uint64_t sum = round_key % n;
    const uint64_t partner = sum >= x ? sum - x : sum + n - x;
    if (SplitMix64(round_key, std::max(x, partner)) & 1) x = partner;
  }
  return static_cast<int64_t>(x);
}

Sample SampleOf(const RunSpec& run, int step, int microbatch, int i, int64_t count) {
  const int64_t draw = (int64_t{step} * run.train.microbatches + microbatch) * run.microbatch_samples() + i;
  const int64_t epoch = draw / count, place = draw % count;
  const bool shuffled = run.data.order == "shuffled";
  return {shuffled ? ShuffledSample(run.train.seed, epoch, place, count) : place, epoch};
}

}  // namespace weft
