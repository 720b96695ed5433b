#include "worker/shell/loop/effect_runner.h"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "run/run_schedule.h"
#include "worker/core/state_copies.h"
#include "worker/shell/compute/non_finite.h"
#include "worker/shell/compute/training_state.h"
#include "worker/shell/loop/run_shape.h"
#include "worker/shell/memory/keep_forever.h"

namespace weft {
namespace {

Failed FailureOf(const absl::Status& status, std::optional<PeerId> link_to, const Job* job,
                 const RunSpec* spec) {
  Failed failure{0, std::string(status.message()), link_to.value_or(-1)};
  const bool resumes = spec != nullptr && spec->first_step() > 0;
  if (resumes && IsDamagedCheckpoint(status)) failure.damaged_checkpoint = spec->first_step();
  if (job != nullptr && IsNonFinite(status)) failure.non_finite_step = job->step;
  return failure;
}

KeptCopies::Key KeyOfCopy(const TensorKey& key, uint64_t copies_epoch) {
  const uint64_t epoch = key.use == StateCopies::kBegin ? copies_epoch : key.epoch;
  return {epoch, key.step, {key.stage, key.part}};
}

// Lets the other processes of the run connect to this one.
absl::Status Admit(const std::vector<Peer>& peers, Transport& transport) {
  std::vector<PeerAddress> others;
  for (const Peer& peer : peers)
    if (peer.address != transport.address()) others.push_back({peer.address, peer.label});
  return transport.Admit(others);
}

}  // namespace

EffectRunner::EffectRunner(const WorkerLoopOptions& options, Device& device, Transport& transport, Mutex& mu,
                           WorkThreads& threads, Outbox& outbox)
    : options_(options),
      device_(device),
      transport_(transport),
      mu_(mu),
      threads_(threads),
      outbox_(outbox),
      core_(ParseRunShape, device.launch_ahead()),
      device_work_({options.device_timeout_ns, options.device_grace_ns}),
      exchange_(transport, seats_, device_work_),
      silence_(options.stall_interval_ns),
      snapshots_([this](const SnapshotWriter::Done& done) { SnapshotDone(done); }),
      copies_([this](const SnapshotWriter::Done& done) { CopiesDone(done); }),
      validator_([this](const Validation& validation) { SendValidation(validation); }) {}

bool EffectRunner::has_run() const {
  AssertHeld(mu_);
  return core_.has_run();
}

bool EffectRunner::TakeFailure() {
  AssertHeld(mu_);
  return std::exchange(failed_, false);
}

bool EffectRunner::TakeFailedRun() {
  AssertHeld(mu_);
  return std::exchange(failed_run_, false);
}

bool EffectRunner::DeviceWorks() const {
  AssertHeld(mu_);
  return device_work_.busy();
}

bool EffectRunner::LooksOften() const {
  AssertHeld(mu_);
  return device_work_.busy() || communicators_.busy();
}

int64_t EffectRunner::next_look() const {
  AssertHeld(mu_);
  const int64_t check = end_until_ns_ != 0 ? end_until_ns_ : std::numeric_limits<int64_t>::max();
  return core_.has_run() ? std::min(check, next_report_) : check;
}

void EffectRunner::Apply(int64_t now, const JobOutcome* outcome) {
  if (applying_) return;  // the outer call carries out what was appended
  applying_ = true;
  for (size_t i = 0; i < effects_.size(); ++i) {
    WorkerEffect effect = std::move(effects_[i]);
    ApplyOne(now, effect, outcome);
  }
  effects_.clear();
  applying_ = false;
}

void EffectRunner::ApplyOne(int64_t now, WorkerEffect& effect, const JobOutcome* outcome) {
  if (auto* send = std::get_if<SendEffect>(&effect)) {
    past_.failures += std::holds_alternative<Failed>(send->message) ? 1 : 0;
    Send(std::move(send->message));
  } else if (auto* prepare = std::get_if<PrepareEffect>(&effect)) {
    Prepare(now, *prepare);
  } else if (auto* join = std::get_if<JoinEffect>(&effect)) {
    communicators_.TakeId(join->group, join->id);
  } else if (auto* want = std::get_if<WantEffect>(&effect)) {
    transport_.Want(want->process, want->key, now + options_.transfer_timeout_ns);
  } else if (auto* start = std::get_if<StartEffect>(&effect)) {
    Start(*start);
  } else if (auto* publish = std::get_if<PublishEffect>(&effect)) {
    const bool is_copy = publish->key.kind == TensorKind::kCopy;
    const absl::Status s = is_copy ? OfferCopy(now, *publish) : exchange_.Publish(now, *publish, outcome);
    if (!s.ok()) Fail(now, s);
  } else if (auto* drop = std::get_if<DropEffect>(&effect)) {
    seats_.Of(drop->rank)->compute->DropWeights(drop->stage, drop->version);
  } else if (auto* snapshot = std::get_if<SnapshotEffect>(&effect)) {
    snapshots_.Expect(core_.run_id(), snapshot->step, snapshot->pieces,
                      [folder = folders_->Partial(snapshot->step)](const StageSnapshot& piece) {
                        return WriteSnapshot(folder, piece);
                      });
  } else if (auto* copy = std::get_if<CopyEffect>(&effect)) {
    copies_.Expect(core_.run_id(), copy->step, copy->parts,
                   [this, run = core_.run_id(), epoch = core_.epoch()](const StageSnapshot& piece) {
                     return kept_.Put(run, epoch, piece);
                   });
  } else if (auto* resume = std::get_if<ResumeEffect>(&effect)) {
    Resume(now, *resume);
  } else if (auto* drop_copies = std::get_if<DropCopiesEffect>(&effect)) {
    kept_.Drop(drop_copies->run, drop_copies->epoch, drop_copies->step);
  } else if (auto* save = std::get_if<SaveEffect>(&effect)) {
    Save(save->step);
  } else if (auto* seal = std::get_if<SealEffect>(&effect)) {
    snapshots_.Seal(core_.run_id(), seal->step, SealWork(*seal, folders_));
  } else if (auto* validate = std::get_if<ValidateEffect>(&effect)) {
    validator_.Begin(core_.run_id(), validate->step,
                     ValidationWork(device_, spec_, folders_, validate->step));
  } else if (std::holds_alternative<FinishEffect>(effect)) {
    std::vector<RankReport> reports = Reports(now);
    AddSpans(core_, &reports);
    core_.OnFinished(std::move(reports), &effects_);
  } else if (std::holds_alternative<ForgetEffect>(effect)) {
    Forget(now);
  } else if (std::holds_alternative<ExitEffect>(effect)) {
    threads_.Stop();
  }
}

void EffectRunner::Send(FromWorker message) {
  if (outbox_.Send(std::move(message))) threads_.WakeMain();
}

void EffectRunner::Fail(int64_t now, const absl::Status& status, std::optional<PeerId> link_to,
                        const Job* job) {
  failed_ = true;
  communicators_.Clear(status);  // the other members notice
  core_.OnFailure(now, FailureOf(status, link_to, job, spec_.get()), &effects_);
  Apply(now, nullptr);
  // The process ends when it has forgotten the run (WorkerLoop::CheckHealth).
  if (const absl::Status health = transport_.health(); !health.ok())
    Send(Leaving{std::string(health.message())});
}

void EffectRunner::OnMessage(int64_t now, const FromCoordinator& message) {
  AssertHeld(mu_);
  const auto* abort = std::get_if<Abort>(&message);
  if (abort != nullptr && abort->run == core_.run_id()) device_work_.RestartGrace(now);
  core_.OnMessage(now, message, &effects_);
  Apply(now, nullptr);
}

void EffectRunner::LeaveRun(int64_t now) {
  AssertHeld(mu_);
  if (core_.has_run()) device_work_.RestartGrace(now);
  core_.Leave(&effects_);
  kept_.Clear();
  Apply(now, nullptr);
}

bool EffectRunner::PollTransport(int64_t now) {
  AssertHeld(mu_);
  events_.clear();
  const bool worked = transport_.Progress(now, &events_) > 0;
  for (TransportEvent& e : events_) {
    if (e.kind == TransportEvent::Kind::kPeerFailed && !IsConnected(e.peer)) continue;
    if (e.kind != TransportEvent::Kind::kArrived) {
      Fail(now, e.status, e.peer);
      continue;
    }
    if (e.key.kind == TensorKind::kCopy) kept_.Put(core_.run_id(), KeyOfCopy(e.key, copies_epoch_), e.tensor);
    const TensorArrival arrival = exchange_.TakeArrived(e.key, std::move(e.tensor));
    core_.OnTensor(now, e.key, arrival, &effects_);
    Apply(now, nullptr);
  }
  return worked;
}

// The end of a process of an earlier run, or of an earlier attempt of this one, may be noticed late.
bool EffectRunner::IsConnected(PeerId peer) const {
  return prepared_ && std::any_of(peers_.begin(), peers_.end(),
                                  [&](const Peer& member) { return member.process == peer; });
}

bool EffectRunner::PollDevice() {
  AssertHeld(mu_);
  if (!device_work_.busy()) return false;
  DeviceWork::Done done = device_work_.Poll();
  const int64_t now = MonotonicNow();
  absl::Status copy;
  for (AwaitedTensors::Awaited& tensor : done.tensors) {
    if (tensor.status.ok()) {
      exchange_.Offer(now, std::move(tensor));
    } else {
      copy.Update(tensor.status);
    }
  }
  const uint64_t run = core_.run_id();  // number of the run, which a last job may end
  for (LaunchedJobs::Ended& job : done.jobs) JobDoneOnDevice(now, std::move(job));
  // A failed copy is reported after the job that made its source, if that failed too.
  if (!copy.ok() && core_.run_id() == run) Fail(now, copy);
  ForgetIfIdle(now);
  if (device_work_.busy() && device_work_.IsLate(now)) Fail(now, device_work_.NotDone(now));
  return done.any();
}

bool EffectRunner::PollCommunicators(int64_t now) {
  AssertHeld(mu_);
  if (!joining_ && !communicators_.busy()) return false;
  if (joining_) {
    const absl::StatusOr<bool> joined = communicators_.JoinNext(now);
    if (joined.ok() && !*joined) return false;
    joining_ = false;
    if (joined.ok()) {
      core_.OnPrepared(now, &effects_);
      Apply(now, nullptr);
    } else {
      Fail(now, joined.status());
    }
    return true;
  }
  std::vector<Communicators::Done> done;
  if (absl::Status status = communicators_.Poll(&done); !status.ok()) {
    Fail(now, status);
    return true;
  }
  for (const Communicators::Done& d : done) {
    core_.OnJointOperationDone(now, d.rank, d.job, &effects_);
    Apply(now, nullptr);
  }
  return !done.empty();
}

WorkThreads::Doing EffectRunner::TaskAt(int index) {
  AssertHeld(mu_);
  const Seat& seat = seats_.At(index);
  if (const auto* job = std::get_if<JobTask>(&seat.task)) return {"", job->start.job, job->start.rank};
  constexpr const char* kWords[] = {"",      "", "preparing", "saving the stages", "beginning with copies",
                                    "ending"};
  static_assert(std::size(kWords) == std::variant_size_v<RankTask>);
  return {kWords[seat.task.index()], std::nullopt, seat.rank};
}

void EffectRunner::DoTask(int index) {
  AssertHeld(mu_);
  RunTask(seats_.At(index));
}

void EffectRunner::RunTask(Seat& seat) {
  RankTask task = std::exchange(seat.task, std::monostate{});
  if (auto* job = std::get_if<JobTask>(&task)) {
    RunJobTask(std::move(*job));
  } else if (auto* prepare = std::get_if<PrepareTask>(&task)) {
    WorkThreads::Unlock(mu_);
    const absl::Status status = PrepareRank(*prepare, device_, transport_.memory(), &seat.compute);
    WorkThreads::Lock(mu_);
    TaskEnded(status, &EffectRunner::AllPrepared);
  } else if (auto* save = std::get_if<SaveTask>(&task)) {
    WorkThreads::Unlock(mu_);
    const absl::Status status = SaveRank(*save, *seat.compute);
    WorkThreads::Lock(mu_);
    TaskEnded(status, &EffectRunner::AllSaved);
  } else if (auto* resume = std::get_if<ResumeTask>(&task)) {
    WorkThreads::Unlock(mu_);
    const absl::Status status = ResumeRank(*resume, *seat.compute);
    resume->stages.clear();
    WorkThreads::Lock(mu_);
    TaskEnded(status, &EffectRunner::AllResumed);
  } else if (auto* end = std::get_if<EndTask>(&task)) {
    WorkThreads::Unlock(mu_);
    end->compute.reset();
    WorkThreads::Lock(mu_);
    seat.ending = false;
    TaskEnded(absl::OkStatus(), nullptr);  // the run is forgotten
  }
}

void EffectRunner::Start(StartEffect& effect) {
  JobTask task;
  task.inputs = exchange_.Take(effect.inputs);
  task.gradients = exchange_.Take(effect.gradients);
  if (effect.part == JointPart::kEnd) task.collected = communicators_.TakeResult(effect.job);
  task.parts = static_cast<int>(core_.graph()->members(effect.job.stage).size());
  if (spec_->record_hashes) {
    const auto is_here = [this](Rank rank) {
      AssertHeld(mu_);
      return seats_.Of(rank) != nullptr;
    };
    task.hashes = HashTaskFor(*core_.graph(), effect, spec_->first_step(), is_here);
  }
  if (effect.Does(Operation::kBeginState) || effect.Does(Operation::kReceiveState)) {
    holders_.Come(effect.rank, effect.job);
  } else if (effect.has_state) {
    holders_.Stay(effect.rank, effect.job);
  }
  task.start = std::move(effect);
  if (const std::optional<int> seat = seats_.Start(std::move(task))) threads_.Give(*seat);
}

void EffectRunner::RunJobTask(JobTask task) {
  const Job job = task.start.job;
  const bool last = task.start.last, overlapped = task.start.overlapped;
  const bool takes_snapshot = task.start.takes_snapshot, takes_copy = task.start.takes_copy;
  const Rank rank = task.start.rank;
  const bool sends_state = task.start.Does(Operation::kSendState);
  Seat* const seat = seats_.Of(rank);
  RankCompute& compute = *seat->compute;  // stays until the run's last job has ended
  std::function<void()> begun;
  if (!overlapped && seat->second != nullptr) begun = [this, rank] { ForwardBegun(rank); };
  WorkThreads::Unlock(mu_);
  JobOutcome outcome = RunJob(compute, std::move(task), begun);
  WorkThreads::Lock(mu_);
  const int64_t now = MonotonicNow();
  if (!outcome.status.ok()) Fail(now, outcome.status, std::nullopt, &job);
  if (outcome.activation_bytes.has_value())
    seats_.NoteActivationBytes(rank, job.stage, *outcome.activation_bytes);
  if (takes_copy && outcome.status.ok()) copies_.Write(core_.run_id(), job.step + 1, outcome.snapshot);
  if (takes_snapshot && outcome.status.ok())
    snapshots_.Write(core_.run_id(), job.step + 1, std::move(outcome.snapshot));
  if (outcome.contribution.has_value()) BeginJointOperation(now, rank, job, outcome);
  if (sends_state) holders_.Leave(rank, job);
  threads_.NoteJob(now, outcome.end_ns - outcome.start_ns);
  if (!outcome.hashes.empty()) {
    std::vector<ValueHash>& hashes = hashes_[job];
    hashes.insert(hashes.end(), outcome.hashes.begin(), outcome.hashes.end());
  }
  if (outcome.launched != nullptr) {
    device_work_.Add(LaunchedJobs::Launch{rank, job, last, overlapped, now, outcome.launched});
    core_.OnJobLaunched(now, rank, job, last, outcome.activation_bytes, &effects_);
  } else {
    past_.jobs[static_cast<int>(job.kind)] += last;
    core_.OnJobDone(
        now,
        {rank, job, outcome.start_ns, outcome.end_ns, last, outcome.loss, outcome.activation_bytes,
         outcome.gradient_norm, /*launched=*/false, last ? TakeHashes(job) : std::vector<ValueHash>()},
        &effects_);
  }
  Apply(now, &outcome);
  LookAtDevice();
  if (outbox_.is_full()) outbox_.SendGathered(mu_);
}

void EffectRunner::BeginJointOperation(int64_t now, Rank rank, const Job& job, const JobOutcome& outcome) {
  const Graph& graph = *core_.graph();
  const Operation operation = JointOperationOf(graph, job);
  const uint64_t bytes =
      RingBytes(operation, *outcome.contribution, outcome.whole, graph.members(job.stage).size());
  const auto tensor =
      static_cast<int>(operation == Operation::kJoinGather ? TensorKind::kWeights : TensorKind::kGradientSum);
  Seat* const seat = seats_.Of(rank);
  seat->bytes_sent[tensor] += bytes;
  seat->bytes_received[tensor] += bytes;
  const absl::Status status = communicators_.Start(graph.joint_order().GroupOf(job.stage), rank, job,
                                                   operation, *outcome.contribution, outcome.whole);
  if (!status.ok()) Fail(now, status);
}

std::vector<ValueHash> EffectRunner::TakeHashes(const Job& job) {
  const auto found = hashes_.find(job);
  if (found == hashes_.end()) return {};
  std::vector<ValueHash> hashes = std::move(found->second);
  hashes_.erase(found);
  return hashes;
}

void EffectRunner::ForwardBegun(Rank rank) {
  MutexLock lock(mu_);
  if (const std::optional<int> seat = seats_.NoteBegun(rank)) threads_.Give(*seat);
}

void EffectRunner::JobDoneOnDevice(int64_t now, LaunchedJobs::Ended ended) {
  const LaunchedJobs::Launch launch = std::exchange(ended.launch, {});
  JobDone done{launch.rank, launch.job,         now, now,
               launch.last, ended.figures.loss, {},  ended.figures.gradient_norm};
  done.launched = true;
  if (launch.last) done.hashes = TakeHashes(launch.job);
  if (ended.status.ok())
    ended.status = CheckFigures(*spec_, launch.job, ended.figures.loss, ended.figures.gradient_norm);
  if (ended.status.ok()) {
    // The device's clock may be a little off.
    done.end_ns = std::min(now, ended.figures.end_ns);
    done.start_ns = std::min(done.end_ns, ended.figures.start_ns);
  } else {
    Fail(now, ended.status, std::nullopt, &launch.job);
  }
  past_.jobs[static_cast<int>(launch.job.kind)] += launch.last;
  core_.OnJobDone(now, done, &effects_);
  Apply(now, nullptr);
}

// On the writer's thread.
void EffectRunner::SnapshotDone(const SnapshotWriter::Done& done) {
  MutexLock lock(mu_);
  if (threads_.stopped() || done.run != core_.run_id()) return;
  if (done.sealed) {
    core_.OnSealed(done.step, done.failure, &effects_);
  } else {
    core_.OnSnapshotSaved(done.step, done.failure, &effects_);
  }
  Apply(MonotonicNow(), nullptr);
}

// On the thread of the copies.
void EffectRunner::CopiesDone(const SnapshotWriter::Done& done) {
  MutexLock lock(mu_);
  if (threads_.stopped() || done.run != core_.run_id()) return;
  const int64_t now = MonotonicNow();
  core_.OnCopiesMade(now, done.step, done.failure, &effects_);
  Apply(now, nullptr);
  threads_.WakeMain();  // for what is sent
}

absl::Status EffectRunner::OfferCopy(int64_t now, const PublishEffect& effect) {
  absl::StatusOr<Tensor> copy = kept_.Find(core_.run_id(), KeyOfCopy(effect.key, copies_epoch_));
  if (!copy.ok()) return AsDamagedCheckpoint(copy.status());
  copy->made_ns = now;
  seats_.Of(effect.key.producer)->bytes_sent[static_cast<int>(TensorKind::kCopy)] += copy->bytes;
  transport_.Offer(effect.process, effect.key, *std::move(copy));
  return absl::OkStatus();
}

// On the validator's thread.
void EffectRunner::SendValidation(const Validation& validation) {
  MutexLock lock(mu_);
  if (threads_.stopped() || validation.run != core_.run_id()) return;
  core_.OnValidation(validation, &effects_);
  Apply(MonotonicNow(), nullptr);
}

void EffectRunner::LookAtDevice() {
  if (LooksOften()) threads_.WakeForDevice();
}

std::vector<RankReport> EffectRunner::Reports(int64_t now) {
  std::vector<RankReport> reports = ReportRanks(now, prepared_, core_, seats_, options_.gpu_figures);
  if (spec_ != nullptr && spec_->redundancy > 0 && !reports.empty()) kept_.AddTo(&reports.front());
  return reports;
}

void EffectRunner::Prepare(int64_t now, PrepareEffect& effect) {
  if (absl::Status s = BeginRun(now, effect); !s.ok()) return Fail(now, s);
  task_status_ = absl::OkStatus();
  pending_tasks_ = static_cast<int>(effect.assignment.leases.size());
  for (const RankLease& lease : effect.assignment.leases) {
    Seat* seat = seats_.Of(lease.rank);
    PrepareTask task{effect.run, seat->rank, seat->index == 0, {}, folders_};
    for (const PrepareEffect::Stage& s : effect.stages) {
      if (s.rank != seat->rank) continue;
      task.stages.push_back(s);
      if (s.saves) seat->saved_stages.push_back(s.stage);
    }
    seat->task = std::move(task);
    threads_.Give(seat->index);
  }
}

// Makes the process ready for the run: all that is not a rank's own. Ranks are seated before anything of the
// run can fail, because reports and metrics ask for the seat of each rank that the core has.
absl::Status EffectRunner::BeginRun(int64_t now, PrepareEffect& effect) {
  const Assign& a = effect.assignment;
  if (pending_tasks_ > 0) return absl::UnavailableError("this process is still busy with the run before");
  next_report_ = now + options_.report_interval_ns;
  const bool pairs = core_.graph()->has_pairs();
  seats_.Place(a, pairs);
  if (absl::Status s = threads_.Start(seats_.size()); !s.ok()) return s;
  if (a.examined_step >= 0) {
    auto examined = std::make_shared<ScheduledRun>(*effect.run);
    examined->spec.examined_step = a.examined_step;
    effect.run = std::move(examined);
  }
  const ScheduledRun& run = *effect.run;
  if (device_.name() == "cpu") {
    if (absl::Status s = CheckHostMemory(run.spec, effect); !s.ok()) return s;
  }
  run_ = effect.run;
  spec_ = std::shared_ptr<const RunSpec>(effect.run, &run.spec);
  kept_.BeginRun(a.run);
  copies_epoch_ = a.copies_epoch;
  folders_ = a.output.empty() ? nullptr
                              : std::make_shared<const CheckpointFolders>(a.output, run, a.run_id, a.epoch);
  transport_.BeginEpoch(a.run, a.epoch);
  peers_ = a.peers;
  if (absl::Status s = Admit(peers_, transport_); !s.ok()) return s;
  threads_.ChooseSpin(options_.spin_microseconds, a.process_of_rank.size() * (pairs ? 2 : 1));
  // The line is one write, as other processes share the terminal.
  if (!a.reduction.empty())
    std::cerr << absl::StrCat("weft-worker: run ", a.run, ": reduction ", a.reduction, "\n");
  const auto ids = communicators_.Begin(device_.communication(), std::move(effect.groups), now,
                                        {options_.join_timeout_ns, options_.transfer_timeout_ns});
  if (!ids.ok()) return ids.status();
  for (const auto& [group, id] : *ids) core_.OnGroupId(group, id, &effects_);
  return absl::OkStatus();
}

// Connects only now: meanwhile the peers have let this process in (Transport::Admit).
void EffectRunner::AllPrepared(int64_t now) {
  for (const Peer& peer : peers_) {
    if (peer.address == transport_.address()) continue;
    if (absl::Status s = transport_.Connect(peer.process, peer.address, peer.label); !s.ok())
      return absl::IsUnavailable(s) ? Fail(now, s, peer.process) : Fail(now, s);
  }
  prepared_ = joining_ = true;
  PollCommunicators(now);
  LookAtDevice();
}

void EffectRunner::Resume(int64_t now, const ResumeEffect& effect) {
  auto tasks = ResumeTasks(effect, run_, core_.run_id(), kept_);
  if (!tasks.ok()) return Fail(now, AsDamagedCheckpoint(tasks.status()));
  if (tasks->empty()) return AllResumed(now);
  task_status_ = absl::OkStatus();
  pending_tasks_ = static_cast<int>(tasks->size());
  for (auto& [rank, task] : *tasks) {
    Seat* seat = seats_.Of(rank);
    seat->task = std::move(task);
    threads_.Give(seat->index);
  }
}

void EffectRunner::AllResumed(int64_t now) {
  core_.OnResumed(now, &effects_);
  Apply(now, nullptr);
}

// Gives each rank's seat the task to save its stages; the ranks have nothing else to do any more.
void EffectRunner::Save(int step) {
  saving_step_ = step;
  task_status_ = absl::OkStatus();
  pending_tasks_ = static_cast<int>(core_.ranks().size());
  for (const Rank rank : core_.ranks()) {
    Seat* seat = seats_.Of(rank);
    SaveTask task;
    if (folders_ != nullptr) task = {seat->saved_stages, folders_->Partial(step)};
    seat->task = std::move(task);
    threads_.Give(seat->index);
  }
}

void EffectRunner::AllSaved(int64_t now) {
  core_.OnSnapshotSaved(saving_step_, std::string(task_status_.message()), &effects_);
  Apply(now, nullptr);
}

void EffectRunner::TaskEnded(const absl::Status& status, void (EffectRunner::*all_ended)(int64_t now)) {
  if (!status.ok() && task_status_.ok()) task_status_ = status;
  if (--pending_tasks_ > 0) return;
  const int64_t now = MonotonicNow();
  if (forget_when_idle_) return Forget(now);
  // A failure to save is reported, and the coordinator decides.
  if (!task_status_.ok() && all_ended != &EffectRunner::AllSaved) return Fail(now, task_status_);
  (this->*all_ended)(now);
}

void EffectRunner::Forget(int64_t now) {
  snapshots_.Cancel();
  copies_.Cancel();
  if (folders_ != nullptr && spec_->validate.any() && seats_.Of(0) != nullptr)
    validator_.Cancel([folders = folders_] { folders->DropKeptAside(); });
  // Copies that the device made for the writer are in the device's memory.
  const bool written = device_.launch_ahead() > 1 && (!snapshots_.idle() || !copies_.idle());
  forget_when_idle_ = pending_tasks_ > 0 || device_work_.busy() || written;
  if (forget_when_idle_) return;
  prepared_ = joining_ = false;
  communicators_.Clear(absl::AbortedError("its run is over here"));
  EndRanks(now);
  if (forget_when_idle_) return;
  AddRun(now, prepared_, core_, seats_, &past_);
  transport_.BeginEpoch(0, 0);
  exchange_.Clear();
  holders_.Clear();
  hashes_.clear();
  device_work_.EndGrace();
  end_until_ns_ = 0;
  silence_.Clear();
  failed_run_ = failed_;
  seats_.Clear();
  core_.Forget(now, &effects_);
  Apply(now, nullptr);
}

// Gives each rank's seat the task to end it outside the lock, since a device's driver may take its time.
void EffectRunner::EndRanks(int64_t now) {
  const std::vector<int> ending = seats_.End();
  pending_tasks_ += static_cast<int>(ending.size());
  for (const int seat : ending) threads_.Give(seat);
  forget_when_idle_ = pending_tasks_ > 0;
  if (!forget_when_idle_ || device_.launch_ahead() == 1) return;
  end_until_ns_ = now + options_.device_grace_ns;
  threads_.WakeAll();  // to look in time
}

void EffectRunner::ForgetIfIdle(int64_t now) {
  AssertHeld(mu_);
  if (forget_when_idle_ && pending_tasks_ == 0 && !device_work_.busy()) Forget(now);
}

// Says of a device that does not end its work, or a rank, that it does not: it may hold the thread that ends
// a rank for ever, and a process that waited for it would be given run after run.
absl::Status EffectRunner::CheckEnds(int64_t now) const {
  AssertHeld(mu_);
  if (device_work_.busy() && device_work_.IsGivenUp(now)) return device_work_.NotDone(now);
  if (end_until_ns_ == 0 || now <= end_until_ns_) return absl::OkStatus();
  const std::optional<Rank> rank = seats_.FindEnding();
  if (!rank.has_value()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrFormat("the device has not finished the work that ends rank %d of run %d for %.1f s", *rank,
                      core_.run_id(), 1e-9 * static_cast<double>(options_.device_grace_ns)));
}

void EffectRunner::SendReportIfDue(int64_t now) {
  AssertHeld(mu_);
  if (!core_.has_run() || now < next_report_) return;
  next_report_ = now + options_.report_interval_ns;
  // Ranks that end have given their last figures, and their memory goes.
  if (forget_when_idle_) return;
  Send(Report{core_.run_id(), Reports(now)});
  std::string silence = transport_.DescribeSilence(now);
  if (silence_.IsDue(now, !silence.empty())) Send(Stalled{core_.run_id(), std::move(silence)});
}

WorkerSnapshot EffectRunner::Figures(int64_t now) {
  AssertHeld(mu_);
  WorkerSnapshot s = past_;
  s.has_run = core_.has_run();
  if (s.has_run) AddRun(now, prepared_, core_, seats_, &s);
  s.stale_grants = core_.stale_grants();
  return s;
}

bool EffectRunner::AwaitsDevice(int64_t now) {
  AssertHeld(mu_);
  device_work_.BeginGrace(now);
  return !device_work_.IsGivenUp(now);
}

absl::Status EffectRunner::DeviceNotDone(int64_t now) const {
  AssertHeld(mu_);
  return device_work_.NotDone(now);
}

void EffectRunner::LeaveBehind() {
  AssertHeld(mu_);
  for (auto& compute : seats_.Release()) KeepForever(std::shared_ptr<RankCompute>(std::move(compute)));
  KeepForever(device_work_.Release());
  KeepForever(exchange_.Release());
  KeepForever(std::make_shared<Communicators>(std::move(communicators_)));
}

}  // namespace weft
