#include "schedules/simulate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedules/byte_text.h"
#include "schedules/claim_order.h"
#include "schedules/simulation.h"
#include "schedules/sync/state_route.h"

namespace weft {
namespace {

constexpr int kRanksLinkedMost = 8192;

absl::Status CheckPerStage(const std::vector<double>& values, int stages, absl::string_view what) {
  if (values.size() != 1 && values.size() != static_cast<size_t>(stages)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: give one value, or one for each of the %d stages; got %d", what, stages, values.size()));
  }
  for (double v : values) {
    if (!(v >= 0) || std::isinf(v)) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: %g is not a finite number >= 0", what, v));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<Graph> Simulation::OfRun(const Graph& graph, const SimulationOptions& options) {
  if (!graph.depends_on_steps() || graph.steps() == options.steps || options.steps < 1) return std::nullopt;
  return Graph(graph.schedule(), options.steps);
}

absl::Status Simulation::CheckOptions() const {
  if (options_.steps < 1) return absl::InvalidArgumentError("steps: must be at least 1");
  for (int k = 0; k < kJobKinds; ++k) {
    absl::Status s =
        CheckPerStage(options_.duration[k], schedule_.stages, JobKindName(static_cast<JobKind>(k)));
    if (!s.ok()) return s;
  }
  for (const auto& [values, name] : {std::pair{&options_.activation, "activation"},
                                     {&options_.weight, "weight"},
                                     {&options_.state, "state"}}) {
    absl::Status s = CheckPerStage(*values, schedule_.stages, name);
    if (!s.ok()) return s;
  }
  if (!options_.output.empty()) {
    absl::Status s = CheckPerStage(options_.output, schedule_.stages, "output");
    if (!s.ok()) return s;
  }
  if (options_.bandwidth < 0 || options_.latency < 0 || options_.overlapped < 0) {
    return absl::InvalidArgumentError(
        "bandwidth, latency and the time of an overlapped pair must not be negative");
  }
  if (options_.bandwidth > 0 && schedule_.ranks > kRanksLinkedMost) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "bandwidth: %d ranks have more links than can be kept apart; at most %d ranks can have one",
        schedule_.ranks, kRanksLinkedMost));
  }
  return absl::OkStatus();
}

