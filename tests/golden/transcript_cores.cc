#include "tests/golden/transcript_cores.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/store/store.h"
#include "tests/golden/transcript_words.h"

namespace weft {
namespace {

constexpr double kUsualLoss = 2;

template <typename Message>
std::string Names(const std::vector<Message>& messages) {
  return absl::StrJoin(messages, ", ",
                       [](std::string* out, const Message& m) { absl::StrAppend(out, MessageName(m)); });
}

// Returns "packet 3-4, ack 1".
template <typename Message>
std::string PacketWords(const Packet<Message>& packet) {
  if (packet.messages.empty()) return absl::StrCat("acknowledgement of ", packet.ack);
  const uint64_t last = packet.first + packet.messages.size() - 1;
  return absl::StrCat("packet ", packet.first, last > packet.first ? absl::StrCat("-", last) : "", ", ack ",
                      packet.ack);
}

template <typename Message>
std::string FlyingWords(const Packet<Message>& packet) {
  if (packet.messages.empty()) return PacketWords(packet);
  return absl::StrCat(PacketWords(packet), ": ", Names(packet.messages));
}

absl::string_view ChangeWords(WorkerChange::Kind kind) {
  constexpr absl::string_view kWords[] = {"joined", "left", "lost", "busy", "back"};
  return kWords[static_cast<int>(kind)];
}

Topic TopicOf(const WorkerEffect& effect) {
  if (std::holds_alternative<SendEffect>(effect)) return Topic::kMessages;
  if (std::holds_alternative<StartEffect>(effect)) return Topic::kJobs;
  const bool tensors = std::holds_alternative<WantEffect>(effect) ||
                       std::holds_alternative<PublishEffect>(effect) ||
                       std::holds_alternative<DropEffect>(effect);
  return tensors ? Topic::kTensors : Topic::kRuns;
}

}  // namespace

struct TranscriptCores::Worker {
  std::string name;
  int64_t pid;
  std::unique_ptr<JoinedSession> session;
  Hello hello;
  std::unique_ptr<WorkerCore> core;  // null: by hand
  std::deque<Packet<FromWorker>> up;
  std::deque<Packet<FromCoordinator>> down;
  std::deque<Task> tasks;
  std::map<int, int> pieces;  // of snapshots, by step: that are to come
  int32_t process = -1;
  uint64_t run = 0;
  std::map<Rank, Token> tokens;
  int ids_awaited = 0;  // of groups
  bool connected = true;
};

TranscriptCores::TranscriptCores(TranscriptPage* page) : page_(page) { SetOptions({}, {}); }
TranscriptCores::~TranscriptCores() = default;

uint64_t TranscriptCores::RunOf(const Worker& w) { return w.run; }
SessionId TranscriptCores::SessionOf(const Worker& w) { return w.session->session(); }
int64_t TranscriptCores::PidOf(const Worker& w) { return w.pid; }
Token TranscriptCores::TokenOf(const Worker& w, Rank rank) {
  const auto found = w.tokens.find(rank);
  return found == w.tokens.end() ? Token() : found->second;
}

void TranscriptCores::SetOptions(const CoreOptions& core, const LinkOptions& link) {
  options_ = core;
  coordinator_ = std::make_unique<CoordinatorCore>(core);
  link_ = link;
}

void TranscriptCores::Check(const absl::Status& status) {
  if (!status.ok()) page_->Line(Topic::kRuns, absl::StrCat("the link fails: ", status.message()));
}

// ---- the coordinator

void TranscriptCores::StepCoordinator(std::vector<Event> events) {
  std::vector<std::shared_ptr<const RunPlan>> plans;
  for (const Event& e : events) {
    if (const auto* submit = std::get_if<SubmitRun>(&e)) plans.push_back(submit->plan);
  }
  Effects effects = coordinator_->Step(now_, std::move(events));
  for (size_t i = 0; i < effects.records.submissions.size(); ++i)
    plans_[effects.records.submissions[i].run] = plans[i];
  Apply(effects.records, &stored_);
  Write(effects);
  SendAll(std::move(effects.messages));
  PumpAll();
}

void TranscriptCores::Write(const Effects& effects) {
  for (const Reply& r : effects.replies)
    page_->Line(Topic::kRuns, r.status.ok() ? absl::StrCat("accepts, run ", r.run)
                                            : absl::StrCat("refuses: ", r.status.ToString()));
  for (const WorkerChange& c : effects.workers)
    page_->Line(Topic::kRuns,
                absl::StrCat(ChangeWords(c.kind), ": ", c.label, c.reason.empty() ? "" : ": ", c.reason));
  for (const CloseSession& c : effects.closed) {
    page_->Line(Topic::kRuns,
                absl::StrCat("closes the session of ", NameOf(c.session), ": ", c.status.ToString()));
    if (Worker* w = BySession(c.session)) w->connected = false;
  }
  for (const JobsEnded& e : effects.jobs) {
    std::vector<Job> jobs;
    for (const Completion& c : e.jobs) jobs.push_back(c.job);
    page_->Line(Topic::kMessages, absl::StrCat("counts ", JobsWords(jobs)));
  }
  for (const RunLogLine& l : effects.log)
    page_->Line(Topic::kRuns, absl::StrCat("logs of run ", l.run, ", ", l.writer, " (ranks ",
                                           absl::StrJoin(l.ranks, " "), "): ", l.entry.text));
  for (const SlowJob& s : effects.slow_jobs) page_->Line(Topic::kRuns, absl::StrCat("slow: ", s.sentence));
  for (const StepDone& s : effects.steps) {
    page_->Line(
        Topic::kRuns,
        absl::StrCat("step ", s.step, " is done", s.has_loss ? absl::StrFormat(", loss %g", s.loss) : "",
                     s.gradient_norm ? absl::StrFormat(", norm %g", *s.gradient_norm) : ""));
  }
  for (const Validation& v : effects.validations)
    page_->Line(Topic::kRuns, absl::StrFormat("step %d is validated, loss %g", v.step, v.loss));
  for (const RunInfo& info : effects.runs) WriteRun(info);
}

void TranscriptCores::WriteRun(const RunInfo& info) {
  std::string words = RunWords(info);
  std::string& last = runs_[info.id];
  if (words == last) return;
  page_->Line(Topic::kRuns, words);
  last = std::move(words);
}

void TranscriptCores::SendAll(std::vector<OutgoingMessage> messages) {
  for (OutgoingMessage& m : messages) {
    page_->Line(Topic::kMessages, absl::StrCat("to ", NameOf(m.session), ": ", MessageWords(m.message)));
    Worker* w = BySession(m.session);
    if (w != nullptr) Check(w->session->coordinator_end.Send(std::move(m.message)));
  }
}

// Loses the messages in flight, with the connections.
void TranscriptCores::RestartCoordinator() {
  for (auto& w : workers_) {
    w->connected = false;
    w->up.clear();
    w->down.clear();
  }
  CoreOptions options = options_;
  options.epoch = ++stored_.epoch;
  coordinator_ = std::make_unique<CoordinatorCore>(options);
  std::vector<Event> events;
  for (const auto& [id, run] : stored_.runs)
    events.push_back(RestoreRun{run, IsFinal(run.figures.info.state) ? nullptr : plans_[id]});
  StepCoordinator(std::move(events));
}

// ---- workers

TranscriptCores::Worker* TranscriptCores::BySession(SessionId session) {
  for (auto& w : workers_) {
    if (w->session->session() == session) return w.get();
  }
  return nullptr;
}

std::string TranscriptCores::NameOf(SessionId session) {
  const Worker* w = BySession(session);
  return w == nullptr ? absl::StrCat("session ", session) : w->name;
}

absl::StatusOr<TranscriptCores::Worker*> TranscriptCores::Find(const std::string& name) {
  // The newest of the name.
  for (auto w = workers_.rbegin(); w != workers_.rend(); ++w) {
    if ((*w)->name == name) return w->get();
  }
  return absl::NotFoundError(absl::StrCat("no worker ", name));
}

void TranscriptCores::Connect(const std::string& name, Hello hello, bool by_hand) {
  const SessionId session = ++sessions_;
  hello.pid = static_cast<int64_t>(99 + session);
  const auto parse = [this](const std::string& spec) -> absl::StatusOr<WorkerCore::RunShape> {
    const auto found = shapes_.find(spec);
    if (found == shapes_.end()) return absl::InvalidArgumentError("the spec is unknown here");
    return found->second;
  };
  workers_.push_back(
      std::unique_ptr<Worker>(new Worker{name, hello.pid, std::make_unique<JoinedSession>(session, link_),
                                         hello, by_hand ? nullptr : std::make_unique<WorkerCore>(parse)}));
  page_->HeadIfFollowed(absl::StrCat("coordinator sees the session of ", name));
  StepCoordinator({SessionOpened{session}});
  Send(*workers_.back(), std::move(hello));
}

void TranscriptCores::Send(Worker& w, FromWorker message) {
  page_->Head(Topic::kMessages, absl::StrCat(w.name, " sends ", MessageWords(message)));
  Check(w.session->worker_end.Send(std::move(message)));
  Pump(w);
}

template <typename Call>
void TranscriptCores::Ask(Worker& w, Call call) {
  WorkerEffects effects;
  call(*w.core, &effects);
  Carry(w, std::move(effects));
}

void TranscriptCores::Carry(Worker& w, WorkerEffects effects) {
  for (const WorkerEffect& effect : effects) {
    const auto* send = std::get_if<SendEffect>(&effect);
    page_->Line(TopicOf(effect), absl::StrCat(send != nullptr ? "sends " : "", EffectWords(effect)));
    CarryOne(w, effect);
    if (std::holds_alternative<ForgetEffect>(effect)) Forget(w);
    if (auto answer = AnswerAtOnce(now_, effect, w.core.get())) Carry(w, *std::move(answer));
  }
  Pump(w);
}

void TranscriptCores::CarryOne(Worker& w, const WorkerEffect& effect) {
  if (const auto* send = std::get_if<SendEffect>(&effect)) {
    Check(w.session->worker_end.Send(send->message));
  } else if (const auto* prepare = std::get_if<PrepareEffect>(&effect)) {
    Prepare(w, *prepare);
  } else if (std::holds_alternative<JoinEffect>(effect)) {
    --w.ids_awaited;
  } else if (const auto* want = std::get_if<WantEffect>(&effect)) {
    Want(w, *want);
  } else if (const auto* start = std::get_if<StartEffect>(&effect)) {
    Start(w, *start);
  } else if (const auto* publish = std::get_if<PublishEffect>(&effect)) {
    Publish(*publish);
  } else if (const auto* snapshot = std::get_if<SnapshotEffect>(&effect)) {
    w.pieces[snapshot->step] = snapshot->pieces;
  } else if (const auto* save = std::get_if<SaveEffect>(&effect)) {
    Save(w, save->step);
  } else if (const auto* seal = std::get_if<SealEffect>(&effect)) {
    w.tasks.push_back({absl::StrCat("seal ", seal->step), [this, &w, step = seal->step](const End& end) {
                         Ask(w,
                             [&](WorkerCore& c, WorkerEffects* out) { c.OnSealed(step, end.failure, out); });
                       }});
  } else if (const auto* validate = std::get_if<ValidateEffect>(&effect)) {
    w.tasks.push_back(
        {absl::StrCat("validate ", validate->step), [this, &w, step = validate->step](const End& end) {
           const Validation v{w.run,      step, 8, 8, end.loss.value_or(kUsualLoss), {{"accuracy", 0.5}},
                              end.failure};
           Ask(w, [&](WorkerCore& c, WorkerEffects* out) { c.OnValidation(v, out); });
         }});
  }
}

void TranscriptCores::Prepare(Worker& w, const PrepareEffect& e) {
  w.ids_awaited = 0;
  for (const PrepareEffect::Group& group : e.groups) {
    if (group.self > 0) {
      ++w.ids_awaited;
      continue;
    }
    w.tasks.push_back({absl::StrCat("group ", group.number), [this, &w, number = group.number](const End&) {
                         Ask(w, [&](WorkerCore& c, WorkerEffects* out) {
                           c.OnGroupId(number, absl::StrCat("id-", number), out);
                         });
                       }});
  }
  w.tasks.push_back({"prepare",
                     [this, &w](const End&) {
                       Ask(w, [&](WorkerCore& c, WorkerEffects* out) { c.OnPrepared(now_, out); });
                     },
                     [&w] { return w.ids_awaited == 0; }});
}

void TranscriptCores::Start(Worker& w, const StartEffect& e) {
  w.tasks.push_back(
      {JobWords(e.job), [this, &w, e, began = now_](const End& end) { EndJob(w, e, began, end); }});
}

void TranscriptCores::EndJob(Worker& w, const StartEffect& e, int64_t began, const End& end) {
  JobDone done{e.rank, e.job, began, now_, e.last(), {}, {}};
  const int stages = w.core->graph()->schedule().stages;
  if (e.job.kind == JobKind::kForward && e.job.stage == stages - 1) done.loss = end.loss.value_or(kUsualLoss);
  if (e.Does(Operation::kSumSquares)) done.gradient_norm = 1;
  if (e.round == JobRound::kBeginJoint) AwaitCollective(w, e);
  Ask(w, [&](WorkerCore& c, WorkerEffects* out) { c.OnJobDone(now_, done, out); });
  if (e.leaves.snapshot && --w.pieces[e.job.step + 1] == 0) Save(w, e.job.step + 1);
}

void TranscriptCores::AwaitCollective(Worker& w, const StartEffect& e) {
  const JointOrder& order = w.core->graph()->joint_order();
  const int members = static_cast<int>(order.groups()[order.GroupOf(e.job.stage)].size());
  const auto key = std::make_tuple(w.run, e.job.step, e.job.stage, e.job.kind);
  ++begun_[key];
  w.tasks.push_back(
      {absl::StrCat("collective of ", JobWords(e.job)),
       [this, &w, e](const End&) {
         Ask(w, [&](WorkerCore& c, WorkerEffects* out) { c.OnJointOperationDone(now_, e.rank, e.job, out); });
       },
       [this, key, members] { return begun_[key] == members; }});
}

void TranscriptCores::Save(Worker& w, int step) {
  w.tasks.push_back(
      {absl::StrCat("save ", step), [this, &w, step](const End& end) {
         Ask(w, [&](WorkerCore& c, WorkerEffects* out) { c.OnSnapshotSaved(step, end.failure, out); });
       }});
}

void TranscriptCores::Forget(Worker& w) {
  w.tasks.clear();
  w.pieces.clear();
  for (auto it = wanted_.begin(); it != wanted_.end();)
    it = it->second == w.process ? wanted_.erase(it) : std::next(it);
}

void TranscriptCores::Fail(Worker& w, const Failed& failure) {
  page_->Head(Topic::kRuns, absl::StrCat(w.name, " fails: ", failure.reason));
  Ask(w, [&](WorkerCore& c, WorkerEffects* out) { c.OnFailure(now_, failure, out); });
}

void TranscriptCores::Break(Worker& w, const std::string& reason) {
  w.connected = false;
  w.up.clear();
  w.down.clear();
  page_->Head(Topic::kMessages, absl::StrCat("coordinator sees the session of ", w.name, " break"));
  StepCoordinator({SessionBroken{w.session->session(), reason}});
}

void TranscriptCores::Resume(Worker& w) {
  w.connected = true;
  Check(w.session->Resume(now_));
  page_->Head(Topic::kMessages, absl::StrCat("coordinator sees the session of ", w.name, " resume"));
  StepCoordinator({SessionResumed{w.session->session()}});
}

void TranscriptCores::Return(Worker& w) {
  const bool returns = w.core->has_to_tell();
  w.session = std::make_unique<JoinedSession>(++sessions_, link_);
  w.connected = true;
  StepCoordinator({SessionOpened{w.session->session()}});
  Hello hello = w.hello;
  hello.returns = returns;
  if (returns) hello.process = w.process;
  Send(w, std::move(hello));
  Ask(w, [](WorkerCore& c, WorkerEffects* out) { c.Return(out); });
}

absl::Status TranscriptCores::EndTask(Worker& w, const std::string& task, const End& end) {
  const auto found = std::find_if(w.tasks.begin(), w.tasks.end(), [&](const Task& t) {
    return (task.empty() || t.name == task) && (!t.can_end || t.can_end());
  });
  if (found == w.tasks.end()) return absl::NotFoundError(absl::StrCat(w.name, " has no task ", task));
  const Task ended = std::move(*found);
  w.tasks.erase(found);
  page_->Head(Topic::kJobs,
              absl::StrCat(w.name, " ends ", ended.name, end.failure.empty() ? "" : ": ", end.failure));
  ended.end(end);
  return absl::OkStatus();
}

void TranscriptCores::Run(int most) {
  Settle();
  for (bool any = true; any && most > 0; Settle()) {
    any = false;
    for (size_t i = 0; i < workers_.size() && most > 0; ++i) {
      if (!EndTask(*workers_[i], "", {}).ok()) continue;
      any = true;
      --most;
    }
  }
}

// ---- tensors

void TranscriptCores::Want(Worker& w, const WantEffect& e) {
  if (published_.erase(e.key) > 0) {
    tensors_.push_back({e.key, w.process});
  } else {
    wanted_[e.key] = w.process;
  }
}

void TranscriptCores::Publish(const PublishEffect& e) {
  if (e.process < 0) return;
  if (wanted_.erase(e.key) > 0) {
    tensors_.push_back({e.key, e.process});
  } else {
    published_.insert(e.key);
  }
}

void TranscriptCores::Arrive(const FlyingTensor& tensor) {
  // Its newest process has the number now.
  const auto found = std::find_if(workers_.rbegin(), workers_.rend(), [&](const auto& w) {
    return w->process == tensor.process && w->core != nullptr;
  });
  if (found == workers_.rend()) return;
  Worker& w = **found;
  page_->Head(Topic::kTensors, absl::StrCat(w.name, " gets ", TensorWords(tensor.key)));
  Ask(w, [&](WorkerCore& c, WorkerEffects* out) { c.OnTensor(now_, tensor.key, {now_}, out); });
}

void TranscriptCores::Transfer() {
  for (std::deque<FlyingTensor> flying = std::exchange(tensors_, {}); !flying.empty(); flying.pop_front())
    Arrive(flying.front());
}

// ---- the network

void TranscriptCores::Pump(Worker& w) {
  if (!w.connected) return;
  while (auto packet = w.session->worker_end.Take(now_)) w.up.push_back(*std::move(packet));
  while (auto packet = w.session->coordinator_end.Take(now_)) w.down.push_back(*std::move(packet));
}

void TranscriptCores::PumpAll() {
  for (auto& w : workers_) Pump(*w);
}

absl::Status TranscriptCores::Deliver(Worker& w, bool up) {
  if (up ? w.up.empty() : w.down.empty()) return absl::NotFoundError("nothing is in flight there");
  if (up) {
    const auto packet = std::move(w.up.front());
    w.up.pop_front();
    ArriveUp(w, packet);
  } else {
    const auto packet = std::move(w.down.front());
    w.down.pop_front();
    ArriveDown(w, packet);
  }
  return absl::OkStatus();
}

absl::Status TranscriptCores::Drop(Worker& w, bool up) {
  if (up ? w.up.empty() : w.down.empty()) return absl::NotFoundError("nothing is in flight there");
  const std::string packet = up ? FlyingWords(w.up.front()) : FlyingWords(w.down.front());
  page_->Head(Topic::kMessages, absl::StrCat("the network loses ", packet));
  up ? w.up.pop_front() : w.down.pop_front();
  return absl::OkStatus();
}

absl::Status TranscriptCores::Duplicate(Worker& w, bool up) {
  if (up ? w.up.empty() : w.down.empty()) return absl::NotFoundError("nothing is in flight there");
  const std::string packet = up ? FlyingWords(w.up.front()) : FlyingWords(w.down.front());
  page_->Head(Topic::kMessages, absl::StrCat("the network doubles ", packet));
  up ? w.up.push_back(w.up.front()) : w.down.push_back(w.down.front());
  return absl::OkStatus();
}

void TranscriptCores::ArriveUp(Worker& w, const Packet<FromWorker>& packet) {
  auto events = w.session->ToCoordinator(now_, packet);
  if (!events.ok()) return Check(events.status());
  std::vector<FromWorker> messages;
  for (const Event& e : *events) messages.push_back(std::get<SessionMessage>(e).message);
  const std::string head =
      absl::StrCat("coordinator receives ", messages.empty() ? "nothing new" : Names(messages), " from ",
                   w.name, page_->shows(Topic::kPackets) ? absl::StrCat(" (", PacketWords(packet), ")") : "");
  page_->Head(packet.messages.empty() ? Topic::kPackets : Topic::kMessages, head);
  if (!messages.empty()) return StepCoordinator(*std::move(events));
  Pump(w);
}

void TranscriptCores::ArriveDown(Worker& w, const Packet<FromCoordinator>& packet) {
  const auto messages = w.session->ToWorker(now_, packet);
  if (!messages.ok()) return Check(messages.status());
  const Topic topic = packet.messages.empty() ? Topic::kPackets : Topic::kMessages;
  page_->Head(
      topic, absl::StrCat(w.name, " receives ", messages->empty() ? "nothing new" : Names(*messages),
                          page_->shows(Topic::kPackets) ? absl::StrCat(" (", PacketWords(packet), ")") : ""));
  for (const FromCoordinator& m : *messages) {
    if (const auto* welcome = std::get_if<Welcome>(&m)) w.process = welcome->process;
    if (const auto* assign = std::get_if<Assign>(&m)) {
      w.run = assign->run;
      w.tokens.clear();
      for (const RankLease& lease : assign->leases) w.tokens[lease.rank] = lease.token;
    }
    if (w.core != nullptr) Ask(w, [&](WorkerCore& c, WorkerEffects* out) { c.OnMessage(now_, m, out); });
  }
  Pump(w);
}

void TranscriptCores::Settle() {
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t i = 0; i < workers_.size(); ++i) {
      while (Deliver(*workers_[i], /*up=*/true).ok()) moved = true;
    }
    for (size_t i = 0; i < workers_.size(); ++i) {
      while (Deliver(*workers_[i], /*up=*/false).ok()) moved = true;
    }
    moved |= !tensors_.empty();
    Transfer();
  }
}

