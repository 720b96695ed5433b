// Keeps a set of ranks, taken out in ascending order. Adding and taking cost the same however many ranks
// there are, within a factor of the logarithm to the base 64. Pure; not thread-safe.
#ifndef WEFT_SCHEDULES_SIMULATOR_RANK_SET_H_
#define WEFT_SCHEDULES_SIMULATOR_RANK_SET_H_

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "schedules/job.h"

namespace weft {

class RankSet {
 public:
  explicit RankSet(int ranks) {
    for (size_t words = WordsOf(static_cast<size_t>(ranks)); words > 1; words = WordsOf(words))
      levels_.emplace_back(words, 0);
  }

  bool empty() const { return top_ == 0; }
  void Add(Rank rank) {
    auto bit = static_cast<size_t>(rank);
    for (std::vector<uint64_t>& level : levels_) {
      level[bit / 64] |= uint64_t{1} << (bit % 64);
      bit /= 64;
    }
    top_ |= uint64_t{1} << (bit % 64);
  }
  // Takes the least rank out. Requires that there is one.
  Rank TakeFirst() {
    auto first = static_cast<size_t>(std::countr_zero(top_));
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level)
      first = first * 64 + static_cast<size_t>(std::countr_zero((*level)[first]));
    RemoveFirst(first);
    return static_cast<Rank>(first);
  }
  void swap(RankSet& other) {
    std::swap(top_, other.top_);
    levels_.swap(other.levels_);
  }

 private:
  static size_t WordsOf(size_t bits) { return (bits + 63) / 64; }
  // Takes out the least rank, whose bit is the lowest of its word on every level.
  void RemoveFirst(size_t rank) {
    for (std::vector<uint64_t>& level : levels_) {
      rank /= 64;
      uint64_t& bits = level[rank];
      bits &= bits - 1;
      if (bits != 0) return;
    }
    top_ &= top_ - 1;
  }

  uint64_t top_ = 0;
  // Below the top, the ranks first: a bit of the next level, or of the top, for each word that is not 0.
  std::vector<std::vector<uint64_t>> levels_;
};

}  // namespace weft

#endif  // WEFT_SCHEDULES_SIMULATOR_RANK_SET_H_
