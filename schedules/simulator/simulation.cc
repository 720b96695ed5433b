#include "schedules/simulator/simulation.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/byte_text.h"
#include "schedules/dispatch/memory.h"
#include "schedules/simulator/simulation_summary.h"
#include "schedules/simulator/transfer_totals.h"
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
      tickets_(graph, admission.memory.has_value() ? admission.memory : graph.terms().memory),
      has_tickets_(admission.memory.has_value() || graph.terms().memory.has_value()),
      turns_(graph.schedule().microbatches),
      admitted_in_order_(std::move(admission.order)),
      has_pairs_(graph.has_pairs()),
      overlaps_steps_(graph.schedule().MaxStaleness() > 0),
      counts_versions_(graph.route() != nullptr || graph.schedule().staleness != nullptr),
      transfers_are_counted_(TransferTotalsAreExact(graph, jobs_, options.steps)),
      hands_over_(transfers_are_counted_ && options.bandwidth <= 0 && options.latency == 0 &&
                  options.network.nodes.empty() && options.network.pairs.empty() && !options.record_waits),
      there_at_once_(hands_over_ ? SimulatedJobs::Reach::kOtherRank : SimulatedJobs::Reach::kHere),
      // Holders keep for the checkpoint the versions that later steps would read, as in a run.
      versions_(graph, HeldVersions::Steps{options.steps, 0, /*saved=*/true}),
      result_(EmptyResult(graph, options, admission.held_bytes)),
      times_(&result_, options.record_waits),
      alive_(&result_),
      links_(options, &result_),
      touched_(graph.schedule().ranks),
      dispatched_(graph.schedule().ranks),
      last_forward_(overlaps_steps_ ? graph.schedule().ranks : 0, std::numeric_limits<double>::infinity()) {}

