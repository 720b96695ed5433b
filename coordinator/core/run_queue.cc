#include "coordinator/core/run_queue.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {

RunQueue::State RunQueue::Now() {
  const auto& live = runs_.live();
  const auto gathers = [this](uint64_t id) {
    return runs_.Find(id)->gathering() || runs_.Find(id)->returning();
  };
  const auto gathering = static_cast<size_t>(std::count_if(live.begin(), live.end(), gathers));
  std::vector<SessionId> free;
  for (const auto& [session, w] : workers_.all()) {
    if (w.free()) free.push_back(session);
  }
  return {std::move(free), workers_.Connected(), workers_.Ending().size(), live.size(),
          gathering,       runs_.next_run()};
}

void RunQueue::Order(std::vector<uint64_t>* runs) const {
  absl::btree_map<std::string, int64_t> processes;  // by owner: those that serve the owner's runs
  for (const auto& [session, w] : workers_.all()) {
    const Run* run = w.serves() ? runs_.Find(w.run) : nullptr;
    if (run != nullptr) ++processes[run->info().terms.owner];
  }
  using Key = std::tuple<bool, int32_t, int64_t, uint64_t>;
  std::vector<Key> keys;
  for (const uint64_t id : *runs) {
    const RunInfo& info = runs_.Find(id)->info();
    const bool begun = info.started_ns != 0 || info.restarts > 0;
    keys.push_back(begun ? Key{false, 0, 0, id}
                         : Key{true, -info.terms.priority, processes[info.terms.owner], id});
  }
  std::sort(keys.begin(), keys.end(), std::greater<>());
  for (size_t i = 0; i < keys.size(); ++i) (*runs)[i] = std::get<uint64_t>(keys[i]);
}

std::vector<Worker*> RunQueue::FreeFor(const Run& run) {
  std::vector<Worker*> free = workers_.Free();
  const std::set<SessionId>& own = run.placement().processes();
  std::erase_if(free, [&](const Worker* w) {
    return w->hello.pool != run.info().terms.pool && own.count(w->session) == 0;
  });
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
  for (const Worker* w : workers_.Ending()) {
    const bool comes = !w->broken && !w->reported_late && !w->leaving;
    there += comes && w->hello.pool == run.info().terms.pool ? 1 : 0;
  }
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
    std::erase_if(pass_->remaining,
                  [this](uint64_t id) { return runs_.Find(id)->state() > RunState::kWaiting; });
  }
  Order(&pass_->remaining);
  while (!pass_->remaining.empty()) {
    Run& run = *runs_.Find(pass_->remaining.back());
    pass_->remaining.pop_back();
    if (run.state() > RunState::kWaiting || run.returning()) continue;
    if (!HasOrdered(run)) run.ForgetPlacement();
    std::vector<Worker*> free = FreeFor(run);
    // Processes that keep copies of the run's state are worth more to it than others.
    const std::set<SessionId> ordered = run.placement().processes(), keepers = run.copies().Keepers();
    std::erase_if(free, [&](const Worker* w) { return !ordered.empty() && ordered.count(w->session) == 0; });
    const size_t needed = Needed(run, free.size());
    // Nobody else gets the processes of an order: such a run waits for no other one.
    const bool its_turn = pass_->holding_back.count(run.info().terms.pool) == 0 || !ordered.empty();
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
  const std::string& pool = run.info().terms.pool;
  const size_t connected = workers_.ConnectedIn(pool);
  std::string reason = absl::StrCat("needs ", needed, needed == 1 ? " worker process" : " worker processes",
                                    pool.empty() ? "" : absl::StrCat(" of pool ", pool), ", ", free,
                                    free == 1 ? " is free (" : " are free (", connected, " connected)");
  if (connected >= needed) {
    const auto [first, is_first] = pass_->holding_back.emplace(pool, run.id());
    if (!is_first) reason = absl::StrCat("behind run ", first->second, "; ", reason);
  }
  for (const Worker* w : workers_.Ending()) {
    if (w->hello.pool != pool) continue;
    absl::StrAppend(&reason, "; ", w->Label(), " has not ended run ", w->run, " yet");
  }
  run.Wait(out, std::move(reason), /*for_workers=*/connected < needed);
}

}  // namespace weft
