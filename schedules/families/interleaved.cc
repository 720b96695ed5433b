// Interleaved 1F1B (arXiv 2104.04473): v chunks of the model on each rank, micro-batches in groups that pass
// one chunk before the next. A fixed order: the greedy rule would start later micro-batches too early.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/families/family.h"

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

std::vector<Job> OrderOf(Rank rank, int ranks, int chunks, int group, const std::vector<Pass>& passes) {
  const auto forward = [&](const Pass& p) {
    return Job::Compute(0, p.chunk * ranks + rank, p.microbatch, JobKind::kForward);
  };
  const auto backward = [&](const Pass& p) {
    return Job::Compute(0, (chunks - 1 - p.chunk) * ranks + rank, p.microbatch, JobKind::kBackward);
  };
  const size_t warm_up = std::min(
      passes.size(), 2 * static_cast<size_t>(ranks - 1 - rank) + static_cast<size_t>(chunks - 1) * group);
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
  Schedule s =
      SizedSchedule(absl::StrCat("interleaved,ranks=", *ranks,
                                 parameters.contains("group") ? absl::StrCat(",group=", *group) : ""),
                    stages, microbatches, *ranks);
  s.compute = s.weights = [w = *ranks](const Job& j) { return j.stage % w; };
  s.priority = PriorityByMicrobatch(stages, microbatches, false);
  const int chunks = stages / *ranks;
  const std::vector<Pass> passes = ForwardPasses(chunks, microbatches, *group);
  for (Rank r = 0; r < *ranks; ++r) s.order.push_back(OrderOf(r, *ranks, chunks, *group, passes));
  return s;
}

}  // namespace

std::vector<FamilyEntry> InterleavedFamilies() {
  return {
      {{"interleaved",
        "the stages go round W ranks; one forward, one backward, over groups of micro-batches",
        {{"ranks", "number of ranks W; the number of stages is 2, 3, .. times W"},
         {"group", "micro-batches that pass a chunk before the next chunk begins (default W)"}}},
       Interleaved},
  };
}

}  // namespace weft