// A backward that is one piece of work takes its whole time in its first half.
double Simulation::DurationOf(const Job& job) const {
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

// What each rank holds, and how much it may admit.
absl::Status Simulation::SetBudgets() {
  const StageBytes bytes{options_.activation, options_.weight, options_.state};
  const std::vector<double> held = HeldBytes(graph_, bytes);
  result_.ranks.resize(schedule_.ranks);
  for (Rank w = 0; w < schedule_.ranks; ++w) result_.ranks[w].held_bytes = held[w];
  if (options_.memory <= 0) return absl::OkStatus();
  auto memory = MemoryForActivations(graph_, bytes, options_.memory);
  if (!memory.ok()) return memory.status();
  admission_ = AdmissionOrder(graph_, *std::move(memory));
  return absl::OkStatus();
}

// Among micro-batches of a chain those that are alive wait for later stages only. With several inputs they
// may wait for one another, unless all stages admit them in one order.
absl::Status Simulation::SetClaims() {
  if (!options_.admits_as_claimed || !schedule_.limit || graph_.is_chain()) return absl::OkStatus();
  const auto order = ClaimOrder(graph_);
  if (!order.ok()) return order.status();
  claims_.resize(order->size());
  for (size_t step = 0; step < order->size(); ++step) {
    for (const std::vector<Job>& of_rank : (*order)[step]) {
      for (const Job& job : of_rank) {
        if (job.kind == JobKind::kForward) claims_[step].push_back(graph_.IndexOf(job));
      }
    }
  }
  return absl::OkStatus();
}

void Simulation::Prepare() {
  n_ = graph_.jobs_per_step();
  for (int i = 0; i < n_; ++i) {
    const Job job = graph_.JobAt(0, i);
    info_.push_back({job.stage, job.kind, DurationOf(job), (graph_.MarksOf(job) & kBesideForward) != 0,
                     HasMicrobatch(job.kind) && graph_.IsApart(job),
                     job.kind == JobKind::kReduce && graph_.IsJoint(job)});
  }
  rank_of_.resize(schedule_.period);
  jobs_of_rank_.assign(schedule_.period, std::vector<int32_t>(schedule_.ranks, 0));
  compute_of_rank_ = jobs_of_rank_;
  for (int p = 0; p < schedule_.period; ++p) {
    for (int i = 0; i < n_; ++i) {
      const Job job = graph_.JobAt(p, i);
      rank_of_[p].push_back(graph_.RankOf(job));
      ++jobs_of_rank_[p][rank_of_[p].back()];
      compute_of_rank_[p][rank_of_[p].back()] += HasMicrobatch(job.kind);
    }
  }
  for (Rank w = 0; w < schedule_.ranks; ++w) {
    std::vector<std::optional<int>> limits;
    if (schedule_.limit) {
      for (int s = 0; s < schedule_.stages; ++s) limits.push_back(schedule_.limit(w, s));
    }
    ranks_.push_back(
        {ReadyJobs(std::move(limits), graph_.replays() ? std::optional<int64_t>(0) : std::nullopt,
                   admission_.TicketsOf(w))});
  }
  if (options_.bandwidth > 0) link_free_.assign(static_cast<size_t>(schedule_.ranks) * schedule_.ranks, 0);
  result_.step_end.assign(options_.steps, 0);
  for (int s = 0; s < schedule_.stages; ++s) {
    for (const Rank rank : graph_.members(s)) result_.ranks[rank].peak_weight_versions = 1;
  }
}

Simulation::Row& Simulation::RowOf(int step) {
  while (first_row_ + static_cast<int>(rows_.size()) <= step) {
    const int next = first_row_ + static_cast<int>(rows_.size());
    rows_.push_back({edges_.WaitingAt(next), static_cast<int>(n_), jobs_of_rank_[next % schedule_.period],
                     compute_of_rank_[next % schedule_.period]});
    if (graph_.sync(0).scatters_sum() && schedule_.clips)
      rows_.back().waiting[graph_.IndexOf(Job::Reduce(0, 0, 0))] -=
          static_cast<int>(graph_.members(0).size()) - 1;
    if (claims_.empty()) continue;
    for (const int32_t index : claims_[next % schedule_.period]) {
      const int64_t id = next * n_ + index;
      ranks_[RankAt(id)].ready.Claim(id, info_[index].stage);
    }
  }
  return rows_[step - first_row_];
}

void Simulation::MakeReady(int64_t id) {
  const JobInfo& info = info_[id % n_];
  if (info.collective) return JoinCollective(id);
  const Rank rank = RankAt(id);
  const Job job = JobOf(id);
  const bool admits = info.kind == JobKind::kForward;
  ranks_[rank].ready.Add(graph_.PriorityOf(job), id, info.stage, admits,
                         admits ? admission_.TicketOf(job) : -1, info.beside);
  touched_.push_back(rank);
}

void Simulation::InputArrived(int64_t id) {
  if (--RowOf(static_cast<int>(id / n_)).waiting[id % n_] == 0) MakeReady(id);
}

void Simulation::Arrive(int64_t id, double sent) {
  const bool was_last = RowOf(static_cast<int>(id / n_)).waiting[id % n_] == 1;
  InputArrived(id);
  RankState& state = ranks_[RankAt(id)];
  if (!was_last || state.running > 0) return;
  state.awaited_since = std::min(state.awaited_since, sent);
  touched_.push_back(RankAt(id));
}

void Simulation::CountEnd(int64_t id, const JobInfo& info, Rank rank) {
  const Job job = JobOf(id);
  RankStats& stats = result_.ranks[rank];
  if (info.kind == JobKind::kUpdate) result_.step_end[job.step] = std::max(result_.step_end[job.step], now_);
  if (const StateRoute* route = graph_.route(); route != nullptr) {
    stats.peak_weight_versions = std::max(stats.peak_weight_versions, route->VersionsDuring(job));
  } else if (info.kind == JobKind::kUpdate) {
    stats.peak_weight_versions = std::max(stats.peak_weight_versions, versions_.Publish(job, nullptr));
  } else if (HasMicrobatch(info.kind)) {
    versions_.Read(job, nullptr);
    stats.weight_fetches += graph_.FetchesWeights(job);
  }
  const bool leaves_nothing = info.apart && info.kind == JobKind::kForward;
  if (info.kind != graph_.final_backward() && !leaves_nothing) return;
  RankState& state = ranks_[rank];
  if (!info.apart || leaves_nothing) state.ready.Release(info.stage);
  --state.activations;
  state.activation_bytes -= OfStage(options_.activation, info.stage);
  --live_;
  live_bytes_ = live_ == 0 ? 0 : live_bytes_ - OfStage(options_.activation, info.stage);
}

// A collective starts and ends for all its members at once, also for the one that totals the norm: the
// squares of the others' slices, a few bytes, do not hold it back.
bool Simulation::EndsTogether(const JobInfo& from, const StepEdges::Successor& successor) const {
  const JobInfo& to = info_[successor.index];
  return successor.tensor == TensorKind::kNorm && from.collective && to.collective && from.stage == to.stage;
}

void Simulation::End(int64_t id) {
  const int64_t index = id % n_;
  const int64_t step = id / n_;
  const Rank rank = RankAt(id);
  CountEnd(id, info_[index], rank);
  ++done_;
  for (const auto& s : edges_.SuccessorsOf(step, index)) {
    if (step + s.distance >= options_.steps) continue;
    const int64_t to = (step + s.distance) * n_ + s.index;
    if (s.joined && s.tensor == TensorKind::kOrder) {
      InputArrived(to);
    } else if (!EndsTogether(info_[index], s)) {
      Transfer(rank, to, s.tensor, info_[index].stage);
    }
  }
  Row& row = RowOf(static_cast<int>(step));
  --row.left;
  --row.left_of_rank[rank];
  row.compute_left[rank] -= HasMicrobatch(info_[index].kind);
  while (!rows_.empty() && rows_.front().left == 0) {
    rows_.pop_front();
    ++first_row_;
  }
}

void Simulation::Start(Rank rank, int64_t id, double duration) {
  const JobInfo& info = info_[id % n_];
  RankState& state = ranks_[rank];
  RankStats& stats = result_.ranks[rank];
  if (info.kind == JobKind::kForward || (info.apart && info.kind == graph_.input_backward())) {
    stats.peak_activations = std::max(stats.peak_activations, ++state.activations);
    state.activation_bytes += OfStage(options_.activation, info.stage);
    stats.peak_activation_bytes = std::max(stats.peak_activation_bytes, state.activation_bytes);
    result_.peak_live_activations = std::max(result_.peak_live_activations, ++live_);
    live_bytes_ += OfStage(options_.activation, info.stage);
    result_.peak_live_bytes = std::max(result_.peak_live_bytes, live_bytes_);
  }
  const double end = now_ + duration;
  if (state.running == 0) CloseIdle(rank);
  if (end > state.busy_until) {
    stats.busy += end - std::max(now_, state.busy_until);
    state.busy_until = end;
  }
  if (options_.record_jobs) {
    const Job job = JobOf(id);
    result_.jobs.push_back({job, rank, now_, end, graph_.VersionOf(job)});
  }
  if (duration == 0) return End(id);
  ++state.running;
  state.forward_running |= info.kind == JobKind::kForward;
  events_.push_back({end, id, kEnds});
  std::push_heap(events_.begin(), events_.end());
}

// Starts the job that an idle rank takes, together with the other half of its pair if that can start too.
void Simulation::StartTaken(Rank rank, int64_t id) {
  const JobInfo& info = info_[id % n_];
  ReadyJobs& ready = ranks_[rank].ready;
  const std::optional<int64_t> other =
      info.kind == JobKind::kForward && info.duration > 0 ? ready.NextBeside() : std::nullopt;
  if (!other.has_value()) return Start(rank, id, info.duration);
  const double one = info.duration, two = info_[*other % n_].duration;
  const double pair = options_.overlapped > 0
                          ? options_.overlapped
                          : std::max(one, two) + (1 - options_.hidden) * std::min(one, two);
  Start(rank, id, pair);
  Start(rank, *ready.TakeBeside(), pair);
}

// Jobs of no duration end at this instant and may make better choices ready on any rank, so they all go
// before the others.
void Simulation::DispatchAll() {
  std::vector<Rank> idle;
  while (!touched_.empty()) {
    const Rank rank = touched_.back();
    touched_.pop_back();
    RankState& state = ranks_[rank];
    if (state.running == 1 && state.forward_running) idle.push_back(rank);
    if (state.running > 0) continue;
    idle.push_back(rank);
    for (auto next = state.ready.Next(); next.has_value() && info_[*next % n_].duration == 0;
         next = state.ready.Next()) {
      Start(rank, *state.ready.Take(), 0);
    }
  }
  std::sort(idle.begin(), idle.end());
  idle.erase(std::unique(idle.begin(), idle.end()), idle.end());
  for (Rank rank : idle) {
    RankState& state = ranks_[rank];
    if (state.running == 0) {
      if (const std::optional<int64_t> job = state.ready.Take(); job.has_value()) StartTaken(rank, *job);
    } else if (const std::optional<int64_t> job = state.ready.TakeBeside(); job.has_value()) {
      Start(rank, *job, info_[*job % n_].duration);
    }
    if (state.running == 0) NoteIdle(rank, CauseOf(rank));
  }
}

// As a worker says it (WorkerCore::CauseOf). What a rank waits for is not in its ready jobs: it is a job of
// its first step that has not ended, of a micro-batch if there is one.
IdleCause Simulation::CauseOf(Rank rank) {
  RankState& state = ranks_[rank];
  if (const auto held = state.ready.HeldBackBy(); held.has_value()) return *held;
  for (state.step = std::max(state.step, first_row_); state.step < options_.steps; ++state.step) {
    const auto row = static_cast<size_t>(state.step - first_row_);
    const int phase = state.step % schedule_.period;
    const bool begun = row < rows_.size();
    if ((begun ? rows_[row].left_of_rank : jobs_of_rank_[phase])[rank] == 0) continue;
    const auto& compute_left = begun ? rows_[row].compute_left : compute_of_rank_[phase];
    return compute_left[rank] > 0 ? IdleCause::kDependency : IdleCause::kReduce;
  }
  return IdleCause::kNoWork;
}

void Simulation::NoteIdle(Rank rank, IdleCause next) {
  RankState& state = ranks_[rank];
  if (next == state.cause && state.awaited_since == kNothingCame) return;
  CloseIdle(rank);
  state.cause = next;
}

// What it waited for had been made when it was sent: from then on it was on its way.
void Simulation::CloseIdle(Rank rank) {
  RankState& state = ranks_[rank];
  double start = std::max(state.idle_since, state.busy_until);
  const bool waited = state.cause == IdleCause::kDependency || state.cause == IdleCause::kReduce;
  if (waited && state.awaited_since < now_) {
    const double sent = std::max(start, state.awaited_since);
    AddIdle(rank, state.cause, start, sent);
    AddIdle(rank, IdleCause::kTransfer, sent, now_);
    start = now_;
  }
  AddIdle(rank, state.cause, start, now_);
  state.idle_since = now_;
  state.awaited_since = kNothingCame;
}

void Simulation::AddIdle(Rank rank, IdleCause cause, double start, double end) {
  if (end <= start) return;
  result_.ranks[rank].idle_by_cause[static_cast<int>(cause)] += end - start;
  if (options_.record_waits) result_.idle.push_back({rank, cause, start, end});
}

// Names a forward that has its inputs and is not admitted, else says that the graph has a cycle.
absl::Status Simulation::Stuck() const {
  for (Rank rank = 0; rank < schedule_.ranks; ++rank) {
    const RankState& state = ranks_[rank];
    const std::optional<int64_t> id = state.ready.HeldBack();
    if (!id.has_value()) continue;
    const Job job = JobOf(*id);
    if (!state.ready.tickets().has_value()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "deadlock: rank %d holds %d activations and %s is not admitted, and none of them can end before it",
          rank, state.activations, Describe(job)));
    }
    const Tickets& tickets = *state.ready.tickets();
    const auto bytes = [](int64_t number) { return FormatBytes(static_cast<double>(number)); };
    return absl::FailedPreconditionError(absl::StrFormat(
        "does not fit: %s leaves %s of activations on rank %d, which has %s for all; %s of them are promised "
        "to forwards before it, none of which can give them back first",
        Describe(job), bytes(tickets.left(job.stage)), rank, bytes(tickets.budget()),
        bytes(tickets.bytes_out())));
  }
  return absl::FailedPreconditionError(absl::StrCat("deadlock: the job graph has a cycle; ", done_, " of ",
                                                    n_ * options_.steps, " jobs can run"));
}

