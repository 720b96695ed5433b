#include "worker/shell/loop/device_work.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft {

DeviceWork::Done DeviceWork::Poll(int64_t now) {
  Done done;
  launched_.Poll(&done.jobs);
  awaited_.Poll(&done.tensors);
  if (done.any()) ended_ns_ = now;
  return done;
}

std::optional<RunningJob> DeviceWork::Running(int64_t now) const {
  if (launched_.empty()) return std::nullopt;
  const LaunchedJobs::Launch& oldest = launched_.oldest();
  return RunningJob{oldest.rank, oldest.job, now - std::max(oldest.launched_ns, ended_ns_)};
}

int64_t DeviceWork::OldestSince() const {
  return launched_.empty() ? awaited_.oldest().since_ns : launched_.oldest().launched_ns;
}

absl::Status DeviceWork::NotDone(int64_t now) const {
  const std::string what = launched_.empty() ? absl::StrCat("a copy of the ", Describe(awaited_.oldest().key))
                                             : Describe(launched_.oldest());
  return absl::DeadlineExceededError(
      absl::StrFormat("%s was given to the device %.1f s ago, which has not done it", what,
                      1e-9 * static_cast<double>(now - OldestSince())));
}

std::shared_ptr<void> DeviceWork::Release() {
  std::pair used(std::move(launched_), std::move(awaited_));
  return std::make_shared<decltype(used)>(std::move(used));
}

}  // namespace weft
