#include "coordinator/core/run_queue.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// Returns "needs 2 worker processes of pool large".
std::string Needs(size_t processes, const std::string& pool) {
  return absl::StrCat("needs ", processes, processes == 1 ? " worker process" : " worker processes",
                      pool.empty() ? "" : absl::StrCat(" of pool ", pool));
}

// Returns what to do for a run that has not begun, if fewer workers are connected than it needs, but some
// are.
std::string Advice(size_t connected, size_t needed) {
  if (connected == 0 || connected >= needed) return "";
  const size_t missing = needed - connected;
  return absl::StrCat("; start ", missing, missing == 1 ? " more worker" : " more workers",
                      ", or submit the run with --processes ", connected);
}

}  // namespace

RunQueue::State RunQueue::Now() const {
  size_t gathering = 0;
  for (const auto& [id, run] : runs_.waiting().begun()) gathering += run->gathering() ? 1 : 0;
  for (const auto& [id, run] : runs_.active()) gathering += run->gathering() || run->returning() ? 1 : 0;
  std::vector<SessionId> free;
  for (const Worker* w : survey_.free) free.push_back(w->session);
  size_t connected = 0;
  for (const auto& [pool, count] : survey_.connected) connected += count;
  return {std::move(free),
          connected,
          survey_.ending.size(),
          runs_.live().size(),
          runs_.waiting().begun().size(),
          gathering,
          runs_.next_run()};
}

RunQueue::Pass RunQueue::Begin() {
  std::map<std::string, size_t> connected = survey_.connected;
  WaitingRuns& waiting = runs_.waiting();
  for (const auto& [pool, line] : waiting.lines()) connected.try_emplace(pool, 0);
  for (const auto& [pool, count] : connected) waiting.SetConnected(pool, count);
  Pass pass;
  for (const auto& [id, run] : waiting.begun()) pass.begun.push_back(id);
  std::reverse(pass.begun.begin(), pass.begun.end());
  return pass;
}

WaitingRuns::Processes RunQueue::ProcessesOfOwners() const {
  absl::flat_hash_map<uint64_t, int64_t> of_run;
  for (const Worker* w : survey_.taken) of_run[w->run] += w->serves() ? 1 : 0;
  WaitingRuns::Processes processes;
  for (const auto& [id, count] : of_run) {
    const Run* run = runs_.Find(id);
    if (run != nullptr && count > 0) processes[run->info().terms.owner] += count;
  }
  return processes;
}

Run* RunQueue::NextFresh() {
  if (runs_.waiting().lines().empty()) return nullptr;
  using Key = std::tuple<int32_t, int64_t, uint64_t>;
  const WaitingRuns::Processes processes = ProcessesOfOwners();
  std::optional<Key> least;
  Run* next = nullptr;
  for (const auto& [pool, line] : runs_.waiting().lines()) {
    if (pass_->holding_back.count(pool) > 0) continue;
    const std::vector<Run*> first = line.First(1, processes);
    if (first.empty()) continue;
    const QueueTerms& terms = first[0]->info().terms;
    const auto owned = processes.find(terms.owner);
    const Key key = {-terms.priority, owned == processes.end() ? 0 : owned->second, first[0]->id()};
    if (least.has_value() && *least <= key) continue;
    least = key;
    next = first[0];
  }
  return next;
}

// Returns the processes that serve a run, as another worker, that cannot share them with this one.
absl::flat_hash_set<Worker::ProcessKey> RunQueue::ProcessesOfStrangers(const Run& run) const {
  absl::flat_hash_set<Worker::ProcessKey> processes;
  absl::flat_hash_map<uint64_t, bool> shares;  // by run
  for (const Worker* w : survey_.taken) {
    if (w->run == run.id()) continue;
    const auto [known, is_new] = shares.emplace(w->run, false);
    if (is_new) {
      const Run* other = runs_.Find(w->run);
      known->second = other != nullptr && other->SharesProcessesWith(run);
    }
    if (!known->second) processes.insert(w->process_key());
  }
  return processes;
}

std::vector<Worker*> RunQueue::FreeFor(const Run& run) {
  survey_ = workers_.Survey();
  return survey_.InOrder(FreeInSurvey(run), 1);
}

