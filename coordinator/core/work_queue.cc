#include "coordinator/core/work_queue.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace weft {
namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "weft: broken invariant in the work queue: %s\n", what);
  std::abort();
}

}  // namespace

WorkQueue::WorkQueue(std::shared_ptr<const RunPlan> plan)
    : plan_(std::move(plan)),
      edges_(plan_->graph),
      period_(plan_->graph.schedule().period),
      first_step_(plan_->first_step) {
  const int n = plan_->graph.jobs_per_step();
  for (int i = 0; i < n; ++i) {
    jobs_.push_back(plan_->graph.JobAt(0, i));
    if (edges_.LeadsAhead(i)) leads_ahead_.push_back(i);
  }
  ranks_.resize(plan_->ranks());
  Require(static_cast<int>(plan_->claim_order.size()) == period_,
          "the claim order is given for every step of a period");
  for (int phase = 0; phase < period_; ++phase) IndexPhase(phase);
  least_jobs_of_rank_ = n;
  for (const RankState& r : ranks_) {
    int jobs = 0;
    for (const auto& order : r.order) jobs += static_cast<int>(order.size());
    // Of one step, rounded down: the window must not be too small.
    if (jobs > 0) least_jobs_of_rank_ = std::min(least_jobs_of_rank_, std::max(1, jobs / period_));
  }
  WidenFor(1);
}

void WorkQueue::IndexPhase(int phase) {
  const Graph& graph = plan_->graph;
  const auto& order = plan_->claim_order[phase];
  std::vector<Rank>& rank_of = rank_of_.emplace_back();
  for (Job job : jobs_) {
    job.step = phase;
    rank_of.push_back(graph.RankOf(job));
  }
  Require(order.size() == ranks_.size(), "the claim order is given for every rank");
  size_t claimed = 0;
  for (Rank w = 0; w < plan_->ranks(); ++w) {
    std::vector<int32_t>& indices = ranks_[w].order.emplace_back();
    for (const Job& job : order[w]) {
      indices.push_back(graph.IndexOf(job));
      Require(rank_of[indices.back()] == w, "a rank claims its own jobs");
    }
    claimed += indices.size();
  }
  Require(claimed == jobs_.size(), "every job of a step is in the claim order once");
}

// Dependencies let ranks be apart by the longest distance of an edge; a step's border and the credit come on
// top.
void WorkQueue::WidenFor(int credit) {
  const int32_t needed =
      period_ + 1 + edges_.max_distance() + (credit + least_jobs_of_rank_ - 1) / least_jobs_of_rank_;
  window_ = std::max(window_, needed);
}

bool WorkQueue::CanGrant(Rank rank, int credit) const {
  const RankState& r = ranks_[rank];
  return r.outstanding < credit && r.step < plan_->steps && r.step < hold_ &&
         r.step - first_step_ < window_ && !r.order.empty();
}

bool WorkQueue::Reach(int32_t step) {
  if (step >= plan_->steps || step >= hold_ || step - first_step_ >= window_) return false;
  while (step >= end_step()) Materialize();
  return true;
}

void WorkQueue::Grant(Rank rank, int credit, std::vector<Job>* jobs) {
  RankState& r = ranks_[rank];
  WidenFor(credit);
  // A rank without jobs in a step does not hold it: it may have ended without this rank having looked at it.
  if (r.step < first_step_) r.step = first_step_;
  while (r.outstanding < credit && Reach(r.step)) {
    Step& step = *StepAt(r.step);
    const std::vector<int32_t>& order = r.order[r.step % period_];
    for (; r.outstanding < credit && r.position < order.size(); ++r.position) {
      const int index = order[r.position];
      step.state[index] = kClaimed;
      --(step.pending[index] > 0 ? counts_.blocked : counts_.ready);
      ++counts_.claimed;
      ++r.outstanding;
      jobs->push_back(jobs_[index]);
      jobs->back().step = r.step;
    }
    if (r.position == order.size()) {
      r.position = 0;
      ++r.step;
    }
  }
  granted_end_ = std::max(granted_end_, r.position > 0 ? r.step + 1 : r.step);
}

void WorkQueue::Materialize() {
  std::unique_ptr<Step> slot;
  if (spare_.empty()) {
    slot = std::make_unique<Step>();
  } else {
    slot = std::move(spare_.back());
    spare_.pop_back();
  }
  const int32_t number = end_step();
  slot->state.assign(jobs_.size(), kWaiting);
  slot->pending = edges_.WaitingAt(number, plan_->first_step);
  slot->loss.assign(plan_->graph.schedule().microbatches, 0);
  slot->losses = slot->done = 0;
  slot->end_ns = 0;
  slot->gradient_norm.reset();
  for (int32_t from = std::max(plan_->first_step, number - edges_.max_distance()); from < number; ++from) {
    for (const int32_t i : leads_ahead_) {
      if (!IsDone(from, i)) continue;
      for (const auto& s : edges_.SuccessorsOf(from, i))
        slot->pending[s.index] -= from + s.distance == number;
    }
  }
  const int64_t ready = std::count(slot->pending.begin(), slot->pending.end(), 0);
  counts_.ready += ready;
  counts_.blocked += static_cast<int64_t>(jobs_.size()) - ready;
  steps_.push_back(std::move(slot));
}

