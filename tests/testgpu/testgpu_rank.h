// Implements RankDevice on the test device: memory that the host cannot touch, copies and ends of jobs that
// are late.
//
// device_memory.h, device_queue.h and thread_state.h say what each of these models and checks.
#ifndef WEFT_TESTS_TESTGPU_TESTGPU_RANK_H_
#define WEFT_TESTS_TESTGPU_TESTGPU_RANK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/testgpu/device_queue.h"
#include "tests/testgpu/mirror_math.h"
#include "tests/testgpu/thread_state.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/torch/rank_device.h"

namespace weft::testgpu {

// The faults on purpose; 0 for none.
struct Injection {
  int64_t failing_job = 0;  // number of the failing job in the process
  std::string deadly_job;   // words of the job that ends its process (schedules/job.h)
  // Files with the words of a job to which something happens once, in one process: the file goes with it. The
  // loss of a forward is nan; the device hangs in the job; the device is lost for good.
  std::string nan_file, hang_file, lost_file;
  std::atomic<bool> lost{false};
  std::atomic<int64_t> jobs{0};
};

class TestRank final : public RankDevice {
 public:
  struct Options {
    Rank rank = 0;
    int device = 0;
    int max_delay_us = 0;
    Injection* injection = nullptr;  // outlives the rank
  };
  // `host`: memory for copies to other processes.
  TestRank(const Options& options, const FlatMath& host_math, MemorySource& host);
  ~TestRank() override;

  c10::Device torch_device() const override;
  const FlatMath& math() const override { return math_; }

  absl::StatusOr<Tensor> NewFlat(int64_t elements, MemoryClass memory_class, DataType type) override;
  std::unique_ptr<Scope> Charge(MemoryClass memory_class, Tallied tallied) override;
  void BeginTally() override;
  int64_t tally(MemoryClass memory_class) const override;
  BytesByClass live_bytes() const override;
  BytesByClass peak_bytes() const override;
  int64_t most_bytes() const override;

  absl::StatusOr<Tensor> ToHost(const Tensor& tensor, HostUse use) override;
  absl::StatusOr<Tensor> ToDevice(const Tensor& tensor, MemoryClass memory_class) override;
  at::Tensor NewHostTensor(at::IntArrayRef sizes, c10::ScalarType type) override;
  Tensor Await(Tensor tensor) override;
  absl::Status Load(void* to, const void* host, size_t bytes) override;
  absl::Status ReadBack(void* host, const void* from, size_t bytes) override;

  void BeginJob(const Job& job, bool overlapped) override;
  std::shared_ptr<LaunchedJob> EndJob() override;
  void ReportLoss(const at::Tensor& loss) override;
  void ReportSquares(const Tensor& limbs) override;

 private:
  absl::Status EndOf(JobUnderWay& job);
  // Returns true for the job whose loss is nan on purpose, once.
  bool HappensTo(const Job& job, const std::string& path, std::string* more = nullptr) const;
  absl::Status AwaitWriter(const Tensor& tensor) const;
  absl::Status CheckReadable(const Tensor& tensor, const char* what) const;

  const Options options_;
  const MirrorMath math_;
  const std::shared_ptr<SegmentAllocator> transfer_, offload_;
  int64_t last_end_ns_ = 0;  // end of the last job; the queue's thread uses it
  DeviceQueue queue_;
  const std::shared_ptr<MemoryOwner> owner_;
};

}  // namespace weft::testgpu

#endif  // WEFT_TESTS_TESTGPU_TESTGPU_RANK_H_
