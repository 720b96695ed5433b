#include "worker/shell/torch/weight_versions.h"

#include <algorithm>

namespace weft {

void WeightVersions::Begin(int version, Weights initial) {
  held_ = true;
  MutexLock lock(mutex_);
  versions_.emplace_back(version, std::move(initial));
}

void WeightVersions::Install(Numbered versions) {
  held_ = true;
  MutexLock lock(mutex_);
  versions_ = std::move(versions);
}

WeightVersions::Numbered WeightVersions::Release() {
  held_ = false;
  MutexLock lock(mutex_);
  return std::exchange(versions_, {});
}

WeightVersions::Weights WeightVersions::At(int version) const {
  MutexLock lock(mutex_);
  for (const auto& [number, weights] : versions_) {
    if (number == version) return weights;
  }
  return nullptr;
}

WeightVersions::Weights WeightVersions::newest() const {
  MutexLock lock(mutex_);
  return versions_.empty() ? nullptr : versions_.back().second;
}

int WeightVersions::newest_version() const {
  MutexLock lock(mutex_);
  return versions_.back().first;
}

void WeightVersions::Add(Weights next, bool keep) {
  Weights replaced;  // freed after the lock
  MutexLock lock(mutex_);
  const int version = versions_.back().first + 1;
  if (!keep) {
    replaced = std::move(versions_.back().second);
    versions_.pop_back();
  }
  versions_.emplace_back(version, std::move(next));
}

WeightVersions::Weights WeightVersions::Drop(int version) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(versions_.begin(), versions_.end(),
                                  [version](const auto& v) { return v.first == version; });
  if (found == versions_.end() || version == versions_.back().first) return nullptr;
  Weights dropped = std::move(found->second);
  versions_.erase(found);
  return dropped;
}

}  // namespace weft
