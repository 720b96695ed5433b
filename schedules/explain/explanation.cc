#include "schedules/explain/explanation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// A job of a window, whose steps count from its first one; members are told apart by their ranks.
using JobKey = std::tuple<int, int, int, JobKind, Rank>;

class Window {
 public:
  explicit Window(const TimedSteps& steps) {
    for (const DrawnJob& j : steps.jobs) {
      first_step_ = std::min(first_step_, j.job.step);
      begin_ = std::min(begin_, j.start);
      end_ = std::max(end_, j.end);
    }
    for (const DrawnJob& j : steps.jobs) jobs_[KeyOf(j.job, j.rank)] = j;
  }

  JobKey KeyOf(const Job& job, Rank rank) const {
    return {job.step - first_step_, job.stage, job.microbatch, job.kind, rank};
  }
  // Returns the job, or null.
  const DrawnJob* Find(const JobKey& key) const {
    const auto found = jobs_.find(key);
    return found == jobs_.end() ? nullptr : &found->second;
  }
  const std::map<JobKey, DrawnJob>& jobs() const { return jobs_; }
  double begin() const { return begin_; }
  double end() const { return end_; }
  int first_step() const { return first_step_; }

 private:
  std::map<JobKey, DrawnJob> jobs_;
  int first_step_ = std::numeric_limits<int>::max();
  double begin_ = std::numeric_limits<double>::infinity();
  double end_ = -std::numeric_limits<double>::infinity();
};

// Walks along the critical path of the measured steps, from its end to its start.
class PathWalk {
 public:
  PathWalk(const Graph& graph, const TimedSteps& planned, const TimedSteps& measured)
      : graph_(graph), planned_(planned), measured_(measured), plan_(planned), run_(measured) {
    for (const auto& [key, job] : run_.jobs()) by_rank_[job.rank].push_back(&job);
    for (auto& [rank, jobs] : by_rank_) {
      std::stable_sort(jobs.begin(), jobs.end(),
                       [](const DrawnJob* a, const DrawnJob* b) { return a->end < b->end; });
    }
  }

  // InvalidArgument where a job is in one of them alone.
  absl::Status CheckSameJobs() const {
    const auto missing = [](const Window& in, const Window& from, const char* what) {
      for (const auto& [key, job] : in.jobs()) {
        if (from.Find(key) == nullptr)
          return absl::InvalidArgumentError(
              absl::StrCat(Describe(job.job), " on rank ", job.rank, " is ", what));
      }
      return absl::OkStatus();
    };
    if (run_.jobs().empty()) return absl::InvalidArgumentError("there are no measured jobs");
    const absl::Status planned = missing(run_, plan_, "not in the plan");
    return planned.ok() ? missing(plan_, run_, "in the plan alone") : planned;
  }

  Explanation Take() && {
    Explanation explanation;
    explanation.planned = plan_.end() - plan_.begin();
    explanation.measured = run_.end() - run_.begin();
    const DrawnJob* job = nullptr;
    for (const auto& [key, j] : run_.jobs()) {
      if (job == nullptr || j.end > job->end) job = &j;
    }
    while (job != nullptr) {
      explanation.path.push_back(job->job);
      job = StepBack(*job);
    }
    if (const double slack = explanation.planned - on_path_; slack != 0) {
      parts_[{"slack", -1, -1, JobKind::kForward}] = {"slack", -slack, -1, JobKind::kForward, -1, 1};
    }
    for (auto& [key, part] : parts_) {
      if (part.stage >= 0) part.cause = part.seconds >= 0 ? "slower job" : "faster job";
      explanation.differences.push_back(std::move(part));
    }
    std::stable_sort(
        explanation.differences.begin(), explanation.differences.end(),
        [](const Difference& a, const Difference& b) { return std::abs(a.seconds) > std::abs(b.seconds); });
    return explanation;
  }

 private:
  using PartKey = std::tuple<std::string, Rank, int, JobKind>;

  // Counts the job and the gap before it. Returns what released it; null at the start of the window.
  const DrawnJob* StepBack(const DrawnJob& job) {
    seen_.insert(&job);
    const DrawnJob* const before = ReleasedBy(job);
    // A job that takes gradients as they come has begun before the last of them was there.
    const double release = before != nullptr ? before->end : run_.begin();
    const double begin = std::max(job.start, release);
    CountJob(job, job.end - begin);
    CountGap(before, job, release, begin);
    return before;
  }

