#include "worker/shell/loop/worker_loop.h"

#include <immintrin.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/session/gather.h"
#include "worker/shell/loop/run_shape.h"

namespace weft {
namespace {

constexpr int64_t kMicrosecond = 1'000, kMillisecond = 1'000'000;
constexpr int64_t kGatherTime = 10 * kMillisecond;
constexpr int64_t kShortJob = kMillisecond;
constexpr int64_t kDeviceLook = 50 * kMicrosecond;  // no descriptor tells that the device has done a job
// Longest time without a look at messages, even if jobs are short.
constexpr int64_t kLongestUnseen = 5 * kMillisecond;

// True while the thread holds the lock and looks for work before it waits for anything: nobody need be woken
// for one task that it hands out.
thread_local bool looks_soon = false;

void Ring(int event_fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(event_fd, &one, sizeof one);
}

}  // namespace

WorkerLoop::WorkerLoop(WorkerLoopOptions options, Device& device, Transport& transport, CoordinatorLink& link)
    : options_(std::move(options)),
      device_(device),
      transport_(transport),
      link_(link),
      main_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      driver_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      core_(ParseRunShape, device.launch_ahead()),
      snapshots_([this](const SnapshotWriter::Done& done) { SnapshotDone(done); }),
      validator_([this](const Validation& validation) { TellValidation(validation); }) {}

WorkerLoop::~WorkerLoop() {
  close(main_fd_);
  close(driver_fd_);
}

void WorkerLoop::Stop() {
  MutexLock lock(mu_);
  stop_ = true;
  WakeAll();
}

bool WorkerLoop::hangs() {
  MutexLock lock(mu_);
  return hangs_;
}

void WorkerLoop::WakeAll() {
  Ring(main_fd_);
  Ring(driver_fd_);
  for (auto& thread : threads_) thread->wake.Signal();
  main_wake_.Signal();
}

absl::Status WorkerLoop::Run() {
  device_.PrepareThread();
  DriveUntilStopped();
  JoinThreads();
  if (!hangs()) AwaitDevice();
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

// Joins the threads. A last job may still seat the ranks of a next run, with more threads. A device that
// hangs may hold a thread that gives it more work for ever; so may a file, or a job that takes its time.
void WorkerLoop::JoinThreads() {
  const int64_t grace = own_threads() ? options_.device_grace_ns : options_.stop_grace_ns;
  const int64_t until = MonotonicNow() + grace;
  for (size_t i = 0;; ++i) {
    Thread* thread = nullptr;
    {
      MutexLock lock(mu_);
      if (i == threads_.size()) break;
      thread = threads_[i].get();
      while (!thread->left && MonotonicNow() < until) main_wake_.WaitWithTimeout(mu_, kGatherTime);
      if (!thread->left) return LeaveBehind();
    }
    thread->thread.join();
  }
  if (snapshots_.End(until)) return;
  MutexLock lock(mu_);
  if (status_.ok()) status_ = NotEnded("writing a checkpoint");
  LeaveBehind();
}

absl::Status WorkerLoop::NotEnded(const std::string& what) {
  return absl::DeadlineExceededError(
      absl::StrCat("it was told to stop, and some of its work has not come to an end: ", what));
}

bool WorkerLoop::RanksLookOften() const {
  return job_ns_ < kShortJob && MonotonicNow() - last_job_end_ < kLongestUnseen;
}

void WorkerLoop::ThreadMain(Thread* thread) {
  device_.PrepareThread();
  MutexLock lock(mu_);
  looks_soon = true;
  while (!stop_) {
    if (Slot* slot = NextTask(*thread)) {
      RunTask(thread, slot);
      // The outputs leave, and what peers asked for meanwhile is seen, before the next job begins.
      if (!stop_ && (driver_ == kNobody || driver_ == kMain)) Poll();
    } else if (driver_ == kNobody || driver_ == kMain) {
      driver_ = thread->index;
      Drive(thread);
      LeaveDriving();
    } else if (!SendGathered()) {
      thread->waiting = true;
      thread->wake.Wait(mu_);
      thread->waiting = false;
    }
  }
  thread->left = true;
  main_wake_.Signal();
}

std::string WorkerLoop::WhatHangs(int64_t now) const {
  std::vector<std::string> parts;
  for (const auto& thread : threads_) {
    if (thread->left || thread->doing == Doing::kNothing) continue;
    constexpr const char* kWords[] = {"", "", "preparing", "saving the stages", "ending"};
    const std::string doing =
        thread->doing == Doing::kJob ? Describe(thread->job) : kWords[static_cast<int>(thread->doing)];
    parts.push_back(absl::StrFormat("%s of rank %d for %.1f s", doing, thread->rank,
                                    1e-9 * static_cast<double>(now - thread->since)));
  }
  const size_t more = parts.size() > 4 ? parts.size() - 4 : 0;
  parts.resize(parts.size() - more);
  if (more > 0) parts.push_back(absl::StrCat(more, " more"));
  return absl::StrJoin(parts, ", ");
}

bool WorkerLoop::HasTask(const Thread& thread) const {
  if (!own_threads()) return !queue_.empty();
  return !std::holds_alternative<std::monostate>(slots_[thread.index]->task);
}

WorkerLoop::Slot* WorkerLoop::NextTask(const Thread& thread) {
  if (!HasTask(thread)) return nullptr;
  if (own_threads()) return slots_[thread.index].get();
  Slot* slot = queue_.front();
  queue_.pop_front();
  return slot;
}

void WorkerLoop::Drive(Thread* thread) {
  int64_t spin_until = MonotonicNow() + spin_ns_;
  while (!stop_ && !HasTask(*thread)) {
    if (Poll()) {
      spin_until = MonotonicNow() + spin_ns_;
    } else if (MonotonicNow() >= spin_until) {
      Block(driver_fd_, &thread->blocked);
    } else {
      mu_.Unlock();
      for (int i = 0; i < 32; ++i) _mm_pause();
      mu_.Lock();
    }
  }
}

void WorkerLoop::LeaveDriving() {
  driver_ = kNobody;
  WakeOne();
}

bool WorkerLoop::WakeOne() {
  for (auto& thread : threads_) {
    if (!std::exchange(thread->waiting, false)) continue;
    thread->wake.Signal();
    return true;
  }
  return false;
}

void WorkerLoop::Block(int own_fd, bool* blocked) {
  if (SendGathered() || !transport_.Arm()) return;
  const int64_t now = MonotonicNow();
  int64_t until = std::min(transport_.next_deadline(), now + options_.look_interval_ns);
  if (core_.has_run()) until = std::min(until, next_report_);
  if (end_until_ns_ != 0) until = std::min(until, end_until_ns_);
  const int timeout_ms =
      static_cast<int>(std::max<int64_t>(1, (until - now + kMillisecond - 1) / kMillisecond));
  pollfd fds[3] = {{own_fd, POLLIN, 0}, {link_.event_fd(), POLLIN, 0}, {transport_.event_fd(), POLLIN, 0}};
  const bool device_works = DeviceWorks() || groups_.busy();
  *blocked = true;
  asleep_ += device_works ? 0 : 1;
  mu_.Unlock();
  if (device_works) {
    constexpr timespec kSoon = {0, kDeviceLook};
    ppoll(fds, 3, &kSoon, nullptr);
  } else {
    poll(fds, 3, timeout_ms);
  }
  mu_.Lock();
  asleep_ -= device_works ? 0 : 1;
  *blocked = false;
  uint64_t count;
  [[maybe_unused]] ssize_t n = read(own_fd, &count, sizeof count);
}

void WorkerLoop::LookAtDevice() {
  if (asleep_ == 0 || !(DeviceWorks() || groups_.busy())) return;
  Ring(main_fd_);
  Ring(driver_fd_);
}

// Sends the gathered messages. A write of the session costs as much as a short job and wakes another process,
// so completions gather while ranks are busy. The main thread sends them after a while, or a thread that has
// nothing to do, or one that made them many.
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
  looked_ns_ = MonotonicNow();
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
    const auto* abort = std::get_if<Abort>(&message);
    if (abort != nullptr && abort->run == core_.run_id()) give_up_ns_ = now + options_.device_grace_ns;
    core_.OnMessage(now, message, &effects_);
    Apply(now, nullptr);
  }
  if (DeviceWorks()) worked |= PollDevice();
  events_.clear();
  worked |= transport_.Progress(now, &events_) > 0;
  if (!events_.empty()) HandleTransport(now);
  if (joining_ || groups_.busy()) worked |= PollCollectives(now);
  CheckEnds(now);
  if (forget_when_idle_ && pending_tasks_ == 0 && !DeviceWorks()) Forget(now);
  if (core_.has_run() && now >= next_report_) {
    next_report_ = now + options_.report_interval_ns;
    // Ranks that end have given their last figures, and their memory goes.
    if (!forget_when_idle_) {
      Send(Report{core_.run_id(), Reports(now)});
      TellStall(now);
    }
  }
  if (!core_.has_run() && now >= next_health_) CheckHealth(now);
  return worked;
}

