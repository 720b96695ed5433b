// Interleaved 1F1B (arXiv 2104.04473): v chunks of the model on each rank, micro-batches in groups that pass
// one chunk before the next. A fixed order: the greedy rule would start later micro-batches too early.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/families/family.h"
#include "schedules/families/tie_rule.h"

namespace weft {
namespace {

// A chunk's pass over one micro-batch.
struct Pass {
  int chunk, microbatch;
};

// The forwards of a rank: groups of micro-batches, in each group chunk by chunk. The last group may be
// smaller. The backwards come in the same order with the chunks reversed.
std::vector<Pass> ForwardPasses(int chunks, int microbatches, int group) {
  std::vector<Pass> passes;
  passes.reserve(static_cast<size_t>(chunks) * microbatches);
  for (int first = 0; first < microbatches; first += group) {
    const int end = std::min(first + group, microbatches);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int b = first; b < end; ++b) passes.push_back({chunk, b});
    }
  }
  return passes;
}

// The forwards of a rank before its first backward, which are those that are in flight from then on, less
// one: as long as a micro-batch takes from the rank to the last stage and back, without transfers.
int WarmUpOf(Rank rank, int ranks, int chunks, int group) {
  return 2 * (ranks - 1 - rank) + (chunks - 1) * group;
}

std::vector<Job> OrderOf(Rank rank, int ranks, int chunks, size_t warm_up, const std::vector<Pass>& passes) {
  const auto forward = [&](const Pass& p) {
    return Job::Compute(0, p.chunk * ranks + rank, p.microbatch, JobKind::kForward);
  };
  const auto backward = [&](const Pass& p) {
    return Job::Compute(0, (chunks - 1 - p.chunk) * ranks + rank, p.microbatch, JobKind::kBackward);
  };
  warm_up = std::min(passes.size(), warm_up);
  std::vector<Job> order;
  order.reserve(2 * passes.size());
  for (size_t i = 0; i < warm_up; ++i) order.push_back(forward(passes[i]));
  for (size_t i = 0; i < passes.size(); ++i) {
    if (warm_up + i < passes.size()) order.push_back(forward(passes[warm_up + i]));
    order.push_back(backward(passes[i]));
  }
  return order;
}

absl::Status CheckGroup(int ranks, int microbatches, int group) {
  if (microbatches < ranks) {
    return absl::InvalidArgumentError(
        absl::StrFormat("interleaved: %d micro-batches on ranks=%d; use at least as many micro-batches as "
                        "ranks, or the first "
                        "rank waits for its next chunk",
                        microbatches, ranks));
  }
  if (group < ranks || group > microbatches) {
    return absl::InvalidArgumentError(
        absl::StrFormat("interleaved: group=%d; a group has %d to %d micro-batches: at least one per rank, "
                        "because the first rank waits for its next chunk otherwise",
                        group, ranks, microbatches));
  }
  const int rest = microbatches % group;
  if (rest != 0 && rest < ranks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "interleaved: %d micro-batches in groups of %d leave a last group of %d, fewer than "
        "the %d ranks; use another group, or a number of micro-batches that the group divides",
        microbatches, group, rest, ranks));
  }
  return absl::OkStatus();
}

absl::StatusOr<Schedule> Interleaved(const FamilyParameters& parameters, int stages, int microbatches) {
  const absl::StatusOr<int> ranks = RanksOfLoop("interleaved", parameters, stages);
  if (!ranks.ok()) return ranks.status();
  const absl::StatusOr<int> group = PositiveParameter("interleaved", parameters, "group", *ranks);
  if (!group.ok()) return group.status();
  if (absl::Status s = CheckGroup(*ranks, microbatches, *group); !s.ok()) return s;
  Schedule s = SizedSchedule(absl::StrCat("interleaved,ranks=", *ranks), stages, microbatches, *ranks);
  for (const char* name : {"group", "in_flight"}) {
    if (parameters.contains(name)) absl::StrAppend(&s.name, ",", name, "=", parameters.at(name));
  }
  const auto in_flight = ReadInFlight("interleaved", parameters, s);
  if (!in_flight.ok()) return in_flight.status();
  s.compute = s.weights = [w = *ranks](const Job& j) { return j.stage % w; };
  s.priority = PriorityByMicrobatch(stages, microbatches, false);
  const int chunks = stages / *ranks;
  const std::vector<Pass> passes = ForwardPasses(chunks, microbatches, *group);
  for (Rank r = 0; r < *ranks; ++r) {
    int warm_up = WarmUpOf(r, *ranks, chunks, *group);
    if (*in_flight) {
      warm_up = (*in_flight)(r, r).value_or(0) - 1;
      if (warm_up < 0) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "interleaved: in_flight is %d for rank %d; it must be at least 1", warm_up + 1, r));
      }
    }
    s.order.push_back(OrderOf(r, *ranks, chunks, warm_up, passes));
  }
  return s;
}

}  // namespace

std::vector<FamilyEntry> InterleavedFamilies() {
  return {
      {{"interleaved",
        "the stages go round W ranks; one forward, one backward, over groups of micro-batches",
        {{"ranks", "number of ranks W; the number of stages is 2, 3, .. times W"},
         {"group", "micro-batches that pass a chunk before the next chunk begins (default W)"},
         InFlightParameter(
             "passes of its chunks that rank w has in flight, a formula over w (default 2(W-1-w) + (v-1) "
             "group + 1)")}},
       Interleaved},
  };
}

}  // namespace weft