  const DrawnJob* ReleasedBy(const DrawnJob& drawn) const {
    const DrawnJob* last = BeforeOnRank(drawn);
    const auto take = [&](const DrawnJob* job) {
      if (job != nullptr && seen_.count(job) == 0 && (last == nullptr || job->end > last->end)) last = job;
    };
    Job job = drawn.job;
    if (!HasMicrobatch(job.kind)) {
      job.microbatch = -1;
      const std::vector<Rank>& ranks = graph_.members(job.stage);
      const auto member = std::find(ranks.begin(), ranks.end(), drawn.rank);
      if (member == ranks.end()) return last;
      job.member = static_cast<int>(member - ranks.begin());
    }
    Edges edges;
    graph_.Predecessors(job, &edges);
    for (const Edge& e : edges) {
      if (e.from.step >= run_.first_step()) take(run_.Find(run_.KeyOf(e.from, graph_.RankOf(e.from))));
    }
    return last;
  }

  // Returns the job of the rank that had ended last when this one began.
  const DrawnJob* BeforeOnRank(const DrawnJob& drawn) const {
    const std::vector<const DrawnJob*>& jobs = by_rank_.at(drawn.rank);
    auto next = std::upper_bound(jobs.begin(), jobs.end(), drawn.start,
                                 [](double time, const DrawnJob* j) { return time < j->end; });
    while (next != jobs.begin()) {
      --next;
      if (*next != &drawn && seen_.count(*next) == 0) return *next;
    }
    return nullptr;
  }

  void CountJob(const DrawnJob& job, double took) {
    const DrawnJob& plan = *plan_.Find(run_.KeyOf(job.job, job.rank));
    const double planned = plan.end - plan.start;
    on_path_ += planned;
    Difference& part = PartOf("", job.rank, job.job.stage, job.job.kind);
    part.seconds += took - planned;
    part.planned += planned;
    part.measured += took;
    ++part.count;
  }

  // Divides the gap by what the rank was idle for. A transfer that the plan has too is no difference.
  void CountGap(const DrawnJob* before, const DrawnJob& job, double from, double to) {
    if (before != nullptr && before->rank != job.rank) {
      const double planned = PlannedTransfer(before->rank, job);
      if (planned > 0) {
        on_path_ += planned;
        Difference& part = PartOf("transfer", job.rank, -1, JobKind::kForward);
        part.seconds -= planned;
        part.planned += planned;
      }
    }
    if (to <= from) return;
    double rest = to - from;
    for (const DrawnIdle& idle : measured_.idle) {
      const double part = std::min(idle.end, to) - std::max(idle.start, from);
      if (idle.rank != job.rank || part <= 0) continue;
      CountIdle(idle.cause, job.rank, part);
      rest -= part;
    }
    // The bookkeeping between two jobs is in no recorded time.
    if (rest > 0) CountIdle("dispatch", job.rank, rest);
  }

  void CountIdle(const std::string& cause, Rank rank, double seconds) {
    Difference& part = PartOf(cause, rank, -1, JobKind::kForward);
    part.seconds += seconds;
    part.measured += seconds;
    ++part.count;
  }

  // Returns the time of the longest planned transfer from the rank to the job.
  double PlannedTransfer(Rank from, const DrawnJob& job) const {
    const JobKey key = run_.KeyOf(job.job, job.rank);
    double longest = 0;
    for (const DrawnTransfer& t : planned_.transfers) {
      if (t.from == from && t.to == job.rank && plan_.KeyOf(t.job, t.to) == key)
        longest = std::max(longest, t.end - t.start);
    }
    return longest;
  }

  Difference& PartOf(const std::string& cause, Rank rank, int stage, JobKind kind) {
    const auto [found, added] = parts_.try_emplace(PartKey{cause, rank, stage, kind});
    if (added) found->second = {cause, 0, rank, kind, stage};
    return found->second;
  }

  const Graph& graph_;
  const TimedSteps& planned_;
  const TimedSteps& measured_;
  const Window plan_, run_;
  std::map<Rank, std::vector<const DrawnJob*>> by_rank_;  // by their ends
  std::set<const DrawnJob*> seen_;
  std::map<PartKey, Difference> parts_;
  double on_path_ = 0;  // planned seconds of what is on the path
};

}  // namespace

absl::StatusOr<Explanation> Explain(const Graph& graph, const TimedSteps& planned,
                                    const TimedSteps& measured) {
  PathWalk walk(graph, planned, measured);
  if (const absl::Status same = walk.CheckSameJobs(); !same.ok()) return same;
  return std::move(walk).Take();
}

}  // namespace weft