// Reports a silent link, and repeats the report now and then, since its time grows.
void WorkerLoop::TellStall(int64_t now) {
  std::string silence = transport_.DescribeSilence(now);
  const bool told = told_silence_ns_.has_value();
  if (silence.empty() && !told) return;
  if (!silence.empty() && told && now - *told_silence_ns_ < options_.stall_interval_ns) return;
  told_silence_ns_ = silence.empty() ? std::nullopt : std::optional(now);
  Send(Stalled{core_.run_id(), std::move(silence)});
}

// Ends a process that others cannot reach any more, or whose device is lost to it: it is of use to no run,
// and another one in its place is.
void WorkerLoop::CheckHealth(int64_t now) {
  next_health_ = now + options_.health_interval_ns;
  absl::Status health = transport_.health();
  if (health.ok() && std::exchange(failed_, false)) health = device_.Health();
  if (health.ok() || stop_) return;
  status_ = std::move(health);
  stop_ = true;
  WakeAll();
}

void WorkerLoop::Give(Slot* slot, Task task) {
  slot->task = std::move(task);
  if (own_threads()) {
    Thread& thread = *threads_[slot->index];
    if (thread.waiting) {
      thread.wake.Signal();
    } else if (thread.blocked) {
      Ring(driver_fd_);
    }
    return;
  }
  queue_.push_back(slot);
  if ((looks_soon && queue_.size() == 1) || WakeOne()) return;
  // All others compute, or one of them drives.
  if (driver_ >= 0 && threads_[driver_]->blocked) Ring(driver_fd_);
}

