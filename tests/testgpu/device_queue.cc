#include "tests/testgpu/device_queue.h"

#include <chrono>
#include <utility>

namespace weft::testgpu {

absl::Status WaitFor(Fence& fence) {
  if (auto* event = dynamic_cast<DeviceEvent*>(&fence); event != nullptr) return event->Wait();
  for (;;) {
    const absl::StatusOr<bool> reached = fence.Reached();
    if (!reached.ok()) return reached.status();
    if (*reached) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

absl::StatusOr<bool> DeviceEvent::Reached() {
  std::lock_guard lock(mutex_);
  if (!status_.ok()) return status_;
  return reached_;
}

absl::Status DeviceEvent::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return reached_; });
  return status_;
}

void DeviceEvent::Reach(absl::Status status) {
  std::lock_guard lock(mutex_);
  reached_ = true;
  status_ = std::move(status);
  changed_.notify_all();
}

DeviceQueue::DeviceQueue(uint64_t seed, int max_delay_us)
    : max_delay_us_(max_delay_us), random_(seed), thread_([this] { Run(); }) {}

DeviceQueue::~DeviceQueue() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void DeviceQueue::Enqueue(std::shared_ptr<DeviceEvent> event, std::function<absl::Status()> work) {
  std::lock_guard lock(mutex_);
  ++progress_->enqueued;
  const auto delay = std::chrono::microseconds(random_() % static_cast<uint64_t>(max_delay_us_ + 1));
  items_.push_back({std::move(event), std::move(work), std::chrono::steady_clock::now() + delay});
  changed_.notify_all();
}

absl::Status DeviceQueue::Drain() {
  auto event = std::make_shared<DeviceEvent>();
  Enqueue(event, [] { return absl::OkStatus(); });
  return event->Wait();
}

void DeviceQueue::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !items_.empty(); });
    if (items_.empty()) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    if (max_delay_us_ > 0) std::this_thread::sleep_until(item.due);
    if (failure_.ok()) failure_ = item.work();
    item.work = nullptr;
    ++progress_->done;
    item.event->Reach(failure_);
    lock.lock();
  }
}

}  // namespace weft::testgpu
