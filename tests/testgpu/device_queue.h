// Makes the test device late: one thread takes the items that a rank has enqueued, in order, and does each
// after a random moment.
//
// Kernels of the test device run at once on the thread that enqueues them (torch_operations.cc). The effects
// of lateness that the host can see run here: copies, which read and write at that moment and not before, and
// the ends of jobs. An item that fails fails all later ones of its queue, as a device does after an error.
#ifndef WEFT_TESTS_TESTGPU_DEVICE_QUEUE_H_
#define WEFT_TESTS_TESTGPU_DEVICE_QUEUE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/shell/memory/fence.h"

namespace weft::testgpu {

// Waits for any fence, by asking it again and again where it is not of this device.
absl::Status WaitFor(Fence& fence);

class DeviceEvent final : public Fence {
 public:
  absl::StatusOr<bool> Reached() override;
  // Returns the failure with which the device came here, if it has failed. Returns at once after that.
  absl::Status Wait();
  void Reach(absl::Status status);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  absl::Status status_;
};

// The progress of a queue. Outlives it, and is then at the end.
struct QueueProgress {
  std::atomic<uint64_t> enqueued{0}, done{0};
};

// The queue of one rank. Thread-safe.
class DeviceQueue {
 public:
  // Does each item up to `max_delay_us` after it was enqueued, as the seed says, or behind the one before.
  DeviceQueue(uint64_t seed, int max_delay_us);
  // Does the enqueued items first.
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  // Enqueues an item. `event` is reached, with the result, when `work` and what it holds are gone. After a
  // failure work is no longer done.
  void Enqueue(std::shared_ptr<DeviceEvent> event, std::function<absl::Status()> work);
  // Waits for all items that are enqueued now.
  absl::Status Drain();
  const std::shared_ptr<QueueProgress>& progress() const { return progress_; }

 private:
  struct Item {
    std::shared_ptr<DeviceEvent> event;
    std::function<absl::Status()> work;
    std::chrono::steady_clock::time_point due;
  };
  void Run();

  const std::shared_ptr<QueueProgress> progress_ = std::make_shared<QueueProgress>();
  const int max_delay_us_;
  absl::Status failure_;  // of the thread alone

  std::mutex mutex_;
  std::mt19937_64 random_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace weft::testgpu

#endif  // WEFT_TESTS_TESTGPU_DEVICE_QUEUE_H_
