// Tests where a GPU's memory comes from when others have it, over a GPU of the tests.
#include <gtest/gtest.h>

#include <memory>

#include "tests/gpu/fake_gpu.h"
#include "tests/gpu/the_gpu.h"
#include "worker/shell/compute/device_backend.h"
#include "worker/shell/cuda/pinned_memory.h"
#include "worker/shell/memory/memory_source.h"
#include "worker/shell/torch/rank_device.h"

namespace weft::memory_test {
namespace {

using testing::FakeGpu;

TEST(CudaDeviceSegments, MemoryThatLibTorchKeepsUnused_IsGivenBackForThem) {
  PlainMemory host;
  auto device = TheGpu().CreateRankDevice(0, host);
  ASSERT_TRUE(device.ok()) << device.status();
  constexpr size_t kBytes = size_t{32} << 20;
  const auto flat = [&] {
    return (*device)->NewFlat(kBytes / sizeof(float), MemoryClass::kBuffers, DataType::kFloat32).status();
  };
  ASSERT_TRUE(flat().ok());  // and freed
  FakeGpu::SetMemory(kBytes + (kBytes >> 1));
  const absl::StatusOr<void*> segment = TheGpu().memory().Allocate(kBytes);
  ASSERT_TRUE(segment.ok()) << segment.status();
  const absl::StatusOr<void*> none = TheGpu().memory().Allocate(kBytes);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted) << none.status();
  TheGpu().memory().Free(*segment, kBytes);
  EXPECT_TRUE(flat().ok());
  FakeGpu::SetMemory(size_t{1} << 30);
}

// Locks memory as UCX may do with memory that it registers.
class LockedMemory final : public MemorySource {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    absl::StatusOr<void*> segment = plain_.Allocate(bytes);
    if (!segment.ok()) return segment;
    EXPECT_EQ(cudaHostRegister(*segment, bytes, cudaHostRegisterPortable), cudaSuccess);
    return segment;
  }
  void Free(void* segment, size_t bytes) override {
    EXPECT_EQ(cudaHostUnregister(segment), cudaSuccess) << "somebody else has unlocked it";
    plain_.Free(segment, bytes);
  }

 private:
  PlainMemory plain_;
};

TEST(CudaRegisteredMemory, SegmentThatIsLockedAlready_IsTakenAndLeftLocked) {
  LockedMemory locked;
  RegisteredMemory registered(0, locked);
  constexpr size_t kBytes = 8192;
  const absl::StatusOr<void*> segment = registered.Allocate(kBytes);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  registered.Free(*segment, kBytes);
}

TEST(CudaRegisteredMemory, SegmentOfItsOwnLocking_IsUnlocked) {
  PlainMemory plain;
  RegisteredMemory registered(0, plain);
  constexpr size_t kBytes = 8192;
  const absl::StatusOr<void*> segment = registered.Allocate(kBytes);
  ASSERT_TRUE(segment.ok()) << segment.status();
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, *segment), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  registered.Free(*segment, kBytes);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, *segment), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

}  // namespace
}  // namespace weft::memory_test
