// Implements WorkerLoop's jobs: those on the threads of the ranks, and those that the device has still to do.
#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/shell/compute/non_finite.h"
#include "worker/shell/loop/worker_loop.h"
#include "worker/shell/memory/keep_forever.h"

namespace weft {
namespace {

constexpr size_t kGatherJobs = 32;  // half of the least credit

}  // namespace

void WorkerLoop::RunJobTask(JobTask task) {
  const Job job = task.start.job;
  const bool last = task.start.last, beside = task.start.beside;
  const bool takes_snapshot = task.start.takes_snapshot;
  const Rank rank = task.start.rank;
  const bool sends_state = task.start.Does(Operation::kSendState);
  Slot* const slot = SlotOf(rank);
  RankCompute& compute = *slot->compute;  // stays until the run's last job has ended
  LeaveLock();
  std::function<void()> begun;
  if (!beside && slot->second != nullptr) begun = [this, slot] { ForwardBegun(slot); };
  JobOutcome outcome = RunJob(compute, std::move(task), begun);
  TakeLock();
  const int64_t now = MonotonicNow();
  if (!outcome.status.ok()) Fail(now, outcome.status);
  if (outcome.left_bytes.has_value()) {
    int64_t& most = slot->left_bytes[job.stage];
    most = std::max(most, *outcome.left_bytes);
  }
  if (takes_snapshot && outcome.status.ok())
    snapshots_.Write(core_.run_id(), job.step + 1, std::move(outcome.snapshot));
  if (outcome.contribution.has_value()) BeginCollective(now, slot, job, *outcome.contribution, outcome.whole);
  if (sends_state) holders_.Leave(rank, job);
  job_ns_ += (outcome.end_ns - outcome.start_ns - job_ns_) / 8;
  last_job_end_ = now;
  if (outcome.launched != nullptr) launched_.Add({rank, job, last, beside, now, outcome.launched});
  if (outcome.launched != nullptr) {
    core_.OnJobLaunched(now, rank, job, last, outcome.left_bytes, &effects_);
  } else {
    past_.jobs[static_cast<int>(job.kind)] += last;
    core_.OnJobDone(now,
                    {rank, job, outcome.start_ns, outcome.end_ns, last, outcome.loss, outcome.left_bytes,
                     outcome.gradient_norm},
                    &effects_);
  }
  Apply(now, &outcome);
  LookAtDevice();
  if (gathered_ >= kGatherJobs) SendGathered();
}

// Gives the second of a pair to its seat once the first has begun: the device orders the second by what the
// first waits for, so it hears of the first first.
void WorkerLoop::ForwardBegun(Slot* slot) {
  MutexLock lock(mu_);
  slot->begun = true;
  if (slot->held.has_value()) Give(slot->second, *std::exchange(slot->held, std::nullopt));
}

bool WorkerLoop::PollDevice() {
  std::vector<LaunchedJobs::Ended> ended;
  std::vector<AwaitedTensors::Awaited> arrived;
  launched_.Poll(&ended);
  awaited_.Poll(&arrived);
  const int64_t now = MonotonicNow();
  const bool worked = !ended.empty() || !arrived.empty();
  absl::Status copy;
  for (AwaitedTensors::Awaited& tensor : arrived) {
    if (tensor.status.ok()) {
      Arrived(now, std::move(tensor));
    } else {
      copy.Update(tensor.status);
    }
  }
  const uint64_t run = core_.run_id();  // number of the run, which a last job may end
  for (LaunchedJobs::Ended& job : ended) JobEnded(now, std::move(job));
  // A failed copy is reported after the job that made its source, if that failed too.
  if (!copy.ok() && core_.run_id() == run) Fail(now, copy);
  if (forget_when_idle_ && pending_tasks_ == 0) Forget(now);
  if (DeviceWorks()) CheckDevice(now);
  return worked;
}

void WorkerLoop::JobEnded(int64_t now, LaunchedJobs::Ended ended) {
  const LaunchedJobs::Launch launch = std::exchange(ended.launch, {});
  JobDone done{launch.rank, launch.job,         now, now,
               launch.last, ended.figures.loss, {},  ended.figures.gradient_norm};
  done.launched = true;
  if (ended.status.ok())
    ended.status = CheckFigures(*spec_, launch.job, ended.figures.loss, ended.figures.gradient_norm);
  if (ended.status.ok()) {
    // The device's clock may be a little off.
    done.end_ns = std::min(now, ended.figures.end_ns);
    done.start_ns = std::min(done.end_ns, ended.figures.start_ns);
  } else {
    Fail(now, ended.status);
  }
  past_.jobs[static_cast<int>(launch.job.kind)] += launch.last;
  core_.OnJobDone(now, done, &effects_);
  Apply(now, nullptr);
}

std::string WorkerLoop::AwaitedOfDevice(int64_t now) const {
  const bool job = !launched_.empty();
  const int64_t since = job ? launched_.oldest().launched_ns : awaited_.oldest().since_ns;
  return absl::StrFormat(
      "%s was given to the device %.1f s ago, which has not done it",
      job ? Describe(launched_.oldest()) : absl::StrCat("a copy of the ", Describe(awaited_.oldest().key)),
      1e-9 * static_cast<double>(now - since));
}

void WorkerLoop::CheckDevice(int64_t now) {
  const int64_t since = launched_.empty() ? awaited_.oldest().since_ns : launched_.oldest().launched_ns;
  if (now - since > options_.device_timeout_ns) Fail(now, absl::DeadlineExceededError(AwaitedOfDevice(now)));
  if (give_up_ns_ == 0 || now <= give_up_ns_ || stop_) return;
  status_ = absl::DeadlineExceededError(AwaitedOfDevice(now));
  stop_ = true;
  WakeAll();
}

void WorkerLoop::AwaitDevice() {
  MutexLock lock(mu_);
  const int64_t until = give_up_ns_ != 0 ? give_up_ns_ : MonotonicNow() + options_.device_grace_ns;
  while (DeviceWorks()) {
    PollDevice();
    const int64_t now = MonotonicNow();
    if (!DeviceWorks() || now > until) break;
    mu_.Unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    mu_.Lock();
  }
  if (DeviceWorks()) LeaveBehind();
}

void WorkerLoop::LeaveBehind() {
  hangs_ = true;
  const int64_t now = MonotonicNow();
  if (status_.ok())
    status_ = DeviceWorks() ? absl::DeadlineExceededError(AwaitedOfDevice(now)) : NotEnded(WhatHangs(now));
  for (auto& thread : threads_) {
    if (thread->thread.joinable()) thread->thread.detach();
  }
  // The device may still write into any of this: none of it can be given back while the process lives.
  for (auto& slot : slots_) KeepForever(std::shared_ptr<RankCompute>(std::move(slot->compute)));
  std::tuple used(std::move(launched_), std::move(awaited_), std::move(inbox_), std::move(groups_));
  KeepForever(std::make_shared<decltype(used)>(std::move(used)));
}

}  // namespace weft
