#include "worker/shell/loop/snapshot_writer.h"

#include <chrono>
#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/monotonic_clock.h"
#include "base/mutex.h"
#include "base/threads.h"

namespace weft {
namespace {

constexpr int64_t kLongestWrite = 3'000'000'000;
constexpr auto kLook = std::chrono::microseconds(200);

}  // namespace

struct SnapshotWriter::State {
  using Key = std::pair<uint64_t, int>;  // run and step
  struct Expected {
    int pieces = 0;
    Place place;
  };
  struct Task {
    Key key;
    absl::StatusOr<std::shared_ptr<const StageSnapshot>> piece;
    std::function<absl::Status()> seal;  // instead of a piece
  };

  explicit State(std::function<void(const Done&)> d) : done(std::move(d)) {}

  const std::function<void(const Done&)> done;
  mutable Mutex mutex;
  CondVar changed ABSL_GUARDED_BY(mutex);
  std::map<Key, Expected> expected ABSL_GUARDED_BY(mutex);
  std::deque<Task> tasks ABSL_GUARDED_BY(mutex);
  bool writing ABSL_GUARDED_BY(mutex) = false;
  uint64_t cancelled ABSL_GUARDED_BY(mutex) = 0;  // how often
  bool stop ABSL_GUARDED_BY(mutex) = false;
  bool exited ABSL_GUARDED_BY(mutex) = false;  // the thread, for good
  std::thread thread ABSL_GUARDED_BY(mutex);

  void Add(std::shared_ptr<State> self, Task task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Work();
  absl::Status WritePiece(const Task& task, const Place& place, uint64_t cancels);
  void Run(Task task);
};

void SnapshotWriter::State::Add(std::shared_ptr<State> self, Task task) {
  tasks.push_back(std::move(task));
  if (!thread.joinable() && !stop) thread = StartThread([self = std::move(self)] { self->Work(); });
  changed.Signal();
}

void SnapshotWriter::State::Work() {
  MutexLock lock(mutex);
  while (!stop) {
    if (tasks.empty()) {
      changed.Wait(mutex);
      continue;
    }
    Task task = std::move(tasks.front());
    tasks.pop_front();
    writing = true;
    mutex.Unlock();
    Run(std::move(task));
    mutex.Lock();
    writing = false;
    changed.Signal();
  }
  exited = true;
  changed.Signal();
}

// A device may still have to copy it.
absl::Status SnapshotWriter::State::WritePiece(const Task& task, const Place& place, uint64_t cancels) {
  if (!task.piece.ok()) return task.piece.status();
  while (true) {
    const absl::StatusOr<bool> there = IsThere(**task.piece);
    if (!there.ok()) return there.status();
    if (*there) return place(**task.piece);
    {
      MutexLock lock(mutex);
      if (stop || cancelled != cancels) return absl::CancelledError("its run is over");
    }
    std::this_thread::sleep_for(kLook);
  }
}

void SnapshotWriter::State::Run(Task task) {
  Done report{task.key.first, task.key.second, task.seal != nullptr, ""};
  Place place;
  uint64_t cancels = 0;
  {
    MutexLock lock(mutex);
    cancels = cancelled;
    const auto found = expected.find(task.key);
    if (task.seal == nullptr && found == expected.end()) return;  // it has failed
    if (found != expected.end()) place = found->second.place;
  }
  const absl::Status status = task.seal != nullptr ? task.seal() : WritePiece(task, place, cancels);
  task.piece = std::shared_ptr<const StageSnapshot>();  // its memory
  {
    MutexLock lock(mutex);
    if (cancelled != cancels) return;
    const Key key(report.run, report.step);
    if (!report.sealed) {
      Expected& remaining = expected[key];
      if (status.ok() && --remaining.pieces > 0) return;
      expected.erase(key);
    }
  }
  report.failure = std::string(status.message());
  done(report);
}

SnapshotWriter::SnapshotWriter(std::function<void(const Done&)> done)
    : state_(std::make_shared<State>(std::move(done))) {}

SnapshotWriter::~SnapshotWriter() { End(MonotonicNow() + kLongestWrite); }

bool SnapshotWriter::End(int64_t until) {
  State& s = *state_;
  std::thread thread;
  {
    MutexLock lock(s.mutex);
    s.stop = true;
    ++s.cancelled;
    s.tasks.clear();
    s.changed.Signal();
    if (!s.thread.joinable()) return true;
    while (!s.exited && MonotonicNow() < until) s.changed.WaitWithTimeout(s.mutex, until - MonotonicNow());
    thread = std::move(s.thread);
    if (!s.exited) {
      thread.detach();
      return false;
    }
  }
  thread.join();
  return true;
}

void SnapshotWriter::Expect(uint64_t run, int step, int pieces, Place place) {
  MutexLock lock(state_->mutex);
  state_->expected[{run, step}] = {pieces, std::move(place)};
}

void SnapshotWriter::Write(uint64_t run, int step,
                           absl::StatusOr<std::shared_ptr<const StageSnapshot>> piece) {
  MutexLock lock(state_->mutex);
  if (state_->expected.count({run, step}) == 0) return;
  state_->Add(state_, {{run, step}, std::move(piece), nullptr});
}

void SnapshotWriter::Seal(uint64_t run, int step, std::function<absl::Status()> work) {
  MutexLock lock(state_->mutex);
  state_->Add(state_, {{run, step}, std::shared_ptr<const StageSnapshot>(), std::move(work)});
}

void SnapshotWriter::Cancel() {
  MutexLock lock(state_->mutex);
  state_->tasks.clear();
  state_->expected.clear();
  ++state_->cancelled;
}

bool SnapshotWriter::idle() const {
  MutexLock lock(state_->mutex);
  return !state_->writing;
}

}  // namespace weft
