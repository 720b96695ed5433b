#include "schedules/simulator/simulated_jobs.h"

#include <optional>

#include "schedules/dispatch/memory.h"
#include "schedules/sync/state_route.h"

namespace weft {
namespace {

constexpr double kNormBytes = 160;

}  // namespace

// A backward that is one piece of work takes its whole time in its first half.
double JobCosts::DurationOf(const Job& job) const {
  const auto time = [&](JobKind kind) {
    return OfStage(options_.duration[static_cast<int>(kind)], job.stage);
  };
  if (graph_.MarksOf(job) & kOneBackward) return 0;
  if (job.kind == JobKind::kBackwardInput) {
    Job weight = job;
    weight.kind = JobKind::kBackwardWeight;
    if (graph_.MarksOf(weight) & kOneBackward) return time(job.kind) + time(JobKind::kBackwardWeight);
  }
  return time(job.kind);
}

double JobCosts::OutputBytes(int stage) const {
  return OfStage(options_.output.empty() ? options_.activation : options_.output, stage);
}

double JobCosts::BytesOf(TensorKind tensor, int from_stage, int to_stage) const {
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

double JobCosts::StateBytes(const Job& to) const {
  const StateRoute& route = *graph_.route();
  const std::optional<Job> before = route.Before(to);
  const int versions = before.has_value() ? route.VersionsAfter(*before) : 1;
  return versions * OfStage(options_.weight, to.stage) + OfStage(options_.state, to.stage);
}

bool EndsTogether(const Graph& graph, const Edge& edge) {
  return edge.tensor == TensorKind::kNorm && edge.from.kind == JobKind::kReduce &&
         edge.to.kind == JobKind::kReduce && edge.from.stage == edge.to.stage &&
         graph.sync(edge.to.stage).reduces_jointly();
}

SimulatedJobs::SimulatedJobs(const Graph& graph, const JobCosts& costs, const SimulationOptions& options,
                             const StepEdges& edges, const JobTable& jobs)
    : graph_(graph),
      costs_(costs),
      options_(options),
      edges_(edges),
      jobs_(jobs),
      of_run_(graph.depends_on_steps()) {
  if (of_run_) return;
  for (int phase = 0; phase < jobs_.period(); ++phase) of_phase_.push_back(MakeTable(phase));
}

SimulatedJobs::Facts SimulatedJobs::MakeFacts(const Job& job) const {
  const bool computes = HasMicrobatch(job.kind), forward = job.kind == JobKind::kForward;
  const bool apart = computes && graph_.IsApart(job);
  const bool leaves_nothing = apart && forward;
  unsigned flags = 0;
  if (computes) flags |= kComputes;
  if (forward) flags |= kAdmits;
  if (graph_.MarksOf(job) & kBesideForward) flags |= kBeside;
  if (job.kind == JobKind::kReduce && graph_.IsJoint(job)) flags |= kJoint;
  if (graph_.FetchesWeights(job)) flags |= kFetches;
  if (forward || (apart && job.kind == graph_.input_backward())) flags |= kBeginsActivation;
  if (job.kind == graph_.final_backward() || leaves_nothing) {
    flags |= kEndsActivation;
    if (!apart || leaves_nothing) flags |= kReleases;
  }
  return {costs_.DurationOf(job),
          OfStage(options_.activation, job.stage),
          graph_.RankOf(job),
          job.stage,
          0,
          job.kind,
          static_cast<uint8_t>(flags)};
}

SimulatedJobs::Table SimulatedJobs::MakeTable(int step) const {
  Table table;
  const int n = jobs_.size();
  table.jobs.reserve(n + 1);
  for (int i = 0; i < n; ++i) {
    const Job job = jobs_.JobOf(MakeJobId(step, i));
    table.jobs.push_back(MakeFacts(job));
    Facts& facts = table.jobs.back();
    facts.first_output = static_cast<int32_t>(table.outputs.size());
    for (const auto& s : edges_.SuccessorsOf(step, i)) {
      const JobId id = MakeJobId(step + s.distance, s.index);
      const Job to = jobs_.JobOf(id);
      if (EndsTogether(graph_, {job, to, s.tensor})) continue;
      const Rank target = jobs_.RankOf(id);
      const bool sent = target != facts.rank && !(s.joined && s.tensor == TensorKind::kOrder);
      table.outputs.push_back(
          {s.index, s.distance, s.tensor, sent, target, costs_.BytesOf(s.tensor, job.stage, to.stage)});
    }
  }
  Facts end = {};
  end.first_output = static_cast<int32_t>(table.outputs.size());
  table.jobs.push_back(end);
  return table;
}

}  // namespace weft
