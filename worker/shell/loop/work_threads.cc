#include "worker/shell/loop/work_threads.h"

#include <immintrin.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/monotonic_clock.h"
#include "base/threads.h"

namespace weft {
namespace {

constexpr int64_t kMicrosecond = 1'000, kMillisecond = 1'000'000;
constexpr int64_t kGatherTime = 10 * kMillisecond;
constexpr int64_t kShortJob = kMillisecond;
constexpr int64_t kDeviceLook = 50 * kMicrosecond;  // no descriptor tells that the device has done a job
// Time for which a driver that finds nothing and may not wait leaves the lock, behind so many such looks.
constexpr int64_t kLeave = 50 * kMicrosecond;
constexpr int kVainLooks = 64;
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

WorkThreads::WorkThreads(Mutex& mu, Host& host, bool own_threads)
    : mu_(mu),
      host_(host),
      own_threads_(own_threads),
      main_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      driver_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

WorkThreads::~WorkThreads() {
  close(main_fd_);
  close(driver_fd_);
}

absl::Status WorkThreads::Start(size_t seats) {
  AssertHeld(mu_);
  const size_t most = std::max<size_t>(kMaxThreads, std::thread::hardware_concurrency());
  const size_t wanted = own_threads_ ? seats : std::min(seats, most);
  given_.resize(std::max(given_.size(), seats), 0);
  while (threads_.size() < wanted) {
    auto thread = std::make_unique<Thread>();
    thread->index = static_cast<int>(threads_.size());
    absl::StatusOr<std::thread> started = TryStartThread([this, own = thread.get()] { ThreadMain(own); });
    if (!started.ok() && !own_threads_ && !threads_.empty()) break;
    if (!started.ok()) return started.status();
    thread->thread = *std::move(started);
    threads_.push_back(std::move(thread));
  }
  return absl::OkStatus();
}

void WorkThreads::ChooseSpin(int microseconds, size_t threads) {
  AssertHeld(mu_);
  const bool cores_for_all = threads <= std::thread::hardware_concurrency();
  spin_ns_ = (microseconds >= 0 ? microseconds : (cores_for_all ? 2000 : 20)) * kMicrosecond;
}

void WorkThreads::DriveUntilStopped() {
  AssertHeld(mu_);
  while (!stop_) {
    if (driver_ != kNobody || RanksLookOften()) {
      // A rank's thread drives, or will soon. Look again, in case it goes off to compute.
      main_wake_.WaitWithTimeout(mu_, kGatherTime);
      host_.SendGathered();
      continue;
    }
    driver_ = kMain;
    while (driver_ == kMain && !stop_ && !RanksLookOften()) {
      if (!Look() && driver_ == kMain) Block(main_fd_, &main_blocked_);
    }
    if (driver_ == kMain) driver_ = kNobody;
  }
}

void WorkThreads::Stop() {
  AssertHeld(mu_);
  stop_ = true;
  WakeAll();
}

bool WorkThreads::stopped() const {
  AssertHeld(mu_);
  return stop_;
}

// A last job may still ask for more threads meanwhile.
bool WorkThreads::Join(int64_t until) {
  AssertHeld(mu_);
  for (size_t i = 0; i < threads_.size(); ++i) {
    Thread* thread = threads_[i].get();
    while (!thread->ended && MonotonicNow() < until) main_wake_.WaitWithTimeout(mu_, kGatherTime);
    if (!thread->ended) return false;
    mu_.Unlock();
    thread->thread.join();
    mu_.Lock();
  }
  return true;
}

void WorkThreads::Detach() {
  AssertHeld(mu_);
  for (auto& thread : threads_) {
    if (thread->thread.joinable()) thread->thread.detach();
  }
}

void WorkThreads::AppendRunning(int64_t now, std::vector<RunningJob>* running) const {
  AssertHeld(mu_);
  for (const auto& thread : threads_) {
    if (thread->busy && thread->doing.job.has_value())
      running->push_back({thread->doing.rank, *thread->doing.job, now - thread->since});
  }
}

std::string WorkThreads::WhatHangs(int64_t now) const {
  AssertHeld(mu_);
  std::vector<std::string> parts;
  for (const auto& thread : threads_) {
    if (thread->ended || !thread->busy) continue;
    const Doing& doing = thread->doing;
    parts.push_back(absl::StrFormat("%s of rank %d for %.1f s",
                                    doing.job.has_value() ? Describe(*doing.job) : std::string(doing.word),
                                    doing.rank, 1e-9 * static_cast<double>(now - thread->since)));
  }
  const size_t more = parts.size() > 4 ? parts.size() - 4 : 0;
  parts.resize(parts.size() - more);
  if (more > 0) parts.push_back(absl::StrCat(more, " more"));
  return absl::StrJoin(parts, ", ");
}

void WorkThreads::Give(int seat) {
  AssertHeld(mu_);
  if (own_threads_) {
    given_[seat] = 1;
    Thread& thread = *threads_[seat];
    if (thread.waiting) {
      thread.wake.Signal();
    } else if (thread.blocked) {
      Ring(driver_fd_);
    }
    return;
  }
  queue_.push_back(seat);
  if ((looks_soon && queue_.size() == 1) || WakeOne()) return;
  // All others compute, or one of them drives.
  if (driver_ >= 0 && threads_[driver_]->blocked) Ring(driver_fd_);
}

void WorkThreads::Unlock(Mutex& mu) {
  looks_soon = false;
  mu.Unlock();
}

void WorkThreads::Lock(Mutex& mu) {
  mu.Lock();
  looks_soon = true;
}

void WorkThreads::NoteJob(int64_t now, int64_t nanoseconds) {
  AssertHeld(mu_);
  job_ns_ += (nanoseconds - job_ns_) / 8;
  last_job_end_ = now;
}

void WorkThreads::WakeAll() {
  AssertHeld(mu_);
  Ring(main_fd_);
  Ring(driver_fd_);
  for (auto& thread : threads_) thread->wake.Signal();
  main_wake_.Signal();
}

void WorkThreads::WakeForDevice() {
  AssertHeld(mu_);
  if (asleep_ == 0) return;
  Ring(main_fd_);
  Ring(driver_fd_);
}

void WorkThreads::WakeMain() {
  AssertHeld(mu_);
  if (main_blocked_) Ring(main_fd_);
}

void WorkThreads::ThreadMain(Thread* thread) {
  host_.PrepareThread();
  MutexLock lock(mu_);
  looks_soon = true;
  while (!stop_) {
    if (const int seat = TakeTask(*thread); seat >= 0) {
      DoTask(thread, seat);
      // The outputs leave, and what peers asked for meanwhile is seen, before the next job begins.
      if (!stop_ && (driver_ == kNobody || driver_ == kMain)) host_.Poll();
    } else if (driver_ == kNobody || driver_ == kMain) {
      driver_ = thread->index;
      Drive(thread);
      LeaveDriving();
    } else if (!host_.SendGathered()) {
      thread->waiting = true;
      thread->wake.Wait(mu_);
      thread->waiting = false;
    }
  }
  thread->ended = true;
  main_wake_.Signal();
}

void WorkThreads::DoTask(Thread* thread, int seat) {
  thread->doing = host_.TaskAt(seat);
  thread->since = MonotonicNow();
  thread->busy = true;
  host_.DoTask(thread->since, seat);
  thread->busy = false;
}

bool WorkThreads::HasTask(const Thread& thread) const {
  return own_threads_ ? given_[thread.index] != 0 : !queue_.empty();
}

int WorkThreads::TakeTask(const Thread& thread) {
  if (!HasTask(thread)) return -1;
  if (own_threads_) {
    given_[thread.index] = 0;
    return thread.index;
  }
  const int seat = queue_.front();
  queue_.pop_front();
  return seat;
}

void WorkThreads::Drive(Thread* thread) {
  int64_t spin_until = MonotonicNow() + spin_ns_;
  while (!stop_ && !HasTask(*thread)) {
    if (Look()) {
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

void WorkThreads::LeaveDriving() {
  driver_ = kNobody;
  WakeOne();
}

bool WorkThreads::RanksLookOften() const {
  return job_ns_ < kShortJob && MonotonicNow() - last_job_end_ < kLongestUnseen;
}

bool WorkThreads::WakeOne() {
  for (auto& thread : threads_) {
    if (!std::exchange(thread->waiting, false)) continue;
    thread->wake.Signal();
    return true;
  }
  return false;
}

bool WorkThreads::Look() {
  const bool found = host_.Poll();
  if (found) vain_looks_ = 0;
  return found;
}

// There may be something to do that only a thread that waits for the lock can do. A lock is not fair: a
// driver that leaves it for an instant, or not at all, would get it again each time.
void WorkThreads::LeaveLock() {
  constexpr timespec kTime = {0, kLeave};
  vain_looks_ = 0;
  mu_.Unlock();
  nanosleep(&kTime, nullptr);
  mu_.Lock();
}

void WorkThreads::Block(int own_fd, bool* blocked) {
  // The main thread drives while all others compute: what they gather need not go yet.
  if (driver_ == kMain ? host_.SendDue() : host_.SendGathered()) return;
  if (++vain_looks_ > kVainLooks) return LeaveLock();
  const std::optional<Wait> wait = host_.PrepareToBlock();
  if (!wait.has_value()) return;
  const int64_t exited = wait->until_ns - MonotonicNow();
  const int timeout_ms = static_cast<int>(std::max<int64_t>(1, (exited + kMillisecond - 1) / kMillisecond));
  pollfd fds[3] = {{own_fd, POLLIN, 0}, {wait->link_fd, POLLIN, 0}, {wait->transport_fd, POLLIN, 0}};
  *blocked = true;
  asleep_ += wait->for_device ? 0 : 1;
  mu_.Unlock();
  constexpr timespec kSoon = {0, kDeviceLook};
  const int ready = wait->for_device ? ppoll(fds, 3, &kSoon, nullptr) : poll(fds, 3, timeout_ms);
  mu_.Lock();
  if (ready == 0) vain_looks_ = 0;  // it has waited
  asleep_ -= wait->for_device ? 0 : 1;
  *blocked = false;
  uint64_t count;
  [[maybe_unused]] ssize_t n = read(own_fd, &count, sizeof count);
}

}  // namespace weft
