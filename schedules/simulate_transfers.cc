// Simulation: what goes from rank to rank, and how long it takes.
#include <algorithm>
#include <utility>

#include "schedules/simulation.h"
#include "schedules/sync/state_route.h"

namespace weft {
namespace {

constexpr double kNormBytes = 160;

}  // namespace

double Simulation::BytesOf(TensorKind tensor, int from_stage, int to_stage) const {
  switch (tensor) {
    case TensorKind::kOrder:
      return 0;
    case TensorKind::kActivation:
      return OutputBytes(from_stage);
    case TensorKind::kInputGradient:
      return OutputBytes(to_stage);
    case TensorKind::kWeights:
      return OfStage(options_.weight, from_stage) /
             (graph_.sync(from_stage).layout() == Layout::kSliced ? graph_.sync(from_stage).size() : 1);
    case TensorKind::kNorm:
      return kNormBytes;
    case TensorKind::kGradient:
    case TensorKind::kGradientSum:
      return OfStage(options_.weight, from_stage) /
             (graph_.sync(from_stage).passes_sums() ? 1 : graph_.sync(from_stage).size());
    case TensorKind::kState:
      break;  // depends on the job
  }
  return 0;
}

// What comes to the job: all live versions, and what is kept beside them.
double Simulation::StateBytes(const Job& to) const {
  const StateRoute& route = *graph_.route();
  const std::optional<Job> before = route.Before(to);
  const int versions = before.has_value() ? route.VersionsAfter(*before) : 1;
  return versions * OfStage(options_.weight, to.stage) + OfStage(options_.state, to.stage);
}

// A ring among the members: each sends and receives all but one of n parts once, in n - 1 rounds, until each
// has the sum of one part; and once more until each has all.
double Simulation::TimeOfCollective(int stage) {
  const std::vector<Rank>& members = graph_.members(stage);
  const double rounds =
      (graph_.sync(stage).scatters_sum() ? 1.0 : 2.0) * (static_cast<double>(members.size()) - 1);
  const double bytes = rounds / static_cast<double>(members.size()) * OfStage(options_.weight, stage);
  double begin = now_;
  const auto link_from = [&](size_t m) -> double& {
    return link_free_[static_cast<size_t>(members[m]) * schedule_.ranks + members[(m + 1) % members.size()]];
  };
  if (options_.bandwidth > 0) {
    for (size_t m = 0; m < members.size(); ++m) begin = std::max(begin, link_from(m));
  }
  const double sent = options_.bandwidth > 0 ? begin + bytes / options_.bandwidth : begin;
  for (size_t m = 0; m < members.size(); ++m) {
    if (options_.bandwidth > 0) link_from(m) = sent;
    RankStats& stats = result_.ranks[members[m]];
    stats.bytes_sent += bytes;
    stats.bytes_received += bytes;
    stats.sent_by_kind[static_cast<int>(TensorKind::kGradientSum)] += bytes;
  }
  return sent + rounds * options_.latency - now_;
}

// The last member to come starts it for all. It is the devices' work, beside what the ranks compute.
void Simulation::JoinCollective(int64_t id) {
  const JobInfo& info = info_[id % n_];
  const std::pair<int, int> key = {static_cast<int>(id / n_), info.stage};
  std::vector<int64_t>& come = joining_[key];
  come.push_back(id);
  if (come.size() < graph_.members(info.stage).size()) return;
  std::vector<int64_t> all = std::move(come);
  joining_.erase(key);
  // The one that totals the norm is told last, behind those whose squares it takes.
  std::stable_partition(all.begin(), all.end(),
                        [this](int64_t member) { return !graph_.TotalsNorm(JobOf(member)); });
  const double duration = info.duration + TimeOfCollective(info.stage);
  for (const int64_t member : all) {
    if (options_.record_jobs) {
      const Job job = JobOf(member);
      result_.jobs.push_back({job, RankAt(member), now_, now_ + duration, graph_.VersionOf(job)});
    }
    if (duration == 0) continue;
    events_.push_back({now_ + duration, member, kEnds});
    std::push_heap(events_.begin(), events_.end());
  }
  if (duration > 0) return;
  for (const int64_t member : all) {
    touched_.push_back(RankAt(member));
    End(member);
  }
}

void Simulation::Transfer(Rank source, int64_t to, TensorKind tensor, int from_stage) {
  const Rank target = RankAt(to);
  if (source == target) return InputArrived(to);
  const double bytes = tensor == TensorKind::kState ? StateBytes(JobOf(to))
                                                    : BytesOf(tensor, from_stage, info_[to % n_].stage);
  RankStats& sent = result_.ranks[source];
  RankStats& received = result_.ranks[target];
  sent.bytes_sent += bytes;
  sent.sent_by_kind[static_cast<int>(tensor)] += bytes;
  received.bytes_received += bytes;
  received.activation_receives += tensor == TensorKind::kActivation;
  received.gradient_receives += tensor == TensorKind::kInputGradient;
  double arrival = now_ + options_.latency;
  if (options_.bandwidth > 0) {
    double& free = link_free_[static_cast<size_t>(source) * schedule_.ranks + target];
    free = std::max(free, now_) + bytes / options_.bandwidth;
    arrival = free + options_.latency;
  }
  // What a stage hands to the next one goes without saying where it takes no time.
  const bool handed = tensor == TensorKind::kActivation || tensor == TensorKind::kInputGradient;
  if (options_.record_waits && tensor != TensorKind::kOrder && (arrival > now_ || !handed))
    result_.transfers.push_back({source, target, tensor, JobOf(to), now_, arrival, bytes});
  if (arrival <= now_) return InputArrived(to);
  events_.push_back({arrival, to, now_});
  std::push_heap(events_.begin(), events_.end());
}

}  // namespace weft
