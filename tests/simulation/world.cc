#include "tests/simulation/world.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/coordinator_core.h"
#include "proto/session/link.h"
#include "schedules/check.h"
#include "schedules/families.h"
#include "tests/property/random_inputs.h"
#include "tests/simulation/world_random.h"
#include "tests/simulation/world_values.h"
#include "worker/core/worker_core.h"

namespace weft {
namespace {

Schedule MakeApart(Schedule s) {
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

// Room on each rank for what one micro-batch leaves there, and on some for more. What a stage leaves is
// counted larger than it is.
void AddBudget(Random& random, Schedule* s) {
  ActivationMemory memory;
  for (int stage = 0; stage < s->stages; ++stage) memory.left.push_back(100 + random.Below(100));
  memory.budget.assign(s->ranks, 0);
  std::vector<int64_t> sums(s->ranks);
  for (int step = 0; step < s->period; ++step) {
    for (int b = 0; b < s->microbatches; ++b) {
      sums.assign(s->ranks, 0);
      for (int stage = 0; stage < s->stages; ++stage) {
        const Rank rank = s->compute(Job::Compute(step, stage, b, JobKind::kForward));
        sums[rank] += memory.left[stage];
        memory.budget[rank] = std::max(memory.budget[rank], sums[rank]);
      }
    }
  }
  for (int64_t& budget : memory.budget) budget += random.Below(budget);
  Schedule limited = *s;
  limited.memory = memory;
  // A fixed order may need more than that.
  if (CheckSchedule(limited).ok()) *s = limited;
}

int64_t MeasuredLeft(const Schedule& s, int stage) { return s.memory->left[stage] - 7 * (stage % 5); }

class World {
 public:
  explicit World(const WorldOptions& options);
  WorldResult Run();

 private:
  using UpLink = Link<FromWorker, FromCoordinator>;
  using DownLink = Link<FromCoordinator, FromWorker>;

  // Of the gradients of one step, in a state that migrates.
  struct Sum {
    Value value = 0;
    int step = -1, next = 0;
  };
  struct State {
    std::map<int, Value> weights;
    Sum sum;
  };
  struct Process {
    Process(int n, WorkerCore::ParseSpec parse, LinkOptions link)
        : number(n), core(std::move(parse)), up(n + 1, link), down(n + 1, link) {}
    int number;
    WorkerCore core;
    UpLink up;      // the worker's end
    DownLink down;  // the coordinator's end
    std::map<TensorKey, Value> inbox;
    std::map<TensorKey, int> wanted_by;                            // as a producer: who asked
    std::map<TensorKey, Value> offered;                            // as a producer: what waits for a want
    std::map<std::pair<Rank, int>, std::map<int, Value>> weights;  // held, by rank and stage: by version
    std::map<Job, Value> sums;                                     // of reduce and gradient-consuming jobs
    std::map<std::pair<Rank, Job>, Value> outputs;   // forward outputs that wait for their backward
    std::map<std::pair<Rank, int>, Sum> state_sums;  // of states that migrate, beside their `weights`
    int64_t up_timer = -1, down_timer = -1;
  };
  struct Event {
    int64_t time;
    uint64_t number;
    std::function<void()> action;
    bool operator<(const Event& o) const { return std::tie(time, number) > std::tie(o.time, o.number); }
  };
  struct Outputs {
    Value activation = 0, input_gradient = 0, gradient = 0, sum = 0, norm = 0, state = 0;
  };

  void At(int64_t time, std::function<void()> action) { events_.push({time, next_++, std::move(action)}); }
  void Note(Value what) { trace_ = Mix(trace_, Mix(static_cast<Value>(now_), what)); }
  void Problem(const std::string& what) {
    if (problem_.empty()) problem_ = absl::StrCat(what, " at ", now_, " ns");
  }

  void Pump(Process& p);
  template <typename LinkType, typename Deliver>
  void PumpLink(LinkType& link, int64_t* timer, Process& p, Deliver deliver);
  void ToCoordinator(Process& p, Packet<FromWorker> packet);
  void ToWorker(Process& p, Packet<FromCoordinator> packet);
  void StepCoordinator(std::vector<weft::Event> events);
  void WakeCoordinator();
  void Carry(Process& p, WorkerEffects effects, const Outputs* outputs);
  void StartJob(Process& p, const StartEffect& start);
  void EndJob(Process& p, const StartEffect& start, int64_t began, Outputs outputs);
  Outputs Compute(Process& p, const StartEffect& start);
  void Publish(Process& p, const PublishEffect& e, const Outputs* outputs);
  Value HeldWeights(Process& p, Rank rank, int stage, int version);
  void UpdateWeights(Process& p, const StartEffect& start, std::optional<Value> adopted,
                     const std::vector<Value>& sums);
  void DropWeights(Process& p, const DropEffect& e);
  void CheckUnread(Rank rank, int stage, int version);
  void BeginWeights(Process& p, Rank rank, int stage, int part);
  void ReceiveState(Process& p, const StartEffect& start);
  void PassStateOn(Process& p, const StartEffect& start, Outputs* outputs);
  void AddToState(Process& p, const StartEffect& start, Value gradient);
  Value TakeStateSum(Process& p, const StartEffect& start);
  void Want(Process& p, const WantEffect& e);
  void Transfer(Process& from, const TensorKey& key, int to, Value value);
  void CountLeft(const StartEffect& start, bool ended);
  void CountFetch(const TensorKey& key);
  void CountRunning(const StartEffect& start);
  void CheckStart(const StartEffect& start);
  void CheckEnd();
  void CheckVersions(Rank rank, int stage, const std::map<int, Value>& versions);
  // The oldest version that a step may read when `newest` is the newest.
  int OldestRead(int stage, int newest) const {
    return std::max(0, newest - plan_->graph.schedule().MostStaleness(stage));
  }

  const WorldOptions options_;
  Random random_;
  std::shared_ptr<const RunPlan> plan_;
  std::vector<Held> plain_;  // by version
  std::unique_ptr<CoordinatorCore> coordinator_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::priority_queue<Event> events_;
  uint64_t next_ = 0;
  int64_t now_ = 1;
  int64_t coordinator_timer_ = -1;
  Value trace_ = 0;
  std::string problem_;
  std::set<Job> started_, ended_, counted_;
  std::map<Rank, std::vector<Job>> running_;
  std::map<Rank, int64_t> left_;
  std::map<Rank, std::set<Job>> fetching_;  // jobs that have not ended and whose weights were wanted
  std::map<Value, State> moving_;           // states on their way, by what stands for them in messages
  std::map<int, Rank> holder_;              // of the state of each stage, if a rank has it
  bool finished_ = false;
  int steps_done_ = 0;
  WorldResult result_;
};

World::World(const WorldOptions& options) : options_(options), random_(options.seed) {
  auto schedule = MakeSchedule(options.family, options.parameters, options.stages, options.microbatches);
  if (absl::Status s = ApplyRule(options.rule, options.family, &*schedule); !s.ok())
    Problem(std::string(s.message()));
  schedule->clips = options.clips;
  if (!options.chain) schedule->inputs = RandomInputs(options.seed, options.stages);
  if (options.apart) schedule = MakeApart(*std::move(schedule));
  Random budgets(options.seed ^ 0xb7);
  if (options.budget) AddBudget(budgets, &*schedule);
  auto plan = MakeRunPlan("world", options.family, *schedule, options.steps, options.first_step);
  plan_ = *plan;
  plain_ = PlainLoop(plan_->graph, options.steps);
  CoreOptions core;
  core.epoch = 1 + options.seed;
  coordinator_ = std::make_unique<CoordinatorCore>(core);
  LinkOptions link;
  link.resend_ns = 4 * options.delay_ns + 1'000'000;
  link.ack_delay_ns = 500'000;
  const WorkerCore::RunShape shape{*schedule, options.steps, options.first_step};
  for (int i = 0; i < options.processes; ++i) {
    processes_.push_back(std::make_unique<Process>(
        i, [shape](const std::string&) { return shape; }, link));
  }
}

// ---- the control plane

template <typename LinkType, typename Deliver>
void World::PumpLink(LinkType& link, int64_t* timer, Process& p, Deliver deliver) {
  while (auto packet = link.Take(now_)) {
    const int copies = random_.Chance(options_.loss) ? 0 : (random_.Chance(options_.duplication) ? 2 : 1);
    result_.packets_lost += copies == 0;
    result_.packets_doubled += copies == 2;
    for (int c = 0; c < copies; ++c) {
      At(now_ + 1000 + random_.Below(options_.delay_ns),
         [&p, deliver, packet = *packet] { deliver(p, packet); });
    }
  }
  const int64_t deadline = link.next_deadline();
  if (deadline == kNever || (*timer > now_ && *timer <= deadline)) return;
  *timer = std::max(deadline, now_ + 1);
  At(*timer, [this, &p] { Pump(p); });
}

void World::Pump(Process& p) {
  PumpLink(p.up, &p.up_timer, p,
           [this](Process& q, const Packet<FromWorker>& packet) { ToCoordinator(q, packet); });
  PumpLink(p.down, &p.down_timer, p,
           [this](Process& q, const Packet<FromCoordinator>& packet) { ToWorker(q, packet); });
}

void World::ToCoordinator(Process& p, Packet<FromWorker> packet) {
  std::vector<FromWorker> messages;
  if (absl::Status s = p.down.Receive(now_, std::move(packet), &messages); !s.ok())
    return Problem(std::string(s.message()));
  std::vector<weft::Event> events;
  for (FromWorker& m : messages) {
    Note(Mix(11, m.index()));
    events.push_back(SessionMessage{static_cast<SessionId>(p.number + 1), std::move(m)});
  }
  if (!events.empty()) StepCoordinator(std::move(events));
  Pump(p);
}

void World::ToWorker(Process& p, Packet<FromCoordinator> packet) {
  std::vector<FromCoordinator> messages;
  if (absl::Status s = p.up.Receive(now_, std::move(packet), &messages); !s.ok())
    return Problem(std::string(s.message()));
  for (const FromCoordinator& m : messages) {
    Note(Mix(12, m.index()));
    WorkerEffects effects;
    p.core.OnMessage(now_, m, &effects);
    Carry(p, std::move(effects), nullptr);
  }
  Pump(p);
}

void World::StepCoordinator(std::vector<weft::Event> events) {
  Effects effects = coordinator_->Step(now_, std::move(events));
  for (OutgoingMessage& m : effects.messages) {
    Process& p = *processes_[m.session - 1];
    if (absl::Status s = p.down.Send(std::move(m.message)); !s.ok()) Problem(std::string(s.message()));
  }
  for (const Reply& r : effects.replies) {
    if (!r.status.ok()) Problem(absl::StrCat("the run was refused: ", r.status.ToString()));
  }
  for (const JobsEnded& j : effects.jobs) {
    for (const Completion& c : j.jobs) {
      Note(Mix(13, c.job.stage * 100 + c.job.microbatch));
      if (!counted_.insert(c.job).second) Problem(absl::StrCat(Describe(c.job), " was counted twice"));
      if (!ended_.count(c.job)) Problem(absl::StrCat(Describe(c.job), " was counted before it ended"));
    }
  }
  steps_done_ += static_cast<int>(effects.steps.size());
  for (const CloseSession& c : effects.closed) Problem(absl::StrCat("session closed: ", c.status.ToString()));
  for (const RunInfo& run : effects.runs) {
    if (run.state == RunState::kFinished) finished_ = true;
    if (IsFinal(run.state) && run.state != RunState::kFinished)
      Problem(absl::StrCat("the run ended: ", run.reason));
  }
  for (auto& p : processes_) Pump(*p);
  WakeCoordinator();
}

void World::WakeCoordinator() {
  const int64_t deadline = coordinator_->next_deadline();
  if (deadline == INT64_MAX || (coordinator_timer_ > now_ && coordinator_timer_ <= deadline)) return;
  coordinator_timer_ = std::max(deadline, now_ + 1);
  At(coordinator_timer_, [this] { StepCoordinator({Tick{}}); });
}

// ---- the workers

void World::Carry(Process& p, WorkerEffects effects, const Outputs* outputs) {
  for (WorkerEffect& effect : effects) {
    if (auto* send = std::get_if<SendEffect>(&effect)) {
      if (auto* failed = std::get_if<Failed>(&send->message)) Problem(failed->reason);
      if (absl::Status s = p.up.Send(std::move(send->message)); !s.ok()) Problem(std::string(s.message()));
    } else if (auto* prepare = std::get_if<PrepareEffect>(&effect)) {
      for (const auto& s : prepare->stages) {
        if (s.holds_weights) BeginWeights(p, s.rank, s.stage, s.part);
      }
      At(now_ + random_.Below(5'000'000), [this, &p] {
        WorkerEffects more;
        p.core.OnPrepared(now_, &more);
        Carry(p, std::move(more), nullptr);
        Pump(p);
      });
    } else if (auto* want = std::get_if<WantEffect>(&effect)) {
      Want(p, *want);
    } else if (auto* start = std::get_if<StartEffect>(&effect)) {
      StartJob(p, *start);
    } else if (auto* publish = std::get_if<PublishEffect>(&effect)) {
      Publish(p, *publish, outputs);
    } else if (auto* drop = std::get_if<DropEffect>(&effect)) {
      DropWeights(p, *drop);
    } else if (std::holds_alternative<SaveEffect>(effect)) {
      At(now_ + 1000, [this, &p] {
        std::vector<RankReport> reports;
        for (Rank r : p.core.ranks()) {
          reports.emplace_back();
          reports.back().rank = r;
        }
        WorkerEffects more;
        p.core.OnSaved(now_, std::move(reports), &more);
        Carry(p, std::move(more), nullptr);
        Pump(p);
      });
    } else if (std::holds_alternative<ForgetEffect>(effect)) {
      WorkerEffects more;
      p.core.Forget(now_, &more);
      Carry(p, std::move(more), nullptr);
    }
  }
}

// Where weights are sharded, copies of them are there for a rank's job that runs and for the next one alone.
void World::CountFetch(const TensorKey& key) {
  const bool weights =
      key.kind == TensorKind::kWeights && plan_->graph.schedule().residency == Residency::kSharded;
  if (!weights && key.kind != TensorKind::kState) return;
  std::set<Job>& fetching = fetching_[key.consumer];
  Job job = Job::Compute(key.step, key.stage, key.microbatch, static_cast<JobKind>(key.use));
  if (key.kind == TensorKind::kState) {
    job.kind = static_cast<JobKind>(key.part);
    job = *plan_->graph.visits().After(job);
  }
  fetching.insert(job);
  if (fetching.size() <= 2) return;
  std::string jobs;
  for (const Job& wanting : fetching) absl::StrAppend(&jobs, " ", Describe(wanting));
  Problem(absl::StrCat("rank ", key.consumer, " wants the weights of more than two jobs at once:", jobs));
}

void World::Want(Process& p, const WantEffect& e) {
  CountFetch(e.key);
  Process& producer = *processes_[e.process];
  At(now_ + 500 + random_.Below(options_.transfer_delay_ns), [this, &producer, key = e.key, to = p.number] {
    const auto it = producer.offered.find(key);
    if (it == producer.offered.end()) {
      producer.wanted_by[key] = to;
    } else {
      Transfer(producer, key, to, it->second);
      producer.offered.erase(it);
    }
  });
}

void World::Transfer(Process& from, const TensorKey& key, int to, Value value) {
  Process& p = *processes_[to];
  At(now_ + 500 + random_.Below(options_.transfer_delay_ns), [this, &p, key, value] {
    Note(Mix(14, value));
    if (key.kind != TensorKind::kOrder) p.inbox[key] = value;
    WorkerEffects effects;
    p.core.OnTensor(now_, key, now_ - 1, &effects);
    Carry(p, std::move(effects), nullptr);
    Pump(p);
  });
}

void World::Publish(Process& p, const PublishEffect& e, const Outputs* outputs) {
  Value value = 0;
  switch (e.key.kind) {
    case TensorKind::kWeights:
      value = HeldWeights(p, e.key.producer, e.key.stage, e.key.version);
      break;
    case TensorKind::kActivation:
      value = outputs->activation;
      break;
    case TensorKind::kInputGradient:
      value = PartOfInput(outputs->input_gradient, e.key.part);
      break;
    case TensorKind::kGradient:
      value = SliceValue(outputs->gradient, e.key.part, e.parts);
      break;
    case TensorKind::kGradientSum:
      value = outputs->sum;
      break;
    case TensorKind::kNorm:
      value = outputs->norm;
      break;
    case TensorKind::kState:
      value = outputs->state;
      break;
    case TensorKind::kOrder:
      break;
  }
  if (e.process < 0) {
    p.inbox[e.key] = value;
    return;
  }
  const auto it = p.wanted_by.find(e.key);
  if (it == p.wanted_by.end()) {
    p.offered[e.key] = value;
  } else {
    Transfer(p, e.key, it->second, value);
    p.wanted_by.erase(it);
  }
}

Value World::HeldWeights(Process& p, Rank rank, int stage, int version) {
  const std::map<int, Value>& held = p.weights[{rank, stage}];
  const auto found = held.find(version);
  if (found != held.end()) return found->second;
  Problem(absl::StrCat("rank ", rank, " does not hold version ", version, " of stage ", stage));
  return 0;
}

// The newest version's next, made or adopted; the newest stays if it is still to be read.
void World::UpdateWeights(Process& p, const StartEffect& start, std::optional<Value> adopted,
                          const std::vector<Value>& sums) {
  std::map<int, Value>& held = p.weights[{start.rank, start.job.stage}];
  const int version = start.job.step;
  if (start.version != version || held.rbegin()->first != version)
    Problem(absl::StrCat(Describe(start.job), " does not begin with version ", version));
  held[version + 1] = adopted.has_value() ? *adopted : Updated(held[version], sums);
  if (!start.keeps_version) {
    CheckUnread(start.rank, start.job.stage, version);
    held.erase(version);
  }
  // All jobs of the step have ended, so only versions that later steps read are left.
  const int most = plan_->graph.schedule().MostStaleness(start.job.stage) + 1;
  if (static_cast<int>(held.size()) > most)
    Problem(
        absl::StrCat("rank ", start.rank, " holds ", held.size(), " versions of stage ", start.job.stage));
  int& peak = result_.peak_versions[start.rank];
  peak = std::max(peak, static_cast<int>(held.size()));
}

void World::DropWeights(Process& p, const DropEffect& e) {
  CheckUnread(e.rank, e.stage, e.version);
  std::map<int, Value>& held = p.weights[{e.rank, e.stage}];
  if (held.count(e.version) == 0 || held.rbegin()->first == e.version)
    Problem(absl::StrCat("version ", e.version, " of stage ", e.stage, " is dropped on rank ", e.rank,
                         " and is not there, or the newest"));
  held.erase(e.version);
}

// What came is with the rank from here on, and with no other.
// Every version that the first steps may read.
void World::BeginWeights(Process& p, Rank rank, int stage, int part) {
  for (int v = OldestRead(stage, options_.first_step); v <= options_.first_step; ++v)
    p.weights[{rank, stage}][v] = plain_[v][stage][part];
}

void World::ReceiveState(Process& p, const StartEffect& start) {
  const int stage = start.job.stage;
  const std::pair<Rank, int> here(start.rank, stage);
  if (start.visit->begins || start.visit->arrives) {
    if (!holder_.emplace(stage, start.rank).second) {
      Problem(absl::StrCat(Describe(start.job), " on rank ", start.rank, " gets a state that rank ",
                           holder_[stage], " has"));
    }
  } else if (holder_.count(stage) == 0 || holder_[stage] != start.rank) {
    Problem(
        absl::StrCat(Describe(start.job), " on rank ", start.rank, " is to find a state that is elsewhere"));
  }
  if (start.visit->begins) BeginWeights(p, start.rank, stage, 0);
  for (const TensorKey& key : start.inputs) {
    if (key.kind != TensorKind::kState) continue;
    const auto came = p.inbox.find(key);
    const auto state = came == p.inbox.end() ? moving_.end() : moving_.find(came->second);
    if (state == moving_.end())
      return Problem(absl::StrCat(Describe(start.job), " lacks the ", Describe(key)));
    p.weights[here] = std::move(state->second.weights);
    p.state_sums[here] = state->second.sum;
    moving_.erase(state);
    p.inbox.erase(came);
  }
}

void World::PassStateOn(Process& p, const StartEffect& start, Outputs* outputs) {
  const int stage = start.job.stage;
  const std::pair<Rank, int> here(start.rank, stage);
  if (start.visit->drops_version) DropWeights(p, {start.rank, stage, start.version});
  const int held = static_cast<int>(p.weights[here].size());
  if (held != plan_->graph.visits().VersionsAfter(start.job)) {
    Problem(absl::StrCat(held, " versions leave ", Describe(start.job), ", not ",
                         plan_->graph.visits().VersionsAfter(start.job)));
  }
  if (!start.visit->leaves) return;
  outputs->state = random_.Next();
  moving_[outputs->state] = {std::move(p.weights[here]), p.state_sums[here]};
  p.weights.erase(here);
  p.state_sums.erase(here);
  holder_.erase(stage);
}

void World::AddToState(Process& p, const StartEffect& start, Value gradient) {
  Sum& sum = p.state_sums[{start.rank, start.job.stage}];
  if (sum.next == 0) sum.step = start.job.step;
  if (sum.step != start.job.step || sum.next != start.job.microbatch)
    Problem(absl::StrCat(Describe(start.job), " adds to the sum of step ", sum.step, " out of turn"));
  sum.value = Mix(sum.value, gradient);
  ++sum.next;
}

Value World::TakeStateSum(Process& p, const StartEffect& start) {
  const Sum sum = std::exchange(p.state_sums[{start.rank, start.job.stage}], {});
  if (sum.step != start.job.step || sum.next != plan_->graph.schedule().microbatches)
    Problem(absl::StrCat(Describe(start.job), " finds ", sum.next, " micro-batches in the sum"));
  return sum.value;
}

// Every job that reads the rank's version has ended.
void World::CheckUnread(Rank rank, int stage, int version) {
  const Graph& graph = plan_->graph;
  for (int b = 0; b < graph.schedule().microbatches; ++b) {
    for (int t = std::max(version, options_.first_step); t < options_.steps; ++t) {
      for (JobKind kind : {JobKind::kForward, graph.input_backward(), graph.final_backward()}) {
        const Job job = Job::Compute(t, stage, b, kind);
        const bool reads = graph.VersionOf(job) == version &&
                           (graph.sharded() || graph.migrates() || graph.schedule().weights(job) == rank);
        if (reads && ended_.count(job) == 0) {
          Problem(absl::StrCat("version ", version, " of stage ", stage, " is dropped on rank ", rank,
                               ", and ", Describe(job), " is still to read it"));
        }
      }
    }
  }
}

// A rank that computes a forward, and nothing else, may start what the order pairs with it.
void World::CountRunning(const StartEffect& start) {
  std::vector<Job>& running = running_[start.rank];
  const Job& job = start.job;
  if (!running.empty()) {
    ++result_.pairs;
    const bool paired = running.size() == 1 && running[0].kind == JobKind::kForward && start.beside &&
                        (plan_->graph.MarksOf(job) & kBesideForward) != 0;
    if (!paired) Problem(absl::StrCat(Describe(job), " started beside ", Describe(running[0])));
  }
  running.push_back(job);
}

void World::CheckStart(const StartEffect& start) {
  CountRunning(start);
  if (!start.last) return;
  if (!started_.insert(start.job).second) Problem(absl::StrCat(Describe(start.job), " started twice"));
  std::vector<Edge> edges;
  plan_->graph.Predecessors(start.job, &edges);
  for (const Edge& e : edges) {
    if (e.from.step >= options_.first_step && !ended_.count(e.from)) {
      Problem(absl::StrCat(Describe(start.job), " started before ", Describe(e.from), " ended"));
    }
  }
}

// What forwards have left on each rank never exceeds its budget.
void World::CountLeft(const StartEffect& start, bool ended) {
  const Schedule& s = plan_->graph.schedule();
  if (!s.memory.has_value() || !HasMicrobatch(start.job.kind)) return;
  const int64_t bytes = MeasuredLeft(s, start.job.stage);
  if (!ended && start.job.kind == JobKind::kForward) left_[start.rank] += bytes;
  if (ended && start.job.kind == plan_->graph.final_backward()) left_[start.rank] -= bytes;
  if (left_[start.rank] > s.memory->budget[start.rank]) {
    Problem(absl::StrCat("rank ", start.rank, " exceeds its budget with ", Describe(start.job)));
  }
}

void World::StartJob(Process& p, const StartEffect& start) {
  CheckStart(start);
  if (start.visit.has_value()) ReceiveState(p, start);
  CountLeft(start, /*ended=*/false);
  Note(Mix(15, start.job.stage * 100 + start.job.microbatch));
  const int64_t began = now_;
  At(now_ + 1 + random_.Below(options_.job_ns),
     [this, &p, start, began] { EndJob(p, start, began, Compute(p, start)); });
}

World::Outputs World::Compute(Process& p, const StartEffect& start) {
  const Job& j = start.job;
  const auto take_all = [&](TensorKind kind) {
    std::vector<Value> values;
    for (const TensorKey& key : start.inputs) {
      if (key.kind != kind) continue;
      const auto it = p.inbox.find(key);
      if (it == p.inbox.end()) {
        Problem(absl::StrCat(Describe(j), " lacks the ", Describe(key)));
        continue;
      }
      values.push_back(it->second);
      p.inbox.erase(it);
    }
    return values;
  };
  const auto take = [&](TensorKind kind) -> std::optional<Value> {
    const std::vector<Value> values = take_all(kind);
    return values.empty() ? std::nullopt : std::optional<Value>(values[0]);
  };
  Outputs out;
  Job forward = j;
  forward.kind = JobKind::kForward;
  const auto weights = [&] {
    if (!start.gathers_weights) {
      const std::optional<Value> came = take(TensorKind::kWeights);
      return came.has_value() ? *came : HeldWeights(p, start.rank, j.stage, start.version);
    }
    std::vector<Value> slices(SlicesOf(plan_->graph, j.stage));
    const auto& members = plan_->graph.members(j.stage);
    const auto own = std::find(members.begin(), members.end(), start.rank);
    if (own != members.end())
      slices[own - members.begin()] = HeldWeights(p, start.rank, j.stage, start.version);
    for (const TensorKey& key : start.inputs) {
      const auto it = p.inbox.find(key);
      if (key.kind == TensorKind::kWeights && it != p.inbox.end()) slices[key.part] = it->second;
    }
    if (take_all(TensorKind::kWeights).size() + 1 != slices.size())
      Problem(absl::StrCat(Describe(j), " has not all others' slices of the weights"));
    return WholeWeights(slices);
  };
  const bool runs_again = start.apart && (j.kind == JobKind::kBackward || j.kind == JobKind::kBackwardInput);
  std::optional<Value> fetched;  // a job's weights come once
  if (runs_again) {
    fetched = weights();
    p.outputs[{start.rank, forward}] =
        ForwardValue(forward, Joined(take_all(TensorKind::kActivation), j.step), *fetched);
  }
  if (j.kind == JobKind::kForward) {
    const Value input = Joined(take_all(TensorKind::kActivation), j.step);
    out.activation = ForwardValue(j, input, weights());
    if (!start.apart) p.outputs[{start.rank, j}] = out.activation;
  } else if (j.kind == JobKind::kBackwardWeight) {
    // What its backward_input left; it fetches weights anew where they are not held.
    weights();
    Job input = j;
    input.kind = JobKind::kBackwardInput;
    out.gradient = p.outputs[{start.rank, input}];
    p.outputs.erase({start.rank, input});
    if (!start.hand_out_gradient) p.outputs[{start.rank, j}] = out.gradient;
  } else if (j.kind == JobKind::kBackwardInput) {
    const Value gradient = Joined(take_all(TensorKind::kInputGradient), 0);
    out.input_gradient = InputGradientValue(j, p.outputs[{start.rank, forward}], gradient,
                                            fetched.has_value() ? *fetched : weights());
    p.outputs[{start.rank, j}] = GradientValue(out.input_gradient);
    p.outputs.erase({start.rank, forward});
  } else if (HasMicrobatch(j.kind)) {
    const Value gradient = Joined(take_all(TensorKind::kInputGradient), 0);
    out.input_gradient = InputGradientValue(j, p.outputs[{start.rank, forward}], gradient,
                                            fetched.has_value() ? *fetched : weights());
    out.gradient = GradientValue(out.input_gradient);
    p.outputs.erase({start.rank, forward});
    // A stage of one holder sums in the rank itself, micro-batch by micro-batch: by number, so that order
    // does not matter here.
    if (start.visit.has_value()) {
      AddToState(p, start, out.gradient);
    } else if (!start.hand_out_gradient) {
      p.outputs[{start.rank, Job::Compute(j.step, j.stage, j.microbatch, JobKind::kBackwardWeight)}] =
          out.gradient;
    }
  } else {
    for (const TensorKey& key : start.gradients) {
      p.sums[j] = Mix(p.sums[j], p.inbox[key]);
      p.inbox.erase(key);
    }
    if (!start.last) return out;
    const std::optional<Value> adopted = take(TensorKind::kWeights);
    const bool makes = plan_->graph.MakesVersions(j.stage, j.member);
    if (adopted.has_value() == makes) Problem(absl::StrCat(Describe(j), " is not by its home alone"));
    const std::vector<Value> norms = take_all(TensorKind::kNorm);
    // Of other jobs, as parts or as a running sum.
    std::vector<Value> sums = take_all(TensorKind::kGradientSum);
    if (!sums.empty() || !makes) {
      if (!plan_->graph.has_reduce(j.stage) && !plan_->graph.relays(j.stage))
        Problem(absl::StrCat(Describe(j), " has the sums of others"));
    } else if (start.visit.has_value()) {
      sums.push_back(TakeStateSum(p, start));
    } else if (plan_->graph.gradient_travels(j.stage)) {
      sums.push_back(p.sums[j]);
    } else {
      sums.push_back(0);
      for (int b = 0; b < plan_->graph.schedule().microbatches; ++b) {
        const auto it =
            p.outputs.find({start.rank, Job::Compute(j.step, j.stage, b, JobKind::kBackwardWeight)});
        if (it == p.outputs.end()) {
          Problem(absl::StrCat(Describe(j), " lacks the gradient of micro-batch ", b));
          break;
        }
        sums[0] = Mix(sums[0], it->second);
        p.outputs.erase(it);
      }
    }
    if (start.clips != plan_->graph.schedule().clips)
      Problem(absl::StrCat(Describe(j), start.clips ? " clips" : " does not clip"));
    if (j.kind == JobKind::kReduce) {
      out.sum = sums[0];
      out.norm = NormValue(sums[0]);
      for (const Value norm : norms) out.norm += norm;
    } else {
      if (norms.size() != (start.clips && makes ? 1 : 0))
        Problem(absl::StrCat(Describe(j), " has ", norms.size(), " norms"));
      sums.insert(sums.end(), norms.begin(), norms.end());
      UpdateWeights(p, start, adopted, sums);
    }
  }
  if (start.relays_sum) out.sum = Mix(take(TensorKind::kGradientSum).value_or(0), out.gradient);
  return out;
}

void World::EndJob(Process& p, const StartEffect& start, int64_t began, Outputs outputs) {
  if (start.last) ended_.insert(start.job);
  if (start.visit.has_value()) PassStateOn(p, start, &outputs);
  std::vector<Job>& running = running_[start.rank];
  running.erase(std::find(running.begin(), running.end(), start.job));
  WorkerEffects effects;
  JobDone done{start.rank, start.job, began, now_, start.last, {}, {}};
  const Schedule& schedule = plan_->graph.schedule();
  if (start.job.kind == JobKind::kForward && schedule.memory.has_value())
    done.left_bytes = MeasuredLeft(schedule, start.job.stage);
  CountLeft(start, /*ended=*/true);
  fetching_[start.rank].erase(start.job);
  p.core.OnJobDone(now_, done, &effects);
  Carry(p, std::move(effects), &outputs);
  Pump(p);
}

// ---- the run

// The newest version is there; and on who saves, all that steps behind the last would read; and no other.
void World::CheckVersions(Rank rank, int stage, const std::map<int, Value>& versions) {
  const Graph& graph = plan_->graph;
  const auto& members = graph.members(stage);
  const auto found = std::find(members.begin(), members.end(), rank);
  if (found == members.end()) return;
  const int member = static_cast<int>(found - members.begin());
  std::map<int, Value> wanted;
  const int newest = options_.steps;
  for (int v = graph.Saves(stage, member) ? OldestRead(stage, newest) : newest; v <= newest; ++v)
    wanted[v] = plain_[v][stage][graph.sharded() ? member : 0];
  if (versions == wanted) return;
  const bool same = versions.size() == wanted.size() && versions.begin()->first == wanted.begin()->first;
  Problem(absl::StrCat("rank ", rank, same ? " differs from the plain loop in stage " : " ends with stage ",
                       stage, ", ", versions.size(), " versions of it from ",
                       versions.empty() ? -1 : versions.begin()->first, " on"));
}

void World::CheckEnd() {
  if (!finished_) return Problem("the run did not finish");
  const int steps = options_.steps - options_.first_step;
  const size_t jobs = static_cast<size_t>(plan_->graph.jobs_per_step()) * steps;
  if (counted_.size() != jobs) Problem(absl::StrCat(counted_.size(), " of ", jobs, " jobs were counted"));
  if (steps_done_ != steps) Problem(absl::StrCat(steps_done_, " steps were reported"));
  for (auto& p : processes_) {
    if (!p->outputs.empty()) Problem(absl::StrCat(p->outputs.size(), " outputs were left behind"));
    for (const auto& [where, versions] : p->weights) CheckVersions(where.first, where.second, versions);
    if (!p->inbox.empty())
      Problem(absl::StrCat(p->inbox.size(), " tensors were never used, first the ",
                           Describe(p->inbox.begin()->first)));
    if (!p->offered.empty()) Problem("tensors were offered and never wanted");
  }
  if (!plan_->graph.migrates()) return;
  if (!moving_.empty()) Problem(absl::StrCat(moving_.size(), " states were never taken in"));
  if (static_cast<int>(holder_.size()) != plan_->graph.schedule().stages)
    Problem(absl::StrCat("the states of ", holder_.size(), " stages are left"));
}

WorldResult World::Run() {
  for (auto& p : processes_) {
    At(1 + random_.Below(1'000'000), [this, &p = *p] {
      StepCoordinator({SessionOpened{static_cast<SessionId>(p.number + 1)}});
      Hello hello;
      hello.worker = absl::StrCat("worker-", p.number);
      hello.host = "world";
      hello.pid = 100 + p.number;
      hello.process = p.number;
      hello.address = absl::StrCat("address-", p.number);
      if (absl::Status s = p.up.Send(hello); !s.ok()) Problem(std::string(s.message()));
      Pump(p);
    });
  }
  At(1, [this] { StepCoordinator({SubmitRun{1, "request", plan_, "{}", options_.processes, ""}}); });
  constexpr uint64_t kMostEvents = 5'000'000;
  while (!events_.empty() && problem_.empty() && result_.events < kMostEvents) {
    const Event e = events_.top();
    events_.pop();
    now_ = e.time;
    ++result_.events;
    e.action();
    const bool idle =
        std::all_of(processes_.begin(), processes_.end(), [](const auto& p) { return !p->core.has_run(); });
    if (finished_ && idle) break;
  }
  if (problem_.empty()) CheckEnd();
  result_.problem = problem_;
  result_.trace = trace_;
  result_.virtual_ns = now_;
  return result_;
}

}  // namespace

WorldResult RunWorld(const WorldOptions& options) { return World(options).Run(); }

}  // namespace weft
