// Implements WorkerLoop's effects: carries out the core's decisions.
#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/host_memory.h"
#include "base/threads.h"
#include "run/run_memory.h"
#include "worker/shell/data/data.h"
#include "worker/shell/loop/run_shape.h"
#include "worker/shell/loop/worker_loop.h"

namespace weft {
namespace {

constexpr int64_t kMicrosecond = 1'000;

// In the process that validates: held-out data that cannot be read are found before the first step, and the
// weights with which the run goes on are kept where it validates them first.
absl::Status PrepareToValidate(const RunSpec& spec, const CheckpointFolders& folders) {
  if (!spec.validate.any()) return absl::OkStatus();
  const absl::StatusOr<std::unique_ptr<Dataset>> data = Dataset::Open(ValidationRun(spec));
  if (!data.ok()) {
    return absl::Status(data.status().code(), absl::StrCat("validate.", data.status().message()));
  }
  if (!spec.ValidatesAfter(spec.first_step())) return absl::OkStatus();
  return folders.KeepAside(spec.first_step(), spec.resume.checkpoint);
}

}  // namespace

absl::Status WorkerLoop::PrepareRank(Slot* slot, const PrepareTask& task) {
  if (task.folders != nullptr && slot->index == 0) {
    if (absl::Status status = task.folders->Prepare(); !status.ok()) return status;
  }
  if (task.folders != nullptr && slot->rank == 0) {
    if (absl::Status status = PrepareToValidate(*task.spec, *task.folders); !status.ok()) return status;
  }
  auto compute = device_.CreateRank(*task.spec, slot->rank, transport_.memory());
  if (!compute.ok()) return compute.status();
  slot->compute = *std::move(compute);
  for (const PrepareEffect::Stage& s : task.stages) {
    absl::Status status = s.parts > 1 ? slot->compute->AddSlicedStage(s.stage, s.part, s.parts)
                          : s.adopts  ? slot->compute->AddAdoptedStage(s.stage)
                                      : slot->compute->AddStage(s.stage, s.holds_weights);
    if (status.ok() && s.sums_own) status = slot->compute->SumOwnGradients(s.stage);
    if (!status.ok()) return status;
    // A run that goes on has its initial weights in the checkpoint that it begins with.
    if (!s.saves || task.folders == nullptr || task.spec->first_step() > 0) continue;
    const std::string initial = task.folders->Partial(0);
    status = s.state_travels ? slot->compute->SaveInitial(s.stage, initial)
                             : slot->compute->Save(s.stage, initial);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Notes that one rank's part of preparing or saving ended; the last one finishes it for the process.
void WorkerLoop::TaskEnded(const absl::Status& status, void (WorkerLoop::*all_ended)(int64_t now)) {
  if (!status.ok() && task_status_.ok()) task_status_ = status;
  if (--pending_tasks_ > 0) return;
  const int64_t now = MonotonicNow();
  if (forget_when_idle_) return Forget(now);
  // A failure to save is reported, and the coordinator decides.
  if (!task_status_.ok() && all_ended != &WorkerLoop::AllSaved) return Fail(now, task_status_);
  (this->*all_ended)(now);
}

// Connects only now: meanwhile the peers have let this process in (Transport::Admit).
void WorkerLoop::AllPrepared(int64_t now) {
  for (const Peer& peer : peers_) {
    if (peer.address == transport_.address()) continue;
    if (absl::Status s = transport_.Connect(peer.process, peer.address, peer.label); !s.ok())
      return Fail(now, s);
  }
  prepared_ = joining_ = true;
  PollCollectives(now);
  LookAtDevice();
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
    past_.failures += std::holds_alternative<Failed>(send->message) ? 1 : 0;
    Send(std::move(send->message));
  } else if (auto* prepare = std::get_if<PrepareEffect>(&effect)) {
    Prepare(now, *prepare);
  } else if (auto* join = std::get_if<JoinEffect>(&effect)) {
    groups_.TakeId(join->group, join->id);
  } else if (auto* want = std::get_if<WantEffect>(&effect)) {
    transport_.Want(want->process, want->key, now + options_.transfer_timeout_ns);
  } else if (auto* start = std::get_if<StartEffect>(&effect)) {
    Start(*start);
  } else if (auto* publish = std::get_if<PublishEffect>(&effect)) {
    Publish(now, *publish, outcome);
  } else if (auto* drop = std::get_if<DropEffect>(&effect)) {
    SlotOf(drop->rank)->compute->DropWeights(drop->stage, drop->version);
  } else if (auto* snapshot = std::get_if<SnapshotEffect>(&effect)) {
    snapshots_.Expect(core_.run_id(), snapshot->step, snapshot->pieces, folders_->Partial(snapshot->step));
  } else if (auto* save = std::get_if<SaveEffect>(&effect)) {
    Save(save->step);
  } else if (auto* seal = std::get_if<SealEffect>(&effect)) {
    Seal(*seal);
  } else if (auto* validate = std::get_if<ValidateEffect>(&effect)) {
    Validate(validate->step);
  } else if (std::holds_alternative<FinishEffect>(effect)) {
    std::vector<RankReport> reports = Reports(now);
    for (RankReport& report : reports) {
      report.idle_spans = core_.idle_spans(report.rank);
      report.transfer_spans = core_.transfer_spans(report.rank);
    }
    core_.OnFinished(std::move(reports), &effects_);
  } else if (std::holds_alternative<ForgetEffect>(effect)) {
    Forget(now);
  } else if (std::holds_alternative<ExitEffect>(effect)) {
    stop_ = true;
    WakeAll();
  }
}

WorkerLoop::Slot* WorkerLoop::SlotOf(Rank rank) {
  return rank >= 0 && rank < static_cast<Rank>(slot_of_rank_.size()) ? slot_of_rank_[rank] : nullptr;
}

void WorkerLoop::Prepare(int64_t now, PrepareEffect& effect) {
  const Assign& a = effect.assignment;
  if (pending_tasks_ > 0)
    return Fail(now, absl::UnavailableError("this process is still busy with the run before"));
  if (absl::Status s = SeatRanks(now, a); !s.ok()) return Fail(now, s);
  absl::StatusOr<RunSpec> spec = ParseRunSpecText(a.spec);
  if (!spec.ok()) return Fail(now, spec.status());
  if (absl::Status s = CheckMemory(*spec, effect); !s.ok()) return Fail(now, s);
  spec_ = std::make_shared<const RunSpec>(*std::move(spec));
  folders_ = a.output.empty()
                 ? nullptr
                 : std::make_shared<const CheckpointFolders>(a.output, *spec_, a.run_id, a.epoch);
  transport_.BeginEpoch(a.run, a.epoch);
  peers_ = a.peers;
  for (const Peer& peer : a.peers) {
    if (peer.address == transport_.address()) continue;
    if (absl::Status s = transport_.Admit(peer.address); !s.ok())
      return Fail(now, absl::Status(s.code(), absl::StrCat(peer.label, ": ", s.message())));
  }
  // Ranks that share cores must not spin away each other's time.
  const size_t threads = a.process_of_rank.size() * (core_.graph()->has_pairs() ? 2 : 1);
  const bool cores_for_all = threads <= std::thread::hardware_concurrency();
  const int spin_us =
      options_.spin_microseconds >= 0 ? options_.spin_microseconds : (cores_for_all ? 2000 : 20);
  spin_ns_ = spin_us * kMicrosecond;
  if (!BeginGroups(now, effect)) return;
  task_status_ = absl::OkStatus();
  pending_tasks_ = static_cast<int>(a.leases.size());
  for (const RankLease& lease : a.leases) {
    Slot* slot = SlotOf(lease.rank);
    PrepareTask task{spec_, {}, folders_};
    for (const PrepareEffect::Stage& s : effect.stages) {
      if (s.rank != slot->rank) continue;
      task.stages.push_back(s);
      if (s.saves) slot->saved_stages.push_back(s.stage);
    }
    Give(slot, std::move(task));
  }
}

// Refuses a run that surely does not fit, before anything is allocated: the kernel would end this process
// later, or another one, without a word. It counts the memory that stays, once each; a run needs more.
absl::Status WorkerLoop::CheckMemory(const RunSpec& spec, const PrepareEffect& effect) const {
  if (device_.name() != "cpu") return absl::OkStatus();
  int64_t needed = 0;
  for (const PrepareEffect::Stage& s : effect.stages) {
    if (!s.holds_weights) continue;
    const int copies = 2 + (s.adopts ? 0 : OptimizerBuffers(spec.train.optimizer));
    needed += copies * (CountStage(spec, s.stage).parameters / s.parts);
  }
  const HostMemory memory = ReadHostMemory();
  const std::optional<int64_t> available = memory.Least();
  if (!available.has_value() || needed <= *available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "weights, gradients and optimizer of this process's %d ranks take at least %.1f GiB, and there are %s: "
      "take more processes on other machines, a schedule that shards the weights, or a smaller model",
      effect.assignment.leases.size(), static_cast<double>(needed) / (int64_t{1} << 30), memory.Describe()));
}

// Seats the ranks before anything of the run can fail: reports and metrics ask for the slot of each rank that
// the core has.
absl::Status WorkerLoop::SeatRanks(int64_t now, const Assign& a) {
  next_report_ = now + options_.report_interval_ns;
  const size_t ranks = a.leases.size();
  const bool pairs = core_.graph()->has_pairs();
  while (slots_.size() < (pairs ? 2 * ranks : ranks)) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->index = static_cast<int>(slots_.size()) - 1;
  }
  slot_of_rank_.assign(a.process_of_rank.size(), nullptr);
  for (size_t i = 0; i < ranks; ++i) {
    Slot* slot = slots_[i].get();
    slot->rank = a.leases[i].rank;
    slot_of_rank_[slot->rank] = slot;
    slot->second = pairs ? slots_[ranks + i].get() : nullptr;
    slot->saved_stages.clear();
    slot->bytes_sent.fill(0);
    slot->left_bytes.clear();
    slot->bytes_received.fill(0);
  }
  return StartThreads(slots_.size());
}

