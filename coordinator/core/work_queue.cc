#include "coordinator/core/work_queue.h"

#include <algorithm>
#include <utility>

#include "base/require.h"

namespace weft {
WorkQueue::WorkQueue(std::shared_ptr<const RunPlan> plan, int32_t begin)
    : plan_(std::move(plan)), progress_(plan_->graph, {.first_step = begin}, plan_->tables) {
  const int n = progress_.jobs().size(), period = progress_.jobs().period();
  Require(period > 0, "a schedule repeats after at least one step");
  ranks_.resize(plan_->ranks());
  Require(static_cast<int>(plan_->claim_order->size()) == period,
          "the claim order is given for every step of a period");
  for (int phase = 0; phase < period; ++phase) IndexPhase(phase);
  least_jobs_of_rank_ = n;
  for (const RankState& r : ranks_) {
    int jobs = 0;
    for (const auto& order : r.order) jobs += static_cast<int>(order.size());
    // Count the jobs of one step, rounded down: the window must not be too small.
    if (jobs > 0) least_jobs_of_rank_ = std::min(least_jobs_of_rank_, std::max(1, jobs / period));
  }
  WidenFor(1);
}

void WorkQueue::IndexPhase(int phase) {
  const auto& order = (*plan_->claim_order)[phase];
  const std::vector<Rank>& rank_of = progress_.jobs().RanksAt(phase);
  Require(order.size() == ranks_.size(), "the claim order is given for every rank");
  size_t claimed = 0;
  for (Rank w = 0; w < plan_->ranks(); ++w) {
    std::vector<int32_t>& indices = ranks_[w].order.emplace_back();
    for (const Job& job : order[w]) {
      indices.push_back(plan_->graph.IndexOf(job));
      Require(rank_of[indices.back()] == w, "a rank claims its own jobs");
    }
    claimed += indices.size();
  }
  Require(claimed == rank_of.size(), "every job of a step is in the claim order once");
}

// Widens the window for a credit. Dependencies let ranks be apart by the longest distance of an edge; a
// step's border and the credit come on top.
void WorkQueue::WidenFor(int credit) {
  const int32_t needed = progress_.jobs().period() + 1 + progress_.edges().max_distance() +
                         (credit + least_jobs_of_rank_ - 1) / least_jobs_of_rank_;
  window_ = std::max(window_, needed);
}

bool WorkQueue::CanGrant(Rank rank, int credit) const {
  const RankState& r = ranks_[rank];
  return r.outstanding < credit && r.step < plan_->steps && r.step < hold_ &&
         r.step - steps_done() < window_ && !r.order.empty();
}

bool WorkQueue::Reach(int32_t step) {
  if (step >= plan_->steps || step >= hold_ || step - steps_done() >= window_) return false;
  while (step >= reached_end()) ReachNext();
  return true;
}

void WorkQueue::Grant(Rank rank, int credit, std::vector<Job>* jobs) {
  RankState& r = ranks_[rank];
  WidenFor(credit);
  // A rank without jobs in a step does not hold it: it may have ended without this rank having looked at it.
  if (r.step < steps_done()) r.step = steps_done();
  while (r.outstanding < credit && Reach(r.step)) Claim(r, credit - r.outstanding, jobs);
  granted_end_ = std::max(granted_end_, r.position > 0 ? r.step + 1 : r.step);
}

// Claims at most so many of the rank's next jobs, of one step that has been reached. Appends them to `jobs`
// where it is not null.
void WorkQueue::Claim(RankState& r, size_t most, std::vector<Job>* jobs) {
  StepProgress::Step& step = progress_.At(r.step);
  const std::vector<int32_t>& order = r.order[progress_.jobs().PhaseOf(r.step)];
  for (; most > 0 && r.position < order.size(); ++r.position, --most) {
    const int index = order[r.position];
    step.state[index] = kClaimed;
    --(step.missing[index] > 0 ? counts_.blocked : counts_.ready);
    ++counts_.claimed;
    ++r.outstanding;
    if (jobs != nullptr) jobs->push_back(progress_.jobs().JobOf(MakeJobId(r.step, index)));
  }
  if (r.position < order.size()) return;
  r.position = 0;
  ++r.step;
}

int64_t WorkQueue::JobsBefore(const RankState& rank, int32_t end) const {
  const int32_t period = progress_.jobs().period(), first = plan_->first_step;
  int64_t jobs = 0;
  for (int32_t phase = 0; phase < period; ++phase) {
    const auto steps_before = [&](int32_t step) { return step / period + (phase < step % period ? 1 : 0); };
    jobs += static_cast<int64_t>(rank.order[phase].size()) * (steps_before(end) - steps_before(first));
  }
  return jobs;
}

// The former coordinator may have known of steps that have ended and are not stored, so the window began
// later than it does here.
bool WorkQueue::TakeGranted(Rank rank, int64_t granted, int32_t credit) {
  RankState& r = ranks_[rank];
  WidenFor(credit);
  r.step = steps_done();
  int64_t left = granted - JobsBefore(r, r.step);
  if (left < 0 || granted > JobsBefore(r, plan_->steps)) return false;
  const int64_t end = int64_t{steps_done()} + window_ + kMaxUnsettledSteps;
  while (left > 0) {
    if (r.step >= end) return false;
    while (r.step >= reached_end()) ReachNext();
    const int outstanding = r.outstanding;
    Claim(r, static_cast<size_t>(left), nullptr);
    left -= r.outstanding - outstanding;
  }
  granted_end_ = std::max(granted_end_, r.position > 0 ? r.step + 1 : r.step);
  return true;
}

void WorkQueue::ReachNext() {
  const StepProgress::Step& step = progress_.Open(reached_end());
  const int64_t ready = std::count(step.missing.begin(), step.missing.end(), 0);
  counts_.ready += ready;
  counts_.blocked += static_cast<int64_t>(step.missing.size()) - ready;
  Report& report = reports_.emplace_back();
  if (!spare_.empty()) {
    report.loss = std::move(spare_.back());
    spare_.pop_back();
  }
  report.loss.assign(plan_->graph.schedule().microbatches, 0);
}

// Returns the job's number, or -1 for one that the schedule does not have: the job comes from outside.
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
    if (job.kind == JobKind::kReduce && !graph.protocol(job.stage).holder(job.member).reduces) return -1;
  }
  return graph.IndexOf(job);
}

