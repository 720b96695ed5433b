// Holds the state of the running thread on the test device: its job, and the owner of its allocations.
//
// The device checks here for faults that a real one would punish with wrong numbers, or not at all on a good
// day: work that uses memory which a copy still fills, memory of another rank that its job does not await,
// memory that was freed, and anything in a job that waits for the device.
#ifndef WEFT_TESTS_TESTGPU_THREAD_STATE_H_
#define WEFT_TESTS_TESTGPU_THREAD_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "schedules/job.h"
#include "tests/testgpu/device_memory.h"
#include "tests/testgpu/device_queue.h"
#include "worker/shell/compute/compute.h"
#include "worker/shell/memory/tensor.h"

namespace weft::testgpu {

enum class Arithmetic : uint8_t;  // other_arithmetic.h

class TestLaunchedJob final : public LaunchedJob {
 public:
  absl::StatusOr<bool> Reached() override { return event_->Reached(); }
  Figures figures() override { return figures_; }

  const std::shared_ptr<DeviceEvent>& event() const { return event_; }
  // Sets the figures; called by the queue's thread, before the event is reached.
  void SetFigures(const Figures& figures) { figures_ = figures; }

 private:
  const std::shared_ptr<DeviceEvent> event_ = std::make_shared<DeviceEvent>();
  Figures figures_;
};

// A job from its start to its end on the host; the queue has it then.
struct JobUnderWay {
  Job job;
  std::shared_ptr<MemoryOwner> rank;
  int stream = 0;
  int64_t begin_ns = 0;
  std::shared_ptr<TestLaunchedJob> launched = std::make_shared<TestLaunchedJob>();
  absl::Status fault;  // first fault in it
  std::vector<Tensor> kept;
  std::shared_ptr<void> loss_owner;
  const float* loss = nullptr;
  std::vector<Tensor> squares;
};

// The owner and class of the thread's allocations.
struct AllocationScope {
  std::shared_ptr<MemoryOwner> rank;
  MemoryClass memory_class = MemoryClass::kBuffers;
  Tallied tallied = Tallied::kNo;
};

struct ThreadState {
  bool prepared = false;
  int device = 0;
  int stream = 0;
  Arithmetic arithmetic{};  // arithmetic of its device; the CPU's
  std::unique_ptr<JobUnderWay> job;
  const AllocationScope* scope = nullptr;
};
ThreadState& CurrentThread();

// Allocates memory as the thread's scope and job say; nobody's outside of scopes.
absl::StatusOr<void*> AllocateHere(size_t bytes);

// Checks an access before work on this thread reads or writes device memory; waits for copies that the work
// comes behind anyway. A mistake is the job's failure too. `what` names the work.
absl::Status Touch(absl::string_view what, const void* data, size_t bytes, bool writes);

// Notes a failure that ends the job under way, and prints it at once.
absl::Status Fault(const absl::Status& status);

// Checks a wait for the device: in a job it is a mistake.
absl::Status CheckMayWait(absl::string_view what);

}  // namespace weft::testgpu

#endif  // WEFT_TESTS_TESTGPU_THREAD_STATE_H_
