#include "worker/shell/loop/worker_loop.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/monotonic_clock.h"

namespace weft {
namespace {

absl::Status NotEnded(const std::string& what) {
  return absl::DeadlineExceededError(
      absl::StrCat("it was told to stop, and some of its work has not come to an end: ", what));
}

}  // namespace

WorkerLoop::WorkerLoop(WorkerLoopOptions options, Device& device, Transport& transport, CoordinatorLink& link)
    : options_(std::move(options)),
      device_(device),
      transport_(transport),
      link_(link),
      events_(options_.flight_ring, options_.stalled),
      threads_(mu_, *this, /*own_threads=*/device.launch_ahead() > 1),
      outbox_(link, options_.gather_ns),
      runner_(options_, device, transport, mu_, threads_, outbox_, events_) {}

WorkerLoop::~WorkerLoop() = default;

void WorkerLoop::Stop() {
  MutexLock lock(mu_);
  threads_.Stop();
}

void WorkerLoop::StopWith(absl::Status status) {
  status_ = std::move(status);
  threads_.Stop();
}

bool WorkerLoop::hangs() {
  MutexLock lock(mu_);
  return hangs_;
}

absl::Status WorkerLoop::Run() {
  device_.PrepareThread();
  {
    MutexLock lock(mu_);
    threads_.DriveUntilStopped();
  }
  JoinThreads();
  if (!hangs()) AwaitDevice();
  MutexLock lock(mu_);
  return status_;
}

// Joins the threads. A device that hangs may hold a thread that gives it more work for ever; so may a file,
// or a job that takes its time.
void WorkerLoop::JoinThreads() {
  const bool ahead = device_.launch_ahead() > 1;
  const int64_t until = MonotonicNow() + (ahead ? options_.device_grace_ns : options_.stop_grace_ns);
  {
    MutexLock lock(mu_);
    if (!threads_.Join(until)) return LeaveBehind();
  }
  if (runner_.EndSnapshots(until)) return;
  MutexLock lock(mu_);
  if (status_.ok()) status_ = NotEnded("writing a checkpoint");
  LeaveBehind();
}

void WorkerLoop::AwaitDevice() {
  MutexLock lock(mu_);
  while (runner_.DeviceWorks()) {
    runner_.PollDevice();
    if (!runner_.DeviceWorks() || !runner_.AwaitsDevice(MonotonicNow())) break;
    mu_.Unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    mu_.Lock();
  }
  if (runner_.DeviceWorks()) LeaveBehind();
}

void WorkerLoop::LeaveBehind() {
  hangs_ = true;
  const int64_t now = MonotonicNow();
  if (status_.ok())
    status_ = runner_.DeviceWorks() ? runner_.DeviceNotDone(now) : NotEnded(threads_.WhatHangs(now));
  threads_.Detach();
  // The device may still write into all that the run has: none of it can be given back while the process
  // lives.
  runner_.LeaveBehind();
}

std::string WorkerLoop::Stall() const {
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t looked = looked_ns_, unseen = MonotonicNow() - looked;
  if (looked == 0 || unseen <= 30 * kSecond) return "";
  return absl::StrCat("the worker has taken no messages for ", unseen / kSecond, " s");
}

std::string WorkerLoop::Problem() {
  if (std::string stall = Stall(); !stall.empty()) return stall;
  MutexLock lock(mu_);
  return std::string(transport_.health().message());
}

WorkerSnapshot WorkerLoop::Snapshot() {
  MutexLock lock(mu_);
  WorkerSnapshot s = runner_.Figures(MonotonicNow());
  s.transport = transport_.counters();
  s.paths = transport_.paths();
  s.bytes_held = transport_.bytes_held();
  s.silent_links = transport_.silent_links();
  return s;
}

WorkThreads::Doing WorkerLoop::TaskAt(int seat) { return runner_.TaskAt(seat); }

void WorkerLoop::DoTask(int64_t now, int seat) {
  const WorkThreads::Doing doing = runner_.TaskAt(seat);
  events_.TaskBegins(now, doing);
  runner_.DoTask(seat);
  if (!doing.job.has_value()) events_.PartEnds(MonotonicNow(), doing);
}

bool WorkerLoop::SendGathered() {
  AssertHeld(mu_);
  return outbox_.SendGathered(mu_);
}

bool WorkerLoop::SendDue() {
  AssertHeld(mu_);
  return outbox_.due_ns() <= MonotonicNow() && outbox_.SendGathered(mu_);
}

std::optional<WorkThreads::Wait> WorkerLoop::PrepareToBlock() {
  AssertHeld(mu_);
  if (!transport_.Arm()) return std::nullopt;
  link_.Arm();
  const int64_t now = MonotonicNow();
  int64_t until = std::min({transport_.next_look(), now + options_.look_interval_ns, runner_.next_look()});
  until = std::min(until, outbox_.due_ns());
  // Completions may come while the thread is blocked.
  if (runner_.core().has_run()) until = std::min(until, now + options_.gather_ns);
  return WorkThreads::Wait{link_.event_fd(), transport_.event_fd(), until, runner_.LooksOften()};
}

bool WorkerLoop::Poll() {
  AssertHeld(mu_);
  looked_ns_ = MonotonicNow();
  messages_.clear();
  const int64_t now = MonotonicNow();
  const bool alive = runner_.core().AwaitsGrants() ? link_.Await(&messages_) : link_.Drain(&messages_);
  if (!alive && !threads_.stopped()) {
    // A thread still sends to the lost session, and needs the lock to end that. Then look again: another
    // thread may have renewed the session meanwhile.
    if (outbox_.AwaitSent(mu_)) return true;
    if (!Renew(now)) StopWith(link_.status());
    return true;
  }
  bool worked = !messages_.empty();
  for (const FromCoordinator& message : messages_) {
    events_.Received(now, message);
    runner_.OnMessage(now, message);
  }
  worked |= runner_.PollDevice();
  worked |= runner_.PollTransport(now);
  worked |= runner_.PollCommunicators(now);
  worked |= runner_.PollTaken(now);
  CheckTimes(now);
  return worked;
}

bool WorkerLoop::Renew(int64_t now) {
  absl::Status lost = link_.status();
  if (!absl::IsAborted(lost)) return false;
  outbox_.Clear();
  if (!link_.Renew(runner_.core().has_to_tell())) return false;
  runner_.Return(now);
  return true;
}

void WorkerLoop::CheckTimes(int64_t now) {
  if (absl::Status lost = runner_.CheckEnds(now); !lost.ok() && !threads_.stopped())
    StopWith(std::move(lost));
  runner_.ForgetIfIdle(now);
  runner_.SendReportIfDue(now);
  if (runner_.TakeFailedRun()) next_health_ = 0;
  if (!runner_.core().has_run() && now >= next_health_) CheckHealth(now);
}

// Ends a process that others cannot reach any more, or whose device is lost to it: it is of use to no run,
// and another one in its place is.
void WorkerLoop::CheckHealth(int64_t now) {
  next_health_ = now + options_.health_interval_ns;
  absl::Status health = transport_.health();
  if (health.ok() && runner_.TakeFailure()) health = device_.Health();
  if (!health.ok() && !threads_.stopped()) StopWith(std::move(health));
}

}  // namespace weft
