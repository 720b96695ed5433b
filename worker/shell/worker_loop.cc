#include "worker/shell/worker_loop.h"

#include <immintrin.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "proto/session/gather.h"
#include "worker/shell/run_shape.h"

namespace weft {
namespace {

constexpr int64_t kMicrosecond = 1'000, kMillisecond = 1'000'000;
constexpr int64_t kGatherTime = 10 * kMillisecond;
constexpr int64_t kShortJob = kMillisecond;
constexpr int64_t kDeviceLook = 50 * kMicrosecond;    // no descriptor tells that the device has done a job
constexpr int64_t kLongestUnseen = 5 * kMillisecond;  // without a look at messages, though jobs are short

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
      core_(ParseRunShape, device.launch_ahead()) {}

WorkerLoop::~WorkerLoop() {
  close(main_fd_);
  close(driver_fd_);
}

void WorkerLoop::Stop() {
  MutexLock lock(mu_);
  stop_ = true;
  WakeAll();
}

bool WorkerLoop::device_hangs() {
  MutexLock lock(mu_);
  return device_hangs_;
}

void WorkerLoop::WakeAll() {
  Ring(main_fd_);
  Ring(driver_fd_);
  for (auto& slot : slots_) slot->wake.Signal();
  main_wake_.Signal();
}

absl::Status WorkerLoop::Run() {
  device_.PrepareThread();
  DriveUntilStopped();
  JoinRanks();
  if (!device_hangs()) AwaitDevice();
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

// A rank's last job may still seat the ranks of a next run. The host's own jobs end; a device that hangs may
// hold a thread that gives it more work for ever.
void WorkerLoop::JoinRanks() {
  const int64_t until = MonotonicNow() + options_.device_grace_ns;
  for (size_t i = 0;; ++i) {
    Slot* slot = nullptr;
    {
      MutexLock lock(mu_);
      if (i == slots_.size()) return;
      slot = slots_[i].get();
      while (device_.launch_ahead() > 1 && !slot->left && MonotonicNow() < until)
        main_wake_.WaitWithTimeout(mu_, kGatherTime);
      if (device_.launch_ahead() > 1 && !slot->left) return LeaveDevice();
    }
    slot->thread.join();
  }
}

bool WorkerLoop::RanksLookOften() const {
  return job_ns_ < kShortJob && MonotonicNow() - last_job_end_ < kLongestUnseen;
}

void WorkerLoop::RankMain(Slot* slot) {
  device_.PrepareThread();
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
  slot->left = true;
  main_wake_.Signal();
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
  if (core_.has_run() && now >= next_report_) {
    next_report_ = now + options_.report_interval_ns;
    Send(Report{core_.run_id(), Reports(now)});
  }
  return worked;
}

void WorkerLoop::Give(Slot* slot, Task task) {
  slot->task = std::move(task);
  if (slot->waiting) {
    slot->wake.Signal();
  } else if (slot->blocked) {
    Ring(driver_fd_);
  }
}

void WorkerLoop::RunTask(Slot* slot) {
  Task task = std::exchange(slot->task, std::monostate{});
  if (auto* job = std::get_if<JobTask>(&task)) return RunJobTask(std::move(*job));
  if (auto* prepare = std::get_if<PrepareTask>(&task)) {
    mu_.Unlock();
    absl::Status status = PrepareRank(slot, *prepare);
    mu_.Lock();
    return TaskEnded(status, &WorkerLoop::AllPrepared);
  }
  if (auto* save = std::get_if<SaveTask>(&task)) {
    mu_.Unlock();
    absl::Status status = SaveRank(slot, *save);
    mu_.Lock();
    return TaskEnded(status, &WorkerLoop::AllSaved);
  }
  if (auto* end = std::get_if<EndTask>(&task)) {
    mu_.Unlock();
    end->compute.reset();
    mu_.Lock();
    slot->ending = false;
    return TaskEnded(absl::OkStatus(), nullptr);  // the run is forgotten
  }
}

}  // namespace weft