void WorkerLoop::LeaveLock() {
  looks_soon = false;
  mu_.Unlock();
}

void WorkerLoop::TakeLock() {
  mu_.Lock();
  looks_soon = true;
}

void WorkerLoop::RunTask(Thread* thread, Slot* slot) {
  Task task = std::exchange(slot->task, std::monostate{});
  constexpr Doing kDoing[] = {Doing::kNothing, Doing::kJob, Doing::kPreparing, Doing::kSaving,
                              Doing::kEnding};
  static_assert(std::size(kDoing) == std::variant_size_v<Task>);
  thread->doing = kDoing[task.index()];
  thread->rank = slot->rank;
  thread->since = MonotonicNow();
  const absl::Cleanup done = [thread] { thread->doing = Doing::kNothing; };
  if (auto* job = std::get_if<JobTask>(&task)) {
    thread->job = job->start.job;
    thread->rank = job->start.rank;
    return RunJobTask(std::move(*job));
  }
  if (auto* prepare = std::get_if<PrepareTask>(&task)) {
    LeaveLock();
    absl::Status status = PrepareRank(slot, *prepare);
    TakeLock();
    return TaskEnded(status, &WorkerLoop::AllPrepared);
  }
  if (auto* save = std::get_if<SaveTask>(&task)) {
    LeaveLock();
    absl::Status status = SaveRank(slot, *save);
    TakeLock();
    return TaskEnded(status, &WorkerLoop::AllSaved);
  }
  if (auto* end = std::get_if<EndTask>(&task)) {
    LeaveLock();
    end->compute.reset();
    TakeLock();
    slot->ending = false;
    return TaskEnded(absl::OkStatus(), nullptr);  // the run is forgotten
  }
}

}  // namespace weft