// ---- time

int64_t TranscriptCores::NextDeadline() const {
  int64_t next = coordinator_->next_deadline();
  const auto consider = [&](int64_t deadline) {
    if (deadline > now_) next = std::min(next, deadline);
  };
  if (next <= now_) next = kNever;
  for (const auto& w : workers_) {
    if (!w->connected) continue;
    consider(w->session->worker_end.next_deadline());
    consider(w->session->coordinator_end.next_deadline());
  }
  return next;
}

void TranscriptCores::Advance(int64_t ns) {
  const int64_t end = now_ + ns;
  for (bool over = false; !over;) {
    const int64_t next = NextDeadline();
    over = next >= end;
    now_ = std::min(next, end);
    page_->HeadIfFollowed(absl::StrCat("coordinator at ", SecondsWords(now_ - kStart)));
    StepCoordinator({Tick{}});
  }
}

// ---- lists

void TranscriptCores::ListNetwork() {
  for (const auto& w : workers_) {
    for (const auto& packet : w->up) page_->Item(absl::StrCat("from ", w->name, ": ", FlyingWords(packet)));
    for (const auto& packet : w->down) page_->Item(absl::StrCat("to ", w->name, ": ", FlyingWords(packet)));
  }
  for (const FlyingTensor& t : tensors_)
    page_->Item(absl::StrCat("to process ", t.process, ": ", TensorWords(t.key)));
  for (const auto& [key, process] : wanted_)
    page_->Item(absl::StrCat("wanted by process ", process, ": ", TensorWords(key)));
  for (const TensorKey& key : published_)
    page_->Item(absl::StrCat("published and not wanted: ", TensorWords(key)));
}

void TranscriptCores::ListTasks() {
  for (const auto& w : workers_) {
    for (const Task& task : w->tasks) page_->Item(absl::StrCat(w->name, ": ", task.name));
  }
}

void TranscriptCores::ListWorkers() {
  for (const WorkerInfo& w : coordinator_->ListWorkers(now_)) {
    page_->Item(absl::StrCat("process ", w.process, " ", w.name, " is ", w.state,
                             w.run == 0 ? "" : absl::StrCat(" with run ", w.run)));
  }
}

void TranscriptCores::ListRuns() {
  for (const RunInfo& info : coordinator_->ListRuns()) page_->Item(RunWords(info));
}

void TranscriptCores::ListTotals() {
  const Probe p = coordinator_->probe();
  page_->Item(absl::StrCat("granted ", p.grants, ", duplicate completions ", p.duplicate_completions,
                           ", fenced ", p.fenced, ", violations ", p.violations, ", workers lost ",
                           p.workers_lost));
}

}  // namespace weft
