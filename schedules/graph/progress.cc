#include "schedules/graph/progress.h"

#include <utility>

#include "base/require.h"

namespace weft {
namespace {

constexpr size_t kPlacesAtFirst = 4;

}  // namespace

JobTable::JobTable(const Graph& graph) {
  const int n = graph.jobs_per_step(), period = graph.schedule().period;
  jobs_.reserve(n);
  ranks_.resize(period);
  for (int phase = 0; phase < period; ++phase) {
    ranks_[phase].reserve(n);
    for (int i = 0; i < n; ++i) {
      if (phase == 0) jobs_.push_back(graph.JobAt(0, i));
      Job job = jobs_[i];
      job.step = phase;
      ranks_[phase].push_back(graph.RankOf(job));
    }
  }
}

std::shared_ptr<const StepTables> TablesOf(const Graph& graph, std::shared_ptr<const StepTables> made) {
  return made != nullptr ? std::move(made) : std::make_shared<const StepTables>(graph);
}

StepProgress::StepProgress(const Graph& graph, Options options, std::shared_ptr<const StepTables> tables)
    : graph_(graph),
      tables_(TablesOf(graph, std::move(tables))),
      edges_(tables_->edges),
      jobs_(tables_->jobs),
      rule_(graph.depends_on_steps() ? nullptr : std::move(options.rule)),
      run_begin_(options.first_step),
      first_(options.first_step),
      end_(options.first_step),
      mask_(kPlacesAtFirst - 1),
      steps_(kPlacesAtFirst),
      steady_(jobs_.period()) {
  Require(jobs_.size() == graph.jobs_per_step() && jobs_.period() == graph.schedule().period,
          "the tables are the graph's");
  for (int phase = 0; phase < jobs_.period(); ++phase) {
    const std::vector<Rank>& ranks = jobs_.RanksAt(phase);
    int32_t count = 0;
    for (const Rank rank : ranks) count += options.followed.empty() || options.followed[rank];
    followed_.push_back(count);
    if (!options.by_rank) continue;
    std::vector<Remaining>& of_rank = all_of_rank_.emplace_back(graph.schedule().ranks);
    for (int i = 0; i < jobs_.size(); ++i) {
      ++of_rank[ranks[i]].jobs;
      of_rank[ranks[i]].compute += HasMicrobatch(jobs_.First(i).kind);
    }
  }
}

void StepProgress::OpenNext() {
  if (static_cast<size_t>(end_ - first_) > mask_) Grow();
  const int number = end_++;
  Step& step = At(number);
  if (rule_ == nullptr) {
    step.missing = edges_.WaitingAt(number, run_begin_);
  } else if (number - run_begin_ < edges_.max_distance()) {
    CountInputs(number, &step.missing);
  } else {
    std::vector<int32_t>& steady = steady_[jobs_.PhaseOf(number)];
    if (steady.empty()) CountInputs(number, &steady);
    step.missing = steady;
  }
  step.state.assign(jobs_.size(), 0);
  step.remaining = followed_[jobs_.PhaseOf(number)];
  if (!all_of_rank_.empty()) step.of_rank = all_of_rank_[jobs_.PhaseOf(number)];
}

void StepProgress::CountInputs(int step, std::vector<int32_t>* missing) {
  missing->resize(jobs_.size());
  Edges edges;
  for (int i = 0; i < jobs_.size(); ++i) {
    const Job job = jobs_.JobOf(MakeJobId(step, i));
    edges.clear();
    graph_.Predecessors(job, &edges);
    (*missing)[i] = rule_(job, edges);
  }
}

void StepProgress::Grow() {
  const size_t mask = 2 * mask_ + 1;
  std::vector<Step> steps(mask + 1);
  for (int step = first_; step < end_; ++step) steps[static_cast<size_t>(step) & mask] = std::move(At(step));
  steps_ = std::move(steps);
  mask_ = mask;
}

}  // namespace weft
