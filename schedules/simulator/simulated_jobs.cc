#include "schedules/simulator/simulated_jobs.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "schedules/dispatch/memory.h"
#include "schedules/sync/state_route.h"

namespace weft {

OperationCharge ChargeOf(const Graph& graph, const Job& job) {
  std::vector<Operation> operations;
  graph.Operations(job, &operations);
  OperationCharge charge;
  charge.stage = job.stage;
  for (const Operation operation : operations) {
    switch (operation) {
      case Operation::kForwardOnly:
        charge.keeps_nothing = true;
        break;
      case Operation::kRemakeForward:
        charge.remakes = true;
        break;
      case Operation::kGatherWeights:
      case Operation::kJoinGather:
        charge.takes_slices = true;
        break;
      case Operation::kHandOutGradient:
        charge.gives_slices = true;
        break;
      case Operation::kAccumulate:
        charge.gives_slices = true;
        charge.accumulates = true;
        break;
      case Operation::kAddToSum:
        charge.adds_to_sum = true;
        break;
      case Operation::kAllReduce:
        charge.ring_turns = 2;
        break;
      case Operation::kReduceScatter:
        charge.ring_turns = 1;
        break;
      default:
        break;
    }
  }
  return charge;
}

double JobCosts::DurationOf(const Job& job, const OperationCharge& charge) const {
  // A joint operation runs beside the rank's jobs; the second half of a fused backward is no job of its own.
  const bool is_dispatched = charge.ring_turns == 0 && !(graph_.MarksOf(job) & kFusedBackward);
  const double dispatch = is_dispatched ? options_.dispatch : 0;
  return (WorkOf(job) + SumsOf(job, charge) + dispatch) / options_.network.SpeedOf(graph_.RankOf(job));
}

// A backward that is one piece of work takes its whole time in its first half.
double JobCosts::WorkOf(const Job& job) const {
  const auto time = [&](JobKind kind) {
    return OfStage(options_.duration[static_cast<int>(kind)], job.stage);
  };
  if (graph_.MarksOf(job) & kFusedBackward) return 0;
  if (job.kind == JobKind::kBackwardInput) {
    Job weight = job;
    weight.kind = JobKind::kBackwardWeight;
    if (graph_.MarksOf(weight) & kFusedBackward) return time(job.kind) + time(JobKind::kBackwardWeight);
  }
  return time(job.kind);
}

double JobCosts::ColdTime(int stage, Rank rank) const {
  return OfStage(options_.cold, stage) / options_.network.SpeedOf(rank);
}

// The first gradient of a running sum comes alone.
double JobCosts::SumsOf(const Job& job, const OperationCharge& charge) const {
  const double one = OfStage(options_.accumulate, job.stage);
  if (one == 0 || !(charge.accumulates || charge.adds_to_sum)) return 0;
  const TensorKind summed = charge.accumulates ? TensorKind::kGradient : TensorKind::kGradientSum;
  Edges edges;
  graph_.Predecessors(job, &edges);
  const auto count =
      std::count_if(edges.begin(), edges.end(), [&](const Edge& e) { return e.tensor == summed; });
  return one * static_cast<double>(count) / (charge.accumulates ? graph_.protocol(job.stage).size() : 1);
}

double JobCosts::OutputBytes(int stage) const {
  return OfStage(options_.output.empty() ? options_.activation : options_.output, stage);
}

double JobCosts::SliceBytes(int stage) const {
  return OfStage(options_.weight, stage) / graph_.protocol(stage).size();
}

double JobCosts::BytesOf(TensorKind tensor, const OperationCharge& from, const OperationCharge& to) const {
  switch (tensor) {
    case TensorKind::kOrder:
      return 0;
    case TensorKind::kActivation:
      return OutputBytes(from.stage);
    case TensorKind::kInputGradient:
      return OutputBytes(to.stage);
    case TensorKind::kWeights:
      return to.takes_slices ? SliceBytes(from.stage) : OfStage(options_.weight, from.stage);
    case TensorKind::kNorm:
      return static_cast<double>(kNormBytes);
    case TensorKind::kGradient:
    case TensorKind::kGradientSum:
      return from.gives_slices ? SliceBytes(from.stage) : OfStage(options_.weight, from.stage);
    case TensorKind::kState:  // depends on the job
    case TensorKind::kCopy:   // belongs to no job
      break;
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
         edge.to.kind == JobKind::kReduce && edge.from.stage == edge.to.stage && graph.IsJoint(edge.to);
}

SimulatedJobs::SimulatedJobs(const Graph& graph, const JobCosts& costs, const SimulationOptions& options,
                             const StepEdges& edges, const JobTable& jobs)
    : graph_(graph),
      costs_(costs),
      options_(options),
      edges_(edges),
      jobs_(jobs),
      of_run_(graph.depends_on_steps()),
      period_(jobs.period()) {
  if (of_run_) return;
  for (int phase = 0; phase < jobs_.period(); ++phase) charges_.push_back(ChargesOf(phase));
  for (int phase = 0; phase < jobs_.period(); ++phase) of_phase_.push_back(MakeTable(phase));
  if (jobs_.period() == 1) only_ = &of_phase_.front();
}

std::vector<OperationCharge> SimulatedJobs::ChargesOf(int step) const {
  std::vector<OperationCharge> charges;
  charges.reserve(jobs_.size());
  for (int i = 0; i < jobs_.size(); ++i) charges.push_back(ChargeOf(graph_, jobs_.JobOf(MakeJobId(step, i))));
  return charges;
}

// Returns the job's priority in the first period, and by how much it grows with each. The table of one step
// of a run has the priorities of that step.
std::pair<int64_t, int64_t> SimulatedJobs::PriorityLineOf(const Job& job) const {
  const int64_t first = graph_.PriorityOf(job);
  if (of_run_) return {first, 0};
  Job next = job;
  next.step += jobs_.period();
  return {first, graph_.PriorityOf(next) - first};
}

SimulatedJobs::Facts SimulatedJobs::MakeFacts(const Job& job, const OperationCharge& charge) const {
  const bool computes = HasMicrobatch(job.kind), forward = job.kind == JobKind::kForward;
  unsigned flags = 0;
  if (computes) flags |= kComputes;
  if (forward) flags |= kAdmits;
  if (graph_.MarksOf(job) & kOverlapsForward) flags |= kOverlapped;
  if (charge.ring_turns > 0) flags |= kJoint;
  if (graph_.FetchesWeights(job) && !graph_.FetchedBy(job).has_value()) flags |= kFetches;
  if (forward || charge.remakes) flags |= kBeginsActivation;
  if (job.kind == graph_.final_backward() || charge.keeps_nothing) {
    flags |= kEndsActivation;
    if (charge.keeps_nothing || !graph_.HasRemoteBackward(job)) flags |= kReleases;
  }
  if (job.kind == JobKind::kUpdate || (flags & kFetches)) flags |= kEndIsNoted;
  const double duration = costs_.DurationOf(job, charge);
  const auto [priority, growth] = PriorityLineOf(job);
  return {duration,
          OfStage(options_.activation, job.stage),
          priority,
          growth,
          graph_.RankOf(job),
          job.stage,
          0,
          job.kind,
          static_cast<uint16_t>(flags)};
}

// Gives the first forward of each stage on each rank the time that its micro-batch takes longer.
void SimulatedJobs::AddCold(int step, Table* table) const {
  if (std::all_of(options_.cold.begin(), options_.cold.end(), [](double time) { return time == 0; })) return;
  const auto job = [&](int index) { return jobs_.JobOf(MakeJobId(step, index)); };
  std::map<std::pair<int, Rank>, int> first;  // index of the job, by stage and rank
  for (int i = 0; i < jobs_.size(); ++i) {
    if (table->jobs[i].kind != JobKind::kForward) continue;
    int& least = first.try_emplace({table->jobs[i].stage, table->jobs[i].rank}, i).first->second;
    if (job(i).microbatch < job(least).microbatch) least = i;
  }
  for (const auto& [where, i] : first) table->jobs[i].duration += costs_.ColdTime(where.first, where.second);
}

SimulatedJobs::Table SimulatedJobs::MakeTable(int step) const {
  Table table;
  const int n = jobs_.size();
  // States travel if each step has edges of its own: then no tensor depends on the operations of the job
  // behind it.
  const std::vector<OperationCharge> own = of_run_ ? ChargesOf(step) : std::vector<OperationCharge>();
  const auto charges_at = [&](int s) -> const std::vector<OperationCharge>& {
    return of_run_ ? own : charges_[jobs_.PhaseOf(s)];
  };
  const std::vector<OperationCharge>& charges = charges_at(step);
  table.jobs.reserve(n + 1);
  for (int i = 0; i < n; ++i) {
    const Job job = jobs_.JobOf(MakeJobId(step, i));
    const OperationCharge& charge = charges[i];
    table.jobs.push_back(MakeFacts(job, charge));
    Facts& facts = table.jobs.back();
    facts.first_output = static_cast<int32_t>(table.outputs.size());
    for (const auto& s : edges_.SuccessorsOf(step, i)) {
      const JobId id = MakeJobId(step + s.distance, s.index);
      if (EndsTogether(graph_, {job, jobs_.JobOf(id), s.tensor})) continue;
      const OperationCharge& to = charges_at(step + s.distance)[s.index];
      const Rank target = jobs_.RankOf(id);
      const bool sent = target != facts.rank && !(s.joined && s.tensor == TensorKind::kOrder);
      const Reach reach = s.distance != 0 ? Reach::kOtherStep : sent ? Reach::kOtherRank : Reach::kHere;
      table.outputs.push_back(
          {s.index, s.distance, s.tensor, sent, reach, target, costs_.BytesOf(s.tensor, charge, to)});
    }
  }
  Facts end = {};
  end.first_output = static_cast<int32_t>(table.outputs.size());
  table.jobs.push_back(end);
  AddCold(step, &table);
  for (Facts& facts : table.jobs) facts.flags |= facts.duration == 0 ? kTakesNoTime : 0;
  return table;
}

}  // namespace weft
