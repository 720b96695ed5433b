#include "coordinator/core/run_queue.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {

RunQueue::State RunQueue::Now() {
  const auto& live = runs_.live();
  const auto gathers = [this](uint64_t id) {
    return runs_.Find(id)->gathering() || runs_.Find(id)->returning();
  };
  const auto gathering = static_cast<size_t>(std::count_if(live.begin(), live.end(), gathers));
  return {workers_.Free().size(), workers_.Connected(), workers_.Ending().size(), live.size(), gathering,
          runs_.next_run()};
}

// Returns the number of processes that the run waits for. One that begins again takes those that are there: a
// rank moves to a process that is free, or to one that is left. One whose coordinator was started again first
// leaves them time to come back.
size_t RunQueue::Needed(const Run& run) {
  const size_t wanted = run.info().processes;
  if (!run.takes_fewer()) return wanted;
  size_t there = workers_.Free().size();
  for (const Worker* w : workers_.Ending()) there += w->broken || w->reported_late || w->leaving ? 0 : 1;
  return std::clamp<size_t>(there, 1, wanted);
}

// Returns true while a process that leaves has not ended the run's last attempt, which it does soon.
bool RunQueue::AwaitsLeaver(const Run& run) {
  for (const Worker* w : workers_.Ending()) {
    if (w->run == run.id() && w->leaving && !w->broken && !w->reported_late) return true;
  }
  return false;
}

std::optional<RunQueue::Admission> RunQueue::Next(StepEffects& out) {
  if (!pass_.has_value()) {
    if (Now() == seen_) return std::nullopt;
    pass_ = Pass{runs_.live()};
  }
  while (pass_->next < pass_->live.size()) {
    Run& run = *runs_.Find(pass_->live[pass_->next++]);
    if (run.state() > RunState::kWaiting || run.returning()) continue;
    std::vector<Worker*> free = workers_.Free();
    const size_t needed = Needed(run);
    if (pass_->holds_back == 0 && free.size() >= needed && !AwaitsLeaver(run)) {
      // Processes that keep copies of the run's state are worth more to it than others.
      const std::set<SessionId> keepers = run.copies().Keepers();
      std::stable_partition(free.begin(), free.end(), [&](const Worker* w) {
        return !w->failed_last && keepers.count(w->session) != 0;
      });
      free.resize(needed);
      std::sort(free.begin(), free.end(),
                [](const Worker* a, const Worker* b) { return a->process < b->process; });
      return Admission{&run, std::move(free)};
    }
    Wait(out, run, free.size());
  }
  pass_.reset();
  seen_ = Now();
  return std::nullopt;
}

void RunQueue::Wait(StepEffects& out, Run& run, size_t free) {
  const size_t needed = Needed(run), connected = workers_.Connected();
  std::string reason =
      absl::StrCat("needs ", needed, needed == 1 ? " worker process, " : " worker processes, ", free,
                   free == 1 ? " is free (" : " are free (", connected, " connected)");
  if (connected >= needed) {
    if (pass_->holds_back != 0) reason = absl::StrCat("behind run ", pass_->holds_back, "; ", reason);
    if (pass_->holds_back == 0) pass_->holds_back = run.id();
  }
  for (const Worker* w : workers_.Ending())
    absl::StrAppend(&reason, "; ", w->Label(), " has not ended run ", w->run, " yet");
  run.Wait(out, std::move(reason), /*for_workers=*/connected < needed);
}

}  // namespace weft
