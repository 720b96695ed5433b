// periodic: a pattern that was planned, window after window. Any stage may be on any rank.
//
// A window of `window` ticks takes k micro-batches in. The job of micro-batch b starts b / k windows after
// the start that the pattern gives for micro-batch b mod k; in this order each rank runs its jobs, from the
// first micro-batch of the step to the last. The order alone decides how many activations are alive, so a
// rank never has more than the pattern says, whatever the durations are. The first and the last windows of a
// step lack the jobs of other steps, and are shorter for it: a step fills and drains.
//
// Without a pattern it is that of unit times with one stage a rank, which is 1f1b.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "schedules/families/family.h"

namespace weft {
namespace {

constexpr int64_t kMaxTicks = int64_t{1} << 53;  // of a start or a window

// Starts by place in the pattern, place = micro-batch of the window * S + stage.
struct PlannedPattern {
  int64_t window = 0;
  std::vector<int> placement;  // rank of each stage
  std::vector<int64_t> forward, backward;
};

absl::Status BadPattern(const std::string& parameter, absl::string_view message) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat("periodic: ", parameter, ": ", message));
  status.SetPayload(kParameterPayload, absl::Cord(parameter));
  return status;
}

// Reads whole numbers from `least` on, joined by "+".
absl::StatusOr<std::vector<int64_t>> NumbersOf(const FamilyParameters& parameters, const std::string& name,
                                               int64_t least) {
  std::vector<int64_t> numbers;
  for (const absl::string_view part : absl::StrSplit(parameters.at(name), '+')) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(part, &number) || number < least || number > kMaxTicks) {
      return BadPattern(
          name, absl::StrFormat("'%s' is not a whole number from %d to 2^53; numbers are joined by +, "
                                "as in 0+3+5",
                                part, least));
    }
    numbers.push_back(number);
  }
  return numbers;
}

// Ticks are those of a forward or a backward; stage s is on rank s.
PlannedPattern UnitPattern(int stages) {
  PlannedPattern pattern;
  pattern.window = 2;
  for (int s = 0; s < stages; ++s) {
    pattern.placement.push_back(s);
    pattern.forward.push_back(s);
    pattern.backward.push_back(2 * stages - 1 - s);
  }
  return pattern;
}

absl::Status ReadPlacement(const FamilyParameters& parameters, int stages, PlannedPattern* pattern) {
  const auto ranks = NumbersOf(parameters, "placement", 0);
  if (!ranks.ok()) return ranks.status();
  if (static_cast<int>(ranks->size()) != stages) {
    return BadPattern(
        "placement",
        absl::StrFormat("names %d ranks for %d stages; give the rank of each stage", ranks->size(), stages));
  }
  std::vector<bool> used(stages, false);
  pattern->placement.clear();
  for (const int64_t rank : *ranks) {
    if (rank < stages) used[rank] = true;
    pattern->placement.push_back(static_cast<int>(std::min<int64_t>(rank, stages)));
  }
  const int64_t most = *std::max_element(ranks->begin(), ranks->end());
  for (int64_t rank = 0; rank <= most; ++rank) {
    if (rank < stages && used[rank]) continue;
    return BadPattern("placement",
                      absl::StrFormat("leaves rank %d without a stage and names rank %d", rank, most));
  }
  return absl::OkStatus();
}

absl::StatusOr<PlannedPattern> ReadPattern(const FamilyParameters& parameters, int stages) {
  PlannedPattern pattern = UnitPattern(stages);
  if (parameters.empty()) return pattern;
  for (const char* needed : {"placement", "window", "forward", "backward"}) {
    if (parameters.contains(needed)) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("periodic needs `%s` beside its other parameters: a pattern is placement, window, "
                        "forward and backward, "
                        "as `weft plan` writes them",
                        needed));
  }
  if (absl::Status placed = ReadPlacement(parameters, stages, &pattern); !placed.ok()) return placed;
  const auto window = NumbersOf(parameters, "window", 1);
  if (!window.ok()) return window.status();
  if (window->size() != 1) return BadPattern("window", "is one number, the ticks from a window to the next");
  pattern.window = window->front();
  for (const auto& [name, starts] :
       {std::pair("forward", &pattern.forward), {"backward", &pattern.backward}}) {
    auto numbers = NumbersOf(parameters, name, 0);
    if (!numbers.ok()) return numbers.status();
    *starts = *std::move(numbers);
    if (!starts->empty() && starts->size() % stages == 0) continue;
    return BadPattern(name, absl::StrFormat("has %d starts for %d stages; give one for each stage and each "
                                            "micro-batch of a window",
                                            starts->size(), stages));
  }
  if (pattern.forward.size() != pattern.backward.size()) {
    return BadPattern("backward", absl::StrFormat("has %d starts, and forward has %d",
                                                  pattern.backward.size(), pattern.forward.size()));
  }
  return pattern;
}

