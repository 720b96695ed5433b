#include "planner/least_period.h"

#include <algorithm>
#include <map>
#include <utility>

#include "planner/pattern_check.h"

namespace weft {
namespace {

// Returns the pattern that runs one batch at a time.
Pattern SerialPattern(const PatternProblem& problem) {
  Pattern pattern;
  pattern.period = ChainTicks(problem) * problem.batches;
  int64_t at = 0;
  for (const PatternTask& task : problem.tasks) {
    pattern.starts.push_back(at);
    at += task.duration + task.lag;
  }
  return pattern;
}

bool FitsMemory(const PatternProblem& problem, const Pattern& pattern) {
  const std::vector<int64_t> peaks = PatternPeaks(problem, pattern);
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    if (peaks[rank] > problem.memory[rank]) return false;
  }
  return true;
}

// Keeps the best pattern and the bounds while the periods are bisected.
class Bisection {
 public:
  Bisection(const PatternProblem& problem, const SearchLimits& limits, int64_t below)
      : problem_(problem), limits_(limits), below_(below) {
    result_.lower_bound = tried_ = LoadBound(problem);
  }

  LeastPeriod Run() {
    if (result_.lower_bound >= below_) {
      result_.lower_bound = below_;
      return std::move(result_);
    }
    Offer(PackedPattern(problem_));
    if (!result_.pattern.has_value()) OfferLongest();
    // Bisecting would come last to a least period that is that of the loads.
    if (result_.pattern.has_value() && tried_ < result_.pattern->period) Ask(tried_);
    while (result_.pattern.has_value() && tried_ < result_.pattern->period && !limits_.stop()) {
      Ask(tried_ + (result_.pattern->period - tried_) / 2);
    }
    return std::move(result_);
  }

 private:
  void Offer(const Pattern& pattern) {
    if (pattern.period < below_ && FitsMemory(problem_, pattern))
      result_.pattern = Compressed(problem_, pattern);
  }

  // Finds any pattern below `below_`, or proves that there is none.
  void OfferLongest() {
    const Pattern serial = SerialPattern(problem_);
    if (serial.period < below_) {
      Offer(serial);
      if (!result_.pattern.has_value()) result_.lower_bound = kNoPeriod;
      return;
    }
    if (FindAt(below_ - 1) == Verdict::kImpossible) result_.lower_bound = below_;
  }

  Verdict FindAt(int64_t period) {
    const ShiftSearchResult found = FindPattern(problem_, period, limits_);
    if (found.verdict == Verdict::kFound) result_.pattern = Compressed(problem_, found.pattern);
    return found.verdict;
  }

  void Ask(int64_t period) {
    const Verdict verdict = FindAt(period);
    if (verdict == Verdict::kFound) return;
    tried_ = period + 1;
    if (verdict == Verdict::kImpossible) result_.lower_bound = tried_;
  }

  const PatternProblem& problem_;
  const SearchLimits& limits_;
  const int64_t below_;
  LeastPeriod result_;
  int64_t tried_;  // nothing was found below it
};

}  // namespace

LeastPeriod FindLeastPeriod(const PatternProblem& problem, const SearchLimits& limits, int64_t below) {
  return Bisection(problem, limits, below).Run();
}

Pattern PackedPattern(const PatternProblem& problem) {
  std::map<int, int64_t> packed;  // ticks of each resource that are taken
  std::vector<int64_t> places;    // of the tasks in a window
  for (const PatternTask& task : problem.tasks) {
    int64_t place = 0;
    for (const int resource : task.resources) place = std::max(place, packed[resource]);
    for (const int resource : task.resources) packed[resource] = place + task.duration;
    places.push_back(place);
  }
  Pattern pattern;
  pattern.period = LoadBound(problem);
  for (const auto& [resource, ticks] : packed) pattern.period = std::max(pattern.period, ticks);
  for (size_t task = 0; task < problem.tasks.size(); ++task) {
    int64_t earliest = places[task];
    if (problem.FollowsPrevious(static_cast<int>(task))) {
      const PatternTask& before = problem.tasks[task - 1];
      earliest = pattern.starts.back() + before.duration + before.lag;
    }
    const int64_t windows = -FloorDiv(places[task] - earliest, pattern.period);
    const bool free = problem.tasks[task].resources.empty();
    pattern.starts.push_back(free ? earliest : places[task] + windows * pattern.period);
  }
  return pattern;
}

std::vector<int64_t> LeastMemory(const PatternProblem& problem) {
  return PatternPeaks(problem, SerialPattern(problem));
}

}  // namespace weft
