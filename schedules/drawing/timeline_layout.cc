#include "schedules/drawing/timeline_layout.h"

#include "absl/strings/str_cat.h"

namespace weft {

namespace {

std::vector<DrawnJob> ByRankAndStart(absl::Span<const DrawnJob> jobs) {
  std::vector<DrawnJob> sorted(jobs.begin(), jobs.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const DrawnJob& a, const DrawnJob& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.start < b.start;
  });
  return sorted;
}

}  // namespace

TimelineLayout::TimelineLayout(absl::Span<const DrawnJob> jobs, const DrawingOptions& options)
    : jobs_(ByRankAndStart(jobs)), planned_(ByRankAndStart(options.planned)), options_(options) {
  if (!jobs_.empty()) begin_ = end_ = jobs_.front().start;
  for (const DrawnJob& j : jobs_) {
    begin_ = std::min(begin_, j.start);
    end_ = std::max(end_, j.end);
    used_[static_cast<int>(j.job.kind)] |= Shows(j);
    if (!HasMicrobatch(j.job.kind)) continue;
    stages_of_[j.rank].insert(j.job.stage);
    several_microbatches_ |= j.job.microbatch > 0;
    const auto start = first_start_.try_emplace(j.job.step, j.start).first;
    start->second = std::min(start->second, j.start);
  }
  for (const auto& [rank, stages] : stages_of_) stages_move_ |= stages.size() > 1;
  for (const DrawnJob& j : planned_) {
    begin_ = std::min(begin_, j.start);
    end_ = std::max(end_, j.end);
  }
  if (end_ <= begin_) end_ = begin_ + 1;
  TakeIdle();
  TakeTransfers();
  SetHeights();
}

void TimelineLayout::TakeIdle() {
  for (const DrawnIdle& idle : options_.idle) {
    if (idle.cause == kBareCause || idle.end <= begin_ || idle.start >= end_) continue;
    idle_.push_back(idle);
    idle_.back().start = std::max(idle.start, begin_);
    idle_.back().end = std::min(idle.end, end_);
    causes_.insert(idle.cause);
  }
  std::stable_sort(idle_.begin(), idle_.end(), [](const DrawnIdle& a, const DrawnIdle& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.start < b.start;
  });
}

bool TimelineLayout::AnyGap() const {
  std::vector<std::vector<std::pair<double, double>>> drawn(std::max(0, options_.ranks));
  const auto add = [&](Rank rank, double start, double end) {
    if (rank < static_cast<Rank>(drawn.size())) drawn[rank].push_back({X(start), X(end)});
  };
  for (const DrawnJob& j : jobs_) add(j.rank, j.start, j.end);
  for (const DrawnIdle& idle : idle_) add(idle.rank, idle.start, idle.end);
  for (auto& row : drawn) {
    std::sort(row.begin(), row.end());
    double until = kLeft;
    for (const auto& [start, end] : row) {
      if (start - until >= kHair) return true;
      until = std::max(until, end);
    }
    if (kLeft + kPlot - until >= kHair) return true;
  }
  return false;
}

std::string TimelineLayout::bare() const {
  if (!AnyGap()) return "";
  return options_.idle.empty() ? "idle" : absl::StrCat("idle: ", kBareCause);
}

// Weights that take no time to come are drawn where they are read, not when all could be fetched at once.
void TimelineLayout::MoveToReader(DrawnTransfer* t) {
  if (t->tensor != TensorKind::kWeights || t->end > t->start) return;
  if (start_of_.empty()) {
    for (const DrawnJob& j : jobs_) start_of_[KeyOf(j.job)] = j.start;
  }
  const auto reader = start_of_.find(KeyOf(t->job));
  if (reader != start_of_.end()) t->start = t->end = reader->second;
}

void TimelineLayout::TakeTransfers() {
  for (const DrawnTransfer& t : options_.transfers) {
    const int cargo = CargoOf(t.tensor);
    if (cargo == kNoCargo || t.end < begin_ || t.start > end_) continue;
    if (t.end <= t.start && !kCargo[cargo].always) continue;
    transfers_.push_back(t);
    MoveToReader(&transfers_.back());
    transfers_.back().start = std::max(transfers_.back().start, begin_);
    transfers_.back().end = std::min(transfers_.back().end, end_);
    carried_[cargo] = true;
  }
  std::stable_sort(transfers_.begin(), transfers_.end(), [](const DrawnTransfer& a, const DrawnTransfer& b) {
    return a.to != b.to ? a.to < b.to : a.start < b.start;
  });
}

void TimelineLayout::SetHeights() {
  row_ = options_.ranks <= 12 ? 30 : options_.ranks <= 24 ? 22 : options_.ranks <= 80 ? 15 : 8;
  if (row_ >= 15 && !transfers_.empty()) lane_ = row_ >= 22 ? 6 : 3;
  if (row_ >= 15 && first_start_.size() > 1) strip_ = row_ >= 22 ? 4 : 2;
  if (row_ >= 15 && !planned_.empty()) plan_ = row_ >= 22 ? 18 : 9;
  row_ += lane_ + strip_ + plan_;
  top_ = kTop + (first_start_.size() > 1 ? 14 : 0);
}

}  // namespace weft
