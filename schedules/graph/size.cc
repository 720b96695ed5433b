#include "schedules/graph/size.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/sync/protocol.h"

namespace weft {
namespace {

constexpr int64_t kBytesOfJob = 1000;
constexpr int64_t kBytesOfTerm = 64;
constexpr int64_t kBytesOfRank = 2000;

std::string Gibibytes(int64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30));
}

absl::Status TooLarge(const std::string& what, int64_t bytes) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, " would take about ", Gibibytes(bytes), " of memory to plan, more than the limit of ",
      Gibibytes(kMaxPlanningBytes), "; use fewer micro-batches or stages"));
}

}  // namespace

int64_t PlanningSize::bytes() const {
  return kBytesOfJob * jobs + kBytesOfRank * ranks + kBytesOfTerm * terms;
}

PlanningSize SizeOf(const Schedule& s) {
  PlanningSize size;
  size.ranks = s.ranks;
  const int kinds = s.split_backward ? 3 : 2;
  std::vector<int64_t> holds(static_cast<size_t>(std::max(s.ranks, 0)),
                             -1);  // the last stage seen to be held
  for (int stage = 0; stage < s.stages; ++stage) {
    int64_t holders = 0;
    if (const auto count = s.sync->CountHolders(stage); count.has_value() || !s.weights) {
      holders = count.value_or(1);
    } else {
      for (int step = 0; step < s.period; ++step) {
        for (int b = 0; b < s.microbatches; ++b) {
          const Rank rank = s.weights(Job::Compute(step, stage, b, JobKind::kForward));
          if (rank < 0 || rank >= s.ranks || holds[rank] == stage) continue;
          holds[rank] = stage;
          ++holders;
        }
      }
    }
    size.jobs += int64_t{s.period} * (int64_t{kinds} * s.microbatches + 2 * holders);
    if (holders > 1) size.terms += holders * s.microbatches;
  }
  return size;
}

absl::Status CheckSize(const Schedule& s) {
  const PlanningSize size = SizeOf(s);
  if (size.bytes() <= kMaxPlanningBytes) return absl::OkStatus();
  return TooLarge(absl::StrCat("a step of ", s.stages, " stages, ", s.microbatches, " micro-batches and ",
                               s.ranks, " ranks has ", size.jobs, " jobs",
                               size.terms == 0 ? ""
                                               : absl::StrCat(" and ", size.terms,
                                                              " gradients to be summed by the holders of "
                                                              "the weights"),
                               ", which"),
                  size.bytes());
}

absl::Status CheckSize(int stages, int microbatches) {
  const int64_t jobs = 2 * int64_t{stages} * microbatches;
  if (jobs <= kMaxPlanningBytes / kBytesOfJob) return absl::OkStatus();
  return TooLarge(absl::StrCat("a step of ", stages, " stages and ", microbatches, " micro-batches has ",
                               jobs, " jobs, which"),
                  static_cast<int64_t>(kBytesOfJob) * jobs);
}

}  // namespace weft
