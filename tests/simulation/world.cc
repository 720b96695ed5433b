// The simulated world: its network, its coordinator and its end.
#include "tests/simulation/world.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "schedules/check/check.h"
#include "schedules/families/families.h"
#include "tests/property/random_inputs.h"
#include "tests/simulation/world_run.h"

namespace weft {
namespace {

Schedule MakeBackwardsRemote(Schedule s) {
  if (s.ranks < 2 || !s.order.empty()) return s;
  const auto forward_rank = [compute = s.compute](Job job) {
    job.kind = JobKind::kForward;
    return compute(job);
  };
  s.priority = [forward_rank, priority = s.priority, ranks = s.ranks](const Job& job) {
    return priority(job) * ranks + forward_rank(job);
  };
  s.compute = [forward_rank, ranks = s.ranks](const Job& job) {
    const Rank rank = forward_rank(job);
    return job.kind == JobKind::kForward ? rank : (rank + 1) % ranks;
  };
  return s;
}

// Gives each rank room for the activations of one micro-batch, for copies that come for it from other ranks
// and for gradients that leave it, and some ranks more. Counted activations are larger than real ones.
void AddBudget(Random& random, RunSchedule* schedule) {
  const Schedule* s = &schedule->scheme;
  const Graph graph(*schedule);
  ActivationMemory memory;
  for (int stage = 0; stage < s->stages; ++stage) {
    const int64_t bytes = 100 + random.Below(100);
    memory.activation_bytes.push_back(bytes);
    memory.received_bytes.push_back(bytes % 2 == 0 ? bytes / 4 : 0);
    memory.gradient_bytes.push_back(graph.protocol(stage).gradients_leave() ? 2 * bytes - 150 : 0);
  }
  memory.budget.assign(s->ranks, 0);
  std::vector<int64_t> sums(s->ranks);
  for (int step = 0; step < s->period; ++step) {
    for (int b = 0; b < s->microbatches; ++b) {
      sums.assign(s->ranks, 0);
      for (int stage = 0; stage < s->stages; ++stage) {
        const Rank rank = s->compute(Job::Compute(step, stage, b, JobKind::kForward));
        sums[rank] += memory.RoomOf(stage);
        memory.budget[rank] = std::max(memory.budget[rank], sums[rank]);
      }
    }
  }
  for (int64_t& budget : memory.budget) budget += random.Below(budget);
  RunSchedule limited = *schedule;
  limited.terms.memory = memory;
  // A fixed order may need more than that.
  if (CheckSchedule(limited).ok()) *schedule = limited;
}

}  // namespace

World::World(const WorldOptions& options)
    : options_(options), random_(options.seed), first_step_(options.first_step) {
  auto scheme = MakeSchedule(options.family, options.parameters, options.stages, options.microbatches);
  if (absl::Status s = ApplyRule(options.rule, options.family, &*scheme); !s.ok())
    Problem(std::string(s.message()));
  if (options.remote_backward) scheme = MakeBackwardsRemote(*std::move(scheme));
  RunSchedule schedule(*std::move(scheme), RunTerms());
  schedule.terms.takes_norm = options.clips;
  if (!options.chain) schedule.terms.inputs = RandomInputs(options.seed, options.stages);
  Random budgets(options.seed ^ 0xb7);
  if (options.budget) AddBudget(budgets, &schedule);
  CheckpointRule rule;
  rule.every_steps = options.snapshot_every;
  rule.validate_every = options.validate_every;
  auto plan = MakeRunPlan("world", options.family, schedule, options.steps, options.first_step,
                          ReductionMode::kOrdered, rule);
  auto restartable = std::make_shared<RunPlan>(**plan);
  restartable->restarts = options.bad_job.kind != BadJob::Kind::kNone ? 100 : options.kills;
  restartable->redundancy = options.redundancy ? 1 : 0;
  restartable->resumed_spec = [](const std::string&, int32_t step) { return absl::StrCat(step); };
  plan_ = submitted_ = std::move(restartable);
  plain_ = PlainLoop(plan_->graph, options.steps);
  StartCore(1 + options.seed);
  for (int number = 0; number < options.processes + options.spares; ++number) StartProcess(number);
}

// Starts a process; it has to join yet. A specification is the step from which the run goes on, or empty.
void World::StartProcess(int number) {
  const auto parse = [this](const std::string& spec) {
    int first_step = options_.first_step;
    if (!spec.empty() && !absl::SimpleAtoi(spec, &first_step)) Problem("a wrong specification");
    // Tables that depend on the run's steps are not handed on, as in CheckedTables.
    const Graph& graph = submitted_->graph;
    return WorkerCore::RunShape{graph.run_schedule(), options_.steps, first_step,
                                graph.depends_on_steps() ? nullptr : submitted_->tables};
  };
  processes_.push_back(
      std::make_unique<Process>(number, processes_.size() + 1, parse, options_.launch_ahead));
  process_at_[number] = processes_.back().get();
}

void World::Join(Process& p) {
  if (coordinator_ == nullptr) return;  // it joins the next one
  p.joined = true;
  BeginSession(p, /*returns=*/false);
  Pump(p);
}

// Begins a session with the coordinator that lives now, with a Hello.
void World::BeginSession(Process& p, bool returns) {
  LinkOptions link;
  link.resend_ns = 4 * options_.delay_ns + 1'000'000;
  link.ack_delay_ns = 500'000;
  p.session = std::make_unique<JoinedSession>(sessions_.size() + 1, link);
  p.up_timer = p.down_timer = -1;
  sessions_[p.session->session()] = &p;
  StepCoordinator({SessionOpened{p.session->session()}});
  Hello hello;
  hello.worker = absl::StrCat("worker-", p.number);
  hello.host = "world";
  hello.pid = p.pid;
  hello.process = p.number;
  hello.address = absl::StrCat("address-", p.number);
  hello.returns = returns;
  if (absl::Status s = p.session->worker_end.Send(hello); !s.ok()) Problem(std::string(s.message()));
}

// Lets a process find out that the coordinator was started again, and tell it what it has.
void World::ReturnTo(Process& p) {
  if (coordinator_ == nullptr) return;  // it was killed again
  Note(Mix(19, p.number));
  const bool returns = p.core.has_to_tell();
  BeginSession(p, returns);
  WorkerEffects effects;
  p.core.Return(&effects);
  Carry(p, std::move(effects), nullptr);
  if (p.leaving) {
    if (absl::Status s = p.session->worker_end.Send(Leaving{"it was asked to"}); !s.ok())
      Problem(std::string(s.message()));
  }
  Pump(p);
}

void World::KillAny() {
  if (finished_) return;
  Process& p = AnyProcess();
  if (!p.dead) Kill(p);
}

// Kills a process: what it holds, and what it would have done, is gone. Its owner reports the end, and starts
// another.
void World::Kill(Process& p) {
  p.dead = true;
  Note(Mix(16, p.number));
  const int64_t reported = now_ + 1 + random_.Below(20'000'000);
  At(reported, [this, &p] { StepCoordinator({WorkerExited{p.pid, "it was killed"}}); });
  Replace(p, reported);
}

// Lets a process ask to leave, as at SIGTERM.
void World::Leave() {
  if (finished_) return;
  Process& p = AnyProcess();
  if (p.dead || p.session == nullptr || std::exchange(p.leaving, true)) return;
  Note(Mix(17, p.number));
  if (absl::Status s = p.session->worker_end.Send(Leaving{"it was asked to"}); !s.ok())
    Problem(std::string(s.message()));
  Pump(p);
}

// Has the coordinator told that a process shall leave.
void World::Drain() {
  Process& p = AnyProcess();
  if (finished_ || coordinator_ == nullptr || p.dead || p.session == nullptr ||
      std::exchange(p.leaving, true))
    return;
  Note(Mix(19, p.number));
  StepCoordinator({DrainWorker{kDrainReply, absl::StrCat("worker-", p.number)}});
}

// Returns the processes of the ranks as the coordinator tells them; empty while there are none.
std::vector<int32_t> World::PlacementToldBy(const absl::StatusOr<RunInfo>& run) {
  std::vector<int32_t> placement;
  if (!run.ok()) return placement;
  for (const int32_t member : run->member_of_rank) {
    if (member >= static_cast<int32_t>(run->members.size())) {
      Problem("ranks are told on a process that the run does not have");
      return {};
    }
    const std::vector<std::string> words = absl::StrSplit(run->members[member], ' ');  // process 2 (..)
    int32_t process = -1;
    if (!absl::SimpleAtoi(words[1], &process)) Problem("a member without a number");
    placement.push_back(process);
  }
  return placement;
}

// Orders any rank to any process.
void World::MoveRank() {
  if (finished_ || coordinator_ == nullptr) return;
  move_ = {random_.From(0, submitted_->ranks() - 1), AnyProcess().number};
  before_move_ = PlacementToldBy(coordinator_->GetRun(1));
  move_epoch_ = coordinator_->probe().epoch;
  Note(Mix(20, move_.first * 100 + move_.second));
  StepCoordinator({MoveRanks{kMoveReply, 1, {move_.first}, absl::StrCat("worker-", move_.second)}});
}

// An order may come too early, too late, or while processes change; never may it be wrong.
void World::TakeMoveReply(const Reply& reply) {
  const absl::StatusCode code = reply.status.code();
  if (code == absl::StatusCode::kOk) {
    ordered_epoch_ = move_epoch_;
    ordered_to_ = before_move_;
    if (!ordered_to_.empty()) ordered_to_[move_.first] = move_.second;
  } else if (code != absl::StatusCode::kAborted && code != absl::StatusCode::kFailedPrecondition &&
             code != absl::StatusCode::kNotFound) {
    Problem(absl::StrCat("a move was refused: ", reply.status.ToString()));
  }
}

// Checks that ranks are where they were ordered to, and all others where they were; if no process was lost.
void World::CheckPlacement(const Assign& assign) {
  const bool only_moves =
      options_.kills + options_.leaves + options_.drains + options_.coordinator_kills == 0;
  if (!only_moves || options_.bad_job.kind != BadJob::Kind::kNone || ordered_to_.empty()) return;
  if (assign.epoch <= ordered_epoch_) return;  // it was on its way when the ranks were ordered
  if (assign.process_of_rank != ordered_to_) Problem("a rank is elsewhere than it was ordered to");
  ++result_.moved;
}

World::Process& World::AnyProcess() {
  return *std::next(process_at_.begin(), random_.From(0, static_cast<int>(process_at_.size()) - 1))->second;
}

// Ends a process that may leave.
void World::Exit(Process& p) {
  if (!p.leaving) return Problem("a process was told to exit that had not asked for it");
  p.dead = true;
  const int64_t closed = now_ + 1 + random_.Below(5'000'000);
  At(closed, [this, session = p.session->session()] {
    StepCoordinator({SessionClosed{session, "it said goodbye"}});
  });
  Replace(p, closed);
}

// Starts another process in the place of a dead one, a little later.
void World::Replace(Process& p, int64_t time) {
  At(time + 1 + random_.Below(20'000'000), [this, &p] {
    if (process_at_[p.number] != &p || coordinator_ == nullptr)
      return;  // another one was started with the coordinator
    StartProcess(p.number);
    Join(*process_at_[p.number]);
  });
}

// Checks that a run from which processes only leave has lost no work.
void World::CheckRestart(const RunInfo& run) {
  if (options_.kills + options_.coordinator_kills + bad_starts_ > 0 || run.restart_step <= first_step_ ||
      submitted_->graph.route() != nullptr)
    return;
  for (const Job& job : counted_now_) {
    if (job.step >= run.restart_step)
      Problem(absl::StrCat(Describe(job), " was done, and is made again behind step ", run.restart_step));
  }
}

// Begins an attempt with the first of its processes. Requests to a process for an earlier attempt may still
// be on their way.
void World::BeginAttempt(const Assign& assign) {
  epoch_ = assign.epoch;
  CheckPlacement(assign);
  first_step_ = options_.first_step;
  if (!assign.spec.empty() && absl::SimpleAtoi(assign.spec, &first_step_)) ++result_.resumed;
  if (!assign.kept.empty()) ++result_.from_copies;
  result_.steps_again = std::max(result_.steps_again, options_.first_step + steps_done_ - first_step_);
  plan_ = first_step_ == options_.first_step ? submitted_ : PlanFrom(*submitted_, first_step_);
  result_.jobs_again += static_cast<int>(std::count_if(
      started_.begin(), started_.end(), [&](const Job& job) { return job.step >= first_step_; }));
  for (std::set<Job>* jobs : {&started_, &launched_, &ended_})
    std::erase_if(*jobs, [&](const Job& job) { return job.step >= first_step_; });
  for (std::set<int>* steps : {&sealed_, &dropped_, &aside_, &failing_})
    std::erase_if(*steps, [&](int step) { return step > first_step_ || first_step_ == 0; });
  std::erase_if(saved_, [&](const auto& part) { return std::get<0>(part) > first_step_; });
  device_end_.clear();
  devices_.clear();
  running_.clear();
  began_.clear();
  activation_bytes_.clear();
  given_.clear();
  received_.clear();
  fetching_.clear();
  moving_.clear();
  holder_.clear();
  for (auto& [number, p] : process_at_) p->ForgetValues();
}

// ---- the control plane

template <typename LinkType, typename Deliver>
void World::PumpLink(LinkType& link, int64_t* timer, Process& p, Deliver deliver) {
  while (auto packet = link.Take(now_)) {
    const int copies = random_.Chance(options_.loss) ? 0 : (random_.Chance(options_.duplication) ? 2 : 1);
    result_.packets_lost += copies == 0;
    result_.packets_doubled += copies == 2;
    for (int c = 0; c < copies; ++c) {
      AtOf(p, now_ + 1000 + random_.Below(options_.delay_ns),
           [&p, deliver, packet = *packet, session = p.session->session()] {
             if (p.session->session() == session) deliver(p, packet);
           });
    }
  }
  const int64_t deadline = link.next_deadline();
  if (deadline == kNever || (*timer > now_ && *timer <= deadline)) return;
  *timer = std::max(deadline, now_ + 1);
  AtOf(p, *timer, [this, &p] { Pump(p); });
}

void World::Pump(Process& p) {
  if (p.session == nullptr) return;
  PumpLink(p.session->worker_end, &p.up_timer, p,
           [this](Process& q, const Packet<FromWorker>& packet) { ToCoordinator(q, packet); });
  PumpLink(p.session->coordinator_end, &p.down_timer, p,
           [this](Process& q, const Packet<FromCoordinator>& packet) { ToWorker(q, packet); });
}

void World::ToCoordinator(Process& p, Packet<FromWorker> packet) {
  const bool to_former = p.session->session() <= former_sessions_;
  if (to_former ? former_ == nullptr : coordinator_ == nullptr) return;
  auto events = p.session->ToCoordinator(now_, std::move(packet));
  if (!events.ok()) return Problem(std::string(events.status().message()));
  for (const Event& e : *events) Note(Mix(11, std::get<SessionMessage>(e).message.index()));
  if (!events->empty()) to_former ? StepFormer(*std::move(events)) : StepCoordinator(*std::move(events));
  Pump(p);
}

void World::ToWorker(Process& p, Packet<FromCoordinator> packet) {
  const auto messages = p.session->ToWorker(now_, std::move(packet));
  if (!messages.ok()) return Problem(std::string(messages.status().message()));
  for (const FromCoordinator& m : *messages) {
    Note(Mix(12, m.index()));
    WorkerEffects effects;
    p.core.OnMessage(now_, m, &effects);
    Carry(p, std::move(effects), nullptr);
  }
  Pump(p);
}

// ---- the workers

void World::Prepare(Process& p, const PrepareEffect& effect) {
  const Assign& assign = effect.assignment;
  if (assign.epoch > epoch_) BeginAttempt(assign);
  BeginTransfers(p, assign);
  if (!Lags(p)) {
    SendReports(p);
    process_of_rank_ = assign.process_of_rank;
    for (const auto& s : effect.stages) {
      if (s.holds_weights && assign.kept.empty()) BeginWeights(p, s.rank, s.stage, s.part);
    }
    p.copies_epoch = assign.copies_epoch;
  }
  AtOf(p, now_ + random_.Below(5'000'000), [this, &p, epoch = p.core.epoch()] {
    if (p.core.epoch() != epoch) return;
    WorkerEffects more;
    p.core.OnPrepared(now_, &more);
    Carry(p, std::move(more), nullptr);
    Pump(p);
  });
}

void World::Carry(Process& p, WorkerEffects effects, const Outputs* outputs) {
  for (WorkerEffect& effect : effects) {
    if (auto* send = std::get_if<SendEffect>(&effect)) {
      const auto* failed = std::get_if<Failed>(&send->message);
      if (failed != nullptr && failed->non_finite_step < 0) Problem(failed->reason);
      if (absl::Status s = p.session->worker_end.Send(std::move(send->message)); !s.ok())
        Problem(std::string(s.message()));
    } else if (auto* prepare = std::get_if<PrepareEffect>(&effect)) {
      Prepare(p, *prepare);
    } else if (std::holds_alternative<ExitEffect>(effect)) {
      Exit(p);
    } else if (auto answer = AnswerAtOnce(now_, effect, &p.core)) {
      Carry(p, *std::move(answer), nullptr);
    } else if (Lags(p)) {
      if (auto* start = std::get_if<StartEffect>(&effect)) StartLaggingJob(p, *start);
    } else if (auto* want = std::get_if<WantEffect>(&effect)) {
      Want(p, *want);
    } else if (auto* start = std::get_if<StartEffect>(&effect)) {
      StartJob(p, *start);
    } else if (auto* publish = std::get_if<PublishEffect>(&effect)) {
      Publish(p, *publish, outputs);
    } else if (auto* drop = std::get_if<DropEffect>(&effect)) {
      DropWeights(p, *drop);
    } else if (auto* snapshot = std::get_if<SnapshotEffect>(&effect)) {
      ExpectPieces(p, *snapshot);
    } else if (auto* copy = std::get_if<CopyEffect>(&effect)) {
      p.copies_to_come[copy->step] = copy->parts;
    } else if (auto* resume = std::get_if<ResumeEffect>(&effect)) {
      ResumeWith(p, *resume);
    } else if (auto* drop_copies = std::get_if<DropCopiesEffect>(&effect)) {
      DropCopies(p, *drop_copies);
    } else if (auto* save = std::get_if<SaveEffect>(&effect)) {
      SendSaved(p, save->step);
    } else if (auto* seal = std::get_if<SealEffect>(&effect)) {
      Seal(p, *seal);
    } else if (auto* validate = std::get_if<ValidateEffect>(&effect)) {
      Validate(p, validate->step);
    }
  }
}

void World::CheckEnd() {
  if (!finished_) return Problem("the run did not finish");
  if (!result_.failure.empty()) return;
  if (result_.stopped && stop_step_ < 0) return;  // before its first step
  CheckSnapshots();
  if (result_.stopped) {
    // Work that was under way behind the checkpoint is dropped. A state that migrates is saved as it goes by:
    // the next step may end before the checkpoint is whole.
    const int behind = steps_done_ - (stop_step_ - options_.first_step);
    if (behind < 0 || behind > (plan_->graph.route() != nullptr ? 1 : 0))
      Problem(absl::StrCat(steps_done_, " steps were told of, up to step ", stop_step_));
    return;
  }
  const int steps = options_.steps - options_.first_step;
  const size_t jobs = static_cast<size_t>(plan_->graph.jobs_per_step()) * steps;
  if (counted_.size() != jobs) Problem(absl::StrCat(counted_.size(), " of ", jobs, " jobs were counted"));
  if (steps_done_ != steps) Problem(absl::StrCat(steps_done_, " steps were reported"));
  for (const auto& [number, p] : process_at_) {
    if (p->dead) continue;
    if (!p->outputs.empty()) Problem(absl::StrCat(p->outputs.size(), " outputs were left behind"));
    for (auto [where, versions] : p->weights) {
      if (const auto aside = p->put_aside.find(where); aside != p->put_aside.end())
        versions.insert(aside->second);
      CheckVersions(where.first, where.second, std::move(versions));
    }
    if (!p->inbox.empty())
      Problem(absl::StrCat(p->inbox.size(), " tensors were never used, first the ",
                           Describe(p->inbox.begin()->first)));
    // The last copies may still be on their way.
    const bool unwanted = std::any_of(p->offered.begin(), p->offered.end(),
                                      [](const TensorKey& key) { return key.kind != TensorKind::kCopy; });
    if (unwanted) Problem("tensors were offered and never wanted");
  }
  if (plan_->graph.route() == nullptr) return;
  if (!moving_.empty()) Problem(absl::StrCat(moving_.size(), " states were never taken in"));
  if (static_cast<int>(holder_.size()) != plan_->graph.schedule().stages)
    Problem(absl::StrCat("the states of ", holder_.size(), " stages are left"));
}

WorldResult World::Run() {
  for (auto& p : processes_) At(1 + random_.Below(1'000'000), [this, &p = *p] { Join(p); });
  At(1, [this] { Submit(); });
  for (int kill = 0; kill < options_.coordinator_kills; ++kill)
    At(2'000'000 + random_.Below(options_.kill_within_ns), [this] { KillCoordinator(); });
  for (int kill = 0; kill < options_.kills; ++kill)
    At(2'000'000 + random_.Below(options_.kill_within_ns), [this] { KillAny(); });
  for (int leave = 0; leave < options_.leaves; ++leave)
    At(2'000'000 + random_.Below(options_.kill_within_ns), [this] { Leave(); });
  for (int drain = 0; drain < options_.drains; ++drain)
    At(2'000'000 + random_.Below(options_.kill_within_ns), [this] { Drain(); });
  for (int move = 0; move < options_.moves; ++move)
    At(2'000'000 + random_.Below(options_.kill_within_ns), [this] { MoveRank(); });
  if (options_.stop_at_ns > 0)
    At(options_.stop_at_ns, [this] { StepCoordinator({CancelRun{2, 1, "stopped", /*save=*/true}}); });
  constexpr uint64_t kMaxEvents = 5'000'000;
  while (!actions_.empty() && problem_.empty() && result_.events < kMaxEvents) {
    auto [time, action] = actions_.Take();
    now_ = time;
    ++result_.events;
    action();
    action = nullptr;  // with the tensors that it has
    TellOfTakenTensors();
    const bool idle = std::all_of(processes_.begin(), processes_.end(),
                                  [](const auto& p) { return p->dead || !p->core.has_run(); });
    if (finished_ && idle) break;
  }
  if (problem_.empty()) CheckEnd();
  result_.problem = problem_;
  result_.trace = trace_;
  result_.virtual_ns = now_;
  return result_;
}

WorldResult RunWorld(const WorldOptions& options) { return World(options).Run(); }

}  // namespace weft
