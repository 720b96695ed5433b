#include "schedules/graph/step_edges.h"

#include <array>
#include <cstdlib>
#include <utility>

#include "base/require.h"

namespace weft {
namespace {

// First and last steps that have tables of their own: more than an edge of a state's route spans.
constexpr int64_t kBorder = 3;

constexpr int kSorts = 2 * kTensorKinds + 2;  // sort keys

// Returns the sort key of a successor: by tensor, those without one last; of a tensor, jobs of the same sort
// as their predecessor first.
int SortOf(const StepEdges::Successor& successor, bool other) {
  const bool order = successor.tensor == TensorKind::kOrder;
  return (order ? 2 * kTensorKinds : 2 * static_cast<int>(successor.tensor)) + (other ? 1 : 0);
}

// Puts the successors of one job, which come by index, into their order. `compute`: jobs with an index below
// have a micro-batch, and so has the job if `own`. An update has a successor for each micro-batch, which are
// of few sorts: they are counted by sort, and need no comparison.
void PutInOrder(int compute, bool own, StepEdges::Successor* begin, StepEdges::Successor* end) {
  using Successor = StepEdges::Successor;
  const auto sort_of = [compute, own](const Successor& s) { return SortOf(s, (s.index < compute) != own); };
  const auto less = [&sort_of](const Successor& a, const Successor& b) {
    const int first = sort_of(a), second = sort_of(b);
    if (first != second) return first < second;
    return a.index != b.index ? a.index < b.index : a.distance < b.distance;
  };
  if (std::is_sorted(begin, end, less)) return;
  constexpr int kFew = 16;
  if (end - begin > kFew) {
    std::array<int, kSorts + 1> next{};
    for (const Successor* s = begin; s != end; ++s) ++next[sort_of(*s) + 1];
    for (int sort = 0; sort < kSorts; ++sort) next[sort + 1] += next[sort];
    const std::vector<Successor> by_index(begin, end);
    for (const Successor& s : by_index) begin[next[sort_of(s)]++] = s;
    if (std::is_sorted(begin, end, less)) return;
  }
  std::sort(begin, end, less);
}

}  // namespace

// An edge from job `from` of the step of the table that it is for.
struct StepEdges::Found {
  int32_t from;
  Successor successor;
};

StepEdges::StepEdges(const Graph& graph) {
  if (graph.depends_on_steps()) {
    InvertRun(graph);
  } else {
    InvertPeriod(graph);
  }
}

// Sorts the edges of a table by job, and each job's successors. `found` is in the order of the successors'
// steps, and within a step by index.
void StepEdges::Fill(const Graph& graph, const std::vector<Found>& found, Table* table) {
  const int n = graph.jobs_per_step(), compute = graph.compute_jobs();
  table->begin.assign(static_cast<size_t>(n) + 1, 0);
  for (const Found& f : found) ++table->begin[f.from + 1];
  for (int i = 0; i < n; ++i) table->begin[i + 1] += table->begin[i];
  std::vector<int32_t> next(table->begin.begin(), table->begin.end() - 1);
  table->successors.resize(found.size());
  for (const Found& f : found) {
    table->successors[next[f.from]++] = f.successor;
    max_distance_ = std::max<int>(max_distance_, f.successor.distance);
  }
  for (int i = 0; i < n; ++i) {
    PutInOrder(compute, i < compute, table->successors.data() + table->begin[i],
               table->successors.data() + table->begin[i + 1]);
  }
}

void StepEdges::InvertPeriod(const Graph& graph) {
  const int n = graph.jobs_per_step(), period = graph.schedule().period;
  // A far step, so that edges from earlier ones are all there.
  const int steady = (1 << 20) / period * period;
  std::vector<std::vector<Found>> found(period);
  Edges edges;
  for (std::vector<Found>& of_phase : found) of_phase.reserve(3 * static_cast<size_t>(n));
  for (int phase = 0; phase < period; ++phase) {
    for (int i = 0; i < n; ++i) {
      edges.clear();
      graph.Predecessors(graph.JobAt(steady + phase, i), &edges);
      for (const Edge& e : edges) {
        const int distance = steady + phase - e.from.step;
        found[e.from.step % period].push_back(
            {graph.IndexOf(e.from), {i, static_cast<int16_t>(distance), e.tensor, e.joined, e.part}});
      }
    }
  }
  tables_.resize(period);
  for (int phase = 0; phase < period; ++phase) Fill(graph, std::exchange(found[phase], {}), &tables_[phase]);
  for (Table& table : tables_) table.waiting.assign(max_distance_ + 1, std::vector<int32_t>(n, 0));
  for (int phase = 0; phase < period; ++phase) {
    for (const Successor& s : tables_[phase].successors) {
      Table& later = tables_[(phase + s.distance) % period];
      for (int d = s.distance; d <= max_distance_; ++d) ++later.waiting[d][s.index];
    }
  }
}

bool StepEdges::HasTable(int64_t step) const {
  return step < first_step_ + border_ + 1 || step >= end_step_ - border_;
}

// Steps between the borders are alike: their edges come from, and lead to, steps of the run.
void StepEdges::InvertRun(const Graph& graph) {
  Require(graph.steps() != Graph::kForEver, "the graph depends on the number of steps, which is given");
  of_run_ = true;
  first_step_ = graph.first_step();
  end_step_ = graph.steps();
  const int64_t steps = end_step_ - first_step_;
  border_ = std::min(kBorder, steps);
  tables_.resize(std::min(2 * kBorder + 1, steps));
  for (Table& table : tables_) table.waiting.emplace_back(graph.jobs_per_step(), 0);
  std::vector<std::vector<Found>> found(tables_.size());
  Edges edges;
  for (int64_t step = first_step_; step < end_step_; ++step) {
    // Steps in the middle of a long run lead to none that has a table.
    if (step == first_step_ + 2 * kBorder + 1) step = std::max(step, end_step_ - 2 * kBorder);
    for (int i = 0; i < graph.jobs_per_step(); ++i) {
      edges.clear();
      graph.Predecessors(graph.JobAt(static_cast<int>(step), i), &edges);
      for (const Edge& e : edges) {
        if (e.from.step < first_step_) continue;
        const int64_t distance = step - e.from.step;
        Require(std::abs(distance) < kBorder, "no edge spans more steps than there are at a border");
        if (HasTable(step)) ++tables_[TableOf(step)].waiting.front()[i];
        if (!HasTable(e.from.step)) continue;
        found[TableOf(e.from.step)].push_back(
            {graph.IndexOf(e.from), {i, static_cast<int16_t>(distance), e.tensor, e.joined, e.part}});
      }
    }
  }
  for (size_t t = 0; t < tables_.size(); ++t) Fill(graph, std::exchange(found[t], {}), &tables_[t]);
}

void StepEdges::AppendSuccessors(const Graph& graph, const Job& job, Edges* edges) const {
  for (const Successor& s : SuccessorsOf(job.step, graph.IndexOf(job))) {
    const Job to = graph.JobAt(job.step + s.distance, s.index);
    const bool reads = job.kind == JobKind::kUpdate &&
                       (s.tensor == TensorKind::kWeights || (HasMicrobatch(to.kind) && !of_run_));
    const bool shares = job.kind != JobKind::kUpdate && s.tensor == TensorKind::kWeights;
    const int version = reads    ? graph.protocol(job.stage).VersionBehind(job)
                        : shares ? graph.VersionOf(to)
                                 : 0;
    edges->push_back({job, to, s.tensor, s.part, version, s.joined});
  }
}

}  // namespace weft
