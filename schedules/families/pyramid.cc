// The cyclic order on a rank for each activation that it holds: stage s on N-s ranks, over which the
// micro-batches rotate (arXiv 2403.08837).
//
// Stage s is visited by a micro-batch for 2(N-s) ticks and comes to the next every 2 ticks, so N-s ranks have
// one each at any time. The rank that a micro-batch of step t meets depends on t: the placement repeats when
// all stages have come round.
#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/strings/str_format.h"
#include "schedules/families/cyclic.h"
#include "schedules/families/family.h"

namespace weft {
namespace {

// Steps after which every stage's micro-batches meet the same ranks again; at most `most` + 1.
int64_t PeriodOf(int n, int64_t most) {
  int64_t period = 1;
  for (int ranks = 1; ranks <= n && period <= most; ++ranks) {
    const int64_t turns = ranks / std::gcd(n, ranks);
    period = std::lcm(period, turns);
  }
  return std::min(period, most + 1);
}

absl::StatusOr<Schedule> Pyramid(const FamilyParameters&, int stages, int microbatches) {
  if (stages != microbatches) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cdp_mp: in the cyclic order one micro-batch at a time visits each stage; so the "
                        "numbers of stages and micro-batches must be equal; they are %d and %d",
                        stages, microbatches));
  }
  const int n = stages;
  constexpr int64_t kMaxScheduleJobs = 200'000;
  const int64_t jobs = int64_t{5} * n * n / 2 + n;  // forwards, backwards and updates of a step
  const int64_t period = PeriodOf(n, kMaxScheduleJobs / jobs);
  if (period * jobs > kMaxScheduleJobs) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cdp_mp: with %d stages, the steps until micro-batches meet the same ranks again "
                        "have more than %d jobs; use fewer stages",
                        n, kMaxScheduleJobs));
  }
  Schedule s = SizedSchedule("cdp_mp", n, n, n * (n + 1) / 2);
  s.compute = s.weights = [n](const Job& j) {
    const int first = j.stage * n - j.stage * (j.stage - 1) / 2;
    return static_cast<Rank>(first + (int64_t{j.step} * n + j.microbatch) % (n - j.stage));
  };
  s.priority = PriorityByMicrobatch(n, n, false);
  s.period = static_cast<int>(period);
  GiveCyclicOrder(&s);
  return s;
}

}  // namespace

std::vector<FamilyEntry> PyramidFamilies() {
  return {{{"cdp_mp",
            "cyclic order on N(N+1)/2 ranks: stage s is on N-s of them, and each holds one activation",
            {},
            true,
            true,
            "cdp_v2"},
           Pyramid}};
}

}  // namespace weft