// Starts threads. With fewer threads than wished for, the work of all seats is done too, later.
absl::Status WorkerLoop::StartThreads(size_t seats) {
  const size_t most = std::max<size_t>(kMostThreads, std::thread::hardware_concurrency());
  const size_t wanted = own_threads() ? seats : std::min(seats, most);
  while (threads_.size() < wanted) {
    auto thread = std::make_unique<Thread>();
    thread->index = static_cast<int>(threads_.size());
    absl::StatusOr<std::thread> started = TryStartThread([this, own = thread.get()] { ThreadMain(own); });
    if (!started.ok() && !own_threads() && !threads_.empty()) break;
    if (!started.ok()) return started.status();
    thread->thread = *std::move(started);
    threads_.push_back(std::move(thread));
  }
  return absl::OkStatus();
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
  if (effect.part == JointPart::kEnd) task.collected = groups_.TakeResult(effect.job);
  task.parts = static_cast<int>(core_.graph()->members(effect.job.stage).size());
  if (effect.Does(Operation::kBeginState) || effect.Does(Operation::kReceiveState)) {
    holders_.Come(effect.rank, effect.job);
  } else if (effect.has_state) {
    holders_.Stay(effect.rank, effect.job);
  }
  Slot* slot = SlotOf(effect.rank);
  const bool beside = effect.beside;
  task.start = std::move(effect);
  if (beside && !slot->begun) {
    slot->held = std::move(task);
    return;
  }
  if (!beside) slot->begun = false;
  Give(beside ? slot->second : slot, std::move(task));
}

