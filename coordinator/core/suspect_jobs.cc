#include "coordinator/core/suspect_jobs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr size_t kLossesKept = 8;
constexpr size_t kJobsNamed = 4;

}  // namespace

void SuspectJobs::Lost(ProcessLoss loss, const std::vector<Job>& in_hand) {
  if (in_hand.empty()) return;
  std::erase_if(suspects_,
                [&](const Job& job) { return std::count(in_hand.begin(), in_hand.end(), job) == 0; });
  if (suspects_.empty()) {
    losses_.clear();
    suspects_ = in_hand;
  }
  if (losses_.size() == kLossesKept) losses_.erase(losses_.begin());
  losses_.push_back(std::move(loss));
}

void SuspectJobs::Clear(const Job& job) {
  std::erase(suspects_, job);
  if (suspects_.empty()) losses_.clear();
}

int32_t SuspectJobs::watched_before() const {
  int32_t steps = 0;
  for (const Job& job : suspects_) steps = std::max(steps, job.step + 1);
  return steps;
}

bool SuspectJobs::Poisoned(int losses) const {
  const auto is_other = [&](const ProcessLoss& loss) { return loss.process != losses_[0].process; };
  return static_cast<int>(losses_.size()) >= losses && std::any_of(losses_.begin(), losses_.end(), is_other);
}

std::string SuspectJobs::Describe() const {
  std::string text =
      absl::StrCat("quarantined: ", losses_.size(), " processes in a row were lost with the same ",
                   suspects_.size() == 1 ? "job" : "jobs", " in hand, which none of them finished: ");
  for (size_t i = 0; i < suspects_.size() && i < kJobsNamed; ++i)
    absl::StrAppend(&text, i == 0 ? "" : ", ", weft::Describe(suspects_[i]));
  if (suspects_.size() > kJobsNamed) absl::StrAppend(&text, " and ", suspects_.size() - kJobsNamed, " more");
  for (const ProcessLoss& loss : losses_) {
    absl::StrAppend(&text, "; ", loss.process, ": ", loss.how,
                    loss.wrote.empty() ? "" : absl::StrCat(" (before that it wrote: ", loss.wrote, ")"));
  }
  return text;
}

}  // namespace weft
