#include "coordinator/core/run_copies.h"

#include <algorithm>
#include <utility>

#include "schedules/sync/saving.h"

namespace weft {

void RunCopies::Begin(const Graph& graph, ReductionMode reduction, uint64_t epoch, int32_t first_step) {
  graph_ = &graph;
  reduction_ = reduction;
  epoch_ = epoch;
  complete_ = first_step > 0 ? first_step + SnapshotLead(graph) - 1 : 0;
  changed_ = false;
}

bool RunCopies::Take(SessionId from, const CopiesHeld& m) {
  auto found = steps_.find({m.epoch, m.step});
  if (found == steps_.end()) {
    if (!under_way() || m.epoch != epoch_) return false;
    if (m.step <= complete_) return true;  // it has been dropped
    Step step{reduction_, {}};
    for (const Job& update : SavingUpdates(*graph_, m.step))
      step.keepers[{update.stage, SliceSavedBehind(*graph_, update)}];
    found = steps_.emplace(Key(m.epoch, m.step), std::move(step)).first;
  }
  auto& keepers = found->second.keepers;
  for (const StatePart& part : m.parts) {
    const auto kept = keepers.find(part);
    if (kept != keepers.end()) kept->second.insert(from);
  }
  const bool complete =
      std::all_of(keepers.begin(), keepers.end(), [](const auto& k) { return k.second.size() > 1; });
  if (!under_way() || m.epoch != epoch_ || m.step <= complete_ || !complete) return true;
  complete_ = m.step;
  changed_ = true;
  std::erase_if(steps_, [&](const auto& s) { return s.first.first != epoch_ || s.first.second < complete_; });
  return true;
}

std::optional<int32_t> RunCopies::TakeComplete() {
  if (!std::exchange(changed_, false)) return std::nullopt;
  return complete_;
}

// One step is made while the copies of the one before are on their way. Steps overlap where micro-batches
// read old weights, and where states migrate.
int32_t RunCopies::hold() const {
  if (!under_way()) return INT32_MAX;
  return complete_ + 2 + graph_->schedule().MaxStaleness() + (graph_->route() != nullptr ? 1 : 0);
}

std::optional<RunCopies::Beginning> RunCopies::Newest(int32_t most,
                                                      const std::set<SessionId>* may_serve) const {
  std::optional<Beginning> newest;
  for (const auto& [key, step] : steps_) {
    if (key.second > most || (newest.has_value() && newest->step >= key.second)) continue;
    Beginning beginning{key.second, key.first, step.reduction, {}};
    for (const auto& [part, sessions] : step.keepers) {
      const auto keeper = std::find_if(sessions.begin(), sessions.end(), [&](SessionId session) {
        return may_serve == nullptr || may_serve->count(session) != 0;
      });
      if (keeper != sessions.end()) beginning.keepers[part] = *keeper;
    }
    if (beginning.keepers.size() == step.keepers.size()) newest = std::move(beginning);
  }
  return newest;
}

void RunCopies::Lose(SessionId session) {
  for (auto& [key, step] : steps_) {
    for (auto& [part, sessions] : step.keepers) sessions.erase(session);
  }
}

void RunCopies::Forget(int32_t step) {
  std::erase_if(steps_, [&](const auto& s) { return s.first.second == step; });
}

std::set<SessionId> RunCopies::Keepers() const {
  std::set<SessionId> all;
  for (const auto& [key, step] : steps_) {
    for (const auto& [part, sessions] : step.keepers) all.insert(sessions.begin(), sessions.end());
  }
  return all;
}

}  // namespace weft
