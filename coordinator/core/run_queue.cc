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

std::vector<Worker*> RunQueue::FreeFor(const Run& run) {
  std::vector<Worker*> free = workers_.Free();
  for (const uint64_t id : runs_.live()) {
    const std::set<SessionId>& ordered = runs_.Find(id)->placement().processes();
    if (id != run.id() && !ordered.empty())
      std::erase_if(free, [&](const Worker* w) { return ordered.count(w->session) != 0; });
  }
  return free;
}

// Returns true if each process to which ranks of the run were ordered is there: free, or soon to be, when it
// has ended the attempt before.
bool RunQueue::HasOrdered(const Run& run) {
  const std::set<SessionId>& ordered = run.placement().processes();
  return std::all_of(ordered.begin(), ordered.end(), [&](SessionId session) {
    const Worker* w = workers_.Find(session);
    return w != nullptr && !w->failed_last && (w->free() || (IsEnding(*w, run) && !w->leaving));
  });
}

// Returns true while the worker ends an attempt of the run, and is not late with that.
bool RunQueue::IsEnding(const Worker& w, const Run& run) {
  return w.ending() && w.run == run.id() && !w.broken && !w.reported_late;
}

// Returns the number of processes that the run waits for, of which so many are free for it. One that begins
// again takes those that are there: a rank moves to a process that is free, or to one that is left. One whose
// coordinator was started again first leaves them time to come back.
size_t RunQueue::Needed(const Run& run, size_t free) {
  if (run.placement().ordered()) return run.placement().processes().size();
  const size_t wanted = run.info().processes;
  if (!run.takes_fewer()) return wanted;
  size_t there = free;
  for (const Worker* w : workers_.Ending()) there += w->broken || w->reported_late || w->leaving ? 0 : 1;
  return std::clamp<size_t>(there, 1, wanted);
}

// Returns true while a process that leaves, or that an order takes all ranks from, has not ended the run's
// last attempt, which it does soon.
bool RunQueue::AwaitsLeaver(const Run& run) {
  const std::vector<const Worker*> ending = workers_.Ending();
  return std::any_of(ending.begin(), ending.end(), [&](const Worker* w) {
    return IsEnding(*w, run) && (w->leaving || run.placement().ordered());
  });
}

std::optional<RunQueue::Admission> RunQueue::Next(StepEffects& out) {
  if (!pass_.has_value()) {
    if (Now() == seen_) return std::nullopt;
    pass_ = Pass{runs_.live()};
  }
  while (pass_->next < pass_->live.size()) {
    Run& run = *runs_.Find(pass_->live[pass_->next++]);
    if (run.state() > RunState::kWaiting || run.returning()) continue;
    if (!HasOrdered(run)) run.ForgetPlacement();
    std::vector<Worker*> free = FreeFor(run);
    // Processes that keep copies of the run's state are worth more to it than others.
    const std::set<SessionId> ordered = run.placement().processes(), keepers = run.copies().Keepers();
    std::erase_if(free, [&](const Worker* w) { return !ordered.empty() && ordered.count(w->session) == 0; });
    const size_t needed = Needed(run, free.size());
    // Nobody else gets the processes of an order: such a run waits for no other one.
    const bool its_turn = pass_->holds_back == 0 || !ordered.empty();
    if (its_turn && free.size() >= needed && !AwaitsLeaver(run)) {
      std::stable_partition(free.begin(), free.end(), [&](const Worker* w) {
        return !w->failed_last && keepers.count(w->session) != 0;
      });
      free.resize(needed);
      std::sort(free.begin(), free.end(),
                [](const Worker* a, const Worker* b) { return a->process < b->process; });
      return Admission{&run, std::move(free)};
    }
    Wait(out, run, free.size(), needed);
  }
  pass_.reset();
  seen_ = Now();
  return std::nullopt;
}

void RunQueue::Wait(StepEffects& out, Run& run, size_t free, size_t needed) {
  const size_t connected = workers_.Connected();
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
