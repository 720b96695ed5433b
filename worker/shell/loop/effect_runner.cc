#include "worker/shell/loop/effect_runner.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "run/run_schedule.h"
#include "worker/shell/compute/non_finite.h"
#include "worker/shell/compute/training_state.h"
#include "worker/shell/loop/run_shape.h"
#include "worker/shell/loop/running_jobs.h"
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

}  // namespace

EffectRunner::EffectRunner(const WorkerLoopOptions& options, Device& device, Transport& transport, Mutex& mu,
                           WorkThreads& threads, Outbox& outbox, const LoopEvents& events)
    : options_(options),
      device_(device),
      transport_(transport),
      mu_(mu),
      threads_(threads),
      outbox_(outbox),
      log_(events),
      core_(ParseRunShape, device.launch_ahead()),
      device_work_({options.copy_timeout_ns, options.device_grace_ns}),
      exchange_(transport, seats_, device_work_, events, taken_),
      started_(seats_, exchange_, communicators_, device_work_, events),
      life_(options,
            {device, transport, threads, seats_, device_work_, exchange_, communicators_, started_, saver_}),
      silence_(options.stall_interval_ns),
      saver_(
          device, transport.memory(),
          {[this](const auto& done) { SnapshotDone(done); }, [this](const auto& done) { CopiesDone(done); },
           [this](const Validation& validation) { SendValidation(validation); }}) {}