WorkQueue::Outcome WorkQueue::Complete(Rank rank, const Completion& completion) {
  const Job& job = completion.job;
  const int index = IndexOrNone(job);
  if (index < 0 || job.step >= reached_end()) return Outcome::kViolation;
  const JobId id = MakeJobId(job.step, index);
  if (progress_.jobs().RankOf(id) != rank) return Outcome::kViolation;
  if (job.step < steps_done()) return Outcome::kDuplicate;
  uint8_t& state = progress_.StateOf(id);
  if (state == kDone) return Outcome::kDuplicate;
  if (state == kWaiting) return Outcome::kViolation;
  state = kDone;
  progress_.End(job.step);
  --ranks_[rank].outstanding;
  --counts_.claimed;
  ++counts_.done;
  Report& report = ReportOf(job.step);
  if (completion.has_loss && job.kind == JobKind::kForward &&
      job.stage == plan_->graph.schedule().stages - 1) {
    report.loss[job.microbatch] = completion.loss;
    ++report.losses;
  }
  if (plan_->graph.TotalsNorm(job)) report.gradient_norm = completion.gradient_norm;
  if (job.kind == JobKind::kUpdate) report.end_ns = std::max(report.end_ns, completion.end_ns);
  ReleaseSuccessors(id);
  Retire();
  return Outcome::kDone;
}

