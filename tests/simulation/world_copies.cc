// The simulated world: copies of the state in the memory of processes.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "schedules/sync/saving.h"
#include "tests/simulation/world_run.h"
#include "worker/core/state_copies.h"

namespace weft {
namespace {

std::string Describe(int step, const StatePart& part) {
  return absl::StrCat("part ", part.part, " of stage ", part.stage, " behind step ", step);
}

}  // namespace

// Takes a copy behind the update, by the rank that saves the stage. All copies of a process are made a little
// later.
void World::TakeCopy(Process& p, const StartEffect& start) {
  const int step = start.job.step + 1;
  const StatePart part{start.job.stage, SliceSavedBehind(plan_->graph, start.job)};
  const std::map<int, Value> held = SavedVersions(p, start);
  std::map<int, Value> copy;
  for (int v = OldestRead(part.stage, step); v <= step; ++v) {
    const auto found = held.find(v);
    if (found == held.end() || found->second != plain_[v][part.stage][part.part])
      return Problem(absl::StrCat("the copy of ", Describe(step, part), " lacks version ", v));
    copy[v] = found->second;
  }
  if (!p.copies.emplace(CopyKey(epoch_, step, part), std::move(copy)).second)
    Problem(absl::StrCat("the copy of ", Describe(step, part), " is taken twice"));
  const auto to_come = p.copies_to_come.find(step);
  if (to_come == p.copies_to_come.end())
    return Problem(absl::StrCat("the copy of ", Describe(step, part), " was not expected"));
  if (--to_come->second > 0) return;
  p.copies_to_come.erase(to_come);
  AtInAttempt(p, now_ + 1 + random_.Below(options_.save_ns), [this, &p, step] {
    WorkerEffects effects;
    p.core.OnCopiesMade(now_, step, "", &effects);
    Carry(p, std::move(effects), nullptr);
    Pump(p);
  });
}

World::CopyKey World::KeyOfCopy(const Process& p, const TensorKey& key) const {
  return {key.begins_attempt() ? p.copies_epoch : key.epoch, key.step, key.copied_part()};
}

Value World::CopyToSend(Process& p, const TensorKey& key) {
  const auto found = p.copies.find(KeyOfCopy(p, key));
  if (found == p.copies.end()) {
    Problem(absl::StrCat("process ", p.number, " does not keep ", Describe(key.step, key.copied_part())));
    return 0;
  }
  const Value value = random_.Next();
  sent_copies_[value] = found->second;
  return value;
}

void World::KeepArrived(Process& p, const TensorKey& key, Value value) {
  // One that begins an attempt may be here since it was made.
  const auto& [kept, is_new] = p.copies.emplace(KeyOfCopy(p, key), sent_copies_[value]);
  if (!is_new && (!key.begins_attempt() || kept->second != sent_copies_[value]))
    Problem(absl::StrCat(Describe(key.step, key.copied_part()), " came to process ", p.number, " twice"));
}

// Begins with copies: each stage whole, or the rank's slice, with every version that the first steps read.
void World::ResumeWith(Process& p, const ResumeEffect& e) {
  if (e.step != first_step_)
    Problem(absl::StrCat("copies of step ", e.step, " are to begin step ", first_step_));
  for (const ResumeEffect::Stage& s : e.stages) {
    for (const StatePart& part : s.parts) {
      const auto found = p.copies.find(CopyKey(e.epoch, e.step, part));
      bool is_right = found != p.copies.end();
      for (int v = OldestRead(s.stage, e.step); is_right && v <= e.step; ++v)
        is_right = found->second.count(v) != 0 && found->second.at(v) == plain_[v][s.stage][part.part];
      if (!is_right) Problem(absl::StrCat("rank ", s.rank, " cannot begin with ", Describe(e.step, part)));
      if (!is_right || plan_->graph.route() != nullptr) continue;
      std::map<int, Value>& held = p.weights[{s.rank, s.stage}];
      held = found->second;
      held.erase(held.upper_bound(NewestAtBegin(s.rank, s.stage)), held.end());
    }
  }
  AtInAttempt(p, now_ + 1 + random_.Below(options_.save_ns), [this, &p] {
    WorkerEffects effects;
    p.core.OnResumed(now_, &effects);
    Carry(p, std::move(effects), nullptr);
    Pump(p);
  });
}

void World::DropCopies(Process& p, const DropCopiesEffect& e) {
  std::erase_if(p.copies, [&](const auto& copy) {
    return std::get<0>(copy.first) != e.epoch || std::get<1>(copy.first) < e.step;
  });
}

}  // namespace weft