const WorkerCore& EffectRunner::core() const {
  AssertHeld(mu_);
  return core_;
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
  return core_.has_run() ? std::min(life_.next_look(), next_report_) : life_.next_look();
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
    Send(std::move(send->message), send->soon);
  } else if (auto* prepare = std::get_if<PrepareEffect>(&effect)) {
    Prepare(now, *prepare);
  } else if (auto* join = std::get_if<JoinEffect>(&effect)) {
    communicators_.TakeId(join->group, join->id);
  } else if (auto* want = std::get_if<WantEffect>(&effect)) {
    log_.Wants(now, want->process, want->key);
    transport_.Want(want->process, want->key);
  } else if (auto* start = std::get_if<StartEffect>(&effect)) {
    Start(*start);
  } else if (auto* publish = std::get_if<PublishEffect>(&effect)) {
    const bool is_copy = publish->key.kind == TensorKind::kCopy;
    const absl::Status s = is_copy ? OfferCopy(now, *publish) : exchange_.Publish(now, *publish, outcome);
    if (!s.ok()) Fail(now, s);
  } else if (auto* drop = std::get_if<DropEffect>(&effect)) {
    seats_.Of(drop->rank)->compute->DropWeights(drop->stage, drop->version);
  } else if (auto* snapshot = std::get_if<SnapshotEffect>(&effect)) {
    saver_.Expect(*snapshot);
  } else if (auto* copy = std::get_if<CopyEffect>(&effect)) {
    saver_.Expect(*copy);
  } else if (auto* resume = std::get_if<ResumeEffect>(&effect)) {
    Resume(now, *resume);
  } else if (auto* drop_copies = std::get_if<DropCopiesEffect>(&effect)) {
    saver_.Drop(*drop_copies);
  } else if (auto* save = std::get_if<SaveEffect>(&effect)) {
    life_.Save(save->step, core_.ranks());
  } else if (auto* seal = std::get_if<SealEffect>(&effect)) {
    saver_.Seal(*seal);
  } else if (auto* validate = std::get_if<ValidateEffect>(&effect)) {
    saver_.Validate(*validate);
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

void EffectRunner::Send(FromWorker message, bool soon) {
  if (outbox_.Send(MonotonicNow(), std::move(message), soon)) threads_.WakeMain();
}

void EffectRunner::Fail(int64_t now, const absl::Status& status, std::optional<PeerId> link_to,
                        const Job* job) {
  if (!std::exchange(failed_, true)) log_.RunFails(now, core_.run_id(), status);
  communicators_.Clear(status);  // the other members notice
  Failed failure = FailureOf(status, link_to, job, life_.run() == nullptr ? nullptr : &life_.run()->spec);
  failure.device_lost = !link_to.has_value() && !device_.Health().ok();
  core_.OnFailure(now, std::move(failure), &effects_);
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

void EffectRunner::Return(int64_t now) {
  AssertHeld(mu_);
  if (core_.has_run()) device_work_.RestartGrace(now);
  core_.Return(&effects_);
  Apply(now, nullptr);
}

bool EffectRunner::PollTransport(int64_t now) {
  AssertHeld(mu_);
  events_.clear();
  const bool worked = transport_.Progress(now, &events_) > 0;
  for (TransportEvent& e : events_) {
    if (e.kind == TransportEvent::Kind::kPeerFailed && !life_.IsConnected(e.peer)) continue;
    if (e.kind != TransportEvent::Kind::kArrived) {
      // Any other status is of this process itself, as where it has no memory for what comes.
      const bool link_failed = e.kind == TransportEvent::Kind::kPeerFailed || absl::IsUnavailable(e.status);
      if (link_failed && core_.has_results()) continue;  // nothing more comes over it
      Fail(now, e.status, link_failed ? std::optional(e.peer) : std::nullopt);
      continue;
    }
    if (e.key.kind == TensorKind::kCopy) saver_.Keep(e.key, e.tensor);
    const TensorArrival arrival = exchange_.TakeArrived(now, e.peer, e.key, std::move(e.tensor));
    core_.OnTensor(now, e.key, arrival, &effects_);
    Apply(now, nullptr);
  }
  return worked;
}

bool EffectRunner::PollDevice() {
  AssertHeld(mu_);
  if (!device_work_.busy()) return false;
  DeviceWork::Done done = device_work_.Poll(MonotonicNow());
  const int64_t now = MonotonicNow();  // behind the ends that were found
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
  if (!life_.joins() && !communicators_.busy()) return false;
  if (life_.joins()) {
    const absl::StatusOr<bool> joined = life_.Join(now);
    if (joined.ok() && !*joined) return false;
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

bool EffectRunner::PollTaken(int64_t now) {
  AssertHeld(mu_);
  const std::vector<TakenTensor> taken = taken_.Take();
  for (const TakenTensor& tensor : taken) core_.OnTensorTaken(now, tensor, &effects_);
  if (!taken.empty()) Apply(now, nullptr);
  return !taken.empty();
}

WorkThreads::Doing EffectRunner::TaskAt(int index) {
  AssertHeld(mu_);
  const Seat& seat = seats_.At(index);
  if (const auto* job = std::get_if<JobTask>(&seat.task)) return {"", job->start.job, job->start.rank};
  return life_.TaskAt(index);
}

void EffectRunner::DoTask(int index) {
  AssertHeld(mu_);
  Seat& seat = seats_.At(index);
  std::holds_alternative<JobTask>(seat.task) ? DoJob(seat) : DoPartOfRound(seat);
  // Unlocks: what the job made has left this thread by now.
  const bool urgent = outbox_.is_urgent();
  if ((outbox_.is_full() || urgent) && !outbox_.SendGathered(mu_) && urgent) outbox_.AwaitSent(mu_);
}

void EffectRunner::DoPartOfRound(Seat& seat) {
  RankTask task = std::exchange(seat.task, std::monostate{});
  std::unique_ptr<RankCompute>* const compute = &seat.compute;
  WorkThreads::Unlock(mu_);
  const absl::Status status = DoRankTask(std::move(task), device_, transport_.memory(), compute);
  WorkThreads::Lock(mu_);
  if (const auto round = life_.Done(seat, status)) RoundOver(MonotonicNow(), *round);
}

void EffectRunner::Start(StartEffect& effect) {
  JobTask task = started_.Gather(std::move(effect));
  task.snapshot_memory = &saver_.memory();
  if (task.start.leaves.old == OldVersion::kPutAside && saver_.folders() != nullptr)
    task.folder = saver_.folders()->output();
  if (const std::optional<int> seat = seats_.Start(std::move(task))) threads_.Give(*seat);
}

void EffectRunner::DoJob(Seat& seat) {
  JobTask task = std::get<JobTask>(std::exchange(seat.task, std::monostate{}));
  const StartedJobs::Start start = StartedJobs::FactsOf(task.start);
  Seat* const of_rank = seats_.Of(start.rank);
  RankCompute& compute = *of_rank->compute;  // stays until the run's last job has ended
  std::function<void()> begun;
  if (!start.overlapped && of_rank->second != nullptr)
    begun = [this, rank = start.rank] { ForwardBegun(rank); };
  WorkThreads::Unlock(mu_);
  JobOutcome outcome = RunJob(compute, std::move(task), begun);
  WorkThreads::Lock(mu_);
  const int64_t now = MonotonicNow();
  if (!outcome.status.ok()) Fail(now, outcome.status, std::nullopt, &start.job);
  if (outcome.status.ok()) saver_.Write(start.job.step + 1, start.leaves, std::move(outcome.snapshot));
  if (absl::Status s = started_.Returned(now, start, outcome); !s.ok()) Fail(now, s);
  threads_.NoteJob(now, outcome.end_ns - outcome.start_ns);
  if (outcome.status.ok() && start.last && core_.AwaitsTaking(start.job))
    taken_.Follow({core_.run_id(), core_.epoch(), start.rank, start.job.stage}, &outcome.gradient);
  if (outcome.launched != nullptr) {
    core_.OnJobLaunched(now, start.rank, start.job, start.last, outcome.activation_bytes, &effects_);
  } else {
    past_.jobs[static_cast<int>(start.job.kind)] += start.last;
    core_.OnJobDone(now, started_.Done(start, outcome), &effects_);
  }
  Apply(now, &outcome);
  outcome.gradient = Tensor();
  PollTaken(now);
  LookAtDevice();
}

void EffectRunner::ForwardBegun(Rank rank) {
  MutexLock lock(mu_);
  if (const std::optional<int> seat = seats_.NoteBegun(rank)) threads_.Give(*seat);
}

void EffectRunner::JobDoneOnDevice(int64_t now, LaunchedJobs::Ended ended) {
  const LaunchedJobs::Launch launch = std::exchange(ended.launch, {});
  const JobDone done = started_.DoneOnDevice(now, launch, &ended);
  if (!ended.status.ok()) Fail(now, ended.status, std::nullopt, &launch.job);
  past_.jobs[static_cast<int>(launch.job.kind)] += launch.last;
  core_.OnJobDone(now, done, &effects_);
  Apply(now, nullptr);
}

// Runs on the writer's thread.
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

// Runs on the thread of the copies.
void EffectRunner::CopiesDone(const SnapshotWriter::Done& done) {
  MutexLock lock(mu_);
  if (threads_.stopped() || done.run != core_.run_id()) return;
  const int64_t now = MonotonicNow();
  core_.OnCopiesMade(now, done.step, done.failure, &effects_);
  Apply(now, nullptr);
  threads_.WakeMain();  // for what is sent
}

absl::Status EffectRunner::OfferCopy(int64_t now, const PublishEffect& effect) {
  absl::StatusOr<Tensor> copy = saver_.Find(effect.key);
  if (!copy.ok()) return AsDamagedCheckpoint(copy.status());
  copy->made_ns = now;
  seats_.Of(effect.key.producer)->bytes_sent[static_cast<int>(TensorKind::kCopy)] += copy->bytes;
  transport_.Offer(effect.process, effect.key, *std::move(copy));
  return absl::OkStatus();
}

// Runs on the validator's thread.
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
  std::vector<RankReport> reports = ReportRanks(now, life_.prepared(), core_, seats_, options_.gpu_figures);
  if (life_.run() != nullptr && !reports.empty()) saver_.AddTo(&reports.front());
  return reports;
}

void EffectRunner::Prepare(int64_t now, PrepareEffect& effect) {
  next_report_ = now + options_.report_interval_ns;
  outbox_.BeginAttempt(effect.assignment.watched_before);
  const auto ids = life_.Begin(now, *core_.graph(), effect);
  if (!ids.ok()) return Fail(now, ids.status());
  for (const auto& [group, id] : *ids) core_.OnGroupId(group, id, &effects_);
}

void EffectRunner::RoundOver(int64_t now, const RankRounds::Over& round) {
  if (life_.ends()) return Forget(now);
  if (round.round == RankRounds::Round::kSave) {
    // A failure to save is reported, and the coordinator decides.
    core_.OnSnapshotSaved(round.step, std::string(round.status.message()), &effects_);
    return Apply(now, nullptr);
  }
  if (!round.status.ok()) return Fail(now, round.status);
  if (round.round == RankRounds::Round::kPrepare) return AllPrepared(now);
  core_.OnResumed(now, &effects_);
  Apply(now, nullptr);
}

void EffectRunner::AllPrepared(int64_t now) {
  std::optional<PeerId> at_fault;
  if (absl::Status s = life_.Connect(core_.ranks(), &at_fault); !s.ok()) return Fail(now, s, at_fault);
  PollCommunicators(now);
  LookAtDevice();
}

void EffectRunner::Resume(int64_t now, const ResumeEffect& effect) {
  const absl::StatusOr<bool> begun = life_.Resume(effect);
  if (!begun.ok()) return Fail(now, begun.status());
  if (*begun) return;
  core_.OnResumed(now, &effects_);
  Apply(now, nullptr);
}

void EffectRunner::Forget(int64_t now) {
  if (!life_.End(now)) return;
  AddRun(now, life_.prepared(), core_, seats_, &past_);
  life_.Clear();
  silence_.Clear();
  failed_run_ = failed_;
  core_.Forget(now, &effects_);
  Apply(now, nullptr);
}

void EffectRunner::ForgetIfIdle(int64_t now) {
  AssertHeld(mu_);
  if (life_.CanEnd()) Forget(now);
}

absl::Status EffectRunner::CheckEnds(int64_t now) const {
  AssertHeld(mu_);
  if (device_work_.busy() && device_work_.IsGivenUp(now)) return device_work_.NotDone(now);
  return life_.CheckEnd(now);
}

void EffectRunner::SendReportIfDue(int64_t now) {
  AssertHeld(mu_);
  if (!core_.has_run() || now < next_report_) return;
  next_report_ = now + options_.report_interval_ns;
  // Ranks that end have given their last figures, and their memory goes.
  if (life_.ends()) return;
  Send(Report{core_.run_id(), Reports(now), LongRunningJobs(now, device_work_, threads_),
              LongRunningJointOperations(now, device_work_, communicators_)});
  std::string silence = transport_.DescribeSilence(now);
  if (!silence_.reported() && !silence.empty()) log_.Stalls(now, silence);
  if (silence_.IsDue(now, !silence.empty())) Send(Stalled{core_.run_id(), std::move(silence)});
}

WorkerSnapshot EffectRunner::Figures(int64_t now) {
  AssertHeld(mu_);
  WorkerSnapshot s = past_;
  s.runs = core_.has_run() ? 1 : 0;
  if (s.runs > 0) AddRun(now, life_.prepared(), core_, seats_, &s);
  s.stale_grants = core_.stale_grants();
  s.checkpoints = saver_.writes();
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
