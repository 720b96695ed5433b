// The edges along which the state of a stage goes from visit to visit (visits.h), and the tables of a run
// that has such edges.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "schedules/graph.h"

namespace weft {
namespace {

// First and last steps that have tables of their own: more than an edge spans.
constexpr int64_t kBorder = 3;

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "weft: broken invariant in the job graph of a state that migrates: %s\n", what);
  std::abort();
}

// A micro-batch's backward comes after its forward anyway.
bool IsBackpropagation(const Edge& e) {
  return e.tensor == TensorKind::kOrder && e.from.kind == JobKind::kForward &&
         e.to.kind == JobKind::kBackward && e.from.step == e.to.step && e.from.microbatch == e.to.microbatch;
}

}  // namespace

// Where the state stays on its rank the edge only orders.
Edge Graph::StateEdge(const Job& from, const Job& to) const {
  const bool stays = RankOf(from) == RankOf(to);
  return {from, to, stays ? TensorKind::kOrder : TensorKind::kState, 0, 0};
}

void Graph::StatePredecessor(const Job& job, std::vector<Edge>* edges) const {
  const std::optional<Job> before = visits_->Before(job);
  if (!before.has_value()) return;
  const Edge edge = StateEdge(*before, job);
  if (!IsBackpropagation(edge)) edges->push_back(edge);
}

void Graph::StateSuccessor(const Job& job, std::vector<Edge>* edges) const {
  const std::optional<Job> after = visits_->After(job);
  if (!after.has_value()) return;
  const Edge edge = StateEdge(job, *after);
  if (!IsBackpropagation(edge)) edges->push_back(edge);
}

// Steps between the borders are alike: their edges come from, and lead to, steps of the run.
StepEdges FlattenRun(const Graph& graph) {
  Require(graph.steps() != Graph::kForEver, "its edges depend on the number of steps, which is given");
  StepEdges flat;
  flat.migrates_ = true;
  flat.first_step_ = graph.first_step();
  flat.end_step_ = graph.steps();
  const int64_t steps = flat.end_step_ - flat.first_step_;
  flat.border_ = std::min(kBorder, steps);
  const int64_t tables = std::min(2 * kBorder + 1, steps);
  std::vector<Edge> edges;
  for (int64_t t = 0; t < tables; ++t) {
    const auto step = static_cast<int>(t <= kBorder ? flat.first_step_ + t : flat.end_step_ - tables + t);
    StepEdges::Table& table = flat.AppendTable(graph, step, flat.end_step_);
    for (const StepEdges::Successor& s : table.successors)
      Require(std::abs(s.distance) < kBorder, "no edge spans more steps than there are at a border");
    std::vector<int32_t>& waiting = table.waiting.emplace_back();
    for (int i = 0; i < graph.jobs_per_step(); ++i) {
      edges.clear();
      graph.Predecessors(graph.JobAt(step, i), &edges);
      waiting.push_back(static_cast<int32_t>(std::count_if(
          edges.begin(), edges.end(), [&](const Edge& e) { return e.from.step >= flat.first_step_; })));
    }
  }
  return flat;
}

}  // namespace weft
