#include "worker/shell/loop/validator.h"

#include <sys/resource.h>

#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/monotonic_clock.h"
#include "base/mutex.h"
#include "base/threads.h"

namespace weft {
namespace {

constexpr int64_t kLongestValidatorEnd = 10'000'000'000;
constexpr int64_t kReportInterval = 1'000'000'000;
constexpr int kNice = 10;  // jobs of ranks go before, about nine to one on a core that both want

Validation ValidationOf(uint64_t run, int step, const Evaluation& evaluation) {
  return {run, step, evaluation.samples, evaluation.all_samples, evaluation.loss(), evaluation.metrics(), ""};
}

}  // namespace

struct Validator::State {
  struct Task {
    uint64_t run = 0;
    int step = 0;
    Work work;
    std::function<void()> after;  // instead of it
  };

  explicit State(std::function<void(const Validation&)> r) : report(std::move(r)) {}

  const std::function<void(const Validation&)> report;
  Mutex mutex;
  CondVar changed ABSL_GUARDED_BY(mutex);
  std::deque<Task> tasks ABSL_GUARDED_BY(mutex);
  uint64_t cancelled ABSL_GUARDED_BY(mutex) = 0;  // how often
  bool stop ABSL_GUARDED_BY(mutex) = false;
  bool exited ABSL_GUARDED_BY(mutex) = false;  // the thread, for good
  std::thread thread ABSL_GUARDED_BY(mutex);

  void Add(std::shared_ptr<State> self, Task task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Work();
  void Run(const Task& task, uint64_t cancels) ABSL_LOCKS_EXCLUDED(mutex);
  bool IsOver(uint64_t cancels) ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(mutex);
    return cancelled != cancels;
  }
};

void Validator::State::Add(std::shared_ptr<State> self, Task task) {
  tasks.push_back(std::move(task));
  if (!thread.joinable() && !stop) thread = StartThread([self = std::move(self)] { self->Work(); });
  changed.Signal();
}

void Validator::State::Work() {
  setpriority(PRIO_PROCESS, 0, kNice);  // of this thread alone
  MutexLock lock(mutex);
  while (!stop) {
    if (tasks.empty()) {
      changed.Wait(mutex);
      continue;
    }
    const Task task = std::move(tasks.front());
    tasks.pop_front();
    const uint64_t cancels = cancelled;
    mutex.Unlock();
    task.after ? task.after() : Run(task, cancels);
    mutex.Lock();
  }
  exited = true;
  changed.Signal();
}

void Validator::State::Run(const Task& task, uint64_t cancels) {
  int64_t reported = MonotonicNow();
  const absl::StatusOr<Evaluation> result = task.work([&](const Evaluation& so_far) {
    if (IsOver(cancels)) return false;
    const int64_t now = MonotonicNow();
    if (so_far.samples < so_far.all_samples && now - reported >= kReportInterval) {
      reported = now;
      report(ValidationOf(task.run, task.step, so_far));
    }
    return true;
  });
  if (IsOver(cancels)) return;
  Validation last{task.run, task.step};
  if (result.ok()) last = ValidationOf(task.run, task.step, *result);
  last.failure = std::string(result.status().message());
  report(last);
}

Validator::Validator(std::function<void(const Validation&)> report)
    : state_(std::make_shared<State>(std::move(report))) {}

Validator::~Validator() {
  State& s = *state_;
  std::thread thread;
  {
    MutexLock lock(s.mutex);
    s.stop = true;
    ++s.cancelled;
    s.tasks.clear();
    s.changed.Signal();
    if (!s.thread.joinable()) return;
    const int64_t until = MonotonicNow() + kLongestValidatorEnd;
    while (!s.exited && MonotonicNow() < until) s.changed.WaitWithTimeout(s.mutex, until - MonotonicNow());
    thread = std::move(s.thread);
    if (!s.exited) {
      thread.detach();
      return;
    }
  }
  thread.join();
}

void Validator::Begin(uint64_t run, int step, Work work) {
  MutexLock lock(state_->mutex);
  state_->Add(state_, {run, step, std::move(work), nullptr});
}

void Validator::Cancel(std::function<void()> after) {
  MutexLock lock(state_->mutex);
  state_->tasks.clear();
  ++state_->cancelled;
  state_->Add(state_, {0, 0, nullptr, std::move(after)});
}

}  // namespace weft
