#include "coordinator/core/run_attempts.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/string_view.h"
#include "schedules/timeline.h"

namespace weft {
namespace {

template <class Number>
void Add(const std::map<std::string, Number>& from, std::map<std::string, Number>* to) {
  for (const auto& [name, number] : from) (*to)[name] += number;
}

void Raise(const std::map<std::string, int64_t>& from, std::map<std::string, int64_t>* to) {
  for (const auto& [name, number] : from) (*to)[name] = std::max((*to)[name], number);
}

// Adds totals and takes the larger of peaks. Present values and spans stay those of `report`.
void AddTo(const RankReport& former, RankReport* report) {
  Add(former.busy_seconds, &report->busy_seconds);
  Add(former.idle_seconds, &report->idle_seconds);
  Add(former.bytes_sent, &report->bytes_sent);
  Add(former.bytes_received, &report->bytes_received);
  Raise(former.peak_bytes, &report->peak_bytes);
  report->most_bytes = std::max(report->most_bytes, former.most_bytes);
  report->peak_activations = std::max(report->peak_activations, former.peak_activations);
  report->peak_weight_versions = std::max(report->peak_weight_versions, former.peak_weight_versions);
  report->wall_seconds += former.wall_seconds;
}

}  // namespace

void RunAttempts::Assigned(int64_t now, int ranks) {
  if (!std::exchange(assigned_, true)) {
    first_assigned_ns_ = now;
    return;
  }
  const double wall = static_cast<double>(now - first_assigned_ns_) * 1e-9;
  for (Rank rank = 0; rank < ranks; ++rank) {
    RankReport& former = former_[rank];
    const double between = wall - former.wall_seconds;
    if (between <= 0) continue;
    former.idle_seconds[std::string(IdleCauseName(IdleCause::kRecovery))] += between;
    former.wall_seconds = wall;
  }
}

void RunAttempts::Restore(const RunInfo& info, const RunFigures& figures) {
  restarts_ = info.restarts;
  losses_.Restore(figures.losses, figures.furthest);
  // A store of an earlier release has the newest alone.
  if (info.checkpoint_step >= 0) checkpoints_.insert(info.checkpoint_step);
  checkpoints_.insert(figures.checkpoints.begin(), figures.checkpoints.end());
  assigned_ = info.started_ns != 0;
  first_assigned_ns_ = info.started_ns;
  for (const RankReport& report : info.reports) former_[report.rank] = report;
  present_ = former_;
}

void RunAttempts::TakeUp(const AttemptRecord& attempt) {
  former_.clear();
  for (const RankReport& report : attempt.former) former_[report.rank] = report;
}

std::vector<RankReport> RunAttempts::Former() const {
  std::vector<RankReport> reports;
  for (const auto& [rank, report] : former_) reports.push_back(report);
  return reports;
}

void RunAttempts::Checkpointed(int32_t step) {
  checkpoints_.insert(step);
  while (static_cast<int32_t>(checkpoints_.size()) > keep_) checkpoints_.erase(checkpoints_.begin());
}

std::vector<int32_t> RunAttempts::Checkpoints() const {
  constexpr size_t kRecorded = 16;
  const auto left_out = checkpoints_.size() - std::min(checkpoints_.size(), kRecorded);
  return {std::next(checkpoints_.begin(), static_cast<std::ptrdiff_t>(left_out)), checkpoints_.end()};
}

bool RunAttempts::FallBack(int32_t damaged_step) {
  if (checkpoints_.empty() || *checkpoints_.rbegin() != damaged_step) return false;
  checkpoints_.erase(damaged_step);
  ++restarts_;
  return true;
}

bool RunAttempts::MayRestart(int32_t steps_done) {
  if (!losses_.Bear(steps_done)) return false;
  ++restarts_;
  return true;
}

void RunAttempts::Keep(RankReport report) {
  // Observers have had the spans; a history of runs would grow with them.
  report.idle_spans = {};
  report.transfer_spans = {};
  const Rank rank = report.rank;
  present_[rank] = std::move(report);
}

std::vector<RankReport> RunAttempts::Reports() const {
  std::vector<RankReport> reports;
  for (const auto& [rank, report] : present_) reports.push_back(report);
  return reports;
}

void RunAttempts::AddFormer(RankReport* report) const {
  const auto former = former_.find(report->rank);
  if (former != former_.end()) AddTo(former->second, report);
}

}  // namespace weft