// Each rank computes all jobs of one stage. Then an activation of the first stage is alive until its
// micro-batch has come back through all stages, and M of them at a time keep a rank busy M / S of the time at
// most. Ranks with several stages, or with backwards whose forwards are elsewhere, have no such bound.
bool Simulation::IsOneStageARank() const {
  std::vector<int> stage_of_rank(schedule_.ranks, -1);
  std::vector<Rank> rank_of_stage(schedule_.stages, -1);
  for (const auto& of_step : rank_of_) {
    for (int64_t i = 0; i < n_; ++i) {
      if (!HasMicrobatch(info_[i].kind)) continue;
      int& stage = stage_of_rank[of_step[i]];
      Rank& rank = rank_of_stage[info_[i].stage];
      if (stage < 0) stage = info_[i].stage;
      if (rank < 0) rank = of_step[i];
      if (stage != info_[i].stage || rank != of_step[i]) return false;
    }
  }
  return true;
}

SimulationResult Simulation::Summarize() {
  SimulationResult& r = result_;
  r.makespan = now_;
  const double area = r.makespan * schedule_.ranks;
  double idle = 0, work = 0;
  int most = 0;
  for (RankStats& s : r.ranks) {
    s.idle = r.makespan - s.busy;
    idle += s.idle;
    most = std::max(most, s.peak_activations);
  }
  for (int s = 0; s < schedule_.stages; ++s) {
    for (int k = 0; k < static_cast<int>(JobKind::kReduce); ++k) {
      if (graph_.IsComputeKindUsed(static_cast<JobKind>(k))) work += OfStage(options_.duration[k], s);
    }
  }
  work *= static_cast<double>(schedule_.microbatches) * options_.steps;
  r.bubble_ratio = area > 0 ? idle / area : 0;
  r.throughput_per_rank = area > 0 ? work / area : 0;
  r.throughput_bound = IsOneStageARank() ? std::min(1.0, static_cast<double>(most) / schedule_.stages) : 1.0;
  const int half = options_.steps / 2;
  r.period = options_.steps == 1
                 ? r.makespan
                 : (r.step_end[options_.steps - 1] - r.step_end[half - 1]) / (options_.steps - half);
  std::stable_sort(r.jobs.begin(), r.jobs.end(),
                   [](const SimulatedJob& a, const SimulatedJob& b) { return a.start < b.start; });
  std::stable_sort(r.idle.begin(), r.idle.end(),
                   [](const IdleInterval& a, const IdleInterval& b) { return a.rank < b.rank; });
  return std::move(r);
}

