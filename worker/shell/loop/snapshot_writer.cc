#include "worker/shell/loop/snapshot_writer.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/monotonic_clock.h"
#include "base/mutex.h"
#include "base/threads.h"

namespace weft {
namespace {

constexpr int64_t kLongestWrite = 3'000'000'000;
constexpr size_t kThreads = 2;
constexpr auto kLook = std::chrono::microseconds(200);

}  // namespace

struct SnapshotWriter::State {
  using Key = std::pair<uint64_t, int>;  // run and step
  struct Expected {
    int pieces = 0;  // to be written
    Place place;
    int writing = 0;
    std::string failure = {};  // the first one
  };
  struct Task {
    Key key;
    absl::StatusOr<std::shared_ptr<const StageSnapshot>> piece;
    std::function<absl::Status()> seal = nullptr;  // instead of a piece
    std::function<void()> prepare = nullptr;       // instead of both
  };

  State(std::function<void(const Done&)> d, std::function<void()> begin)
      : done(std::move(d)), begin_thread(std::move(begin)) {}

  const std::function<void(const Done&)> done;
  const std::function<void()> begin_thread;  // may be null
  mutable Mutex mutex;
  CondVar changed ABSL_GUARDED_BY(mutex);
  std::map<Key, Expected> expected ABSL_GUARDED_BY(mutex);
  std::deque<Task> tasks ABSL_GUARDED_BY(mutex);
  size_t writing ABSL_GUARDED_BY(mutex) = 0;      // threads that do a task
  uint64_t cancelled ABSL_GUARDED_BY(mutex) = 0;  // how often
  bool stop ABSL_GUARDED_BY(mutex) = false;
  size_t exited ABSL_GUARDED_BY(mutex) = 0;  // threads that are over
  std::vector<std::thread> threads ABSL_GUARDED_BY(mutex);

  void Add(std::shared_ptr<State> self, Task task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Work();
  absl::Status WritePiece(const Task& task, const Place& place, uint64_t cancels);
  void Run(Task task);
  // Notes that a piece has been written. Returns true with the last one of its step, and with the last that
  // was begun before one failed: then nothing more comes into the folder.
  bool Written(const absl::Status& status, const Key& key, std::string* failure)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

void SnapshotWriter::State::Add(std::shared_ptr<State> self, Task task) {
  if (stop) return;
  tasks.push_back(std::move(task));
  const size_t busy = writing + tasks.size();
  if (threads.size() < std::min(busy, kThreads))
    threads.push_back(StartThread([self = std::move(self)] { self->Work(); }));
  changed.SignalAll();
}

void SnapshotWriter::State::Work() {
  if (begin_thread) begin_thread();
  MutexLock lock(mutex);
  while (!stop) {
    if (tasks.empty()) {
      changed.Wait(mutex);
      continue;
    }
    Task task = std::move(tasks.front());
    tasks.pop_front();
    ++writing;
    mutex.Unlock();
    Run(std::move(task));
    mutex.Lock();
    --writing;
  }
  ++exited;
  changed.SignalAll();
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

bool SnapshotWriter::State::Written(const absl::Status& status, const Key& key, std::string* failure) {
  const auto found = expected.find(key);
  Expected& of_step = found->second;
  --of_step.writing;
  --of_step.pieces;
  if (!status.ok() && of_step.failure.empty()) of_step.failure = std::string(status.message());
  if (of_step.writing > 0 || (of_step.failure.empty() && of_step.pieces > 0)) return false;
  *failure = of_step.failure;
  expected.erase(found);
  return true;
}

void SnapshotWriter::State::Run(Task task) {
  if (task.prepare != nullptr) return task.prepare();
  Done report{task.key.first, task.key.second, task.seal != nullptr, ""};
  Place place;
  uint64_t cancels = 0;
  {
    MutexLock lock(mutex);
    cancels = cancelled;
    if (!report.sealed) {
      const auto found = expected.find(task.key);
      if (found == expected.end() || !found->second.failure.empty()) return;  // it has failed
      ++found->second.writing;
      place = found->second.place;
    }
  }
  const absl::Status status = report.sealed ? task.seal() : WritePiece(task, place, cancels);
  task.piece = std::shared_ptr<const StageSnapshot>();  // its memory
  {
    MutexLock lock(mutex);
    if (cancelled != cancels) return;
    if (!report.sealed && !Written(status, task.key, &report.failure)) return;
  }
  if (report.sealed) report.failure = std::string(status.message());
  done(report);
}

SnapshotWriter::SnapshotWriter(std::function<void(const Done&)> done, std::function<void()> begin_thread)
    : state_(std::make_shared<State>(std::move(done), std::move(begin_thread))) {}

SnapshotWriter::~SnapshotWriter() { End(MonotonicNow() + kLongestWrite); }

bool SnapshotWriter::End(int64_t until) {
  State& s = *state_;
  std::vector<std::thread> threads;
  bool all = false;
  {
    MutexLock lock(s.mutex);
    s.stop = true;
    ++s.cancelled;
    s.tasks.clear();
    s.changed.SignalAll();
    while (s.exited < s.threads.size() && MonotonicNow() < until)
      s.changed.WaitWithTimeout(s.mutex, until - MonotonicNow());
    threads.swap(s.threads);
    all = s.exited == threads.size();
    s.exited = 0;
  }
  for (std::thread& thread : threads) all ? thread.join() : thread.detach();
  return all;
}

void SnapshotWriter::Expect(uint64_t run, int step, int pieces, Place place) {
  MutexLock lock(state_->mutex);
  state_->expected[{run, step}] = {pieces, std::move(place), 0, {}};
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

void SnapshotWriter::Prepare(std::function<void()> work) {
  MutexLock lock(state_->mutex);
  state_->Add(state_, {{}, std::shared_ptr<const StageSnapshot>(), nullptr, std::move(work)});
}

void SnapshotWriter::Cancel() {
  MutexLock lock(state_->mutex);
  state_->tasks.clear();
  state_->expected.clear();
  ++state_->cancelled;
}

bool SnapshotWriter::idle() const {
  MutexLock lock(state_->mutex);
  return state_->writing == 0;
}

}  // namespace weft
