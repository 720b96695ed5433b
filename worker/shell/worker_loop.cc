#include "worker/shell/worker_loop.h"

#include <immintrin.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/session/gather.h"
#include "worker/shell/run_shape.h"

namespace weft {
namespace {

constexpr int64_t kMicrosecond = 1'000, kMillisecond = 1'000'000;
constexpr int64_t kGatherTime = 10 * kMillisecond;
constexpr size_t kGatherJobs = 32;  // half of the least credit
constexpr int64_t kShortJob = kMillisecond;
constexpr int64_t kLongestUnseen = 5 * kMillisecond;  // without a look at messages, though jobs are short

void Add(const RankClock& clock, WorkerSnapshot* s) {
  for (int k = 0; k < kJobKinds; ++k)
    s->busy_seconds[k] += 1e-9 * static_cast<double>(clock.busy(static_cast<JobKind>(k)));
  for (int c = 0; c < kIdleCauses; ++c)
    s->idle_seconds[c] += 1e-9 * static_cast<double>(clock.idle(static_cast<IdleCause>(c)));
}

void Ring(int event_fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(event_fd, &one, sizeof one);
}

// Whoever saves the last stage finds all of them there and writes the index; before, a stage is missing or of
// another version.
absl::Status IndexIfComplete(const std::string& folder, const RunSpec& spec) {
  const absl::Status status = WriteCheckpointIndex(folder, spec);
  return absl::IsNotFound(status) || absl::IsFailedPrecondition(status) ? absl::OkStatus() : status;
}

}  // namespace

WorkerLoop::WorkerLoop(WorkerLoopOptions options, Device& device, Transport& transport, CoordinatorLink& link)
    : options_(options),
      device_(device),
      transport_(transport),
      link_(link),
      main_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      driver_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      core_(ParseRunShape) {}

WorkerLoop::~WorkerLoop() {
  close(main_fd_);
  close(driver_fd_);
}

void WorkerLoop::Stop() {
  MutexLock lock(mu_);
  stop_ = true;
  WakeAll();
}

void WorkerLoop::WakeAll() {
  Ring(main_fd_);
  Ring(driver_fd_);
  for (auto& slot : slots_) slot->wake.Signal();
  main_wake_.Signal();
}

absl::Status WorkerLoop::Run() {
  DriveUntilStopped();
  JoinRanks();
  MutexLock lock(mu_);
  return status_;
}

void WorkerLoop::DriveUntilStopped() {
  MutexLock lock(mu_);
  while (!stop_) {
    if (driver_ != kNobody || RanksLookOften()) {
      // A rank's thread drives, or will soon. Look again, in case it goes off to compute.
      main_wake_.WaitWithTimeout(mu_, kGatherTime);
      SendGathered();
      continue;
    }
    driver_ = kMain;
    while (driver_ == kMain && !stop_ && !RanksLookOften()) {
      if (!Poll() && driver_ == kMain) Block(main_fd_, &main_blocked_);
    }
    if (driver_ == kMain) driver_ = kNobody;
  }
}

// A rank's last job may still seat the ranks of a next run.
void WorkerLoop::JoinRanks() {
  for (size_t i = 0;; ++i) {
    std::thread* thread = nullptr;
    {
      MutexLock lock(mu_);
      if (i == slots_.size()) return;
      thread = &slots_[i]->thread;
    }
    thread->join();
  }
}

bool WorkerLoop::RanksLookOften() const {
  return job_ns_ < kShortJob && MonotonicNow() - last_job_end_ < kLongestUnseen;
}

void WorkerLoop::RankMain(Slot* slot) {
  MutexLock lock(mu_);
  while (!stop_) {
    if (!std::holds_alternative<std::monostate>(slot->task)) {
      RunTask(slot);
      // The outputs leave, and what peers asked for meanwhile is seen, before the next job begins.
      if (!stop_ && (driver_ == kNobody || driver_ == kMain)) Poll();
    } else if (driver_ == kNobody || driver_ == kMain) {
      driver_ = slot->index;
      Drive(slot);
      LeaveDriving();
    } else if (!SendGathered()) {
      slot->waiting = true;
      slot->wake.Wait(mu_);
      slot->waiting = false;
    }
  }
}

void WorkerLoop::Drive(Slot* slot) {
  int64_t spin_until = MonotonicNow() + spin_ns_;
  while (!stop_ && std::holds_alternative<std::monostate>(slot->task)) {
    if (Poll()) {
      spin_until = MonotonicNow() + spin_ns_;
    } else if (MonotonicNow() >= spin_until) {
      Block(driver_fd_, &slot->blocked);
    } else {
      mu_.Unlock();
      for (int i = 0; i < 32; ++i) _mm_pause();
      mu_.Lock();
    }
  }
}

void WorkerLoop::LeaveDriving() {
  driver_ = kNobody;
  for (auto& slot : slots_) {
    if (!slot->waiting) continue;
    slot->wake.Signal();
    return;
  }
}

void WorkerLoop::Block(int own_fd, bool* blocked) {
  if (SendGathered() || !transport_.Arm()) return;
  const int64_t now = MonotonicNow();
  int64_t until = std::min(transport_.next_deadline(), now + options_.look_interval_ns);
  if (core_.has_run()) until = std::min(until, next_report_);
  const int timeout_ms =
      static_cast<int>(std::max<int64_t>(1, (until - now + kMillisecond - 1) / kMillisecond));
  pollfd fds[3] = {{own_fd, POLLIN, 0}, {link_.event_fd(), POLLIN, 0}, {transport_.event_fd(), POLLIN, 0}};
  *blocked = true;
  mu_.Unlock();
  poll(fds, 3, timeout_ms);
  mu_.Lock();
  *blocked = false;
  uint64_t count;
  [[maybe_unused]] ssize_t n = read(own_fd, &count, sizeof count);
}

// A write of the session costs as much as a short job and wakes another process, so completions gather while
// ranks are busy. The main thread sends them after a while, or whoever has nothing to do, or who made them
// many.
bool WorkerLoop::SendGathered() {
  if (sending_ || outbox_.empty()) return false;  // whoever sends takes what has come since
  sending_ = true;
  while (!outbox_.empty()) {
    gathered_ = 0;
    std::deque<FromWorker> batch;
    batch.swap(outbox_);
    mu_.Unlock();
    for (FromWorker& message : batch) link_.Send(std::move(message));
    mu_.Lock();
  }
  sending_ = false;
  return true;
}

void WorkerLoop::Send(FromWorker message) {
  const auto* completions = std::get_if<Completions>(&message);
  const bool can_wait = completions != nullptr;
  if (can_wait && gathered_ == 0 && main_blocked_) Ring(main_fd_);  // else it looks soon by itself
  if (can_wait) gathered_ += completions->jobs.size();
  Gather(&outbox_, std::move(message));
  if (can_wait || sending_) return;
  gathered_ = 0;
  for (FromWorker& m : outbox_) link_.Send(std::move(m));
  outbox_.clear();
}

bool WorkerLoop::Poll() {
  messages_.clear();
  if (!link_.Drain(&messages_) && !stop_) {
    stop_ = true;
    status_ = link_.status();
    WakeAll();
    return true;
  }
  int64_t now = MonotonicNow();
  bool worked = !messages_.empty();
  for (const FromCoordinator& message : messages_) {
    core_.OnMessage(now, message, &effects_);
    Apply(now, nullptr);
  }
  events_.clear();
  worked |= transport_.Progress(now, &events_) > 0;
  if (!events_.empty()) HandleTransport(now);
  if (core_.has_run() && now >= next_report_) {
    next_report_ = now + options_.report_interval_ns;
    Send(Report{core_.run_id(), Reports(now)});
  }
  return worked;
}

void WorkerLoop::HandleTransport(int64_t now) {
  for (TransportEvent& e : events_) {
    if (e.kind != TransportEvent::Kind::kArrived) {
      Fail(now, e.status);
      continue;
    }
    CountReceived(e.key, e.tensor.bytes);
    const int64_t made = e.tensor.made_ns;
    if (e.key.kind != TensorKind::kOrder) inbox_[e.key] = std::move(e.tensor);
    core_.OnTensor(now, e.key, made, &effects_);
    Apply(now, nullptr);
  }
}

void WorkerLoop::RunTask(Slot* slot) {
  Task task = std::exchange(slot->task, std::monostate{});
  if (auto* job = std::get_if<JobTask>(&task)) {
    const Job what = job->start.job;
    const bool last = job->start.last;
    const Rank rank = job->start.rank;
    const std::optional<StateVisit> visit = job->start.visit;
    RankCompute& compute = *SlotOf(rank)->compute;  // stays until the run's last job has ended
    mu_.Unlock();
    JobOutcome outcome = RunJob(compute, std::move(*job));
    mu_.Lock();
    const int64_t now = MonotonicNow();
    if (!outcome.status.ok()) Fail(now, outcome.status);
    if (outcome.left_bytes.has_value()) {
      int64_t& most = SlotOf(rank)->left_bytes[what.stage];
      most = std::max(most, *outcome.left_bytes);
    }
    if (visit.has_value() && visit->leaves) holders_.Leave(rank, what);
    ++past_.jobs[static_cast<int>(what.kind)];
    job_ns_ += (outcome.end_ns - outcome.start_ns - job_ns_) / 8;
    last_job_end_ = now;
    core_.OnJobDone(now,
                    {rank, what, outcome.start_ns, outcome.end_ns, last, outcome.loss, outcome.left_bytes,
                     outcome.gradient_norm},
                    &effects_);
    Apply(now, &outcome);
    if (gathered_ >= kGatherJobs) SendGathered();
    return;
  }
  if (auto* prepare = std::get_if<PrepareTask>(&task)) {
    mu_.Unlock();
    absl::Status status = PrepareRank(slot, *prepare);
    mu_.Lock();
    return TaskEnded(status, &WorkerLoop::AllPrepared);
  }
  if (auto* save = std::get_if<SaveTask>(&task)) {
    mu_.Unlock();
    absl::Status status = absl::OkStatus();
    for (int stage : save->stages) {
      if (status.ok()) status = slot->compute->Save(stage, save->folder);
    }
    if (status.ok() && !save->stages.empty()) status = IndexIfComplete(save->folder, *save->spec);
    mu_.Lock();
    return TaskEnded(status, &WorkerLoop::AllSaved);
  }
}

absl::Status WorkerLoop::PrepareRank(Slot* slot, const PrepareTask& task) {
  auto compute = device_.CreateRank(*task.spec, slot->rank, transport_.memory());
  if (!compute.ok()) return compute.status();
  slot->compute = *std::move(compute);
  for (const PrepareEffect::Stage& s : task.stages) {
    absl::Status status = s.parts > 1 ? slot->compute->AddSlicedStage(s.stage, s.part, s.parts)
                          : s.adopts  ? slot->compute->AddAdoptedStage(s.stage)
                                      : slot->compute->AddStage(s.stage, s.holds_weights);
    if (!status.ok()) return status;
    if (!s.saves || task.output.empty()) continue;
    // A run that goes on has its initial weights in the checkpoint that it begins with.
    if (task.spec->first_step() == 0) {
      const std::string initial = task.output + "/checkpoint-0";
      status =
          s.migrates ? slot->compute->SaveInitial(s.stage, initial) : slot->compute->Save(s.stage, initial);
    }
    // Nobody saves before all ranks are prepared, so no rank takes a former run's slice for this one's.
    if (status.ok() && s.parts > 1)
      status = DiscardSlice(task.output + "/checkpoint", s.stage, s.part, s.parts);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// One rank's part of preparing or saving ended; the last one finishes it for the process.
void WorkerLoop::TaskEnded(const absl::Status& status, void (WorkerLoop::*all_ended)(int64_t now)) {
  if (!status.ok() && task_status_.ok()) task_status_ = status;
  if (--pending_tasks_ > 0) return;
  const int64_t now = MonotonicNow();
  if (std::exchange(forget_when_idle_, false)) return Forget(now);
  if (!task_status_.ok()) return Fail(now, task_status_);
  (this->*all_ended)(now);
}

void WorkerLoop::AllPrepared(int64_t now) {
  prepared_ = true;
  core_.OnPrepared(now, &effects_);
  Apply(now, nullptr);
}

void WorkerLoop::AllSaved(int64_t now) {
  core_.OnSaved(now, Reports(now), &effects_);
  Apply(now, nullptr);
}

void WorkerLoop::Apply(int64_t now, const JobOutcome* outcome) {
  if (applying_) return;  // the outer call carries out what was appended
  applying_ = true;
  for (size_t i = 0; i < effects_.size(); ++i) {
    WorkerEffect effect = std::move(effects_[i]);
    ApplyOne(now, effect, outcome);
  }
  effects_.clear();
  applying_ = false;
}

void WorkerLoop::ApplyOne(int64_t now, WorkerEffect& effect, const JobOutcome* outcome) {
  if (auto* send = std::get_if<SendEffect>(&effect)) {
    Send(std::move(send->message));
  } else if (auto* prepare = std::get_if<PrepareEffect>(&effect)) {
    Prepare(now, *prepare);
  } else if (auto* want = std::get_if<WantEffect>(&effect)) {
    transport_.Want(want->process, want->key, now + options_.transfer_timeout_ns);
  } else if (auto* start = std::get_if<StartEffect>(&effect)) {
    Start(*start);
  } else if (auto* publish = std::get_if<PublishEffect>(&effect)) {
    Publish(now, *publish, outcome);
  } else if (auto* drop = std::get_if<DropEffect>(&effect)) {
    SlotOf(drop->rank)->compute->DropWeights(drop->stage, drop->version);
  } else if (std::holds_alternative<SaveEffect>(effect)) {
    Save();
  } else if (std::holds_alternative<ForgetEffect>(effect)) {
    Forget(now);
  } else if (std::holds_alternative<ExitEffect>(effect)) {
    stop_ = true;
    WakeAll();
  }
}

WorkerLoop::Slot* WorkerLoop::SlotOf(Rank rank) {
  for (auto& slot : slots_) {
    if (slot->rank == rank) return slot.get();
  }
  return nullptr;
}

void WorkerLoop::Prepare(int64_t now, PrepareEffect& effect) {
  const Assign& a = effect.assignment;
  if (pending_tasks_ > 0)
    return Fail(now, absl::UnavailableError("this process is still busy with the run before"));
  SeatRanks(now, a);
  absl::StatusOr<RunSpec> spec = ParseRunSpecText(a.spec);
  if (!spec.ok()) return Fail(now, spec.status());
  output_ = a.output;
  spec_ = std::make_shared<const RunSpec>(*std::move(spec));
  transport_.BeginEpoch(a.run, a.epoch);
  for (const Peer& peer : a.peers) {
    if (peer.address == transport_.address()) continue;
    if (absl::Status s = transport_.Connect(peer.process, peer.address, peer.label); !s.ok())
      return Fail(now, s);
  }
  // Ranks that share cores must not spin away each other's time.
  const size_t threads = a.process_of_rank.size() * (core_.graph()->has_pairs() ? 2 : 1);
  const bool cores_for_all = threads <= std::thread::hardware_concurrency();
  const int spin_us =
      options_.spin_microseconds >= 0 ? options_.spin_microseconds : (cores_for_all ? 2000 : 20);
  spin_ns_ = spin_us * kMicrosecond;
  task_status_ = absl::OkStatus();
  pending_tasks_ = static_cast<int>(a.leases.size());
  for (const RankLease& lease : a.leases) {
    Slot* slot = SlotOf(lease.rank);
    PrepareTask task{spec_, {}, output_};
    for (const PrepareEffect::Stage& s : effect.stages) {
      if (s.rank != slot->rank) continue;
      task.stages.push_back(s);
      if (s.saves) slot->saved_stages.push_back(s.stage);
    }
    Give(slot, std::move(task));
  }
}

// Before anything of the run can fail: reports and metrics ask for the slot of each rank that the core has.
void WorkerLoop::SeatRanks(int64_t now, const Assign& a) {
  next_report_ = now + options_.report_interval_ns;
  const size_t ranks = a.leases.size();
  const bool pairs = core_.graph()->has_pairs();
  while (slots_.size() < (pairs ? 2 * ranks : ranks)) {
    slots_.push_back(std::make_unique<Slot>());
    Slot* slot = slots_.back().get();
    slot->index = static_cast<int>(slots_.size()) - 1;
    slot->thread = std::thread(&WorkerLoop::RankMain, this, slot);
  }
  for (size_t i = 0; i < ranks; ++i) {
    Slot* slot = slots_[i].get();
    slot->rank = a.leases[i].rank;
    slot->second = pairs ? slots_[ranks + i].get() : nullptr;
    slot->saved_stages.clear();
    slot->bytes_sent.fill(0);
    slot->left_bytes.clear();
    slot->bytes_received.fill(0);
  }
}

void WorkerLoop::Give(Slot* slot, Task task) {
  slot->task = std::move(task);
  if (slot->waiting) {
    slot->wake.Signal();
  } else if (slot->blocked) {
    Ring(driver_fd_);
  }
}

std::vector<Tensor> WorkerLoop::TakeArrived(const std::vector<TensorKey>& keys) {
  std::vector<Tensor> tensors;
  for (const TensorKey& key : keys) {
    const auto it = inbox_.find(key);
    tensors.emplace_back();
    if (it == inbox_.end()) continue;  // an empty tensor, as of a stage without parameters
    tensors.back() = std::move(it->second);
    inbox_.erase(it);
  }
  return tensors;
}

void WorkerLoop::Start(StartEffect& effect) {
  JobTask task;
  task.inputs = TakeArrived(effect.inputs);
  task.gradients = TakeArrived(effect.gradients);
  task.parts = static_cast<int>(core_.graph()->members(effect.job.stage).size());
  if (effect.visit.has_value()) holders_.Visit(effect.rank, effect.job, *effect.visit);
  Slot* slot = SlotOf(effect.rank);
  if (effect.beside) slot = slot->second;
  task.start = std::move(effect);
  Give(slot, std::move(task));
}

void WorkerLoop::CountReceived(const TensorKey& key, size_t bytes) {
  if (key.producer == key.consumer) return;
  if (Slot* slot = SlotOf(key.consumer)) slot->bytes_received[static_cast<int>(key.kind)] += bytes;
}

void WorkerLoop::Publish(int64_t now, const PublishEffect& effect, const JobOutcome* outcome) {
  const TensorKey& key = effect.key;
  Slot* producer = SlotOf(key.producer);
  Tensor tensor;
  if (key.kind == TensorKind::kWeights) {
    auto weights = producer->compute->Weights(key.stage, key.version);
    if (!weights.ok()) return Fail(now, weights.status());
    tensor = *std::move(weights);
  } else if (outcome != nullptr) {
    tensor = outcome->Output(key.kind, key.part, effect.parts);
  }
  tensor.made_ns = now;
  if (key.producer != key.consumer) producer->bytes_sent[static_cast<int>(key.kind)] += tensor.bytes;
  if (effect.process >= 0) return transport_.Offer(effect.process, key, std::move(tensor));
  CountReceived(key, tensor.bytes);
  inbox_[key] = std::move(tensor);
}

void WorkerLoop::Save() {
  std::vector<Slot*> saving;
  for (Rank rank : core_.ranks()) saving.push_back(SlotOf(rank));
  task_status_ = absl::OkStatus();
  pending_tasks_ = static_cast<int>(saving.size());
  for (Slot* slot : saving) {
    SaveTask task{spec_, {}, output_ + "/checkpoint"};
    if (!output_.empty()) task.stages = slot->saved_stages;
    Give(slot, std::move(task));
  }
}

void WorkerLoop::Forget(int64_t now) {
  if (pending_tasks_ > 0) {
    forget_when_idle_ = true;
    return;
  }
  AddRunTo(now, &past_);
  past_.live_bytes.fill(0);
  past_.peak_bytes.fill(0);
  prepared_ = false;
  transport_.BeginEpoch(0, 0);
  inbox_.clear();
  holders_.Clear();
  for (auto& slot : slots_) {
    slot->rank = -1;
    slot->second = nullptr;
    slot->compute.reset();
  }
  core_.Forget(now, &effects_);
  Apply(now, nullptr);
}

void WorkerLoop::Fail(int64_t now, const absl::Status& status) {
  ++past_.failures;
  core_.OnFailure(now, std::string(status.message()), &effects_);
  Apply(now, nullptr);
}

std::vector<RankReport> WorkerLoop::Reports(int64_t now) {
  std::vector<RankReport> reports;
  for (Rank rank : core_.ranks()) {
    Slot* slot = SlotOf(rank);
    const RankClock& clock = core_.ClockAt(now, rank);
    RankReport r;
    r.rank = rank;
    for (int k = 0; k < kJobKinds; ++k) {
      const auto kind = static_cast<JobKind>(k);
      r.busy_seconds[std::string(JobKindName(kind))] = 1e-9 * static_cast<double>(clock.busy(kind));
    }
    for (int c = 0; c < kIdleCauses; ++c) {
      const auto cause = static_cast<IdleCause>(c);
      r.idle_seconds[std::string(IdleCauseName(cause))] = 1e-9 * static_cast<double>(clock.idle(cause));
    }
    // A rank that still prepares has no memory to show yet, and its thread is making its compute.
    if (prepared_) {
      const BytesByClass live = slot->compute->live_bytes(), peak = slot->compute->peak_bytes();
      for (int m = 0; m < kMemoryClasses; ++m) {
        const std::string name(MemoryClassName(static_cast<MemoryClass>(m)));
        r.live_bytes[name] = live[m];
        r.peak_bytes[name] = peak[m];
      }
    }
    for (int k = 0; k < kTensorKinds; ++k) {
      const std::string name(TensorKindName(static_cast<TensorKind>(k)));
      r.bytes_sent[name] = static_cast<int64_t>(slot->bytes_sent[k]);
      r.bytes_received[name] = static_cast<int64_t>(slot->bytes_received[k]);
    }
    r.left_bytes = slot->left_bytes;
    r.peak_activations = core_.peak_activations(rank);
    r.peak_weight_versions = core_.peak_weight_versions(rank);
    r.wall_seconds = 1e-9 * static_cast<double>(clock.wall());
    reports.push_back(std::move(r));
  }
  return reports;
}

void WorkerLoop::AddRunTo(int64_t now, WorkerSnapshot* s) {
  for (Rank rank : core_.ranks()) {
    Slot* slot = SlotOf(rank);
    Add(core_.ClockAt(now, rank), s);
    s->weight_versions = std::max(s->weight_versions, core_.weight_versions(rank));
    s->peak_weight_versions = std::max(s->peak_weight_versions, core_.peak_weight_versions(rank));
    for (int k = 0; k < kTensorKinds; ++k) {
      s->bytes_sent[k] += slot->bytes_sent[k];
      s->bytes_received[k] += slot->bytes_received[k];
    }
    if (!prepared_) continue;
    const BytesByClass live = slot->compute->live_bytes(), peak = slot->compute->peak_bytes();
    for (int m = 0; m < kMemoryClasses; ++m) {
      s->live_bytes[m] += live[m];
      s->peak_bytes[m] += peak[m];
    }
  }
}

WorkerSnapshot WorkerLoop::Snapshot() {
  MutexLock lock(mu_);
  WorkerSnapshot s = past_;
  s.has_run = core_.has_run();
  if (s.has_run) AddRunTo(MonotonicNow(), &s);
  s.transport = transport_.counters();
  s.paths = transport_.paths();
  s.bytes_held = transport_.bytes_held();
  s.stale_grants = core_.stale_grants();
  return s;
}

}  // namespace weft
