// Makes the CPU the device of a rank: segments of a MemorySource, LibTorch's CPU allocations through
// MemoryScope, work that is done when a call returns.
//
// Activations that wait in "host memory" lie in an arena of their own, so that the memory that peers map
// holds only tensors at work. Private to the adapter of LibTorch. Threads and failure: as RankDevice.
#ifndef WEFT_WORKER_SHELL_TORCH_CPU_RANK_DEVICE_H_
#define WEFT_WORKER_SHELL_TORCH_CPU_RANK_DEVICE_H_

#include <memory>

#include "worker/shell/memory/memory_source.h"
#include "worker/shell/torch/rank_device.h"

namespace weft {

class CpuRankDevice final : public RankDevice {
 public:
  // `memory` outlives all tensors.
  explicit CpuRankDevice(MemorySource& memory);

  c10::Device torch_device() const override { return c10::Device(c10::DeviceType::CPU); }
  const FlatMath& math() const override;
  absl::StatusOr<Tensor> NewFlat(int64_t elements, MemoryClass memory_class, DataType type) override;
  Tensor Await(Tensor tensor) override { return tensor; }
  std::unique_ptr<Scope> Charge(MemoryClass memory_class, Tallied tallied) override;
  void BeginTally() override;
  int64_t tally(MemoryClass memory_class) const override;
  MemoryClass forward_class() const override { return MemoryClass::kBuffers; }
  void ChargeTally(MemoryClass memory_class) override;
  BytesByClass live_bytes() const override;
  BytesByClass peak_bytes() const override;
  int64_t most_bytes() const override { return memory_->most_bytes(); }
  std::optional<JobBytes> job_bytes() const override { return memory_->job_bytes(); }
  absl::StatusOr<Tensor> ToHost(const Tensor& tensor, HostUse use) override;
  absl::StatusOr<Tensor> ToDevice(const Tensor& tensor, MemoryClass memory_class) override;
  at::Tensor NewHostTensor(at::IntArrayRef sizes, c10::ScalarType type) override;
  absl::Status Load(void* to, const void* host, size_t bytes) override;
  absl::Status ReadBack(void* host, const void* from, size_t bytes) override;
  void BeginJob(const Job&, bool overlapped) override {
    if (!overlapped) memory_->BeginJob();
  }
  std::shared_ptr<LaunchedJob> EndJob() override { return nullptr; }
  void ReportLoss(const at::Tensor&) override;
  void ReportSquares(const Tensor&) override;

 private:
  const std::shared_ptr<SegmentAllocator> memory_;
  // Memory of the host arena, whose blocks live in passes only, so they end before their source.
  PlainMemory host_memory_;
  const std::shared_ptr<SegmentAllocator> host_;
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_TORCH_CPU_RANK_DEVICE_H_