void Simulation::Prepare() {
  const auto computed = ComputedStages(graph_, progress_.jobs());
  for (Rank rank = 0; rank < schedule_.ranks; ++rank) {
    // A limit for a stage that the rank does not compute has no effect, and costs a look at each dispatch.
    std::vector<std::optional<int>> limits;
    for (int s = 0; schedule_.limit && s < schedule_.stages; ++s) {
      limits.push_back(computed[rank][s] ? schedule_.limit(rank, s) : std::nullopt);
    }
    ranks_.push_back(
        {.ready = ReadyJobs(std::move(limits), graph_.replays() ? std::optional<int64_t>(0) : std::nullopt,
                            tickets_.TicketsOf(rank))});
  }
  if (transfers_are_counted_) CountTransfers(jobs_, options_.steps, &result_);
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
      if (graph_.FetchesWeights(job) && !graph_.FetchedBy(job).has_value() && graph_.VersionOf(job) == 0) {
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
  for (const JobId id : ready) MakeReady(id, FactsOf(id));
  for (const Fetch& f : fetches) {
    const Rank rank = FactsOf(f.job).rank;
    CountTransfer(f.holder, rank, TensorKind::kWeights, f.bytes, 1, &result_);
    Carry(f.holder, f.job, rank, TensorKind::kWeights, f.bytes);
  }
}

void Simulation::TouchInstant(Rank rank) { instant_.push_back(rank); }

void Simulation::MakeReady(JobId id, const Facts& facts) {
  if (facts.flags & SimulatedJobs::kJoint) return BeginJoint(id);
  const bool admits = (facts.flags & SimulatedJobs::kAdmits) != 0;
  RankState& state = ranks_[facts.rank];
  if (facts.flags & SimulatedJobs::kTakesNoTime) ++state.instant;
  state.ready.Add(jobs_.PriorityOf(StepOf(id), facts), id, facts.stage, admits,
                  admits && has_tickets_ ? tickets_.TicketOf(JobOf(id)) : -1,
                  (facts.flags & SimulatedJobs::kOverlapped) != 0);
  Touch(facts.rank, state);
}

void Simulation::Arrive(JobId id, double sent) {
  if (!CountInput(id)) return;
  const Facts& facts = FactsOf(id);
  MakeReady(id, facts);
  const Rank rank = facts.rank;
  if (ranks_[rank].running > 0) return;
  times_.Arrived(rank, sent);
  Touch(rank);
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
  // The one that totals the norm ends last, behind those whose squares it takes.
  std::stable_partition(all.begin(), all.end(),
                        [this](JobId member) { return !graph_.TotalsNorm(JobOf(member)); });
  const double duration = facts.duration + links_.RunRing(now_, graph_.members(facts.stage),
                                                          ChargeOf(graph_, JobOf(id)).ring_turns,
                                                          OfStage(options_.weight, facts.stage));
  for (const JobId member : all) {
    if (options_.record_jobs) RecordJob(member, now_ + duration);
    if (duration > 0) events_.AddEnd(now_ + duration, member);
  }
  if (duration > 0) return;
  for (const JobId member : all) {
    Touch(FactsOf(member).rank);
    End(member);
  }
}

void Simulation::RecordJob(JobId id, double end) {
  const Job job = JobOf(id);
  result_.jobs.push_back({job, FactsOf(id).rank, now_, end, graph_.VersionOf(job)});
}

void Simulation::CountVersions(JobId id, const Facts& facts) {
  int& peak = result_.ranks[facts.rank].peak_weight_versions;
  if (const StateRoute* route = graph_.route(); route != nullptr) {
    peak = std::max(peak, route->VersionsDuring(JobOf(id)));
  } else if (facts.kind == JobKind::kUpdate) {
    peak = std::max(peak, versions_.Publish(JobOf(id), nullptr));
  } else if (facts.flags & SimulatedJobs::kComputes) {
    versions_.Read(JobOf(id), nullptr);
  }
}

void Simulation::NoteEnd(int step, const Facts& facts) {
  if (facts.kind == JobKind::kUpdate) result_.step_end[step] = std::max(result_.step_end[step], now_);
  if (facts.flags & SimulatedJobs::kFetches) ++result_.ranks[facts.rank].weight_fetches;
}

// Gives back the room of a micro-batch's activations; and that of gradients whose turn has come, each on the
// rank that made it.
void Simulation::Release(JobId id, const Facts& facts) {
  ranks_[facts.rank].ready.Release(facts.stage);
  if (!tickets_.HandsOut(facts.stage)) return;
  Job backward = JobOf(id);
  turns_.Made(backward.step, backward.stage, backward.microbatch, [&](int microbatch) {
    backward.microbatch = microbatch;
    const Rank rank = graph_.RankOf(backward);
    ranks_[rank].ready.ReleaseGradient(backward.stage);
    Touch(rank);
  });
}

void Simulation::End(JobId id) {
  const int step = StepOf(id), index = IndexOf(id);
  const SimulatedJobs::Table& table = jobs_.At(step);
  const Facts& facts = table.jobs[index];
  if (facts.flags & SimulatedJobs::kEndIsNoted) NoteEnd(step, facts);
  if (counts_versions_) CountVersions(id, facts);
  if (facts.flags & SimulatedJobs::kReleases) Release(id, facts);
  if (facts.flags & SimulatedJobs::kEndsActivation) alive_.End(facts.rank, facts.activation);
  ++ended_;
  int32_t* const missing = progress_.At(step).missing.data();  // there until the step leaves
  for (const Output& output : table.OutputsOf(index)) {
    if (output.reach > there_at_once_) {
      HandOn(facts.rank, step + output.distance, output);
    } else if (--missing[output.index] == 0) {
      MakeReady(MakeJobId(step, output.index), table.jobs[output.index]);
    }
  }
  if (progress_.End(step, facts.rank, (facts.flags & SimulatedJobs::kComputes) != 0)) LeaveEndedSteps();
}

void Simulation::LeaveEndedSteps() {
  while (progress_.FirstHasEnded()) {
    jobs_.Leave(progress_.first_step());
    progress_.LeaveFirst();
  }
}

void Simulation::Send(Rank source, JobId to, const Output& output) {
  const double bytes = output.tensor == TensorKind::kState ? costs_.StateBytes(JobOf(to)) : output.bytes;
  if (!transfers_are_counted_) CountTransfer(source, output.target, output.tensor, bytes, 1, &result_);
  Carry(source, to, output.target, output.tensor, bytes);
}

void Simulation::Carry(Rank source, JobId to, Rank target, TensorKind tensor, double bytes) {
  const double arrival = links_.Send(now_, source, target, bytes);
  if (options_.record_waits && tensor != TensorKind::kOrder) {
    // A transfer from a stage to the next one is not recorded if it takes no time.
    const bool handed = tensor == TensorKind::kActivation || tensor == TensorKind::kInputGradient;
    if (arrival > now_ || !handed)
      result_.transfers.push_back({source, target, tensor, JobOf(to), now_, arrival, bytes});
  }
  if (arrival > now_) return events_.AddArrival(arrival, to, now_);
  Count(to);
}

void Simulation::Start(JobId id, const Facts& facts, double duration) {
  const Rank rank = facts.rank;
  RankState& state = ranks_[rank];
  if (facts.flags & SimulatedJobs::kBeginsActivation) alive_.Begin(rank, facts.activation);
  if (overlaps_steps_ && facts.kind == JobKind::kForward) last_forward_[rank] = now_;
  const double end = now_ + duration;
  if (state.running == 0) {
    times_.BeBusy(now_, rank, end);
  } else {
    times_.BeBusyBeside(now_, rank, end);
  }
  if (options_.record_jobs) RecordJob(id, end);
  if (facts.flags & SimulatedJobs::kTakesNoTime) {
    --state.instant;
    if (duration == 0) return End(id);  // the second half of a pair takes the pair's time
  }
  ++state.running;
  state.forward_running |= facts.kind == JobKind::kForward;
  events_.AddEnd(end, id);
}

inline void Simulation::StartTaken(JobId id) {
  const Facts& facts = FactsOf(id);
  if (has_pairs_ && facts.kind == JobKind::kForward) return StartPair(id, facts);
  Start(id, facts, facts.duration);
}

// Starts the forward that an idle rank takes, together with the other half of its pair if that can start too.
void Simulation::StartPair(JobId id, const Facts& facts) {
  ReadyJobs& ready = ranks_[facts.rank].ready;
  const std::optional<JobId> other = facts.duration > 0 ? ready.NextOverlapped() : std::nullopt;
  if (!other.has_value()) return Start(id, facts, facts.duration);
  const double one = facts.duration, two = FactsOf(*other).duration;
  const double pair = options_.overlapped > 0
                          ? options_.overlapped / options_.network.SpeedOf(facts.rank)
                          : std::max(one, two) + (1 - options_.hidden) * std::min(one, two);
  Start(id, facts, pair);
  ready.TakeOverlapped();
  Start(*other, FactsOf(*other), pair);
}

// Starts the second half of a pair beside the forward that runs, if it can start.
void Simulation::StartBeside(Rank rank) {
  const std::optional<JobId> job = ranks_[rank].ready.TakeOverlapped();
  if (!job.has_value()) return;
  const Facts& facts = FactsOf(*job);
  Start(*job, facts, facts.duration);
}

void Simulation::DispatchInstantJobs(Rank rank) {
  RankState& state = ranks_[rank];
  while (state.running == 0 && state.instant > 0) {
    const std::optional<JobId> next = state.ready.Next();
    if (!next.has_value() || FactsOf(*next).duration > 0) return;
    state.ready.Take();
    Start(*next, FactsOf(*next), 0);
  }
}

// Jobs of no duration end at this instant and may make better choices ready on any rank, so they all go
// before the others.
void Simulation::DispatchAll() {
  while (!instant_.empty()) {
    const Rank rank = instant_.back();
    instant_.pop_back();
    DispatchInstantJobs(rank);
  }
  dispatched_.swap(touched_);
  while (!dispatched_.empty()) {
    const Rank rank = dispatched_.TakeFirst();
    RankState& state = ranks_[rank];
    if (state.running == 0) {
      if (const std::optional<JobId> job = state.ready.Take(); job.has_value()) StartTaken(*job);
    } else if (state.running == 1 && state.forward_running) {
      StartBeside(rank);
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
        "does not fit: %s leaves %s of activations%s on rank %d, which has %s for all; %s of them are "
        "promised "
        "to forwards before it, none of which can give them back first",
        Describe(job), bytes(tickets.BytesOf(job.stage)), tickets.HandsOut(job.stage) ? " or gradients" : "",
        rank, bytes(tickets.budget()), bytes(tickets.bytes_out())));
  }
  return absl::FailedPreconditionError(absl::StrCat("deadlock: the job graph has a cycle; ", ended_, " of ",
                                                    int64_t{progress_.jobs().size()} * options_.steps,
                                                    " jobs can run"));
}

inline void Simulation::TakeEvent() {
  const EventQueue::Event event = events_.Take();
  if (event.arrival) return Arrive(event.job, event.sent);
  const Facts& facts = FactsOf(event.job);
  RankState& state = ranks_[facts.rank];
  if (!(facts.flags & SimulatedJobs::kJoint)) --state.running;
  if (facts.kind == JobKind::kForward) state.forward_running = false;
  Touch(facts.rank, state);
  End(event.job);
}

absl::StatusOr<SimulationResult> Simulation::Run() {
  Prepare();
  Seed();
  for (Rank rank = 0; rank < schedule_.ranks; ++rank) Touch(rank);
  while (true) {
    DispatchAll();
    if (events_.empty()) break;
    now_ = events_.time();
    do {
      TakeEvent();
    } while (!events_.empty() && events_.time() == now_);
  }
  if (ended_ < int64_t{progress_.jobs().size()} * options_.steps) return Stuck();
  times_.Finish(now_);
  alive_.Finish();
  result_.drain_start = now_;
  for (const double forward : last_forward_) result_.drain_start = std::min(result_.drain_start, forward);
  return Summarize(graph_, options_, now_, std::move(result_));
}

}  // namespace weft
