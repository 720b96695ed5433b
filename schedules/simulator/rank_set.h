// Keeps a set of ranks, taken out in ascending order. Adding and taking cost the same however many ranks
// there are, within a factor of the logarithm to the base 64. Pure; not thread-safe.
#ifndef WEFT_SCHEDULES_SIMULATOR_RANK_SET_H_
#define WEFT_SCHEDULES_SIMULATOR_RANK_SET_H_

#include <bit>
#include <cstdint>
#include <vector>

#include "schedules/job.h"

namespace weft {

class RankSet {
 public:
  explicit RankSet(int ranks) {
    size_t words = (static_cast<size_t>(ranks) + 63) / 64;
    for (levels_.emplace_back(words, 0); words > 1; levels_.emplace_back(words, 0)) words = (words + 63) / 64;
  }

  bool empty() const { return levels_.back()[0] == 0; }
  void Add(Rank rank) {
    auto bit = static_cast<size_t>(rank);
    for (std::vector<uint64_t>& level : levels_) {
      level[bit / 64] |= uint64_t{1} << (bit % 64);
      bit /= 64;
    }
  }
  // Takes the least rank out. Requires that there is one.
  Rank TakeFirst() {
    size_t word = 0;
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
      word = word * 64 + static_cast<size_t>(std::countr_zero((*level)[word]));
    }
    size_t bit = word;
    for (std::vector<uint64_t>& level : levels_) {
      uint64_t& bits = level[bit / 64];
      bits &= ~(uint64_t{1} << (bit % 64));
      if (bits != 0) break;
      bit /= 64;
    }
    return static_cast<Rank>(word);
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;  // a bit of the next level for each word that is not 0
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_RANK_SET_H_
