#include "planner/pattern_check.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_format.h"

namespace weft {
namespace {

// Returns so many windows that the last ones are like all that would follow: the longest batch spans fewer.
int64_t PlayedWindows(const PatternProblem& problem, const Pattern& pattern) {
  int64_t first = pattern.starts[0], last = 0;
  for (size_t task = 0; task < problem.tasks.size(); ++task) {
    first = std::min(first, pattern.starts[task]);
    last = std::max(last, pattern.starts[task] + problem.tasks[task].duration);
  }
  return (last - first) / pattern.period + 3;
}

absl::Status CheckShape(const PatternProblem& problem, const Pattern& pattern) {
  if (pattern.period < 1 || pattern.starts.size() != problem.tasks.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("a pattern of period %d has %d starts for %d tasks",
                                                      pattern.period, pattern.starts.size(),
                                                      problem.tasks.size()));
  }
  return absl::OkStatus();
}

absl::Status CheckPrecedence(const PatternProblem& problem, const Pattern& pattern) {
  for (size_t task = 1; task < problem.tasks.size(); ++task) {
    if (!problem.FollowsPrevious(static_cast<int>(task))) continue;
    const PatternTask& before = problem.tasks[task - 1];
    const int64_t earliest = pattern.starts[task - 1] + before.duration + before.lag;
    if (pattern.starts[task] >= earliest) continue;
    return absl::InvalidArgumentError(absl::StrFormat("%s starts at %d, but what %s leaves is there at %d",
                                                      problem.tasks[task].name, pattern.starts[task],
                                                      before.name, earliest));
  }
  return absl::OkStatus();
}

absl::Status CheckResources(const PatternProblem& problem, const Pattern& pattern) {
  using Interval = std::tuple<int64_t, int64_t, int>;  // start, end, task
  std::map<int, std::vector<Interval>> occupied;
  const int64_t windows = PlayedWindows(problem, pattern);
  for (size_t task = 0; task < problem.tasks.size(); ++task) {
    for (const int resource : problem.tasks[task].resources) {
      for (int64_t i = 0; i < windows; ++i) {
        const int64_t start = pattern.starts[task] + i * pattern.period;
        occupied[resource].emplace_back(start, start + problem.tasks[task].duration, static_cast<int>(task));
      }
    }
  }
  for (auto& [resource, intervals] : occupied) {
    std::sort(intervals.begin(), intervals.end());
    for (size_t i = 1; i < intervals.size(); ++i) {
      const auto& [start, end, task] = intervals[i];
      const auto& [start_before, end_before, task_before] = intervals[i - 1];
      if (start >= end_before) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s at %d starts while %s occupies the same resource from %d to %d", problem.tasks[task].name,
          start, problem.tasks[task_before].name, start_before, end_before));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int64_t> PatternPeaks(const PatternProblem& problem, const Pattern& pattern) {
  // Times at which bytes come or go, by rank. Bytes that go at an instant go before those that come.
  std::vector<std::vector<std::pair<int64_t, int64_t>>> changes(problem.ranks());
  const int64_t windows = PlayedWindows(problem, pattern);
  for (const PatternHold& hold : problem.holds) {
    const int64_t from = pattern.starts[hold.first];
    const int64_t to = pattern.starts[hold.last] + problem.tasks[hold.last].duration;
    for (int64_t i = 0; i < windows; ++i) {
      changes[hold.rank].emplace_back(from + i * pattern.period, hold.bytes);
      changes[hold.rank].emplace_back(to + i * pattern.period, -hold.bytes);
    }
  }
  std::vector<int64_t> peaks = problem.resident;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    std::sort(changes[rank].begin(), changes[rank].end());
    int64_t bytes = problem.resident[rank];
    for (const auto& [time, change] : changes[rank]) {
      bytes += change;
      peaks[rank] = std::max(peaks[rank], bytes);
    }
  }
  return peaks;
}

absl::Status CheckPattern(const PatternProblem& problem, const Pattern& pattern) {
  for (const auto check : {CheckShape, CheckPrecedence, CheckResources}) {
    if (absl::Status sound = check(problem, pattern); !sound.ok()) return sound;
  }
  const std::vector<int64_t> peaks = PatternPeaks(problem, pattern);
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    if (peaks[rank] <= problem.memory[rank]) continue;
    return absl::InvalidArgumentError(absl::StrFormat("rank %d has %d bytes at its peak; its memory is %d",
                                                      rank, peaks[rank], problem.memory[rank]));
  }
  return absl::OkStatus();
}

}  // namespace weft