void WorkerLoop::Forget(int64_t now) {
  snapshots_.Cancel();
  if (folders_ != nullptr && spec_->validate.any() && SlotOf(0) != nullptr)
    validator_.Cancel([folders = folders_] { folders->DropKeptAside(); });
  // What a device copied for the writer is the device's memory.
  const bool written = device_.launch_ahead() > 1 && !snapshots_.idle();
  forget_when_idle_ = pending_tasks_ > 0 || DeviceWorks() || written;
  if (forget_when_idle_) return;
  prepared_ = joining_ = false;
  groups_.Clear(absl::AbortedError("its run is over here"));
  EndRanks(now);
  if (forget_when_idle_) return;
  AddRunTo(now, &past_);
  transport_.BeginEpoch(0, 0);
  inbox_.clear();
  holders_.Clear();
  give_up_ns_ = end_until_ns_ = 0;
  told_silence_ns_.reset();
  if (failed_) next_health_ = 0;
  for (auto& slot : slots_) {
    slot->rank = -1;
    slot->second = nullptr;
  }
  slot_of_rank_.clear();
  core_.Forget(now, &effects_);
  Apply(now, nullptr);
}

// Ends the ranks on their own threads, since a device's driver may take its time.
void WorkerLoop::EndRanks(int64_t now) {
  for (auto& slot : slots_) {
    if (slot->compute == nullptr) continue;
    ++pending_tasks_;
    slot->ending = true;
    Give(slot.get(), EndTask{std::move(slot->compute)});
  }
  forget_when_idle_ = pending_tasks_ > 0;
  if (!forget_when_idle_ || device_.launch_ahead() == 1) return;
  end_until_ns_ = now + options_.device_grace_ns;
  WakeAll();  // to look in time
}

// Ends the loop if a rank does not end. A device that hangs may hold the thread that ends a rank for ever,
// and a process that waited for it would be given run after run.
void WorkerLoop::CheckEnds(int64_t now) {
  if (end_until_ns_ == 0 || now <= end_until_ns_ || stop_) return;
  const auto slot = std::find_if(slots_.begin(), slots_.end(), [](const auto& s) { return s->ending; });
  if (slot == slots_.end()) return;
  status_ = absl::DeadlineExceededError(
      absl::StrFormat("the device has not finished the work that ends rank %d of run %d for %.1f s",
                      (*slot)->rank, core_.run_id(), 1e-9 * static_cast<double>(options_.device_grace_ns)));
  stop_ = true;
  WakeAll();
}

void WorkerLoop::Fail(int64_t now, const absl::Status& status) {
  failed_ = true;
  groups_.Clear(status);  // the other members notice
  core_.OnFailure(now, std::string(status.message()), &effects_);
  Apply(now, nullptr);
}

}  // namespace weft
