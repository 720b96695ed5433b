#include "tests/unit/device_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/shell/loop/job_runner.h"

namespace weft {

absl::StatusOr<bool> DeviceQueue::Work::Reached() {
  MutexLock lock(queue_->mu_);
  if (!status_.ok()) return status_;
  return done_;
}

LaunchedJob::Figures DeviceQueue::Work::figures() {
  MutexLock lock(queue_->mu_);
  if (!done_) queue_->problem_ = "figures of work that is not done";
  return figures_;
}

DeviceQueue::~DeviceQueue() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<DeviceQueue::Work> DeviceQueue::Give(Order order) {
  auto work = std::make_shared<Work>();
  work->queue_ = this;
  work->rank_ = order.rank;
  work->job_ = order.job;
  work->actions_ = std::move(order.actions);
  work->after_ = std::move(order.after);
  work->kept_ = std::move(order.kept);
  work->figures_.loss = order.loss;
  MutexLock lock(mu_);
  works_.push_back(work);
  const auto ahead = std::count_if(works_.begin(), works_.end(), [&](const std::shared_ptr<Work>& w) {
    return w->rank_ == order.rank && w->job_.has_value();
  });
  max_ahead_ = std::max(max_ahead_, static_cast<int>(ahead));
  changed_.SignalAll();
  return work;
}

std::vector<std::shared_ptr<DeviceQueue::Work>> DeviceQueue::Unfinished(Rank rank) {
  MutexLock lock(mu_);
  std::vector<std::shared_ptr<Work>> works;
  for (const std::shared_ptr<Work>& work : works_) {
    if (work->rank_ == rank) works.push_back(work);
  }
  return works;
}

std::shared_ptr<DeviceQueue::Work> DeviceQueue::Next(Random* random) {
  if (hangs_) return nullptr;
  std::vector<std::shared_ptr<Work>> can;
  for (const std::shared_ptr<Work>& work : works_) {
    const bool ready = std::all_of(work->after_.begin(), work->after_.end(),
                                   [](const std::shared_ptr<Work>& w) { return w->done_; });
    if (!work->begun_ && ready) can.push_back(work);
  }
  if (can.empty()) return nullptr;
  std::shared_ptr<Work> next =
      can[random == nullptr ? 0 : static_cast<size_t>(random->Below(static_cast<int64_t>(can.size())))];
  if (next->job_.has_value() && hang_at_ == next->job_) {
    hangs_ = true;
    return nullptr;
  }
  if (next->job_.has_value() && fail_at_ == next->job_) failed_ = true;
  next->begun_ = true;
  return next;
}

void DeviceQueue::Do(Work& work) {
  const int64_t start = MonotonicNow();
  bool failed;
  {
    MutexLock lock(mu_);
    failed = failed_;
  }
  if (!failed) {
    for (const auto& action : work.actions_) action();
  }
  // The kept tensors go when the lock is free.
  std::vector<Tensor> kept;
  MutexLock lock(mu_);
  if (failed) work.status_ = absl::InternalError("an illegal address");
  work.done_ = true;
  work.figures_.start_ns = start;
  work.figures_.end_ns = MonotonicNow();
  work.actions_.clear();
  work.after_.clear();
  kept.swap(work.kept_);
  works_.erase(std::find_if(works_.begin(), works_.end(),
                            [&](const std::shared_ptr<Work>& w) { return w.get() == &work; }));
}

bool DeviceQueue::RunOne() {
  std::shared_ptr<Work> work;
  {
    MutexLock lock(mu_);
    work = Next(nullptr);
  }
  if (work == nullptr) return false;
  Do(*work);
  return true;
}

void DeviceQueue::Run(uint64_t seed) { thread_ = std::thread(&DeviceQueue::Main, this, seed); }

void DeviceQueue::Main(uint64_t seed) {
  Random random(seed);
  while (true) {
    std::shared_ptr<Work> work;
    {
      MutexLock lock(mu_);
      while (!stop_ && (work = Next(&random)) == nullptr) changed_.WaitWithTimeout(mu_, 1'000'000);
      if (stop_) return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.Below(random.Chance(0.1) ? 2000 : 100)));
    Do(*work);
  }
}

void DeviceQueue::FailAt(const Job& job) {
  MutexLock lock(mu_);
  fail_at_ = job;
}

void DeviceQueue::HangAt(const Job& job) {
  MutexLock lock(mu_);
  hang_at_ = job;
}

bool DeviceQueue::hangs() {
  MutexLock lock(mu_);
  return hangs_;
}

Tensor DeviceQueue::NewTensor(MemoryPlace place, int values) {
  auto memory = std::make_shared<std::vector<Value>>(values, kPoison);
  Tensor tensor;
  tensor.shape = {DataType::kFloat32, 1, {2 * values}};
  tensor.data = memory->data();
  tensor.bytes = values * sizeof(Value);
  tensor.place = place;
  Value* const data = memory->data();
  tensor.owner = std::shared_ptr<void>(data, [to = given_up_, memory = std::move(memory)](void*) {
    MutexLock lock(to->mu);
    std::fill(memory->begin(), memory->end(), kPoison);
    to->memory.push_back(memory);
  });
  return tensor;
}

Value DeviceQueue::Read(const void* data) {
  const Value value = *static_cast<const Value*>(data);
  if (value == kPoison) Problem("memory was read before it was there, or after it was given up");
  return value;
}

void DeviceQueue::Problem(const std::string& what) {
  MutexLock lock(mu_);
  if (problem_.empty()) problem_ = what;
}

std::string DeviceQueue::problem() {
  MutexLock lock(mu_);
  return problem_;
}

int DeviceQueue::max_ahead() {
  MutexLock lock(mu_);
  return max_ahead_;
}

}  // namespace weft
