// Does the work of a made-up device of one process: later than it is given, in any order that its fences
// allow, on memory that nobody else may touch before.
//
// Memory holds the numbers of tests/simulation/world_values.h. Until the work that makes them has been done,
// and after their last owner has gone, they are poison: a reader that comes too early, or too late, computes
// nonsense and is reported. Work is done by a thread after chance delays, or one by one when the test says.
// Thread-safe.
#ifndef WEFT_TESTS_UNIT_DEVICE_QUEUE_H_
#define WEFT_TESTS_UNIT_DEVICE_QUEUE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "tests/simulation/world_random.h"
#include "tests/simulation/world_values.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/memory/tensor.h"

namespace weft {

class DeviceQueue {
 public:
  class Work final : public LaunchedJob {
   public:
    absl::StatusOr<bool> Reached() override;
    Figures figures() override;

   private:
    friend class DeviceQueue;
    DeviceQueue* queue_ = nullptr;
    Rank rank_ = -1;
    std::optional<Job> job_;  // none: a copy
    std::vector<std::function<void()>> actions_;
    std::vector<std::shared_ptr<Work>> after_;
    std::vector<Tensor> kept_;
    Figures figures_;
    absl::Status status_;
    bool begun_ = false, done_ = false;
  };
  // An order to the device.
  struct Order {
    Rank rank = -1;
    std::optional<Job> job;
    std::vector<std::function<void()>> actions;
    std::vector<std::shared_ptr<Work>> after;
    std::vector<Tensor> kept;  // until it is done
    std::optional<double> loss;
  };

  ~DeviceQueue();

  std::shared_ptr<Work> Give(Order order);
  // Returns the work that the rank has been given and is not done.
  std::vector<std::shared_ptr<Work>> Unfinished(Rank rank);

  // Does the work on a thread of its own, from now on.
  void Run(uint64_t seed);
  // Does the oldest work that may be done; returns false if there is none.
  bool RunOne();
  // Makes this job, and everything after it, fail instead.
  void FailAt(const Job& job);
  // Makes the device do nothing more from this job on, for ever.
  void HangAt(const Job& job);
  bool hangs();

  // Makes a tensor of `values` numbers, of which its own is the first of each 8.
  Tensor NewTensor(MemoryPlace place, int values = 8);
  Value Read(const void* data);
  static void Write(void* data, Value value) { *static_cast<Value*>(data) = value; }
  // Describes an access that came too early or too late; empty if there was none.
  std::string problem();
  void Problem(const std::string& what);
  // Returns the most jobs of one rank that were given and not done.
  int max_ahead();

 private:
  static constexpr Value kPoison = 0xdeaddeaddeaddead;

  std::shared_ptr<Work> Next(Random* random) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Do(Work& work) ABSL_LOCKS_EXCLUDED(mu_);
  void Main(uint64_t seed);

  // Memory that nobody owns any more; some may be given up after the queue has gone.
  struct GivenUp {
    Mutex mu;
    std::vector<std::shared_ptr<std::vector<Value>>> memory ABSL_GUARDED_BY(mu);
  };
  const std::shared_ptr<GivenUp> given_up_ = std::make_shared<GivenUp>();

  Mutex mu_;
  CondVar changed_;
  std::vector<std::shared_ptr<Work>> works_ ABSL_GUARDED_BY(mu_);  // work not done, in the order of Give
  std::optional<Job> fail_at_ ABSL_GUARDED_BY(mu_), hang_at_ ABSL_GUARDED_BY(mu_);
  bool failed_ ABSL_GUARDED_BY(mu_) = false, hangs_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  int max_ahead_ ABSL_GUARDED_BY(mu_) = 0;
  std::string problem_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_TESTS_UNIT_DEVICE_QUEUE_H_
