// The simulated world: snapshots, and the checkpoints that are made of them.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/simulation/world_run.h"

namespace weft {

void World::ExpectPieces(Process& p, const SnapshotEffect& e) {
  if (e.pieces < 1 || !p.pieces.emplace(e.step, e.pieces).second)
    Problem(absl::StrCat("the snapshot of step ", e.step, " is announced with ", e.pieces, " pieces"));
}

std::map<int, Value> World::SavedVersions(Process& p, const StartEffect& start) {
  const std::pair<Rank, int> where = {start.rank, start.job.stage};
  std::map<int, Value> saved = p.weights[where];
  if (const auto aside = p.put_aside.find(where); aside != p.put_aside.end()) saved.insert(aside->second);
  return saved;
}

// Takes a snapshot behind the update, by the rank that has made or holds the version.
void World::TakeSnapshot(Process& p, const StartEffect& start) {
  const Graph& graph = plan_->graph;
  const int step = start.job.step + 1, stage = start.job.stage;
  const int member = (graph.protocol(0).layout() == Layout::kSliced) ? start.job.member : 0;
  const std::map<int, Value> held = SavedVersions(p, start);
  for (int v = OldestRead(stage, step); v <= step; ++v) {
    const auto found = held.find(v);
    if (found == held.end() || found->second != plain_[v][stage][member]) {
      Problem(absl::StrCat("the snapshot of step ", step, " has ", found == held.end() ? "no" : "a wrong",
                           " version ", v, " of stage ", stage));
    }
  }
  if (held.rbegin()->first != step)
    Problem(absl::StrCat("the snapshot of step ", step, " is taken at version ", held.rbegin()->first));
  if (!saved_.insert({step, stage, member}).second)
    Problem(absl::StrCat("the snapshot of step ", step, " has stage ", stage, " twice"));
  const auto pieces = p.pieces.find(step);
  if (pieces == p.pieces.end()) {
    Problem(absl::StrCat("a snapshot of step ", step, " is taken that was not announced"));
  } else if (--pieces->second == 0) {
    p.pieces.erase(pieces);
    SendSaved(p, step);
  }
}

void World::SendSaved(Process& p, int step) {
  AtInAttempt(p, now_ + 1 + random_.Below(options_.save_ns), [this, &p, step] {
    const bool fails = step < options_.steps && random_.Chance(options_.failing_saves);
    if (fails) failing_.insert(step);
    WorkerEffects effects;
    p.core.OnSnapshotSaved(step, fails ? "the disk is full" : "", &effects);
    Carry(p, std::move(effects), nullptr);
    Pump(p);
  });
}

void World::Seal(Process& p, const SealEffect& e) {
  if (e.drop != (failing_.count(e.step) != 0))
    Problem(absl::StrCat("the checkpoint of step ", e.step, e.drop ? " is dropped" : " is sealed"));
  const Graph& graph = plan_->graph;
  const bool taken = e.step > 0 && e.step < options_.steps;
  for (int stage = 0; taken && stage < graph.schedule().stages; ++stage) {
    const int members =
        (graph.protocol(0).layout() == Layout::kSliced) ? static_cast<int>(graph.members(stage).size()) : 1;
    for (int m = 0; m < members; ++m) {
      if (saved_.count({e.step, stage, m}) == 0)
        Problem(absl::StrCat("the checkpoint of step ", e.step, " is sealed without stage ", stage));
    }
  }
  if (e.passing && (e.step % options_.validate_every != 0 || e.step == options_.steps))
    Problem(absl::StrCat("the snapshot of step ", e.step, " passes"));
  if (!e.passing && !(e.drop ? dropped_ : sealed_).insert(e.step).second)
    Problem(absl::StrCat("the checkpoint of step ", e.step, " is sealed twice"));
  if (e.validate && !aside_.insert(e.step).second)
    Problem(absl::StrCat("the weights of step ", e.step, " are kept aside twice"));
  const int every = options_.validate_every;
  if (e.drop && every > 0 && e.step > 0 && e.step % every == 0) validated_.insert(e.step);
  AtInAttempt(p, now_ + 1 + random_.Below(options_.save_ns), [this, &p, e] {
    WorkerEffects effects;
    p.core.OnSealed(e.step, e.drop ? "it was dropped" : "", &effects);
    Carry(p, std::move(effects), nullptr);
    Pump(p);
  });
}

void World::Validate(Process& p, int step) {
  const bool resumed = options_.first_step > 0 && step == options_.first_step;
  if (p.number != 0 || (!resumed && aside_.erase(step) == 0) || p.validating)
    Problem(absl::StrCat("step ", step, " is validated"));
  p.validating = true;
  Validation validation{1, step, 1, 2};
  const int64_t end = now_ + 1 + random_.Below(options_.validation_ns);
  if (random_.Chance(0.5)) At((now_ + end) / 2, [this, &p, validation] { SendValidation(p, validation); });
  validation.samples = 2;
  if (random_.Chance(options_.failing_validations)) validation.failure = "the data are gone";
  At(end, [this, &p, validation] {
    p.validating = false;
    if (!validated_.insert(validation.step).second)
      Problem(absl::StrCat("step ", validation.step, " is validated twice"));
    SendValidation(p, validation);
  });
}

void World::SendValidation(Process& p, const Validation& validation) {
  WorkerEffects effects;
  p.core.OnValidation(validation, &effects);
  Carry(p, std::move(effects), nullptr);
  Pump(p);
}

// Checks that every multiple, and the end, is validated before the run has finished. A run that is stopped
// leaves some out. One that is told so in its last steps finishes, and says which it leaves out.
void World::CheckValidations() {
  result_.validations = static_cast<int>(validated_.size());
  if (options_.validate_every == 0 || result_.stopped) return;
  std::set<int> wanted = {options_.steps};
  const int lead = SnapshotLead(plan_->graph);
  for (int step = std::max(1, options_.first_step); step < options_.steps; ++step) {
    const bool early =
        step > options_.first_step && options_.first_step > 0 && step < options_.first_step + lead;
    if (step % options_.validate_every == 0 && !early) wanted.insert(step);
  }
  auto last = wanted.end();
  for (int left_out = 0; options_.stop_at_ns > 0 && left_out < failed_validations_; ++left_out) {
    --last;
    if (validated_.count(*last) == 0) last = wanted.erase(last);
  }
  if (validated_ != wanted)
    Problem(absl::StrCat(validated_.size(), " of ", wanted.size(), " validations were made"));
}

// Every multiple, and both ends; no other, but for the one with which the run was stopped.
void World::CheckSnapshots() {
  std::set<int> wanted;
  const int end = result_.stopped ? stop_step_ : options_.steps;
  if (options_.first_step == 0) wanted.insert(0);
  wanted.insert(end);
  const int lead = SnapshotLead(plan_->graph);
  const int first = options_.first_step > 0 ? options_.first_step + lead : 1;
  for (int step = first; options_.snapshot_every > 0 && step < end; ++step) {
    if (step % options_.snapshot_every == 0) wanted.insert(step);
  }
  std::set<int> made = sealed_;
  made.insert(dropped_.begin(), dropped_.end());
  const bool relocates = options_.leaves + options_.drains + options_.moves + options_.kills > 0 ||
                         options_.dies_with_coordinator > 0;
  if (relocates && result_.coordinator_kills > 0) {
    // A coordinator that ends takes the wish to go on elsewhere with it, and leaves the checkpoint that was
    // announced for it.
    wanted.insert(made.begin(), made.end());
  }
  if (result_.restarts > 0) {
    // Multiples that are close behind the step from which a run goes on are left out. A run that a process
    // leaves stops behind another step.
    wanted.insert(stops_.begin(), stops_.end());
    if (made.count(end) == 0 || !std::includes(wanted.begin(), wanted.end(), made.begin(), made.end()))
      Problem(absl::StrCat(made.size(), " checkpoints were made (", absl::StrJoin(made, " "),
                           "), and not those of steps ", absl::StrJoin(wanted, " ")));
  } else if (made != wanted) {
    Problem(
        absl::StrCat(made.size(), " checkpoints were made and ", wanted.size(), " wanted, up to step ", end));
  }
  CheckValidations();
  result_.snapshots = static_cast<int>(sealed_.size());
  result_.snapshots_dropped = static_cast<int>(dropped_.size());
}

}  // namespace weft
