// WorkerLoop: carries out what the core decided.
#include <algorithm>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "worker/shell/run_shape.h"
#include "worker/shell/worker_loop.h"

namespace weft {
namespace {

constexpr int64_t kMicrosecond = 1'000;

// Whoever saves the last stage finds all of them there and writes the index; before, a stage is missing or of
// another version.
absl::Status IndexIfComplete(const std::string& folder, const RunSpec& spec) {
  const absl::Status status = WriteCheckpointIndex(folder, spec);
  return absl::IsNotFound(status) || absl::IsFailedPrecondition(status) ? absl::OkStatus() : status;
}

}  // namespace

absl::Status WorkerLoop::PrepareRank(Slot* slot, const PrepareTask& task) {
  auto compute = device_.CreateRank(*task.spec, slot->rank, transport_.memory());
  if (!compute.ok()) return compute.status();
  slot->compute = *std::move(compute);
  for (const PrepareEffect::Stage& s : task.stages) {
    absl::Status status = s.parts > 1 ? slot->compute->AddSlicedStage(s.stage, s.part, s.parts)
                          : s.adopts  ? slot->compute->AddAdoptedStage(s.stage)
                                      : slot->compute->AddStage(s.stage, s.holds_weights);
    if (status.ok() && s.sums_own) status = slot->compute->SumOwnGradients(s.stage);
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

absl::Status WorkerLoop::SaveRank(Slot* slot, const SaveTask& task) {
  for (const int stage : task.stages) {
    if (absl::Status status = slot->compute->Save(stage, task.folder); !status.ok()) return status;
  }
  return task.stages.empty() ? absl::OkStatus() : IndexIfComplete(task.folder, *task.spec);
}

// One rank's part of preparing or saving ended; the last one finishes it for the process.
void WorkerLoop::TaskEnded(const absl::Status& status, void (WorkerLoop::*all_ended)(int64_t now)) {
  if (!status.ok() && task_status_.ok()) task_status_ = status;
  if (--pending_tasks_ > 0) return;
  const int64_t now = MonotonicNow();
  if (forget_when_idle_) return Forget(now);
  if (!task_status_.ok()) return Fail(now, task_status_);
  (this->*all_ended)(now);
}

void WorkerLoop::AllPrepared(int64_t now) {
  prepared_ = joining_ = true;
  PollCollectives(now);
  LookAtDevice();
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
  if (!BeginGroups(now, effect)) return;
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
  if (effect.collective == CollectivePart::kEnd) task.collected = groups_.TakeResult(effect.job);
  task.parts = static_cast<int>(core_.graph()->members(effect.job.stage).size());
  if (effect.visit.has_value()) holders_.Visit(effect.rank, effect.job, *effect.visit);
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
  forget_when_idle_ = pending_tasks_ > 0 || DeviceWorks();
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
  for (auto& slot : slots_) {
    slot->rank = -1;
    slot->second = nullptr;
  }
  core_.Forget(now, &effects_);
  Apply(now, nullptr);
}

// On their own threads, since a device's driver may take its time.
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

// A device that hangs may hold the thread that ends a rank for ever, and a process that waited for it would
// be given run after run.
void WorkerLoop::CheckEnds(int64_t now) {
  if (end_until_ns_ == 0 || now <= end_until_ns_ || stop_) return;
  const auto slot = std::find_if(slots_.begin(), slots_.end(), [](const auto& s) { return s->ending; });
  if (slot == slots_.end()) return;
  status_ = absl::DeadlineExceededError(
      absl::StrFormat("the device has held what ends rank %d of run %d for %.1f s", (*slot)->rank,
                      core_.run_id(), 1e-9 * static_cast<double>(options_.device_grace_ns)));
  stop_ = true;
  WakeAll();
}

void WorkerLoop::Fail(int64_t now, const absl::Status& status) {
  groups_.Clear(status);  // the other members notice
  core_.OnFailure(now, std::string(status.message()), &effects_);
  Apply(now, nullptr);
}

}  // namespace weft