// The first steps have jobs that wait for nothing, and jobs that fetch the initial weights.
void Simulation::Seed() {
  struct Fetch {
    int64_t job;
    Rank holder;
  };
  std::vector<Fetch> fetches;
  std::vector<int64_t> ready;
  std::vector<Edge> edges;
  for (int step = 0; step <= edges_.max_distance() && step < options_.steps; ++step) {
    Row& row = RowOf(step);
    for (int64_t i = 0; i < n_; ++i) {
      const Job job = graph_.JobAt(step, static_cast<int>(i));
      const int64_t id = step * n_ + i;
      if (graph_.FetchesWeights(job) && graph_.VersionOf(job) == 0) {
        edges.clear();
        graph_.Predecessors(job, &edges);
        for (const Edge& e : edges) {
          if (e.from.step >= 0 || e.tensor != TensorKind::kWeights) continue;
          ++row.waiting[i];
          fetches.push_back({id, graph_.RankOf(e.from)});
        }
      } else if (row.waiting[i] == 0) {
        ready.push_back(id);
      }
    }
  }
  for (int64_t id : ready) MakeReady(id);
  for (const Fetch& f : fetches) Transfer(f.holder, f.job, TensorKind::kWeights, info_[f.job % n_].stage);
}

absl::StatusOr<SimulationResult> Simulation::Run() {
  if (absl::Status s = CheckOptions(); !s.ok()) return s;
  if (absl::Status s = SetBudgets(); !s.ok()) return s;
  if (absl::Status s = SetClaims(); !s.ok()) return s;
  Prepare();
  Seed();
  for (Rank rank = 0; rank < schedule_.ranks; ++rank) touched_.push_back(rank);
  DispatchAll();
  while (!events_.empty()) {
    now_ = events_.front().time;
    while (!events_.empty() && events_.front().time == now_) {
      std::pop_heap(events_.begin(), events_.end());
      const Event e = events_.back();
      events_.pop_back();
      if (e.arrival()) {
        Arrive(e.job, e.sent);
      } else {
        const Rank rank = RankAt(e.job);
        if (!info_[e.job % n_].collective) --ranks_[rank].running;
        if (info_[e.job % n_].kind == JobKind::kForward) ranks_[rank].forward_running = false;
        touched_.push_back(rank);
        End(e.job);
      }
    }
    DispatchAll();
  }
  if (done_ < n_ * options_.steps) return Stuck();
  for (Rank rank = 0; rank < schedule_.ranks; ++rank) CloseIdle(rank);
  return Summarize();
}

std::array<double, kIdleCauses> SimulationResult::IdleByCause() const {
  std::array<double, kIdleCauses> sum{};
  for (const RankStats& rank : ranks) {
    for (int c = 0; c < kIdleCauses; ++c) sum[c] += rank.idle_by_cause[c];
  }
  return sum;
}

absl::StatusOr<SimulationResult> Simulate(const Graph& graph, const SimulationOptions& options) {
  return Simulation(graph, options).Run();
}

}  // namespace weft