// A micro-batch passes the stages one after the other, forward and back.
absl::Status CheckPasses(const PlannedPattern& pattern, int stages) {
  for (size_t first = 0; first < pattern.forward.size(); first += stages) {
    for (int s = 0; s < stages; ++s) {
      const size_t place = first + s;
      if (s + 1 < stages && pattern.forward[place + 1] < pattern.forward[place]) {
        return BadPattern("forward", absl::StrFormat("stage %d starts at %d, before stage %d at %d", s + 1,
                                                     pattern.forward[place + 1], s, pattern.forward[place]));
      }
      const int64_t before = s + 1 < stages ? pattern.backward[place + 1] : pattern.forward[place];
      if (pattern.backward[place] >= before) continue;
      return BadPattern("backward",
                        absl::StrFormat("stage %d starts at %d, before its gradient is made, at %d", s,
                                        pattern.backward[place], before));
    }
  }
  return absl::OkStatus();
}

// Two jobs of a rank never start together, in any window.
absl::Status CheckTurns(const PlannedPattern& pattern, int stages) {
  std::vector<std::tuple<int, int64_t, size_t>> turns;  // rank, instant within a window, stage
  for (size_t place = 0; place < pattern.forward.size(); ++place) {
    for (const int64_t start : {pattern.forward[place], pattern.backward[place]}) {
      turns.emplace_back(pattern.placement[place % stages], start % pattern.window, place % stages);
    }
  }
  std::sort(turns.begin(), turns.end());
  for (size_t i = 1; i < turns.size(); ++i) {
    const auto& [rank, instant, stage] = turns[i];
    const auto& [rank_before, instant_before, stage_before] = turns[i - 1];
    if (rank != rank_before || instant != instant_before) continue;
    return BadPattern("window",
                      absl::StrFormat("jobs of stage %d and of stage %d start together on rank %d, %d ticks "
                                      "into a window of %d",
                                      stage_before, stage, rank, instant, pattern.window));
  }
  return absl::OkStatus();
}

// Returns the compute jobs of each rank in the order of their planned starts.
std::vector<std::vector<Job>> OrdersOf(const PlannedPattern& pattern, int stages, int microbatches,
                                       int ranks) {
  const int batches = static_cast<int>(pattern.forward.size()) / stages;
  std::vector<std::vector<std::pair<int64_t, Job>>> timed(ranks);
  for (int b = 0; b < microbatches; ++b) {
    for (int s = 0; s < stages; ++s) {
      const size_t place = static_cast<size_t>(b % batches) * stages + s;
      const int64_t window = b / batches * pattern.window;
      auto& jobs = timed[pattern.placement[s]];
      jobs.emplace_back(window + pattern.forward[place], Job::Compute(0, s, b, JobKind::kForward));
      jobs.emplace_back(window + pattern.backward[place], Job::Compute(0, s, b, JobKind::kBackward));
    }
  }
  std::vector<std::vector<Job>> orders(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    std::sort(timed[rank].begin(), timed[rank].end());
    for (const auto& [start, job] : timed[rank]) orders[rank].push_back(job);
  }
  return orders;
}

absl::StatusOr<Schedule> Periodic(const FamilyParameters& parameters, int stages, int microbatches) {
  auto pattern = ReadPattern(parameters, stages);
  if (!pattern.ok()) return pattern.status();
  for (const auto check : {CheckPasses, CheckTurns}) {
    if (absl::Status sound = check(*pattern, stages); !sound.ok()) return sound;
  }
  // No start overflows: the last window is below 2^53 windows of a million.
  if (microbatches > kMaxTicks / pattern->window) {
    return BadPattern("window", absl::StrFormat("%d windows of %d ticks are more than 2^53", microbatches,
                                                pattern->window));
  }
  const int ranks = *std::max_element(pattern->placement.begin(), pattern->placement.end()) + 1;
  Schedule s = SizedSchedule("periodic", stages, microbatches, ranks);
  s.order = OrdersOf(*pattern, stages, microbatches, ranks);
  s.compute = s.weights = [placement = std::move(pattern->placement)](const Job& j) {
    return static_cast<Rank>(placement[j.stage]);
  };
  s.priority = PriorityByMicrobatch(stages, microbatches, false);
  return s;
}

}  // namespace

std::vector<FamilyEntry> PeriodicFamilies() {
  return {{{"periodic",
            "a planned pattern, window after window: any stage on any rank (weft plan); without one, that of "
            "1f1b",
            {{"placement", "the rank of each stage, joined by +"},
             {"window", "ticks from a window to the next"},
             {"forward",
              "ticks at which the forwards of a window start, stage by stage for each of its micro-batches"},
             {"backward", "the same for its backwards"}}},
           Periodic}};
}

}  // namespace weft