// The job's number, or -1 for one that the schedule does not have: the words come from outside.
int WorkQueue::IndexOrNone(const Job& job) const {
  const Graph& graph = plan_->graph;
  const Schedule& s = graph.schedule();
  if (job.step < plan_->first_step || job.step >= plan_->steps || job.stage < 0 || job.stage >= s.stages)
    return -1;
  if (HasMicrobatch(job.kind)) {
    if (job.microbatch < 0 || job.microbatch >= s.microbatches || !graph.IsComputeKindUsed(job.kind))
      return -1;
  } else {
    if (job.member < 0 || job.member >= static_cast<int>(graph.members(job.stage).size())) return -1;
    if (job.kind == JobKind::kReduce && !graph.sync(job.stage).holder(job.member).reduces) return -1;
  }
  return graph.IndexOf(job);
}

WorkQueue::Outcome WorkQueue::Complete(Rank rank, const Completion& completion) {
  const Job& job = completion.job;
  const int index = IndexOrNone(job);
  if (index < 0 || RankAt(job.step, index) != rank || job.step >= end_step()) return Outcome::kViolation;
  if (job.step < first_step_) return Outcome::kDuplicate;
  Step& step = *StepAt(job.step);
  if (step.state[index] == kDone) return Outcome::kDuplicate;
  if (step.state[index] == kWaiting) return Outcome::kViolation;
  step.state[index] = kDone;
  ++step.done;
  --ranks_[rank].outstanding;
  --counts_.claimed;
  ++counts_.done;
  if (completion.has_loss && job.kind == JobKind::kForward &&
      job.stage == plan_->graph.schedule().stages - 1) {
    step.loss[job.microbatch] = completion.loss;
    ++step.losses;
  }
  if (plan_->graph.TotalsNorm(job)) step.gradient_norm = completion.gradient_norm;
  if (job.kind == JobKind::kUpdate) step.end_ns = std::max(step.end_ns, completion.end_ns);
  ReleaseSuccessors(job.step, index);
  if (step.done == static_cast<int>(jobs_.size())) Retire();
  return Outcome::kDone;
}

void WorkQueue::ReleaseSuccessors(int32_t step, int index) {
  for (const auto& s : edges_.SuccessorsOf(step, index)) {
    const int32_t later = step + s.distance;
    if (later >= end_step()) continue;  // Materialize will see it
    if (later < first_step_) continue;  // reported before this one, and retired
    Step& to = *StepAt(later);
    if (--to.pending[s.index] == 0 && to.state[s.index] == kWaiting) {
      --counts_.blocked;
      ++counts_.ready;
    }
  }
}

// All jobs of a step being done is the same as all its updates being done, once every completion has been
// reported.
void WorkQueue::Retire() {
  while (!steps_.empty() && steps_.front()->done == static_cast<int>(jobs_.size())) {
    const Step& step = *steps_.front();
    EndedStep ended{first_step_, 0, step.losses == static_cast<int>(step.loss.size()), step.end_ns,
                    step.gradient_norm};
    for (double loss : step.loss) ended.loss += loss;
    ended.loss /= static_cast<double>(step.loss.size());
    if (!ended.has_loss) ended.loss = 0;
    ended_.push_back(ended);
    spare_.push_back(std::move(steps_.front()));
    steps_.pop_front();
    ++first_step_;
  }
}

void WorkQueue::TakeEndedSteps(std::vector<EndedStep>* steps) {
  steps->insert(steps->end(), ended_.begin(), ended_.end());
  ended_.clear();
}

std::vector<WorkQueue::Awaited> WorkQueue::AwaitedJobs(size_t most) const {
  std::vector<Awaited> awaited;
  std::vector<bool> seen(ranks_.size(), false);
  for (int32_t number = first_step_; number < end_step(); ++number) {
    const Step& step = *StepAt(number);
    for (size_t i = 0; i < jobs_.size() && awaited.size() < most; ++i) {
      const Rank rank = RankAt(number, static_cast<int>(i));
      if (step.pending[i] > 0 || step.state[i] == kDone || seen[rank]) continue;
      seen[rank] = true;
      Job job = jobs_[i];
      job.step = number;
      awaited.push_back({rank, job, step.state[i] == kClaimed});
    }
  }
  return awaited;
}

}  // namespace weft
