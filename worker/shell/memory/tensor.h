// Describes a tensor as the worker passes it between compute, ranks and transport: a shape, a pointer, and
// the owner that keeps it alive.
//
// It knows nothing of LibTorch or UCX, so that each of those stays in its own adapter. The bytes are
// contiguous, row-major, and lie in the memory of one device; the host may touch them only if that is its
// own. They are there once `ready` has been reached. Copying a Tensor shares the bytes. The bytes are
// read-only once the tensor has left the job that made it. Thread-safe to copy and destroy; `owner` may run
// its deleter on whichever thread drops the last copy.
#ifndef WEFT_WORKER_SHELL_MEMORY_TENSOR_H_
#define WEFT_WORKER_SHELL_MEMORY_TENSOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace weft {

class Fence;

enum class DataType : uint8_t { kFloat32, kBFloat16, kInt64, kUInt8 };
// Returns the bytes of one element.
constexpr size_t ElementBytes(DataType type) {
  constexpr size_t kBytes[] = {4, 2, 8, 1};
  return kBytes[static_cast<size_t>(type)];
}

// The memory in which bytes lie.
enum class MemoryPlace : uint8_t { kHost, kDevice };

struct TensorShape {
  static constexpr int kMaxDims = 6;
  DataType type = DataType::kFloat32;
  uint8_t dims = 0;
  std::array<int64_t, kMaxDims> size{};

  friend bool operator==(const TensorShape&, const TensorShape&) = default;
};

struct Tensor {
  TensorShape shape;
  void* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<void> owner;
  int64_t made_ns = 0;  // end of the job that made it, on this machine's monotonic clock; 0: unknown
  MemoryPlace place = MemoryPlace::kHost;
  std::shared_ptr<Fence> ready;  // null: the bytes are there

  bool empty() const { return owner == nullptr && bytes == 0; }
};

}  // namespace weft

#endif  // WEFT_WORKER_SHELL_MEMORY_TENSOR_H_