void WorkQueue::ReleaseSuccessors(JobId id) {
  for (const auto& s : progress_.edges().SuccessorsOf(StepOf(id), IndexOf(id))) {
    const int32_t later = StepOf(id) + s.distance;
    if (later >= plan_->steps) continue;
    if (later < steps_done()) continue;  // reported before this one, and retired
    progress_.Open(later);
    const JobId to = MakeJobId(later, s.index);
    const bool was_last = progress_.Arrive(to);
    // ReachNext counts those of a step that has not been reached.
    if (!was_last || later >= reached_end() || progress_.StateOf(to) != kWaiting) continue;
    --counts_.blocked;
    ++counts_.ready;
  }
}

// Retires finished steps. All jobs of a step are done exactly when all its updates are done, once every
// completion has been reported.
void WorkQueue::Retire() {
  while (progress_.FirstHasEnded()) {
    Report& report = reports_.front();
    EndedStep ended{steps_done(), 0, report.losses == static_cast<int>(report.loss.size()), report.end_ns,
                    report.gradient_norm};
    for (double loss : report.loss) ended.loss += loss;
    ended.loss /= static_cast<double>(report.loss.size());
    if (!ended.has_loss) ended.loss = 0;
    ended_.push_back(ended);
    spare_.push_back(std::move(report.loss));
    reports_.pop_front();
    progress_.LeaveFirst();
  }
}

void WorkQueue::TakeEndedSteps(std::vector<EndedStep>* steps) {
  steps->insert(steps->end(), ended_.begin(), ended_.end());
  ended_.clear();
}

std::vector<Job> WorkQueue::InHand(Rank rank, size_t most) const {
  std::vector<Job> jobs;
  const RankState& r = ranks_[rank];
  most = std::min(most, static_cast<size_t>(r.outstanding));
  for (int32_t number = steps_done(); number < reached_end() && jobs.size() < most; ++number) {
    const StepProgress::Step& step = progress_.At(number);
    for (const int32_t index : r.order[progress_.jobs().PhaseOf(number)]) {
      if (jobs.size() == most) return jobs;
      if (step.state[index] == kClaimed) jobs.push_back(progress_.jobs().JobOf(MakeJobId(number, index)));
    }
  }
  return jobs;
}

bool WorkQueue::IsInHand(Rank rank, const Job& job) const {
  const int index = IndexOrNone(job);
  return index >= 0 && job.step >= steps_done() && StateAt(job) == kClaimed &&
         progress_.jobs().RankOf(MakeJobId(job.step, index)) == rank;
}

std::optional<Job> WorkQueue::NextOf(Rank rank) const {
  const RankState& r = ranks_[rank];
  const JobTable& table = progress_.jobs();
  size_t position = r.step < steps_done() ? 0 : r.position;
  const int32_t first = std::max(r.step, steps_done());
  for (int32_t step = first; step < std::min(plan_->steps, first + table.period()); ++step, position = 0) {
    const std::vector<int32_t>& order = r.order[table.PhaseOf(step)];
    if (position < order.size()) return table.JobOf(MakeJobId(step, order[position]));
  }
  return std::nullopt;
}

std::vector<WorkQueue::Awaited> WorkQueue::AwaitedJobs(size_t most) const {
  std::vector<Awaited> awaited;
  std::vector<bool> seen(ranks_.size(), false);
  for (int32_t number = steps_done(); number < reached_end(); ++number) {
    const StepProgress::Step& step = progress_.At(number);
    for (int i = 0; i < progress_.jobs().size() && awaited.size() < most; ++i) {
      const JobId id = MakeJobId(number, i);
      const Rank rank = progress_.jobs().RankOf(id);
      if (step.missing[i] > 0 || step.state[i] == kDone || seen[rank]) continue;
      seen[rank] = true;
      awaited.push_back({rank, progress_.jobs().JobOf(id), step.state[i] == kClaimed});
    }
  }
  return awaited;
}

}  // namespace weft
