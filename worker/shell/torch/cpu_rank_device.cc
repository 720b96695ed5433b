#include "worker/shell/torch/cpu_rank_device.h"

#include <ATen/ops/empty.h>

#include <cstdlib>
#include <cstring>

#include "worker/shell/compute/host_math.h"
#include "worker/shell/torch/memory_scope.h"

namespace weft {
namespace {

class CpuScope final : public RankDevice::Scope {
 public:
  CpuScope(SegmentAllocator* allocator, MemoryClass memory_class, Tallied tallied)
      : scope_(allocator, memory_class, tallied) {}

 private:
  const MemoryScope scope_;
};

BytesByClass WithHost(BytesByClass bytes, const BytesByClass& host) {
  constexpr int kHost = static_cast<int>(MemoryClass::kHost);
  bytes[kHost] = host[kHost];
  return bytes;
}

}  // namespace

CpuRankDevice::CpuRankDevice(MemorySource& memory)
    : memory_(SegmentAllocator::Create(memory)), host_(SegmentAllocator::Create(host_memory_)) {}

const FlatMath& CpuRankDevice::math() const { return HostMath(); }

absl::StatusOr<Tensor> CpuRankDevice::NewFlat(int64_t elements, MemoryClass memory_class, DataType type) {
  return weft::NewFlat(*memory_, elements, memory_class, type);
}

std::unique_ptr<RankDevice::Scope> CpuRankDevice::Charge(MemoryClass memory_class, Tallied tallied) {
  return std::make_unique<CpuScope>(memory_.get(), memory_class, tallied);
}

void CpuRankDevice::BeginTally() { memory_->BeginTally(); }
void CpuRankDevice::ChargeTally(MemoryClass memory_class) { memory_->ChargeTally(memory_class); }
int64_t CpuRankDevice::tally(MemoryClass memory_class) const { return memory_->tally(memory_class); }

BytesByClass CpuRankDevice::live_bytes() const {
  return WithHost(memory_->live_bytes(), host_->live_bytes());
}
BytesByClass CpuRankDevice::peak_bytes() const {
  return WithHost(memory_->peak_bytes(), host_->peak_bytes());
}

absl::StatusOr<Tensor> CpuRankDevice::ToHost(const Tensor& tensor, HostUse use) {
  if (use == HostUse::kTransfer) return tensor;
  absl::StatusOr<Tensor> away =
      weft::NewFlat(*host_, static_cast<int64_t>(tensor.bytes), MemoryClass::kHost, DataType::kUInt8);
  if (away.ok()) math().Copy(away->data, tensor.data, tensor.bytes);
  return away;
}

absl::StatusOr<Tensor> CpuRankDevice::ToDevice(const Tensor& tensor, MemoryClass) { return tensor; }

at::Tensor CpuRankDevice::NewHostTensor(at::IntArrayRef sizes, c10::ScalarType type) {
  return at::empty(sizes, type);
}

absl::Status CpuRankDevice::Load(void* to, const void* host, size_t bytes) {
  math().Copy(to, host, bytes);
  return absl::OkStatus();
}

absl::Status CpuRankDevice::ReadBack(void* host, const void* from, size_t bytes) {
  math().Copy(host, from, bytes);
  return absl::OkStatus();
}

// On the CPU, results are there when a job returns, and its calls return its figures; so there is nothing to
// report.
void CpuRankDevice::ReportLoss(const at::Tensor&) { std::abort(); }
void CpuRankDevice::ReportSquares(const Tensor&) { std::abort(); }

}  // namespace weft
