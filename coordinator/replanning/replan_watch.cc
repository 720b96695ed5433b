#include "coordinator/replanning/replan_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace weft {
namespace {

constexpr double kLong = 0.25;   // seconds of jobs in a window, at least: over two periods of a usual quota
constexpr int kWarmUp = 2;       // steps of an attempt that are in no window
constexpr int kFirst = 2;        // windows with which ranks are compared that have nothing in common
constexpr int kInARow = 3;       // answers
constexpr double kAlike = 0.03;  // difference of speeds that changes no answer
constexpr double kAlikeTimes = 1.5;  // likewise of how slow a link is, as a factor

bool AreAlike(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (size_t r = 0; r < a.size(); ++r) {
    if (std::abs(a[r] - b[r]) > kAlike) return false;
  }
  return true;
}

// Returns true if the same links are slow, about as much as the others.
bool AreAlike(const std::vector<SlowLink>& a, const std::vector<SlowLink>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const SlowLink& x, const SlowLink& y) {
    return x.a == y.a && x.b == y.b && x.times < kAlikeTimes * y.times && y.times < kAlikeTimes * x.times;
  });
}

}  // namespace

absl::StatusOr<WindowAnswer> AnswerOf(const WindowQuestion& question, const std::function<bool()>& stop) {
  WindowAnswer answer;
  answer.restarts = question.restarts;
  answer.measured =
      CostsOfJobs(*question.run, question.jobs, question.before.has_value() ? &*question.before : nullptr);
  answer.better.schedule = question.run->schedule;
  answer.links = LinksOf(question.transfers, question.transfers_before, answer.measured.speeds);
  if (AreAlike(answer.measured.speeds, question.settled) &&
      AreAlike(answer.links.slow, question.settled_links))
    return answer;
  ReplanQuestion asked{*question.run, answer.measured, std::nullopt, answer.links.pairs};
  if (!answer.links.pairs.empty()) asked.link = ReplanQuestion::Link{answer.links.bandwidth, 0};
  auto better = FindBetterSchedule(asked, stop);
  if (!better.ok()) return better.status();
  answer.better = *std::move(better);
  return answer;
}

ReplanWatch::ReplanWatch(std::shared_ptr<const RunSpec> run, int ranks)
    : run_(std::move(run)), jobs_(ranks, run_->stages()), seconds_(ranks) {}

void ReplanWatch::Began(int32_t restarts) {
  if (restarts == restarts_) return;
  restarts_ = restarts;
  if (!std::exchange(keeps_, false)) {
    before_.reset();
    windows_before_ = 0;
    transfers_before_ = {};
    transfers_told_ = 0;
  }
  BeginWindow(-1);
  transfers_ = {};
  gains_ = 0;
  settled_.clear();
  settled_links_.clear();
}

void ReplanWatch::Replanned(std::shared_ptr<const RunSpec> run, int32_t step) {
  run_ = std::move(run);
  moved_step_ = step;
  keeps_ = true;
}

void ReplanWatch::BeginWindow(int32_t first_step) {
  first_step_ = first_step;
  jobs_ = MeasuredJobs(jobs_.ranks(), jobs_.stages());
  std::fill(seconds_.begin(), seconds_.end(), 0);
}

void ReplanWatch::JobEnded(Rank rank, const Job& job, double seconds) {
  if (first_step_ < 0 || job.step < first_step_ || rank < 0 || rank >= jobs_.ranks()) return;
  jobs_.Add(rank, job, seconds);
  seconds_[rank] += seconds;
}

void ReplanWatch::TensorArrived(Rank from, Rank to, int32_t step, const TimedTransfer& transfer) {
  if (first_step_ < 0 || step < told_step_) return;
  last_step_ = std::max(last_step_, step);
  transfers_.Add(from, to, transfer);
}

// Takes the transfers of a window. Later ones are of the next.
MeasuredTransfers ReplanWatch::TakeTransfers() {
  MeasuredTransfers told = std::exchange(transfers_, {});
  if (told.empty()) return told;
  told_step_ = last_step_ + 1;
  if (transfers_told_ < kFirst) {
    transfers_before_.Add(told);
    ++transfers_told_;
  }
  return told;
}

std::optional<WindowQuestion> ReplanWatch::StepEnded(int32_t step) {
  if (first_step_ < 0) {
    BeginWindow(step + kWarmUp);
    told_step_ = last_step_ = step + kWarmUp;
    return std::nullopt;
  }
  const bool is_long = *std::max_element(seconds_.begin(), seconds_.end()) >= kLong;
  if (step < first_step_ || !is_long) return std::nullopt;
  MeasuredJobs jobs = jobs_;
  BeginWindow(step + 1);
  window_ended_ = true;
  MeasuredTransfers transfers = TakeTransfers();
  if (!before_.has_value()) before_.emplace(jobs.ranks(), jobs.stages());
  if (windows_before_ < kFirst) {
    before_->Add(jobs);
    ++windows_before_;
  }
  const bool may_move = moved_step_ < 0 || step + 1 >= moved_step_ + run_->replan.steps;
  if (asked_ || !may_move) return std::nullopt;
  asked_ = true;
  return WindowQuestion{run_,     std::move(jobs), before_,  std::move(transfers), transfers_before_,
                        settled_, settled_links_,  restarts_};
}

bool ReplanWatch::Take(const absl::StatusOr<WindowAnswer>& answer) {
  asked_ = false;
  if (answer.ok() && answer->restarts != restarts_) return false;
  const bool gains = answer.ok() && answer->better.gain() > run_->replan.gain;
  gains_ = gains ? gains_ + 1 : 0;
  const bool searched = answer.ok() && answer->better.tried > 0;
  if (searched && !gains) {
    settled_ = answer->measured.speeds;
    settled_links_ = answer->links.slow;
  }
  if (gains_ < kInARow) return false;
  gains_ = 0;
  return true;
}

}  // namespace weft
