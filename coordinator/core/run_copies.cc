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
  FindComplete();
}

bool RunCopies::Take(SessionId from, const CopiesHeld& m) {
  auto found = steps_.find({m.epoch, m.step});
  if (found == steps_.end()) {
    if (!under_way() || m.epoch != epoch_) return false;
    if (m.step <= complete_) return true;  // it has been dropped
    StepWith(*graph_, {m.epoch, m.step}, reduction_);
    found = steps_.find({m.epoch, m.step});
  }
  Add(&found->second, from, m.parts);
  FindComplete();
  return true;
}

void RunCopies::TakeAgain(const Graph& graph, SessionId from, const CopiesHeld& m) {
  Add(&StepWith(graph, {m.epoch, m.step}, m.reduction), from, m.parts);
  FindComplete();
}

RunCopies::Step& RunCopies::StepWith(const Graph& graph, const Key& key, ReductionMode reduction) {
  const auto [step, is_new] = steps_.try_emplace(key);
  if (!is_new) return step->second;
  step->second.reduction = reduction;
  for (const Job& update : SavingUpdates(graph, key.second))
    step->second.keepers[{update.stage, SliceSavedBehind(graph, update)}];
  return step->second;
}

void RunCopies::Add(Step* step, SessionId from, const std::vector<StatePart>& parts) {
  for (const StatePart& part : parts) {
    const auto kept = step->keepers.find(part);
    if (kept != step->keepers.end()) kept->second.insert(from);
  }
}

void RunCopies::FindComplete() {
  if (!under_way()) return;
  const int32_t before = complete_;
  for (const auto& [key, step] : steps_) {
    const auto is_twice = [](const auto& k) { return k.second.size() > 1; };
    if (key.first == epoch_ && std::all_of(step.keepers.begin(), step.keepers.end(), is_twice))
      complete_ = std::max(complete_, key.second);
  }
  if (complete_ == before) return;
  changed_ = true;
  keepers_then_ = Keepers();
  std::erase_if(steps_, [&](const auto& s) { return s.first.first != epoch_ || s.first.second < complete_; });
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