std::vector<Worker*> RunQueue::FreeInSurvey(const Run& run) const {
  std::vector<Worker*> free = survey_.free;
  const std::set<SessionId>& own = run.placement().processes();
  std::erase_if(free, [&](const Worker* w) {
    return w->hello.pool != run.info().terms.pool && own.count(w->session) == 0;
  });
  const auto strangers = ProcessesOfStrangers(run);
  std::erase_if(free, [&](const Worker* w) { return strangers.contains(w->process_key()); });
  // Only a run that has begun can be ordered to processes.
  for (const WaitingRuns::Runs* runs : {&runs_.waiting().begun(), &runs_.active()}) {
    for (const auto& [id, other] : *runs) {
      const std::set<SessionId>& ordered = other->placement().processes();
      if (id != run.id() && !ordered.empty())
        std::erase_if(free, [&](const Worker* w) { return ordered.count(w->session) != 0; });
    }
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
  for (const Worker* w : survey_.ending) {
    const bool comes = !w->broken && !w->reported_late && !w->leaving;
    there += comes && w->hello.pool == run.info().terms.pool ? 1 : 0;
  }
  return std::clamp<size_t>(there, 1, wanted);
}

// Returns true while a process that leaves, or that an order takes all ranks from, has not ended the run's
// last attempt, which it does soon.
bool RunQueue::AwaitsLeaver(const Run& run) {
  return std::any_of(survey_.ending.begin(), survey_.ending.end(), [&](const Worker* w) {
    return IsEnding(*w, run) && (w->leaving || run.placement().ordered());
  });
}

RunQueue::Look RunQueue::LookAt(Run& run) {
  if (!HasOrdered(run)) run.ForgetPlacement();
  std::vector<Worker*> free = FreeInSurvey(run);
  // Processes that keep copies of the run's state are worth more to it than others.
  const std::set<SessionId> ordered = run.placement().processes(), keepers = run.copies().Keepers();
  std::erase_if(free, [&](const Worker* w) { return !ordered.empty() && ordered.count(w->session) == 0; });
  Look look{std::nullopt, free.size(), Needed(run, free.size())};
  // Nobody else gets the processes of an order: such a run waits for no other one.
  const bool its_turn = pass_->holding_back.count(run.info().terms.pool) == 0 || !ordered.empty();
  if (!its_turn || free.size() < look.needed || AwaitsLeaver(run)) return look;
  free = survey_.InOrder(std::move(free), look.needed);
  std::stable_partition(free.begin(), free.end(),
                        [&](const Worker* w) { return !w->failed_last && keepers.count(w->session) != 0; });
  free.resize(look.needed);
  SortForRanks(&free);
  look.admission = Admission{&run, std::move(free)};
  return look;
}

std::optional<RunQueue::Admission> RunQueue::Next(StepEffects& out) {
  survey_ = workers_.Survey();
  if (!pass_.has_value()) {
    if (Now() == seen_) return std::nullopt;
    pass_ = Begin();
  }
  while (!pass_->begun.empty()) {
    Run* run = runs_.Find(pass_->begun.back());
    pass_->begun.pop_back();
    if (run == nullptr || run->state() > RunState::kWaiting || run->returning()) continue;
    Look look = LookAt(*run);
    if (look.admission.has_value()) return std::move(look.admission);
    Tell(out, *run, LookAt(run->info().terms.pool), look.free, look.needed, /*advice=*/"");
  }
  while (Run* run = NextFresh()) {
    Look look = LookAt(*run);
    if (look.admission.has_value()) return std::move(look.admission);
    pass_->holding_back.emplace(run->info().terms.pool, run->id());
  }
  TellLines(out);
  pass_.reset();
  seen_ = Now();
  return std::nullopt;
}

RunQueue::Pool RunQueue::LookAt(const std::string& pool) const {
  Pool now{survey_.connected_in(pool), ""};
  for (const Worker* w : survey_.ending) {
    if (w->hello.pool == pool)
      absl::StrAppend(&now.ending, "; ", w->Label(), " has not ended run ", w->run, " yet");
  }
  return now;
}

void RunQueue::Tell(StepEffects& out, Run& run, const Pool& workers, size_t free, size_t needed,
                    const std::string& advice) {
  const std::string& pool = run.info().terms.pool;
  std::string reason = absl::StrCat(Needs(needed, pool), ", ", free, free == 1 ? " is free (" : " are free (",
                                    workers.connected, " connected)", workers.ending, advice);
  if (workers.connected >= needed) {
    const auto [first, is_first] = pass_->holding_back.emplace(pool, run.id());
    if (first->second != run.id()) reason = absl::StrCat("behind run ", first->second, "; ", reason);
  }
  run.Wait(out, std::move(reason), /*for_workers=*/workers.connected < needed);
  runs_.File(run);
}

void RunQueue::TellRoughly(StepEffects& out, Run& run, const Pool& workers) {
  const auto needed = static_cast<size_t>(run.info().processes);
  const std::string needs = Needs(needed, run.info().terms.pool);
  const bool for_workers = workers.connected < needed;
  run.Wait(out,
           for_workers ? absl::StrCat(needs, ", more than are connected")
                       : absl::StrCat("behind at least ", kExact, " other runs; ", needs),
           for_workers);
  runs_.File(run);
}

void RunQueue::TellLines(StepEffects& out) {
  if (runs_.waiting().lines().empty()) return;
  const WaitingRuns::Processes processes = ProcessesOfOwners();
  for (auto& [pool, line] : runs_.waiting().lines()) {
    std::vector<Run*> near = line.First(kExact, processes);
    for (Run* large : line.FirstOfLarge(kExact)) near.push_back(large);
    const Pool workers = LookAt(pool);
    const size_t free = near.empty() ? 0 : FreeInSurvey(*near[0]).size();
    for (Run* run : line.SetNear(near)) TellRoughly(out, *run, workers);
    for (Run* run : near) {
      const auto needed = static_cast<size_t>(run->info().processes);
      Tell(out, *run, workers, free, needed, Advice(workers.connected, needed));
    }
  }
}

}  // namespace weft
