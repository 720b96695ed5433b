#include "worker/shell/loop/launched_jobs.h"

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace weft {

std::string Describe(const LaunchedJobs::Launch& launch) {
  return absl::StrCat(Describe(launch.job), " on rank ", launch.rank);
}

void LaunchedJobs::Add(Launch launch) {
  OfRank& rank = ranks_[launch.rank];
  (launch.overlapped ? rank.overlapped : rank.in_turn).push_back(std::move(launch));
  ++size_;
}

void LaunchedJobs::Poll(std::vector<Ended>* ended) {
  if (size_ == 0) return;
  std::vector<Ended> overlapped;
  for (auto& [rank, jobs] : ranks_) {
    // Jobs beside forwards are asked first and reported last: the device's work before them has ended when
    // the others are asked.
    PollQueue(&jobs.overlapped, &overlapped);
    PollQueue(&jobs.in_turn, ended);
    std::move(overlapped.begin(), overlapped.end(), std::back_inserter(*ended));
    overlapped.clear();
  }
}

void LaunchedJobs::PollQueue(std::deque<Launch>* queue, std::vector<Ended>* ended) {
  while (!queue->empty()) {
    Launch& first = queue->front();
    const absl::StatusOr<bool> reached = first.work->Reached();
    if (reached.ok() && !*reached) return;
    Ended end;
    if (reached.ok()) {
      end.figures = first.work->figures();
    } else {
      end.status = absl::Status(reached.status().code(),
                                absl::StrCat(Describe(first), ": ", reached.status().message()));
    }
    end.launch = std::move(first);
    ended->push_back(std::move(end));
    queue->pop_front();
    --size_;
  }
}

const LaunchedJobs::Launch& LaunchedJobs::oldest() const {
  const Launch* oldest = nullptr;
  for (const auto& [rank, jobs] : ranks_) {
    for (const std::deque<Launch>* queue : {&jobs.in_turn, &jobs.overlapped}) {
      if (queue->empty()) continue;
      if (oldest == nullptr || queue->front().launched_ns < oldest->launched_ns) oldest = &queue->front();
    }
  }
  if (oldest == nullptr) {
    std::fprintf(stderr, "launched jobs: the oldest was asked for where there is none\n");
    std::abort();
  }
  return *oldest;
}

}  // namespace weft
