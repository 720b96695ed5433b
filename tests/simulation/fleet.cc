#include "tests/simulation/fleet.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/coordinator_core.h"
#include "schedules/families/families.h"
#include "tests/simulation/joined_cores.h"
#include "tests/simulation/timed_actions.h"
#include "tests/simulation/world_random.h"
#include "worker/core/worker_core.h"

namespace weft {
namespace {

constexpr int64_t kMillisecond = 1'000'000, kSecond = 1'000'000'000;
constexpr int64_t kStepNs = 5 * kMillisecond;  // between two steps of the coordinator
constexpr int64_t kReportNs = 5 * kSecond;
constexpr int64_t kKeepaliveNs = 15 * kSecond;  // time in which gRPC notices a silent machine
constexpr int kMicrobatches = 4, kSnapshotEvery = 2;

double ProcessorSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class Fleet {
 public:
  explicit Fleet(const FleetOptions& options);
  FleetResult Run();

 private:
  struct Worker {
    Worker(int n, WorkerCore::ParseSpec parse) : number(n), core(std::move(parse)) {}
    const int number;  // its place in workers_
    bool dead = false;
    WorkerCore core;
    std::unique_ptr<JoinedSession> session;
    int64_t timer = -1;
    // Tensors that it has made for other processes, and those that others want of it.
    std::set<TensorKey> offered;
    std::map<TensorKey, Worker*> wanted;
    std::map<int, int> pieces;                        // of snapshots, by step: that are to come
    std::map<Rank, std::pair<Job, int64_t>> running;  // and since when
  };

  void At(int64_t time, std::function<void()> action) { actions_.Add(time, std::move(action)); }
  // Does it later, if the worker is then in the same attempt.
  void InAttempt(Worker& w, int64_t delay, std::function<void()> action) {
    At(now_ + delay, [&w, epoch = w.core.epoch(), action = std::move(action)] {
      if (!w.dead && w.core.has_run() && w.core.epoch() == epoch) action();
    });
  }
  void Problem(const std::string& what) {
    if (result_.problem.empty()) result_.problem = absl::StrCat(what, ", at ", now_ / kMillisecond, " ms");
  }
  void Check(const absl::Status& status) {
    if (!status.ok()) Problem(std::string(status.message()));
  }

  void Join();
  void LoseOne();
  void Pump(Worker& w);
  void Tell(Event event);
  void StepCoordinator();
  void CarryOut(Effects effects);
  void TakeRun(const RunInfo& run);
  void Call(Worker& w, const std::function<void(WorkerEffects*)>& call);
  void Carry(Worker& w, WorkerEffects effects);
  void Prepare(Worker& w);
  void SendReports(Worker& w);
  void StartJob(Worker& w, const StartEffect& start);
  void EndJob(Worker& w, const StartEffect& start, int64_t began);
  void Want(Worker& w, const WantEffect& want);
  void Publish(Worker& w, const PublishEffect& publish);
  void Deliver(Worker& to, const TensorKey& key);
  void Saved(Worker& w, int step);

  const FleetOptions options_;
  Random random_;
  std::shared_ptr<const RunPlan> plan_;
  std::unique_ptr<CoordinatorCore> coordinator_;
  std::vector<Event> told_;
  int64_t coordinator_timer_ = -1;
  std::vector<std::unique_ptr<Worker>> workers_;  // also dead ones; a session's number is a place plus one
  std::vector<int> living_;                       // places there
  std::map<uint64_t, int> steps_;                 // told of each run
  std::set<uint64_t> ended_;
  TimedActions actions_;
  int64_t now_ = 1;
  FleetResult result_;
};

Fleet::Fleet(const FleetOptions& options) : options_(options), random_(options.seed) {
  RunSchedule schedule(*MakeSchedule("1f1b", {}, options.ranks, kMicrobatches), RunTerms());
  CheckpointRule rule;
  rule.every_steps = kSnapshotEvery;
  auto plan = std::make_shared<RunPlan>(
      **MakeRunPlan("fleet", "1f1b", schedule, options.steps, 0, ReductionMode::kOrdered, rule));
  plan->restarts = 100;
  plan->resumed_spec = [](const std::string&, int32_t step) { return absl::StrCat(step); };
  plan_ = std::move(plan);
  CoreOptions core;
  core.runs_kept = static_cast<size_t>(options.runs);
  core.poison_losses = options.poison_losses;
  core.waiting_ns = 24 * 3600 * kSecond;
  coordinator_ = std::make_unique<CoordinatorCore>(core);
}

// Starts a worker, which joins the fleet. A run's specification is the step from which it goes on, or empty.
void Fleet::Join() {
  const auto parse = [this](const std::string& spec) {
    int first_step = 0;
    if (!spec.empty() && !absl::SimpleAtoi(spec, &first_step)) Problem("a wrong specification");
    return WorkerCore::RunShape{plan_->graph.run_schedule(), options_.steps, first_step, plan_->tables};
  };
  const int number = static_cast<int>(workers_.size());
  workers_.push_back(std::make_unique<Worker>(number, parse));
  living_.push_back(number);
  Worker& w = *workers_.back();
  w.session = std::make_unique<JoinedSession>(number + 1, LinkOptions());
  Tell(SessionOpened{w.session->session()});
  Hello hello;
  hello.worker = absl::StrCat("worker-", number);
  hello.host = absl::StrCat("host-", number / 8);
  hello.pid = hello.process = number;
  hello.address = absl::StrCat("address-", number);
  Check(w.session->worker_end.Send(hello));
  Pump(w);
}

// Loses any worker, and has another one join a little later.
void Fleet::LoseOne() {
  if (ended_.size() == static_cast<size_t>(options_.runs)) return;
  const double lost_a_second = options_.lost_a_minute * options_.workers / 60;
  At(now_ + 1 + random_.Below(static_cast<int64_t>(2 * kSecond / lost_a_second)), [this] { LoseOne(); });
  if (living_.empty()) return;
  std::swap(living_[random_.Below(static_cast<int64_t>(living_.size()))], living_.back());
  Worker& w = *workers_[living_.back()];
  living_.pop_back();
  w.dead = true;
  ++result_.lost;
  result_.lost_in_runs += w.core.has_run();
  const bool silent = random_.Chance(0.5);
  At(now_ + (silent ? kKeepaliveNs : kMillisecond), [this, session = w.session->session(), silent] {
    Tell(SessionBroken{session, silent ? "no answer" : "connection reset"});
  });
  At(now_ + 10 * kSecond + random_.Below(20 * kSecond), [this] { Join(); });
}

// ---- the control plane

void Fleet::Pump(Worker& w) {
  if (w.dead) return;
  const auto later = [&](std::function<void()> take) {
    At(now_ + kMillisecond / 5 + random_.Below(kMillisecond), [this, &w, take = std::move(take)] {
      if (w.dead) return;
      take();
      Pump(w);
    });
  };
  while (auto packet = w.session->worker_end.Take(now_)) {
    later([this, &w, packet = *std::move(packet)] {
      auto events = w.session->ToCoordinator(now_, packet);
      if (!events.ok()) return Check(events.status());
      result_.messages += events->size();
      for (Event& event : *events) Tell(std::move(event));
    });
  }
  while (auto packet = w.session->coordinator_end.Take(now_)) {
    later([this, &w, packet = *std::move(packet)] {
      const auto messages = w.session->ToWorker(now_, packet);
      if (!messages.ok()) return Check(messages.status());
      for (const FromCoordinator& m : *messages)
        Call(w, [&](WorkerEffects* out) { w.core.OnMessage(now_, m, out); });
    });
  }
  const int64_t due =
      std::min(w.session->worker_end.next_deadline(), w.session->coordinator_end.next_deadline());
  if (due == kNever || (w.timer > now_ && w.timer <= due)) return;
  w.timer = std::max(due, now_ + 1);
  At(w.timer, [this, &w] { Pump(w); });
}

// Gives the coordinator an event. As in its shell, one Step takes all events that come while it works.
void Fleet::Tell(Event event) {
  if (told_.empty()) At(now_ + kStepNs, [this] { StepCoordinator(); });
  told_.push_back(std::move(event));
}

void Fleet::StepCoordinator() {
  const double before = ProcessorSeconds();
  Effects effects = coordinator_->Step(now_, std::exchange(told_, {}));
  const double seconds = ProcessorSeconds() - before;
  result_.core_seconds += seconds;
  result_.most_step_seconds = std::max(result_.most_step_seconds, seconds);
  CarryOut(std::move(effects));
  const int64_t due = coordinator_->next_deadline();
  if (due == INT64_MAX || (coordinator_timer_ > now_ && coordinator_timer_ <= due)) return;
  coordinator_timer_ = std::max(due, now_ + 1);
  At(coordinator_timer_, [this] { Tell(Tick{}); });
}

void Fleet::CarryOut(Effects effects) {
  std::set<int> told;
  for (OutgoingMessage& m : effects.messages) {
    Worker& w = *workers_[m.session - 1];
    if (w.dead) continue;
    Check(w.session->coordinator_end.Send(std::move(m.message)));
    told.insert(w.number);
  }
  for (const Reply& r : effects.replies) Check(r.status);
  for (const CloseSession& c : effects.closed) {
    if (!workers_[c.session - 1]->dead) Problem(absl::StrCat("a session is closed: ", c.status.ToString()));
  }
  for (const StepDone& s : effects.steps) {
    if (s.step != steps_[s.run]++) Problem(absl::StrCat("run ", s.run, " tells of step ", s.step));
  }
  for (const RunInfo& run : effects.runs) TakeRun(run);
  for (const int number : told) Pump(*workers_[number]);
}

void Fleet::TakeRun(const RunInfo& run) {
  if (!IsFinal(run.state) || !ended_.insert(run.id).second) return;
  result_.restarts += run.restarts;
  if (run.state != RunState::kFinished) Problem(absl::StrCat("run ", run.id, " ended: ", run.reason));
  if (steps_[run.id] != options_.steps)
    Problem(absl::StrCat("run ", run.id, " told of ", steps_[run.id], " steps"));
}

// ---- the workers

void Fleet::Call(Worker& w, const std::function<void(WorkerEffects*)>& call) {
  WorkerEffects effects;
  call(&effects);
  Carry(w, std::move(effects));
}

void Fleet::Carry(Worker& w, WorkerEffects effects) {
  for (WorkerEffect& effect : effects) {
    if (auto* send = std::get_if<SendEffect>(&effect)) {
      if (const auto* failed = std::get_if<Failed>(&send->message)) Problem(failed->reason);
      Check(w.session->worker_end.Send(std::move(send->message)));
    } else if (auto* prepare = std::get_if<PrepareEffect>(&effect)) {
      result_.from_checkpoints += !prepare->assignment.spec.empty() && prepare->stages.front().stage == 0;
      Prepare(w);
    } else if (auto* want = std::get_if<WantEffect>(&effect)) {
      Want(w, *want);
    } else if (auto* start = std::get_if<StartEffect>(&effect)) {
      StartJob(w, *start);
    } else if (auto* publish = std::get_if<PublishEffect>(&effect)) {
      Publish(w, *publish);
    } else if (auto* snapshot = std::get_if<SnapshotEffect>(&effect)) {
      w.pieces[snapshot->step] = snapshot->pieces;
    } else if (auto* save = std::get_if<SaveEffect>(&effect)) {
      Saved(w, save->step);
    } else if (auto* seal = std::get_if<SealEffect>(&effect)) {
      InAttempt(w, random_.Below(kSecond / 5), [this, &w, step = seal->step] {
        Call(w, [&](WorkerEffects* out) { w.core.OnSealed(step, "", out); });
      });
    } else if (std::holds_alternative<ExitEffect>(effect)) {
      Problem("a worker is told to exit");
    } else if (auto answer = AnswerAtOnce(now_, effect, &w.core)) {
      Carry(w, *std::move(answer));
    }
  }
  Pump(w);
}

void Fleet::Prepare(Worker& w) {
  w.offered.clear();
  w.wanted.clear();
  w.pieces.clear();
  w.running.clear();
  SendReports(w);
  InAttempt(w, kSecond + random_.Below(5 * kSecond),
            [this, &w] { Call(w, [&](WorkerEffects* out) { w.core.OnPrepared(now_, out); }); });
}

void Fleet::SendReports(Worker& w) {
  InAttempt(w, kReportNs, [this, &w] {
    Report report{w.core.run_id(), {}, {}};
    for (const auto& [rank, job] : w.running) report.running.push_back({rank, job.first, now_ - job.second});
    Check(w.session->worker_end.Send(std::move(report)));
    Pump(w);
    SendReports(w);
  });
}

void Fleet::StartJob(Worker& w, const StartEffect& start) {
  w.running[start.rank] = {start.job, now_};
  InAttempt(w, options_.job_ns / 2 + random_.Below(options_.job_ns),
            [this, &w, start, began = now_] { EndJob(w, start, began); });
}

void Fleet::EndJob(Worker& w, const StartEffect& start, int64_t began) {
  w.running.erase(start.rank);
  JobDone done{start.rank, start.job, began, now_, start.last(), {}, {}};
  if (start.job.kind == JobKind::kForward && start.job.stage + 1 == options_.ranks) done.loss = 2.5;
  Call(w, [&](WorkerEffects* out) { w.core.OnJobDone(now_, done, out); });
  const int step = start.job.step + 1;
  if (start.leaves.snapshot && start.last() && --w.pieces[step] == 0) Saved(w, step);
}

void Fleet::Saved(Worker& w, int step) {
  InAttempt(w, random_.Below(kSecond), [this, &w, step] {
    Call(w, [&](WorkerEffects* out) { w.core.OnSnapshotSaved(step, "", out); });
  });
}

// ---- the data plane

void Fleet::Want(Worker& w, const WantEffect& want) {
  Worker& producer = *workers_[want.process];
  if (producer.dead) return;
  if (producer.offered.erase(want.key) > 0) return Deliver(w, want.key);
  producer.wanted[want.key] = &w;
}

void Fleet::Publish(Worker& w, const PublishEffect& publish) {
  if (publish.process < 0) return Deliver(w, publish.key);
  const auto wanted = w.wanted.find(publish.key);
  if (wanted == w.wanted.end()) {
    w.offered.insert(publish.key);
    return;
  }
  Worker* const to = wanted->second;
  w.wanted.erase(wanted);
  Deliver(*to, publish.key);
}

void Fleet::Deliver(Worker& to, const TensorKey& key) {
  InAttempt(to, random_.Below(5 * kMillisecond), [this, &to, key] {
    if (key.epoch != to.core.epoch()) return;
    Call(to, [&](WorkerEffects* out) { to.core.OnTensor(now_, key, {}, out); });
  });
}

FleetResult Fleet::Run() {
  for (int i = 0; i < options_.workers; ++i) At(1 + random_.Below(10 * kSecond), [this] { Join(); });
  for (int i = 0; i < options_.runs; ++i) {
    At(1 + random_.Below(20 * kSecond), [this, i] {
      Tell(SubmitRun{static_cast<uint64_t>(i + 1), absl::StrCat("request-", i), plan_, "", options_.ranks,
                     absl::StrCat("out-", i)});
    });
  }
  At(20 * kSecond, [this] { LoseOne(); });
  while (!actions_.empty() && result_.problem.empty() && ended_.size() < static_cast<size_t>(options_.runs)) {
    const auto [time, action] = actions_.Take();
    now_ = time;
    ++result_.events;
    action();
  }
  if (ended_.size() < static_cast<size_t>(options_.runs))
    Problem(absl::StrCat(ended_.size(), " of ", options_.runs, " runs ended"));
  result_.virtual_ns = now_;
  return result_;
}

}  // namespace

FleetResult RunFleet(const FleetOptions& options) { return Fleet(options).Run(); }

}  // namespace weft
