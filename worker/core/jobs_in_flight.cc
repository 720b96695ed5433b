#include "worker/core/jobs_in_flight.h"

#include <algorithm>

#include "base/require.h"

namespace weft {

void JobsInFlight::Start(int64_t now, JobId id, bool overlapped, bool begins) {
  JobId& thread = overlapped ? overlapped_job_ : running_;
  Require(thread < 0, "a rank's thread has one job at a time");
  thread = id;
  jobs_.push_back({id, overlapped, false, begins, {now, 0}});
}

void JobsInFlight::Launch(JobId id) {
  Require(running_ == id || overlapped_job_ == id, "only a started job is launched");
  (running_ == id ? running_ : overlapped_job_) = -1;
  std::find_if(jobs_.begin(), jobs_.end(), [&](const InFlight& job) {
    return job.id == id && !job.launched;
  })->launched = true;
}

// Ends a job in flight. The device does the later one of two jobs behind the other, or beside it: so the one
// that ended may overlap with those that started before it, and with those that started beside it.
RankClock::Given JobsInFlight::End(JobId id, bool launched, bool* overlapped) {
  const auto ended = std::find_if(jobs_.begin(), jobs_.end(), [&](const InFlight& job) {
    return job.id == id && job.launched == launched;
  });
  Require(ended != jobs_.end(), "only a started job ends");
  if (!launched) (running_ == id ? running_ : overlapped_job_) = -1;
  const RankClock::Given given = ended->given;
  const auto next = jobs_.erase(ended);
  *overlapped = next != jobs_.begin() || (next != jobs_.end() && next->overlapped);
  return given;
}

void JobsInFlight::NoteMade(JobId id, int64_t made) {
  for (InFlight& job : jobs_) {
    if (job.id == id) job.given.inputs_made = std::max(job.given.inputs_made, made);
  }
}

int JobsInFlight::CountComputing(bool overlapped) const {
  return static_cast<int>(std::count_if(jobs_.begin(), jobs_.end(), [&](const InFlight& job) {
    return job.overlapped == overlapped && !job.begins;
  }));
}

JobId JobsInFlight::newest_in_turn() const {
  const auto newest =
      std::find_if(jobs_.rbegin(), jobs_.rend(), [](const InFlight& job) { return !job.overlapped; });
  return newest == jobs_.rend() ? -1 : newest->id;
}

}  // namespace weft
