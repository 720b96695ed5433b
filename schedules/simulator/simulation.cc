#include "schedules/simulator/simulation.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/byte_text.h"
#include "schedules/dispatch/memory.h"
#include "schedules/simulator/simulation_summary.h"
#include "schedules/sync/state_route.h"

namespace weft {
namespace {

// Tells, by rank and stage, which ranks compute which stages in some step.
std::vector<std::vector<bool>> ComputedStages(const Graph& graph, const JobTable& jobs) {
  std::vector<std::vector<bool>> computed(graph.schedule().ranks,
                                          std::vector<bool>(graph.schedule().stages, false));
  for (int phase = 0; phase < jobs.period(); ++phase) {
    for (int i = 0; i < jobs.size(); ++i) computed[jobs.RanksAt(phase)[i]][jobs.First(i).stage] = true;
  }
  return computed;
}

}  // namespace

// Counts the arrivals of initial weights among the inputs of jobs that fetch them.
StepProgress::Options Simulation::ProgressOptions() const {
  StepProgress::Options options;
  options.by_rank = true;
  bool fetches = false;
  for (int step = 0; step < schedule_.period; ++step) {
    for (int i = 0; i < graph_.jobs_per_step() && !fetches; ++i) {
      const Job job = graph_.JobAt(step, i);
      fetches |= HasMicrobatch(job.kind) && graph_.FetchesWeights(job);
    }
  }
  if (!fetches) return options;
  options.rule = [&graph = graph_](const Job&, const std::vector<Edge>& predecessors) {
    return static_cast<int>(std::count_if(predecessors.begin(), predecessors.end(), [&](const Edge& e) {
      return (e.from.step >= 0 || e.tensor == TensorKind::kWeights) && !EndsTogether(graph, e);
    }));
  };
  return options;
}

Simulation::Simulation(const Graph& graph, const SimulationOptions& options, SimulatedAdmission admission,
                       std::shared_ptr<const StepTables> tables)
    : graph_(graph),
      options_(options),
      schedule_(graph.schedule()),
      costs_(graph, options),
      progress_(graph, ProgressOptions(), std::move(tables)),
      jobs_(graph, costs_, options, progress_.edges(), progress_.jobs()),
      tickets_(graph, admission.memory.has_value() ? admission.memory : graph.schedule().memory),
      admitted_in_order_(std::move(admission.order)),
      has_pairs_(graph.has_pairs()),
      counts_versions_(!graph.depends_on_steps() && graph.schedule().staleness != nullptr),
      // Holders keep for the checkpoint the versions that later steps would read, as in a run.
      versions_(graph, HeldVersions::Steps{options.steps, 0, /*saved=*/true}),
      result_(EmptyResult(graph, options, admission.held_bytes)),
      times_(&result_, options.record_waits),
      alive_(&result_),
      links_(options.bandwidth, options.latency, &result_),
      idle_(graph.schedule().ranks) {}

void Simulation::Prepare() {
  const auto computed = ComputedStages(graph_, progress_.jobs());
  for (Rank rank = 0; rank < schedule_.ranks; ++rank) {
    // A limit for a stage that the rank does not compute has no effect, and costs a look at each dispatch.
    std::vector<std::optional<int>> limits;
    for (int s = 0; schedule_.limit && s < schedule_.stages; ++s) {
      limits.push_back(computed[rank][s] ? schedule_.limit(rank, s) : std::nullopt);
    }
    ranks_.push_back(
        {ReadyJobs(std::move(limits), graph_.replays() ? std::optional<int64_t>(0) : std::nullopt,
                   tickets_.TicketsOf(rank))});
  }
}

void Simulation::OpenSteps(int step) {
  while (progress_.end_step() <= step) {
    const int next = progress_.end_step();
    progress_.Open(next);
    jobs_.Open(next);
    if (admitted_in_order_.empty()) continue;
    for (const int32_t index : admitted_in_order_[progress_.jobs().PhaseOf(next)]) {
      const JobId id = MakeJobId(next, index);
      const Facts& facts = FactsOf(id);
      ranks_[facts.rank].ready.Claim(id, facts.stage);
    }
  }
}

// The first steps have jobs that wait for nothing, and jobs that fetch the initial weights.
void Simulation::Seed() {
  struct Fetch {
    JobId job;
    Rank holder;
    double bytes;
  };
  std::vector<Fetch> fetches;
  std::vector<JobId> ready;
  Edges edges;
  for (int step = 0; step <= progress_.edges().max_distance() && step < options_.steps; ++step) {
    OpenSteps(step);
    for (int i = 0; i < progress_.jobs().size(); ++i) {
      const JobId id = MakeJobId(step, i);
      const Job job = JobOf(id);
      if (graph_.FetchesWeights(job) && graph_.VersionOf(job) == 0) {
        edges.clear();
        graph_.Predecessors(job, &edges);
        const OperationCharge charge = ChargeOf(graph_, job);
        const double bytes = costs_.BytesOf(TensorKind::kWeights, charge, charge);
        for (const Edge& e : edges) {
          if (e.from.step < 0 && e.tensor == TensorKind::kWeights)
            fetches.push_back({id, graph_.RankOf(e.from), bytes});
        }
      } else if (progress_.MissingOf(id) == 0) {
        ready.push_back(id);
      }
    }
  }
  for (const JobId id : ready) MakeReady(id);
  for (const Fetch& f : fetches) Send(f.holder, f.job, FactsOf(f.job).rank, TensorKind::kWeights, f.bytes);
}

void Simulation::MakeReady(JobId id) {
  const Facts& facts = FactsOf(id);
  if (facts.flags & SimulatedJobs::kJoint) return BeginJoint(id);
  const bool admits = (facts.flags & SimulatedJobs::kAdmits) != 0;
  ranks_[facts.rank].ready.Add(PriorityOf(id), id, facts.stage, admits,
                               admits ? tickets_.TicketOf(JobOf(id)) : -1,
                               (facts.flags & SimulatedJobs::kOverlapped) != 0);
  touched_.push_back(facts.rank);
}

void Simulation::Arrive(JobId id, double sent) {
  OpenSteps(StepOf(id));
  const bool was_last = progress_.MissingOf(id) == 1;
  const Rank rank = FactsOf(id).rank;
  InputArrived(id);
  if (!was_last || ranks_[rank].running > 0) return;
  times_.Arrived(rank, sent);
  touched_.push_back(rank);
}

// The last member to come starts it for all. It is the devices' work, beside what the ranks compute.
void Simulation::BeginJoint(JobId id) {
  const Facts& facts = FactsOf(id);
  const std::pair<int, int> key = {StepOf(id), facts.stage};
  std::vector<JobId>& come = joining_[key];
  come.push_back(id);
  if (come.size() < graph_.members(facts.stage).size()) return;
  std::vector<JobId> all = std::move(come);
  joining_.erase(key);
  // The one that totals the norm is told last, behind those whose squares it takes.
  std::stable_partition(all.begin(), all.end(),
                        [this](JobId member) { return !graph_.TotalsNorm(JobOf(member)); });
  const double duration = facts.duration + links_.RunRing(now_, graph_.members(facts.stage),
                                                          ChargeOf(graph_, JobOf(id)).ring_turns,
                                                          OfStage(options_.weight, facts.stage));
  for (const JobId member : all) {
    RecordJob(member, now_ + duration);
    if (duration > 0) AddEvent({now_ + duration, member, kEnds});
  }
  if (duration > 0) return;
  for (const JobId member : all) {
    touched_.push_back(FactsOf(member).rank);
    End(member);
  }
}

void Simulation::RecordJob(JobId id, double end) {
  if (!options_.record_jobs) return;
  const Job job = JobOf(id);
  result_.jobs.push_back({job, FactsOf(id).rank, now_, end, graph_.VersionOf(job)});
}

void Simulation::CountEnd(JobId id, const Facts& facts) {
  RankStats& stats = result_.ranks[facts.rank];
  if (facts.kind == JobKind::kUpdate) {
    double& end = result_.step_end[StepOf(id)];
    end = std::max(end, now_);
  }
  if (const StateRoute* route = graph_.route(); route != nullptr) {
    stats.peak_weight_versions = std::max(stats.peak_weight_versions, route->VersionsDuring(JobOf(id)));
  } else if (counts_versions_ && facts.kind == JobKind::kUpdate) {
    stats.peak_weight_versions = std::max(stats.peak_weight_versions, versions_.Publish(JobOf(id), nullptr));
  } else if (facts.flags & SimulatedJobs::kComputes) {
    if (counts_versions_) versions_.Read(JobOf(id), nullptr);
    stats.weight_fetches += (facts.flags & SimulatedJobs::kFetches) != 0;
  }
  if (!(facts.flags & SimulatedJobs::kEndsActivation)) return;
  if (facts.flags & SimulatedJobs::kReleases) ranks_[facts.rank].ready.Release(facts.stage);
  alive_.End(facts.rank, facts.activation);
}

void Simulation::End(JobId id) {
  const int step = StepOf(id), index = IndexOf(id);
  const SimulatedJobs::Table& table = jobs_.At(step);
  const Facts& facts = table.jobs[index];
  CountEnd(id, facts);
  ++ended_;
  const Rank rank = facts.rank;
  const bool computes = (facts.flags & SimulatedJobs::kComputes) != 0;
  for (int32_t o = facts.first_output; o < table.jobs[index + 1].first_output; ++o) {
    const SimulatedJobs::Output& output = table.outputs[o];
    if (step + output.distance >= options_.steps) continue;
    const JobId to = MakeJobId(step + output.distance, output.index);
    if (output.sent) {
      Send(rank, to, output.target, output.tensor, output.bytes);
    } else {
      InputArrived(to);
    }
  }
  progress_.End(step, rank, computes);
  while (progress_.FirstHasEnded()) {
    jobs_.Leave(progress_.first_step());
    progress_.LeaveFirst();
  }
}

void Simulation::Send(Rank source, JobId to, Rank target, TensorKind tensor, double bytes) {
  if (tensor == TensorKind::kState) bytes = costs_.StateBytes(JobOf(to));
  const double arrival = links_.Send(now_, source, target, tensor, bytes);
  if (options_.record_waits && tensor != TensorKind::kOrder) {
    // A transfer from a stage to the next one is not recorded if it takes no time.
    const bool handed = tensor == TensorKind::kActivation || tensor == TensorKind::kInputGradient;
    if (arrival > now_ || !handed)
      result_.transfers.push_back({source, target, tensor, JobOf(to), now_, arrival, bytes});
  }
  if (arrival <= now_) return InputArrived(to);
  AddEvent({arrival, to, now_});
}

void Simulation::Start(Rank rank, JobId id, double duration) {
  const Facts& facts = FactsOf(id);
  RankState& state = ranks_[rank];
  if (facts.flags & SimulatedJobs::kBeginsActivation) alive_.Begin(rank, facts.activation);
  const double end = now_ + duration;
  if (state.running == 0) times_.EndIdle(now_, rank);
  times_.BeBusy(now_, rank, end);
  RecordJob(id, end);
  if (duration == 0) return End(id);
  ++state.running;
  state.forward_running |= facts.kind == JobKind::kForward;
  AddEvent({end, id, kEnds});
}

// Starts the job that an idle rank takes, together with the other half of its pair if that can start too.
void Simulation::StartTaken(Rank rank, JobId id) {
  const Facts& facts = FactsOf(id);
  ReadyJobs& ready = ranks_[rank].ready;
  const std::optional<JobId> other = has_pairs_ && facts.kind == JobKind::kForward && facts.duration > 0
                                         ? ready.NextOverlapped()
                                         : std::nullopt;
  if (!other.has_value()) return Start(rank, id, facts.duration);
  const double one = facts.duration, two = FactsOf(*other).duration;
  const double pair = options_.overlapped > 0
                          ? options_.overlapped
                          : std::max(one, two) + (1 - options_.hidden) * std::min(one, two);
  Start(rank, id, pair);
  Start(rank, *ready.TakeOverlapped(), pair);
}

// Jobs of no duration end at this instant and may make better choices ready on any rank, so they all go
// before the others.
void Simulation::DispatchAll() {
  while (!touched_.empty()) {
    const Rank rank = touched_.back();
    touched_.pop_back();
    RankState& state = ranks_[rank];
    if (state.running == 1 && state.forward_running) idle_.Add(rank);
    if (state.running > 0) continue;
    idle_.Add(rank);
    for (auto next = state.ready.Next(); next.has_value() && FactsOf(*next).duration == 0;
         next = state.ready.Next()) {
      state.ready.Take();
      Start(rank, *next, 0);
    }
  }
  while (!idle_.empty()) {
    const Rank rank = idle_.TakeFirst();
    RankState& state = ranks_[rank];
    if (state.running == 0) {
      if (const std::optional<JobId> job = state.ready.Take(); job.has_value()) StartTaken(rank, *job);
    } else if (const std::optional<JobId> job = state.ready.TakeOverlapped(); job.has_value()) {
      Start(rank, *job, FactsOf(*job).duration);
    }
    if (state.running == 0) times_.BeIdle(now_, rank, CauseOf(rank));
  }
}

// Returns the cause of idleness that a worker would report (WorkerCore::CauseOf). The job that a rank waits
// for is not among its ready jobs: it is a job of its first step that has not ended, of a micro-batch if
// there is one.
IdleCause Simulation::CauseOf(Rank rank) {
  RankState& state = ranks_[rank];
  if (const auto held = state.ready.HeldBackBy(); held.has_value()) return *held;
  state.step = std::max(state.step, progress_.first_step());
  for (; state.step < options_.steps; ++state.step) {
    const StepProgress::Remaining& remaining = progress_.RemainingOf(state.step, rank);
    if (remaining.jobs == 0) continue;
    return remaining.compute > 0 ? IdleCause::kDependency : IdleCause::kReduce;
  }
  return IdleCause::kNoWork;
}

// Names a forward that has its inputs and is not admitted, else says that the graph has a cycle.
absl::Status Simulation::Stuck() const {
  for (Rank rank = 0; rank < schedule_.ranks; ++rank) {
    const ReadyJobs& ready = ranks_[rank].ready;
    const std::optional<JobId> id = ready.HeldBack();
    if (!id.has_value()) continue;
    const Job job = JobOf(*id);
    if (!ready.tickets().has_value()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "deadlock: rank %d holds %d activations and %s is not admitted, and none of them can end before it",
          rank, alive_.On(rank), Describe(job)));
    }
    const Tickets& tickets = *ready.tickets();
    const auto bytes = [](int64_t number) { return FormatBytes(static_cast<double>(number)); };
    return absl::FailedPreconditionError(absl::StrFormat(
        "does not fit: %s leaves %s of activations on rank %d, which has %s for all; %s of them are promised "
        "to forwards before it, none of which can give them back first",
        Describe(job), bytes(tickets.activation_bytes(job.stage)), rank, bytes(tickets.budget()),
        bytes(tickets.bytes_out())));
  }
  return absl::FailedPreconditionError(absl::StrCat("deadlock: the job graph has a cycle; ", ended_, " of ",
                                                    int64_t{progress_.jobs().size()} * options_.steps,
                                                    " jobs can run"));
}

void Simulation::TakeEvent() {
  std::pop_heap(events_.begin(), events_.end());
  const Event event = events_.back();
  events_.pop_back();
  if (event.arrival()) return Arrive(event.job, event.sent);
  const Facts& facts = FactsOf(event.job);
  RankState& state = ranks_[facts.rank];
  if (!(facts.flags & SimulatedJobs::kJoint)) --state.running;
  if (facts.kind == JobKind::kForward) state.forward_running = false;
  touched_.push_back(facts.rank);
  End(event.job);
}

absl::StatusOr<SimulationResult> Simulation::Run() {
  Prepare();
  Seed();
  for (Rank rank = 0; rank < schedule_.ranks; ++rank) touched_.push_back(rank);
  DispatchAll();
  while (!events_.empty()) {
    now_ = events_.front().time;
    while (!events_.empty() && events_.front().time == now_) TakeEvent();
    DispatchAll();
  }
  if (ended_ < int64_t{progress_.jobs().size()} * options_.steps) return Stuck();
  for (Rank rank = 0; rank < schedule_.ranks; ++rank) times_.EndIdle(now_, rank);
  return Summarize(graph_, options_, now_, std::move(result_));
}

}  // namespace weft
