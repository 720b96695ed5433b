#include "planner/smallest_peak.h"

#include <algorithm>
#include <utility>

#include "planner/least_period.h"
#include "planner/pattern_check.h"

namespace weft {
namespace {

int64_t Most(const std::vector<int64_t>& bytes) { return *std::max_element(bytes.begin(), bytes.end()); }

class MemoryBisection {
 public:
  MemoryBisection(PatternProblem problem, int64_t period, const SearchLimits& limits, int64_t most)
      : problem_(std::move(problem)), period_(period), limits_(limits), most_(most) {
    result_.lower_bound = tried_ = Most(weft::LeastMemory(problem_));
  }

  SmallestPeak Run() {
    if (LoadBound(problem_) > period_) return std::move(result_);
    // Tasks in a row need no search, and memory enough for them is a good place to begin.
    const Pattern packed = PackedPattern(problem_);
    const int64_t enough = packed.period <= period_ ? Most(PatternPeaks(problem_, packed)) : kUnlimitedBytes;
    if (tried_ <= most_) Ask(std::min(enough, most_));
    while (result_.pattern.has_value() && tried_ < result_.bytes && !limits_.stop()) {
      Ask(tried_ + (result_.bytes - tried_) / 2);
    }
    return std::move(result_);
  }

 private:
  void Ask(int64_t bytes) {
    std::fill(problem_.memory.begin(), problem_.memory.end(), bytes);
    ShiftSearchResult found = FindPattern(problem_, period_, limits_);
    if (found.verdict == Verdict::kFound) {
      result_.bytes = Most(PatternPeaks(problem_, found.pattern));
      result_.pattern = std::move(found.pattern);
      return;
    }
    tried_ = bytes + 1;
    if (found.verdict == Verdict::kImpossible) result_.lower_bound = tried_;
  }

  PatternProblem problem_;
  const int64_t period_;
  const SearchLimits& limits_;
  const int64_t most_;
  SmallestPeak result_;
  int64_t tried_;  // nothing was found below it
};

}  // namespace

SmallestPeak FindSmallestPeak(PatternProblem problem, int64_t period, const SearchLimits& limits,
                              int64_t most) {
  return MemoryBisection(std::move(problem), period, limits, most).Run();
}

}  // namespace weft
