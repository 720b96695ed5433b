#include "coordinator/core/waiting_runs.h"

#include <algorithm>

namespace weft {
namespace {

// Adds the first runs of several owners, by number.
void Merge(const std::vector<const WaitingRuns::Runs*>& owners, size_t most, std::vector<Run*>* first) {
  std::vector<Run*> merged;
  for (const WaitingRuns::Runs* runs : owners) {
    size_t taken = first->size();
    for (auto it = runs->begin(); it != runs->end() && taken < most; ++it, ++taken)
      merged.push_back(it->second);
  }
  std::sort(merged.begin(), merged.end(), [](const Run* a, const Run* b) { return a->id() < b->id(); });
  if (merged.size() > most - first->size()) merged.resize(most - first->size());
  first->insert(first->end(), merged.begin(), merged.end());
}

}  // namespace

std::vector<Run*> WaitingRuns::Line::First(size_t most, const Processes& processes) const {
  std::vector<Run*> first;
  for (const auto& [priority, owners] : turns_) {
    std::map<int64_t, std::vector<const Runs*>> by_processes;
    for (const auto& [owner, runs] : owners) {
      const auto found = processes.find(owner);
      by_processes[found == processes.end() ? 0 : found->second].push_back(&runs);
    }
    for (const auto& [count, alike] : by_processes) {
      if (first.size() >= most) return first;
      Merge(alike, most, &first);
    }
  }
  return first;
}

std::vector<Run*> WaitingRuns::Line::FirstOfLarge(size_t most) const {
  std::vector<Run*> first;
  for (const auto& [processes, runs] : large_) {
    for (const auto& [id, run] : runs) {
      if (first.size() >= most) return first;
      first.push_back(run);
    }
  }
  return first;
}

std::vector<Run*> WaitingRuns::Line::SetNear(const std::vector<Run*>& near) {
  Runs others = std::exchange(untold_, {});
  others.merge(near_);
  near_.clear();
  for (Run* run : near) {
    others.erase(run->id());
    near_.emplace(run->id(), run);
  }
  std::vector<Run*> told;
  for (const auto& [id, run] : others) told.push_back(run);
  return told;
}

void WaitingRuns::Line::Add(Run* run) {
  const RunInfo& info = run->info();
  Runs& side =
      info.processes > connected_ ? large_[info.processes] : turns_[info.terms.priority][info.terms.owner];
  if (side.emplace(run->id(), run).second) untold_.emplace(run->id(), run);
}

void WaitingRuns::Line::Remove(const Run& run) {
  const RunInfo& info = run.info();
  untold_.erase(run.id());
  near_.erase(run.id());
  if (const auto large = large_.find(info.processes); large != large_.end()) {
    large->second.erase(run.id());
    if (large->second.empty()) large_.erase(large);
  }
  const auto owners = turns_.find(info.terms.priority);
  if (owners == turns_.end()) return;
  const auto runs = owners->second.find(info.terms.owner);
  if (runs == owners->second.end()) return;
  runs->second.erase(run.id());
  if (runs->second.empty()) owners->second.erase(runs);
  if (owners->second.empty()) turns_.erase(owners);
}

// Moves the runs to the other side for which the workers have become enough, or too few.
void WaitingRuns::Line::SetConnected(int32_t connected) {
  std::vector<Run*> moved;
  if (connected > connected_) {
    for (auto it = large_.begin(); it != large_.end() && it->first <= connected; ++it) {
      for (const auto& [id, run] : it->second) moved.push_back(run);
    }
  } else {
    for (const auto& [priority, owners] : turns_) {
      for (const auto& [owner, runs] : owners) {
        for (const auto& [id, run] : runs) {
          if (run->info().processes > connected) moved.push_back(run);
        }
      }
    }
  }
  for (const Run* run : moved) Remove(*run);
  connected_ = connected;
  for (Run* run : moved) Add(run);
}

bool WaitingRuns::HasBegun(const Run& run) {
  return run.info().started_ns != 0 || run.info().restarts > 0 || run.takes_fewer() || run.gathering();
}

void WaitingRuns::Add(Run* run) {
  if (!dues_.Set(run->id(), run->next_due())) return;
  if (HasBegun(*run)) {
    begun_.emplace(run->id(), run);
    return;
  }
  Line& line = lines_[run->info().terms.pool];
  const auto connected = connected_.find(run->info().terms.pool);
  line.connected_ = connected == connected_.end() ? 0 : connected->second;
  line.Add(run);
}

void WaitingRuns::Remove(const Run& run) {
  if (!dues_.Remove(run.id())) return;
  if (begun_.erase(run.id()) > 0) return;
  const auto line = lines_.find(run.info().terms.pool);
  line->second.Remove(run);
  if (line->second.empty()) lines_.erase(line);
}

void WaitingRuns::SetConnected(const std::string& pool, size_t connected) {
  const auto count = static_cast<int32_t>(connected);
  int32_t& known = connected_[pool];
  if (known == count) return;
  known = count;
  if (const auto line = lines_.find(pool); line != lines_.end()) line->second.SetConnected(count);
  if (count == 0) connected_.erase(pool);
}

bool WaitingRuns::WaitsFor(const std::string& pool) const {
  if (lines_.count(pool) > 0) return true;
  return std::any_of(begun_.begin(), begun_.end(),
                     [&](const auto& entry) { return entry.second->info().terms.pool == pool; });
}

}  // namespace weft
