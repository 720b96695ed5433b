#include "worker/core/pending_jobs.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/require.h"

namespace weft {

PendingJobs::PendingJobs(const LocalRun& run, const AdmissionOrder& admission, LocalRanks* ranks)
    : run_(run),
      admission_(admission),
      ranks_(*ranks),
      progress_(run.graph(), ProgressOptions(), run.tables()),
      intake_(run.graph()),
      joint_(run) {}

// A job waits for weights that the run begins with, as for others; and for the end of its joint operation
// instead of what that waits for by itself.
StepProgress::Options PendingJobs::ProgressOptions() const {
  StepProgress::Options options;
  options.first_step = run_.first_step();
  for (Rank r = 0; r < static_cast<Rank>(run_.assignment().process_of_rank.size()); ++r)
    options.followed.push_back(run_.IsLocal(r));
  options.rule = [this](const Job& job, const Edges& predecessors) {
    const auto counts = [this](const Edge& e) {
      return !e.joined && (!run_.IsBeforeRun(e) || e.tensor == TensorKind::kWeights);
    };
    return static_cast<int>(std::count_if(predecessors.begin(), predecessors.end(), counts)) +
           (run_.graph().IsJoint(job) ? 1 : 0);
  };
  return options;
}

StepProgress::Step& PendingJobs::StepWith(JobId id) {
  Require(StepOf(id) >= progress_.first_step(), "a step is not touched after it ended");
  return progress_.Open(StepOf(id));
}

bool PendingJobs::Claim(LocalRank& rank, const Job& job) {
  if (job.step < progress_.first_step() || job.step >= run_.steps())
    return false;  // it ended before this grant came
  const JobId id = run_.IdOf(job);
  uint8_t& flags = FlagsOf(id);
  if (progress_.jobs().RankOf(id) != rank.rank || (flags & kClaimed)) return false;
  flags |= kClaimed;
  ++claimed_;
  rank.claimed.push_back(id);
  if (job.kind == JobKind::kForward) rank.ready.Claim(id, job.stage);
  Consider(id);
  return true;
}

std::vector<Job> PendingJobs::BeginTaking(LocalRank& rank, int step) {
  std::vector<Job> takers;
  if (!admission_.has_gradients()) return takers;
  const JobTable& jobs = progress_.jobs();
  for (int& next = rank.takes_from_step; next <= std::min(step, run_.steps() - 1); ++next) {
    for (int i = 0; i < jobs.size(); ++i) {
      const JobId id = MakeJobId(next, i);
      if (jobs.RankOf(id) != rank.rank || !intake_.IsConsumer(jobs.JobOf(id))) continue;
      FlagsOf(id) |= kTakes;
      Consider(id);  // a gradient of this process may be here
      takers.push_back(jobs.JobOf(id));
    }
  }
  return takers;
}

void PendingJobs::InputArrived(JobId id, int microbatch) {
  if (microbatch >= 0 && intake_.IsConsumer(JobOf(id))) intake_.Arrived(id, microbatch);
  --MissingOf(id);
  ranks_.Touch(RankWith(id));
  if (FlagsOf(id) & (kClaimed | kTakes)) Consider(id);
}

void PendingJobs::AwaitTaking(JobId id) {
  ++MissingOf(id);
  ++takings_[id];
}

void PendingJobs::Taken(JobId id) {
  const auto awaited = takings_.find(id);
  Require(awaited != takings_.end(), "only a tensor for which a job waits is given back to it");
  if (--awaited->second == 0) takings_.erase(awaited);
  InputArrived(id, /*microbatch=*/-1);
}

void PendingJobs::JointOperationDone(Rank rank, const Job& job) {
  const JobId id = run_.IdOf(job);
  Require(progress_.jobs().RankOf(id) == rank && run_.graph().IsJoint(job) && joint_.HasBegun(job),
          "only a joint operation that was begun is over");
  --MissingOf(id);
  Consider(id);
}

bool PendingJobs::CanStart(JobId id, const Job& job, bool joins) {
  if (joins) return joint_.CanBegin(job);
  if (MissingOf(id) == 0 && (FlagsOf(id) & kClaimed)) return true;
  return !run_.graph().IsJoint(job) && intake_.IsConsumer(job) && intake_.HasNext(id);
}

// Gives a job that is claimed, or takes gradients, to its rank's ready jobs if it can start now.
void PendingJobs::Consider(JobId id) {
  LocalRank& rank = RankWith(id);
  ranks_.Touch(rank);
  uint8_t& flags = FlagsOf(id);
  if (flags & (kQueued | kDone)) return;
  const Job job = JobOf(id);
  const bool joins = joint_.IsNext(job);
  if (!CanStart(id, job, joins)) return;
  flags |= kQueued;
  // A gather goes before everything: others wait for it, and it needs the place of the job that has just
  // ended, not that of the next.
  const bool gathers = joins && run_.graph().GathersWeights(job);
  const bool admits = job.kind == JobKind::kForward && !gathers;
  rank.ready.Add(gathers ? INT64_MIN : run_.graph().PriorityOf(job), id, job.stage, admits,
                 admits ? admission_.TicketOf(job) : -1, (run_.graph().MarksOf(job) & kOverlapsForward) != 0);
}

void PendingJobs::AddInputs(JobId id, StartEffect* start) {
  GradientIntake::Range gradients;
  if (intake_.IsConsumer(start->job)) {
    gradients = intake_.Take(id);
    const bool ends = MissingOf(id) == 0 && (FlagsOf(id) & kClaimed);
    start->round = ends ? JobRound::kLast : JobRound::kGradients;
  }
  if (run_.graph().IsJoint(start->job)) start->round = joint_.Start(start->job);
  if (HasMicrobatch(start->job.kind) && start->round == JobRound::kBeginJoint) return;
  std::vector<Edge> edges;
  run_.graph().Predecessors(start->job, &edges);
  for (const Edge& e : edges) {
    if (e.tensor == TensorKind::kOrder || e.joined) continue;
    if (e.tensor == TensorKind::kGradient) {
      const bool now = e.from.microbatch >= gradients.first && e.from.microbatch < gradients.end;
      if (now) start->gradients.push_back(run_.KeyOf(e));
    } else if (start->last()) {
      start->inputs.push_back(run_.KeyOf(e));
    }
  }
}

void PendingJobs::NextRound(JobId id) {
  FlagsOf(id) &= static_cast<uint8_t>(~kQueued);
  if (run_.graph().IsJoint(JobOf(id))) {
    const std::optional<Job> next = joint_.NoteBegun(JobOf(id));
    if (next.has_value() && (FlagsOf(run_.IdOf(*next)) & kClaimed)) Consider(run_.IdOf(*next));
  }
  Consider(id);
}

void PendingJobs::NoteDone(LocalRank& rank, JobId id) {
  uint8_t& flags = FlagsOf(id);
  if ((flags & kDone) == 0) --claimed_;
  flags |= kDone;
  intake_.Forget(id);
  joint_.Forget(JobOf(id));
  while (!rank.claimed.empty() && (FlagsOf(rank.claimed.front()) & kDone)) rank.claimed.pop_front();
}

void PendingJobs::LeaveFirst() {
  // Claimed lists of other ranks no longer name jobs of this step: all of them ended.
  for (const auto& r : ranks_.all()) {
    while (!r->claimed.empty() && StepOf(r->claimed.front()) == progress_.first_step()) {
      r->claimed.pop_front();
      ranks_.Touch(*r);
    }
  }
  progress_.LeaveFirst();
}

bool PendingJobs::AwaitsGather(JobId id) const {
  return joint_.AwaitsGather(JobOf(id), progress_.At(StepOf(id)).missing[IndexOf(id)]);
}

bool PendingJobs::AwaitsTakings(JobId id) const {
  const auto awaited = takings_.find(id);
  return awaited != takings_.end() && awaited->second == progress_.At(StepOf(id)).missing[IndexOf(id)];
}

}  // namespace weft
