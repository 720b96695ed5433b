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

// Removes the links that were measured and are as fast as usual.
RankLinks Without(const std::vector<std::pair<Rank, Rank>>& normal, RankLinks links) {
  std::erase_if(links.slow, [&](const SlowLink& link) {
    return std::find(normal.begin(), normal.end(), std::pair(link.a, link.b)) != normal.end();
  });
  return links;
}

// Adds the links that the run has left, unless they were measured again. With the usual link of that time,
// the question is the one for which the run has moved. So the answer is that it stays. Returns false if there
// are none, or all are as fast as usual again.
bool AddLeft(const RankLinks& run_left, RankLinks* links) {
  const RankLinks left = Without(links->normal, run_left);
  if (left.slow.empty()) return false;
  links->usual = left.usual;
  const auto ranks = [](const SlowLink& link) { return std::pair(link.a, link.b); };
  for (const SlowLink& link : left.slow) {
    const auto place =
        std::lower_bound(links->slow.begin(), links->slow.end(), link,
                         [&](const SlowLink& x, const SlowLink& y) { return ranks(x) < ranks(y); });
    if (place == links->slow.end() || ranks(*place) != ranks(link)) links->slow.insert(place, link);
  }
  return true;
}

// Returns the link of two ranks that is expected: that of the run file's network, as far as it says it.
std::optional<MeasuredLink> LinkOfNetwork(const std::optional<NetworkSpec>& stated, Rank a, Rank b) {
  if (!stated.has_value()) return std::nullopt;
  const Network& network = stated->network;
  const auto node_of = [&](Rank rank) {
    size_t node = 0;
    for (int end = 0; node < network.nodes.size() && (end += network.nodes[node]) <= rank;) ++node;
    return node;
  };
  const bool inside = node_of(a) == node_of(b);
  const MeasuredLink link = inside ? MeasuredLink{stated->latency, stated->bandwidth}
                                   : MeasuredLink{network.latency_between, network.bandwidth_between};
  if (link.bandwidth <= 0) return std::nullopt;
  return link;
}

}  // namespace

absl::StatusOr<WindowAnswer> AnswerOf(const WindowQuestion& question, const std::function<bool()>& stop) {
  WindowAnswer answer;
  answer.restarts = question.restarts;
  answer.measured =
      CostsOfJobs(*question.run, question.jobs, question.before.has_value() ? &*question.before : nullptr);
  answer.better.schedule = question.run->schedule;
  const auto expected = [&](Rank a, Rank b) -> std::optional<MeasuredLink> {
    const std::optional<MeasuredLink> stated = LinkOfNetwork(question.run->network, a, b);
    if (stated.has_value() || question.left.slow.empty()) return stated;
    return question.left.usual;  // knows no nodes
  };
  answer.links = LinksOf(question.transfers, *question.transfers_before, answer.measured.speeds, expected);
  answer.timed = !question.transfers.empty();
  const bool has_left = AddLeft(question.left, &answer.links);
  if (AreAlike(answer.measured.speeds, question.settled) &&
      AreAlike(answer.links.slow, question.settled_links))
    return answer;
  const std::vector<SlowLink>& slow = answer.links.slow;
  ReplanQuestion asked{*question.run, answer.measured, std::nullopt, {slow.begin(), slow.end()}, has_left};
  if (!slow.empty()) asked.link = answer.links.usual;
  auto better = FindBetterSchedule(asked, stop);
  if (!better.ok()) return better.status();
  answer.better = *std::move(better);
  return answer;
}

ReplanWatch::ReplanWatch(std::shared_ptr<const RunSpec> run, int ranks)
    : run_(std::move(run)), jobs_(ranks, run_->stages()), seconds_(ranks) {}

void ReplanWatch::Restore(int32_t restarts, RankLinks left) {
  restarts_ = restarts;
  left_ = std::move(left);
}

void ReplanWatch::Began(int32_t restarts) {
  if (restarts == restarts_) return;
  const bool is_next = restarts == std::exchange(restarts_, restarts) + 1;
  if (const bool keeps = std::exchange(keeps_, false); !keeps || !is_next) {
    before_.reset();
    windows_before_ = 0;
    transfers_before_ = std::make_shared<MeasuredTransfers>();
    transfers_told_ = 0;
    left_ = {};
  }
  BeginWindow(-1);
  transfers_ = {};
  gains_ = timed_gains_ = 0;
  settled_.clear();
  settled_links_.clear();
}

void ReplanWatch::Replanned(std::shared_ptr<const RunSpec> run, int32_t step) {
  run_ = std::move(run);
  moved_step_ = step;
  keeps_ = true;
  left_ = std::exchange(leaving_, {});
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

void ReplanWatch::TensorArrived(Rank from, Rank to, const TransferKey& key, const TimedTransfer& transfer) {
  if (first_step_ < 0 || key.consumer.step < told_step_) return;
  last_step_ = std::max(last_step_, key.consumer.step);
  transfers_.Add(from, to, key, transfer);
}

// Takes the transfers for a question. Those of later steps are for the next.
MeasuredTransfers ReplanWatch::TakeTransfers() {
  MeasuredTransfers told = std::exchange(transfers_, {});
  if (told.empty()) return told;
  told_step_ = last_step_ + 1;
  if (transfers_told_ < kFirst) {
    auto before = std::make_shared<MeasuredTransfers>(*transfers_before_);
    before->Add(told);
    transfers_before_ = std::move(before);
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
  if (!before_.has_value()) before_.emplace(jobs.ranks(), jobs.stages());
  if (windows_before_ < kFirst) {
    before_->Add(jobs);
    ++windows_before_;
  }
  const bool may_move = moved_step_ < 0 || step + 1 >= moved_step_ + run_->replan.steps;
  if (asked_ || !may_move) return std::nullopt;
  asked_ = true;
  MeasuredTransfers transfers = TakeTransfers();
  return WindowQuestion{run_,     std::move(jobs), before_,  std::move(transfers), transfers_before_, left_,
                        settled_, settled_links_,  restarts_};
}

// Counts answers that gain enough. Returns true if there were enough in a row. Between questions with
// transfers, one without, which tells nothing of links, is as if it had not been asked.
bool ReplanWatch::Count(const WindowAnswer& answer, bool gains) {
  gains_ = gains ? gains_ + 1 : 0;
  if (answer.timed) timed_gains_ = gains ? timed_gains_ + 1 : 0;
  if (gains_ < kInARow && timed_gains_ < kInARow) return false;
  gains_ = timed_gains_ = 0;
  return true;
}

bool ReplanWatch::Take(const absl::StatusOr<WindowAnswer>& answer) {
  asked_ = false;
  if (!answer.ok()) {
    gains_ = timed_gains_ = 0;
    return false;
  }
  if (answer->restarts != restarts_) return false;
  left_ = Without(answer->links.normal, left_);
  const bool gains = answer->better.gain() > run_->replan.gain;
  if (answer->better.tried > 0 && !gains) {
    settled_ = answer->measured.speeds;
    settled_links_ = answer->links.slow;
  }
  if (!Count(*answer, gains)) return false;
  leaving_ = answer->better.slow_links ? answer->links : RankLinks();
  return true;
}

}  // namespace weft
